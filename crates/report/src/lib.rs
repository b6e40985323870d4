//! Tables, plots and pages: how results are shown to people.
//!
//! Everything here is plain data with a few ways to be told. A [`Table`] becomes text, CSV, HTML
//! or JSON; a [`Chart`] becomes braille in a terminal or SVG; a [`Surface`] a heat map or a picture
//! in three dimensions; a [`Page`] holds them all, with the verdict at its head and every assumption
//! at its foot, and becomes one HTML file or a few screens of text. All of them are `serde` values,
//! so what a person was shown can be kept and shown again.
//!
//! The room is pure: it returns strings, and whoever called it writes them. It reads no environment
//! (the [`Terminal`] is a parameter) and no clock. It never panics on data: a point that is NaN, a
//! series without points, a logarithm of nothing are left out and counted, and where nothing is
//! left it says *no data*.
//!
//! Numbers are in base units (bytes, bytes per second, seconds, fractions of one) until the moment
//! they are shown; the [`Unit`] beside them says what they count.
//!
//! ```
//! use straightway_core::{Bytes, Rate};
//! use straightway_report::{Axis, Chart, Column, Page, Series, Table, Terminal, Tone, Unit};
//!
//! let measured = [(4096.0, 0.2e9), (65536.0, 2.1e9), (1048576.0, 6.6e9), (4194304.0, 6.9e9)];
//! let chart = Chart::new(
//!     "Throughput by block size",
//!     Axis::log2("block", Unit::Bytes),
//!     Axis::linear("throughput", Unit::Rate),
//! )
//! .with(Series::new("depth 8", measured).mark(1048576.0, 6.6e9, "knee"));
//!
//! let mut table = Table::new("", [Column::new("block", Unit::Bytes), Column::new("throughput", Unit::Rate)]);
//! table.push([Bytes::mib(1).into(), Rate(6.6e9).into()]);
//! assert_eq!(table.to_csv(), "block_bytes,throughput_bytes_per_s\r\n1048576,6600000000\r\n");
//!
//! let page = Page::new("One drive")
//!     .verdict(Tone::Good, "1 MiB blocks at depth 8 reach 96 % of what the drive can do.")
//!     .figure("at the knee", Rate(6.6e9), "of 6.9 GB/s")
//!     .section("Throughput", [chart.into(), table.into()]);
//! assert!(page.to_html().contains("<svg"));
//! assert!(page.to_text(Terminal::plain(80)).contains("6.6 GB/s"));
//! ```

mod chart;
mod colour;
mod markup;
mod page;
mod picture;
mod scale;
mod surface;
mod table;
mod terminal;
mod unit;

pub use chart::{Axis, Chart, Limit, Mark, Series, Stroke};
pub use page::{Assumption, Block, Confidence, Fact, Figure, Page, Section, Tone, Verdict};
pub use scale::{Range, Scale};
pub use surface::{Sheet, Surface};
pub use table::{Align, Cell, Column, Table};
pub use terminal::Terminal;
pub use unit::Unit;

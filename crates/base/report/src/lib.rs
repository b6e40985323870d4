//! Tables, plots and pages: how results are shown to people.
//!
//! All types are plain data with several renderers. A [`Table`] renders as text, CSV, HTML or JSON; a [`Chart`] as
//! braille in a terminal or as SVG; a [`Surface`] as a heat map or a picture in three dimensions. A [`Page`] combines
//! them, with the verdict at the top and every assumption at the bottom, and renders as one HTML file or as text. All
//! of them implement `serde`, so a page can be stored and rendered again.
//!
//! The crate is pure: it returns strings, and the caller writes them. It reads no environment (the [`Terminal`] is a
//! parameter) and no clock. It never panics on data: a NaN point, a series without points or the logarithm of zero is
//! left out and counted. If nothing is left, it prints *no data*.
//!
//! Numbers are in base units (bytes, bytes per second, seconds, fractions of one) until they are rendered. Each has a
//! [`Unit`].
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
pub use page::{Block, Fact, Page, PageAssumption, PageConfidence, PageFigure, Section, Tone, Verdict};
pub use scale::{Scale, ValueRange};
pub use surface::{Sheet, Surface};
pub use table::{Align, Cell, Column, Table};
pub use terminal::Terminal;
pub use unit::Unit;

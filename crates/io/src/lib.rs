//! Engines, lanes and the executor: what runs a plan.
//!
//! A [`Job`] is a planned transfer with its files and its region. The [`Executor`] gives it to
//! lanes: drive lanes keep an io_uring full of O_DIRECT, page-cache lanes copy what is resident,
//! each on its own thread. What comes back is a receipt.

pub mod ask;
mod board;
pub mod books;
mod crew;
pub mod draft;
pub mod engine;
pub mod executor;
mod flight;
pub mod gauge;
pub mod gds;
pub mod handle;
pub mod inspect;
mod job;
mod lane;
pub mod learning;
pub mod limit;
pub mod objects;
mod pace;
mod pass;
pub mod peer;
mod placement;
pub mod progress;
pub mod report_file;
pub mod request;
pub mod scattered;
pub mod settings;
pub mod slab;
mod stage;
pub mod store;
pub mod tally;
mod tenant;
pub mod ticket;
pub mod track;
pub mod wrapper;

pub use ask::{Ask, Checked};
pub use books::Books;
pub use draft::FileDraft;
pub use executor::Executor;
pub use gds::{Gds, GdsUse};
pub use inspect::{Image, Inspect};
pub use learning::Learning;
pub use objects::Objects;
pub use peer::Peers;
pub use progress::Progress;
pub use report_file::ReportFile;
pub use scattered::{Part, Scattered};
pub use settings::Settings;
pub use store::{Handle, Store};
pub use straightway_sys::{File, Region, nonce::nonce};
pub use tally::Tally;
pub use ticket::Ticket;

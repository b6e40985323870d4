//! Stores, engines, lanes and the executor, which runs plans.
//!
//! A `Job` is a planned transfer with its objects and its regions. The [`Executor`] gives it to lanes, each on its own
//! thread. Drive lanes keep an io_uring full of O_DIRECT I/Os; page-cache lanes copy resident pages. The result is a
//! receipt.

pub mod ask;
mod board;
pub mod books;
pub mod completion;
mod crew;
mod direct_path;
pub mod draft;
pub mod engine;
pub mod executor;
mod finish;
mod flight;
pub mod gauge;
pub mod gds;
pub mod handle;
pub mod inspect;
mod job;
mod lane;
pub mod learning;
pub mod objects;
mod opening;
pub mod parallel;
pub mod parts;
pub mod peer;
mod placement;
pub mod progress;
mod rate_limiter;
pub mod report_file;
pub mod request;
pub mod resident;
pub mod scattered;
pub mod settings;
pub mod slab;
mod stage;
mod state_file;
pub mod store;
mod tallies;
pub mod tally;
mod tenant;
pub mod threads;
pub mod ticket;
pub mod track;
pub mod wrapper;

pub use ask::{Ask, Checked};
pub use books::Books;
pub use completion::Completion;
pub use draft::FileDraft;
pub use executor::Executor;
pub use gds::{Gds, GdsUse};
pub use inspect::{Image, Inspect};
pub use learning::Learning;
pub use objects::Objects;
pub use parts::ExecutorParts;
pub use peer::Peers;
pub use progress::Progress;
pub use report_file::ReportFile;
pub use scattered::{Scattered, ScatteredPart};
pub use settings::Settings;
pub use state_file::StateFile;
pub use store::{Handle, Store, StoreExt};
pub use straightway_sys::{File, Region, nonce::nonce};
pub use tally::Tally;
pub use threads::{ThreadLimits, Threads};
pub use ticket::Ticket;

//! All stores behind one registry, their options, and the session of a program.
//!
//! | type | what it is |
//! |---|---|
//! | [`StoreOptions`] | what the user sets, with a struct for each kind of store |
//! | [`registry`] | the stores of all schemes; each kind is configured when its scheme is first used |
//! | [`Session`] | what a program shares between its transfers: registries, facts about drives, executors |
//! | [`doctor`] | the checks of an object or a bucket by URI |
//! | [`log`] | the listener for log records |
//!
//! ```no_run
//! use straightway_stores::{Session, StoreOptions};
//!
//! let session = Session::new();
//! let stores = session.stores(&StoreOptions::default());
//! let model = stores.locate("s3://models/llama")?;
//! let executor = session.executor([&model])?;
//! # Ok::<(), straightway_core::Error>(())
//! ```

pub mod doctor;
mod drives;
pub mod log;
mod options;
mod registry;
mod session;

pub use options::{
    CacheOptions, NvmeOptions, S3Options, StoreOptions, WebOptions, parse_digests, parse_keep_alive, parse_nqn,
};
pub use registry::{environment, registry};
pub use session::{DriveFacts, Session, TransferSpec};
pub use straightway_s3::Environment;

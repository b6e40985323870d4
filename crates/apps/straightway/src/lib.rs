//! Moves bytes between storage and memory by the most direct route that the machine supports, and reports
//! the route of every byte.
//!
//! This is the crate to depend on. It re-exports the other crates. Read it first.
//!
//! # A file into memory
//!
//! Open the file, create a region, list the moves, wait for the job, and read the receipt:
//!
//! ```
//! use std::sync::Arc;
//! use straightway::{Choice, Executor, Extent, File, Move, Region, Settings};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("weights.bin");
//! # std::fs::write(&path, vec![7; 100_000])?;
//! let executor = Executor::new(Settings::default())?;
//! let file = Arc::new(File::open(&path)?);
//! let mut region = Arc::new(Region::host(file.bytes())?);
//! let all = Move { object: 0, extent: Extent::new(0, file.bytes()), at: 0 };
//! let ticket = executor.read(vec![file], vec![all], &region, Choice::Auto)?;
//!
//! let receipt = ticket.wait()?;
//! println!("{receipt}");
//! assert_eq!(receipt.bytes, 100_000);
//!
//! // The transfer is done and has released the region, so its bytes can be read.
//! let bytes = Arc::get_mut(&mut region).expect("no transfer is running").as_slice();
//! assert!(bytes.iter().all(|b| *b == 7));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Extents need not be aligned: the transfer planner moves aligned interiors directly, stages the edges inside
//! aligned supersets, and coalesces neighbours.
//!
//! # An atomic file
//!
//! ```
//! use std::sync::Arc;
//! use straightway::{Choice, FileDraft, Executor, Extent, Move, Region, Settings};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("step-1.bin");
//! let executor = Executor::new(Settings::default())?;
//! let mut region = Region::host(5000)?;
//! region.as_mut_slice().fill(1);
//! let region = Arc::new(region);
//! let draft = FileDraft::new(&path, 5000)?;
//! let all = Move { object: 0, extent: Extent::new(0, 5000), at: 0 };
//! let files = vec![Arc::clone(draft.file())];
//! executor.write(&region, files, vec![all], Choice::Auto)?.wait()?;
//! draft.commit()?;
//! assert_eq!(std::fs::read(&path)?, vec![1; 5000]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The weights of a model
//!
//! A safetensors file, a folder or an index becomes a `Model`. One transfer loads the selected tensors into
//! one region. See `docs/weights.md`.
//!
//! A `Session` has the stores of all schemes (paths, `s3:`, `https:`, `nvme-tcp:`), and an executor with the settings
//! that suit the drive or the network. A program has one session.
//!
//! ```
//! use std::{collections::BTreeMap, sync::Arc};
//! use straightway::weights::{Dtype, FileSaver, Filters, Held, Holding, Loader, Model, Selection, Shape};
//! use straightway::{Place, Session, StoreOptions};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.safetensors");
//! let session = Session::new();
//! let stores = session.stores(&StoreOptions::default());
//! let at = stores.locate(&path)?; // or "s3://bucket/model.safetensors"
//! let executor = Arc::new(session.executor([&at])?);
//! let held = |name, bytes| Held {
//!     name,
//!     dtype: Dtype::U8,
//!     shape: Shape::from(&[2, 3][..]),
//!     bytes: Holding::Host(bytes),
//! };
//! let tensors = [held("layers.0.weight", &[1; 6]), held("layers.1.weight", &[2; 6])];
//! FileSaver::new(Arc::clone(&executor)).save_held(at.clone(), &tensors, &BTreeMap::new())?;
//!
//! // The second row of one of the two tensors: three bytes.
//! let model = Model::open(at)?;
//! let filters: Filters = ["layers.1.*".parse()?].into_iter().collect();
//! let selection = Selection::new(&model, &filters, &["0:1..2".parse()?])?;
//! let mut loaded = Loader::new(executor).load(&model, &selection, Place::Host)?;
//! assert_eq!(loaded.receipt.bytes, 3);
//!
//! let tensor = &loaded.tensors[0];
//! assert_eq!((&*tensor.name, tensor.shape.to_string()), ("layers.1.weight", "[1, 3]".into()));
//! let region = Arc::get_mut(&mut loaded.region).expect("no transfer is running");
//! assert_eq!(region.as_slice()[usize::try_from(tensor.at)?..][..3], [2, 2, 2]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A checkpoint
//!
//! The state is copied, the call returns, and lanes write while the training job continues. A restore checks
//! the data before it delivers it. See `docs/checkpoint.md`.
//!
//! ```
//! use std::sync::Arc;
//! use straightway::checkpoint::{CheckpointSaver, Rank, Restorer, SaveSource, SaverOptions, Steps, Wanted, fresh_run};
//! use straightway::weights::{Dtype, Rectangle, Shape};
//! use straightway::{Executor, Region, Settings};
//!
//! # let folder = tempfile::tempdir()?;
//! let store = Steps::create(folder.path())?;
//! let executor = Arc::new(Executor::new(Settings::default())?);
//! let alone = Rank { rank: 0, world: 1 };
//! let mut saver = CheckpointSaver::new(store.clone(), alone, &fresh_run(), executor, SaverOptions::default())?;
//!
//! let mut weight = vec![1; 6];
//! let shape = Shape::from(&[2, 3][..]);
//! saver.save(100, &[SaveSource::whole("weight", Dtype::U8, shape.clone(), &weight)], "{\"loss\": 2.5}")?;
//! weight.fill(9); // the job continues; the checkpoint has the earlier values
//! saver.wait()?;
//!
//! // Restores the second row into a region.
//! let mut region = Arc::new(Region::host(3)?);
//! let rectangle = Rectangle::whole(&shape).cut("weight", 0, 1, 1)?;
//! let wanted = Wanted { name: "weight".into(), rectangle, region: Arc::clone(&region), at: 0 };
//! Restorer::new(Settings::default())?.restore(&store.open_latest()?, &[wanted])?;
//! let bytes = Arc::get_mut(&mut region).expect("no transfer is running").as_slice();
//! assert_eq!(bytes, [1, 1, 1]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The crates
//!
//! - [`core`]: the basic types and the transfer planner; pure.
//! - [`io`]: engines, wrappers, lanes, the executor.
//! - [`copy`]: copies of files and folders; [`weights`]: the weights of models; [`checkpoint`]: checkpoints; [`kv`]: a
//!   KV cache on disk.
//! - [`stores`]: all stores by URI, their options, and the session, which shares executors between transfers.
//! - [`probe`]: the capabilities of this machine, and what is missing.
//!
//! The feature `planner` adds what plans and simulates clusters, pure and seeded: `planner`, which predicts what a
//! cluster would do, the simulators `pcie` and `fabric`, and `scenario`, which reads, checks and sweeps their inputs.
//! `compare` converts this machine's profile to measurements, with which the planner's predictions are compared.

#[cfg(feature = "planner")]
pub mod compare;

pub use straightway_checkpoint as checkpoint;
pub use straightway_copy as copy;
pub use straightway_core as core;
#[cfg(feature = "planner")]
pub use straightway_fabric as fabric;
pub use straightway_io as io;
pub use straightway_kv as kv;
#[cfg(feature = "planner")]
pub use straightway_pcie as pcie;
#[cfg(feature = "planner")]
pub use straightway_planner as planner;
pub use straightway_probe as probe;
#[cfg(feature = "planner")]
pub use straightway_scenario as scenario;
pub use straightway_stores as stores;
pub use straightway_weights as weights;

pub use straightway_core::{
    Choice, Error, ErrorKind, Extent, Leg, Move, Object, Place, Plan, Policy, Reason, Receipt, Result, Route, Transfer,
};
pub use straightway_io::{Ask, Executor, File, FileDraft, Progress, Region, Settings, Ticket};
pub use straightway_stores::{Session, StoreOptions};

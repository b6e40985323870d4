//! Moves bytes between storage and memory by the straightest way the machine allows, and says
//! which way every byte went.
//!
//! This is the crate to depend on; it re-exports what the rooms behind it make. Read it first.
//!
//! # A file into memory
//!
//! Open the file, make a region, say what goes where, wait for the job, read the receipt:
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
//! // The transfer is over and has let go of the region: its bytes may be looked at.
//! let bytes = Arc::get_mut(&mut region).expect("no transfer is running").as_slice();
//! assert!(bytes.iter().all(|b| *b == 7));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Extents may be as ragged as they come: the planner sends aligned interiors straight, stages the
//! edges inside aligned supersets, and coalesces neighbours.
//!
//! # A file that appears whole or not at all
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
//! A safetensors file, a folder or an index becomes a `Model`; what is selected of it goes into one
//! region by one transfer. See `docs/weights.md`.
//!
//! ```
//! use std::{collections::BTreeMap, sync::Arc};
//! use straightway::weights::{Dtype, Filters, Held, Holding, Loader, Model, Saver, Selection, Shape};
//! use straightway::{Executor, Place, Settings};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.safetensors");
//! let executor = Arc::new(Executor::new(Settings::default())?);
//! let held = |name, bytes| Held {
//!     name,
//!     dtype: Dtype::U8,
//!     shape: Shape::from(&[2, 3][..]),
//!     bytes: Holding::Host(bytes),
//! };
//! let tensors = [held("layers.0.weight", &[1; 6]), held("layers.1.weight", &[2; 6])];
//! Saver::new(Arc::clone(&executor)).save_held(&path, &tensors, &BTreeMap::new())?;
//!
//! // The second row of one of the two: only its three bytes are wanted.
//! let model = Model::open(&path)?;
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
//! The state is copied, the call returns, and lanes write while the job goes on. What is restored is
//! checked before it arrives. See `docs/checkpoint.md`.
//!
//! ```
//! use std::sync::Arc;
//! use straightway::checkpoint::{Options, Rank, Restorer, Saver, Source, Steps, Wanted, fresh_run};
//! use straightway::weights::{Dtype, Rectangle, Shape};
//! use straightway::{Executor, Region, Settings};
//!
//! # let folder = tempfile::tempdir()?;
//! let store = Steps::create(folder.path())?;
//! let executor = Arc::new(Executor::new(Settings::default())?);
//! let alone = Rank { rank: 0, world: 1 };
//! let mut saver = Saver::new(store.clone(), alone, &fresh_run(), executor, Options::default())?;
//!
//! let mut weight = vec![1; 6];
//! let shape = Shape::from(&[2, 3][..]);
//! saver.save(100, &[Source::whole("weight", Dtype::U8, shape.clone(), &weight)], "{\"loss\": 2.5}")?;
//! weight.fill(9); // the job goes on; what was saved is what was there
//! saver.wait()?;
//!
//! // The second row, into memory of one's own.
//! let mut region = Arc::new(Region::host(3)?);
//! let rectangle = Rectangle::whole(&shape).cut("weight", 0, 1, 1)?;
//! let wanted = Wanted { name: "weight".into(), rectangle, region: Arc::clone(&region), at: 0 };
//! Restorer::new(Settings::default())?.restore(&store.open_latest()?, &[wanted])?;
//! let bytes = Arc::get_mut(&mut region).expect("nothing is under way").as_slice();
//! assert_eq!(bytes, [1, 1, 1]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The rooms
//!
//! - [`core`]: the vocabulary and the planner; pure.
//! - [`io`]: engines, wrappers, lanes, the executor.
//! - [`pipeline`]: copying files and folders, the weights of models, checkpoints.
//! - [`model`]: the planner, which says what a cluster would do; [`pcie`] and [`fabric`]: the simulators;
//!   [`scenario`]: how their questions are read, checked and swept. Pure and seeded.
//! - [`probe`]: what this machine can do, and why not more.

pub use straightway_core as core;
pub use straightway_fabric as fabric;
pub use straightway_io as io;
pub use straightway_model as model;
pub use straightway_pcie as pcie;
pub use straightway_pipeline as pipeline;
pub use straightway_pipeline::{checkpoint, weights};
pub use straightway_probe as probe;
pub use straightway_scenario as scenario;

pub use straightway_core::{
    Choice, Error, Extent, Kind, Leg, Move, Object, Place, Plan, Policy, Reason, Receipt, Result,
    Route, Transfer,
};
pub use straightway_io::{Ask, Executor, File, FileDraft, Progress, Region, Settings, Ticket};

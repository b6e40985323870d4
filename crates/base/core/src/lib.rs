//! The basic types of Straightway and the transfer planner ([`Plan`]).
//!
//! No unsafe code, no I/O, no clock, no threads. So property tests can run the transfer planner. The cluster planner (crate `planner`) and the simulators use the quantities, and the model of
//! a shared store schedules its tenants by the same [`share`] as the lanes; they have no transfers and no plans.
//!
//! Data flows one way. An [`Object`] and its [`Extent`]s become a [`Transfer`]. The transfer becomes
//! a [`Plan`] of chunks, each with a [`Route`] and a [`Reason`]. Lanes run the plan and return a
//! [`Receipt`].
//!
//! [`random`] has the seeded generator of simulators, injected faults and tests. [`lock`] has the locks of all crates,
//! [`lru`] the bounded map of caches, and [`nearest`] the suggestions for mistyped names. [`npy`] reads and writes the
//! headers of NumPy's files.

pub mod compare;
pub mod date;
pub mod error;
pub mod extent;
pub mod hint;
pub mod lock;
pub mod lru;
pub mod nearest;
pub mod npy;
pub mod object;
pub mod pci;
pub mod place;
pub mod plan;
pub mod policy;
pub mod quantity;
pub mod random;
pub mod receipt;
pub mod route;
pub mod share;
pub mod survey;
pub mod text;
pub mod transfer;
pub mod uri;

pub use date::Utc;
pub use error::{Error, ErrorKind, Result};
pub use extent::Extent;
pub use lock::{Lock, SharedLock, Signal};
pub use object::Object;
pub use pci::PciAddress;
pub use place::Place;
pub use plan::{Chunk, Delivery, Piece, Plan, Portion};
pub use policy::Policy;
pub use quantity::{Bytes, Count, Rate, Seconds};
pub use receipt::Receipt;
pub use route::{Choice, Leg, Reason, Route};
pub use share::{Class, Share};
pub use survey::{Alignment, Survey};
pub use transfer::{Direction, Move, Transfer};
pub use uri::{Scheme, Uri};

//! The vocabulary of Straightway and its planner.
//!
//! Everything here is pure: no unsafe code, no I/O, no clock, no threads. That is what lets the
//! real executor and the simulators share one plan, and lets the planner be tested against every
//! ragged request a generator can think of.
//!
//! Data walks one way: an [`Object`] and its [`Extent`]s become a [`Transfer`], the transfer a
//! [`Plan`] of chunks, each with its [`Route`] and [`Reason`]; lanes run the plan, and a
//! [`Receipt`] comes back.

pub mod error;
pub mod extent;
pub mod object;
pub mod pci;
pub mod plan;
pub mod policy;
pub mod quantity;
pub mod receipt;
pub mod route;
pub mod share;
pub mod survey;
pub mod text;
pub mod transfer;
pub mod uri;

pub use error::{Error, Kind, Result};
pub use extent::Extent;
pub use object::Object;
pub use pci::PciAddress;
pub use plan::{Chunk, Delivery, Piece, Plan, Portion};
pub use policy::Policy;
pub use quantity::{Bytes, Rate, Seconds};
pub use receipt::Receipt;
pub use route::{Choice, Leg, Place, Reason, Route};
pub use share::{Class, Share};
pub use survey::{Alignment, Survey};
pub use transfer::{Direction, Move, Transfer};
pub use uri::{Scheme, Uri};

//! The cluster planner: predicts what a cluster would do before it is bought.
//!
//! Each topic is a [`question::Question`]: a plain serde input that checks its own ranges, and an answer that
//! lists the formulas and constants it was computed from. [`topic`] lists the topics, one row each. A
//! [`scenario::Scenario`] is one question in a file. The crate is pure and seeded: it reads no file, no clock and no
//! environment.

pub mod architecture;
pub mod articles;
mod capacity;
pub mod checkpoint;
pub mod client;
pub mod dpu;
pub mod headroom;
pub mod ingest;
pub mod library;
pub mod measured;
pub mod parameter_list;
mod parameters;
pub mod path;
pub mod qos;
pub mod question;
pub mod queue;
pub mod rail;
pub mod reduction;
pub mod redundancy;
pub mod registration;
pub mod s3;
pub mod scenario;
pub mod servers;
pub mod topic;
pub mod transport;
pub mod uncertainty;

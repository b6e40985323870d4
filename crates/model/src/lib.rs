//! The planner: what a cluster will do before it is bought.
//!
//! Each topic is a [`question::Question`]: a plain serde input that knows its ranges, and an answer that
//! says what it rests on. [`topic`] lists them, one row each; a [`scenario::Scenario`] is one of them in
//! a file. Pure and seeded: nothing here reads a file, a clock or the environment.

pub mod architecture;
pub mod articles;
mod capacity;
pub mod checkpoint;
pub mod dpu;
pub mod headroom;
pub mod ingest;
pub mod library;
pub mod measured;
pub mod path;
pub mod qos;
pub mod question;
pub mod queue;
pub mod rail;
pub mod reduction;
pub mod registration;
pub mod s3;
pub mod scenario;
pub mod topic;
pub mod transport;
pub mod uncertainty;

//! Objects in S3 buckets as a store: `s3://BUCKET/KEY` and `s3://BUCKET/KEY?versionId=ID`.
//!
//! | part | what it does |
//! |---|---|
//! | [`Access`] | how buckets are reached: endpoint, region, addressing, credentials |
//! | [`S3`] | a bucket as a [`Store`](straightway_io::Store) |
//!
//! Lanes read through [`straightway_net`]. This crate adds what is S3's own: where a bucket is, `SigV4` with credentials
//! that are renewed, listings, and what a refusal means.
//!
//! An object is opened by its first GET, which tells its length, its `ETag` and its first bytes; where a listing told
//! those, by no request at all. Every range is asked for with `If-Match`, so a read has bytes of one version.
//!
//! No log, error or `Debug` shows a key, a token or a signature.

mod access;
mod bucket;
mod copying;
mod credentials;
pub mod doctor;
mod endpoint;
mod habits;
mod refusal;
mod removing;
mod store;
mod sum;
mod upload;
mod whole_sum;
mod writing;
mod xml;

pub use access::{Access, Addressing, CustomerKey, Environment, Identity, Keys, REGION_DEFAULT};
pub use store::S3;

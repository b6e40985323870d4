//! Objects in S3 buckets as a store: `s3://BUCKET/KEY` and `s3://BUCKET/KEY?versionId=ID`.
//!
//! | type | what it is |
//! |---|---|
//! | [`S3Access`] | the settings to reach buckets: endpoint, region, addressing, credentials |
//! | [`S3`] | a bucket as a [`Store`](straightway_io::Store) |
//!
//! Lanes read and write through [`straightway_net`]. This crate adds what is specific to S3: endpoints, `SigV4` with
//! credentials that are renewed, listings, writes, and the meaning of errors.
//!
//! An object is opened by its first GET, which yields its length, its `ETag` and its first bytes. If a listing has
//! given its `ETag` and a length other than 0, no request is needed. Every range is requested with `If-Match`, so a
//! read has bytes of one version.
//!
//! No log, error or `Debug` shows a key, a token or a signature.

mod access;
mod bucket;
mod copying;
mod credentials;
pub mod doctor;
mod endpoint;
mod key_service;
mod own_uploads;
mod part_sum;
mod refusal;
mod removing;
mod s3;
mod starting;
mod store;
mod sum;
mod upload;
mod whole_sum;
mod write_support;
mod writing;
mod xml;

pub use access::{AccessKeys, Addressing, CredentialSource, CustomerKey, Environment, REGION_DEFAULT, S3Access};
pub use s3::S3;

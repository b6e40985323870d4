//! Buckets of a real S3 server conform to the contract of stores.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use straightway_io::store::{Missing, Store};
use straightway_lab::S3Server;
use straightway_net::Network;
use straightway_s3::{S3, S3Access};

use crate::store::conforms;

/// The bucket of the tests' server.
fn bucket(weed: &S3Server) -> S3 {
    let access = S3Access::with_keys(&weed.url(), S3Server::ACCESS_KEY_ID, S3Server::SECRET_ACCESS_KEY);
    let network = Network::new(straightway_net::NetworkSettings::default());
    S3::new(S3Server::BUCKET, &access, &network).unwrap()
}

#[test]
fn buckets_conform() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    let (bucket, number) = (bucket(weed), AtomicU32::new(0));
    let make = || -> Arc<dyn Store> {
        let prefix = format!("conformance-{}", number.fetch_add(1, Ordering::Relaxed));
        bucket.below(prefix.as_ref(), Missing::Create).unwrap()
    };
    conforms(&make).unwrap();
}

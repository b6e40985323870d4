//! Buckets of a real S3 server keep the promises of stores.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use straightway_io::store::{Missing, Store};
use straightway_lab::Weed;
use straightway_net::Network;
use straightway_s3::{Access, S3};

use crate::store::conforms;

/// The bucket of the tests' server.
fn bucket(weed: &Weed) -> S3 {
    let mut access = Access::default();
    for (name, value) in [
        ("endpoint_url", weed.url().as_str()),
        ("access_key_id", Weed::ACCESS_KEY_ID),
        ("secret_access_key", Weed::SECRET_ACCESS_KEY),
    ] {
        access.set(name, value).unwrap();
    }
    let network = Network::new(straightway_net::Settings::default());
    S3::new(Weed::BUCKET, &access, &network).unwrap()
}

#[test]
fn buckets_conform() {
    let Some(weed) = Weed::shared() else { return };
    let (bucket, number) = (bucket(weed), AtomicU32::new(0));
    let make = || -> Arc<dyn Store> {
        let prefix = format!("conformance-{}", number.fetch_add(1, Ordering::Relaxed));
        bucket.below(prefix.as_ref(), Missing::Create).unwrap()
    };
    conforms(&make).unwrap();
}

//! The store on a real server, and on one whose answers are made up.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod bad_input;
mod credentials;
mod faults;
mod objects;
mod server;
mod tls;
mod write_faults;
mod write_refusals;
mod writes;

use std::{ffi::OsStr, sync::Arc};

use straightway_io::{Handle, Store, store::open_one};
use straightway_lab::Weed;
use straightway_net::{Network, Settings};
use straightway_s3::{Access, S3};

/// A network whose limits suit tests.
fn network() -> Arc<Network> {
    Network::new(Settings::default())
}

/// How the server of the tests is reached.
fn access(url: &str) -> Access {
    let mut access = Access::default();
    for (name, value) in [
        ("endpoint_url", url),
        ("access_key_id", Weed::ACCESS_KEY_ID),
        ("secret_access_key", Weed::SECRET_ACCESS_KEY),
    ] {
        access.set(name, value).unwrap();
    }
    access
}

fn store(access: &Access) -> S3 {
    S3::new(Weed::BUCKET, access, &network()).unwrap()
}

fn open(store: &dyn Store, name: &str) -> straightway_core::Result<Arc<dyn Handle>> {
    open_one(store, OsStr::new(name))
}

/// Says why a test ends early.
#[expect(
    clippy::print_stderr,
    reason = "what is skipped is counted by this line"
)]
fn skip(why: &str) {
    eprintln!("skipped: {why}");
}

/// All bytes of an object.
fn read(store: &dyn Store, name: &str) -> straightway_core::Result<Vec<u8>> {
    let handle = open(store, name)?;
    let mut content = vec![0; usize::try_from(handle.object().bytes).unwrap()];
    handle.read_exact_at(0, &mut content)?;
    Ok(content)
}

/// Bytes that differ from place to place and from seed to seed.
fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    };
    let mut content: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| next()).collect();
    content.truncate(bytes);
    content
}

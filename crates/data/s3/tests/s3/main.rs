//! The store on a real server, and on one with scripted responses.

#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod bad_input;
mod conditional_removal;
mod credentials;
mod faults;
mod lengths;
mod lost_starts;
mod objects;
mod part_checksums;
mod retry_after;
mod server;
mod tls;
mod write_faults;
mod write_refusals;
mod writes;

use std::{ffi::OsStr, sync::Arc};

use straightway_core::random::Seed;
use straightway_io::{Handle, Store, store::open_one};
use straightway_lab::{FaultProxy, ProxyFaults, S3Server};
use straightway_net::{Network, NetworkSettings};
use straightway_s3::{S3, S3Access};

/// A network with default settings.
fn network() -> Arc<Network> {
    Network::new(NetworkSettings::default())
}

/// The access settings of the test server.
fn access(url: &str) -> S3Access {
    S3Access::with_keys(url, S3Server::ACCESS_KEY_ID, S3Server::SECRET_ACCESS_KEY)
}

fn store(access: &S3Access) -> S3 {
    S3::new(S3Server::BUCKET, access, &network()).unwrap()
}

/// The S3 server of all tests, and a store on it; `None` if there is no server.
fn on_server() -> Option<(&'static S3Server, S3)> {
    let server = S3Server::shared()?;
    Some((server, store(&access(&server.url()))))
}

/// The S3 server of all tests, and a proxy in front of it that injects no fault yet; `None` if there is no server.
fn behind_proxy() -> Option<(&'static S3Server, FaultProxy)> {
    let server = S3Server::shared()?;
    let proxy = FaultProxy::start(&server.address(), ProxyFaults::default()).unwrap();
    Some((server, proxy))
}

fn open(store: &dyn Store, name: &str) -> straightway_core::Result<Arc<dyn Handle>> {
    open_one(store, OsStr::new(name))
}

/// Prints why a test is skipped.
#[expect(clippy::print_stderr, reason = "what is skipped is counted by this line")]
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

/// Pseudo-random bytes of a seed.
fn content(seed: u64, bytes: usize) -> Vec<u8> {
    Seed(seed).bytes(bytes)
}

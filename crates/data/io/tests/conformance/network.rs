//! The same cases over networks that fail: S3 and web servers, with and without TLS, through a local cache, and
//! NVMe/TCP.
//!
//! Faults follow from the case's seed and the number of the request. Lanes send requests in any order.

use std::time::{Duration, Instant};

use straightway_core::{Choice, Route};
use straightway_lab::S3Server;

use crate::{
    case::{Case, Verb},
    mounts::System,
    run,
    suite::{Request, attempt},
};

/// The number of cases per system, and the time after which none is started.
const CASES: usize = 24;
const TIME_MAX: Duration = Duration::from_secs(25);

/// The most objects. More only make a case longer: each is opened by a request.
const OBJECTS_MAX: u32 = 40;

fn every_byte_comes_through(system: System) {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let request = Request::from_environment();
    let start = Instant::now();
    let (mut ran, mut failed, mut bytes, mut faults) = (0, 0, 0, 0);
    let reads = |case: &Case| case.verb != Verb::Write || system == System::NvmeFaulty;
    for case in request.cases().into_iter().filter(reads).take(CASES) {
        if start.elapsed() > TIME_MAX {
            break;
        }
        // Bytes from a socket support no demanded route but the ring.
        let choice = match case.choice {
            Choice::Only(Route::Staged) if system != System::CachedFaulty => case.choice,
            _ => Choice::Auto,
        };
        let case = Case {
            system,
            choice,
            objects: case.objects.min(OBJECTS_MAX),
            depth: case.depth.min(64),
            lanes: case.lanes.min(3),
            jobs: case.jobs.min(2),
            ..case
        };
        ran += 1;
        match attempt(|| run::run(&case, folder.path())) {
            Ok(outcome) => {
                bytes += outcome.bytes;
                faults += outcome.faults;
            }
            Err(wrong) => {
                failed += 1;
                eprintln!("FAILED {case}: {wrong}");
            }
        }
    }
    let took = start.elapsed().as_secs_f64();
    eprintln!(
        "conformance: {system}, seed {}, {ran} cases, {bytes} bytes compared, {faults} faults, {failed} failed, {took:.0} s",
        request.seed
    );
    assert_eq!(failed, 0);
    assert!(bytes > 0 && faults > 0, "{bytes} bytes, {faults} faults");
}

#[test]
fn every_byte_comes_through_a_faulty_network_from_s3() {
    if S3Server::shared().is_some() {
        every_byte_comes_through(System::S3Faulty);
    }
}

#[test]
fn every_byte_comes_through_a_faulty_network_from_a_web_server() {
    every_byte_comes_through(System::WebFaulty);
}

#[test]
fn every_byte_comes_through_broken_connections_with_tls() {
    every_byte_comes_through(System::TlsFaulty);
}

#[test]
fn every_byte_comes_through_a_faulty_network_and_a_cache() {
    every_byte_comes_through(System::CachedFaulty);
}

#[test]
fn every_byte_comes_and_goes_through_broken_connections_of_nvme() {
    every_byte_comes_through(System::NvmeFaulty);
}

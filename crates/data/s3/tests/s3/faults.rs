//! Whole jobs through the executor, and through a proxy that injects faults: every byte is right, or there is an error.

use std::{
    ffi::OsStr,
    sync::Arc,
    time::{Duration, Instant},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use straightway_core::{Choice, ErrorKind, Extent, Move, Receipt, Result, Route};
use straightway_io::{
    Executor, Objects, Region, Settings, Store,
    store::{Missing, list_all},
};
use straightway_lab::{FaultProxy, ProxyFault, ProxyFaults, S3Server};
use straightway_net::{Network, suited};
use straightway_s3::S3;

use super::{access, content, skip};

/// Lengths that are odd, or next to a multiple of a block or part.
const LENGTHS: [usize; 9] = [
    0,
    1,
    999,
    4096,
    65_537,
    (1 << 20) - 1,
    1 << 20,
    (3 << 20) + 7,
    (9 << 20) + 5,
];

/// A network with short timeouts.
fn impatient() -> Arc<Network> {
    Network::new(straightway_net::NetworkSettings {
        stall_max: Duration::from_secs(2),
        ..straightway_net::NetworkSettings::default()
    })
}

/// Stores objects of all lengths below a folder, some of each.
fn fill(weed: &S3Server, folder: &str, each: u64) {
    for number in 0..each {
        for (bytes, place) in LENGTHS.iter().zip(0..) {
            weed.put(
                &format!("{folder}/{place}-{number}"),
                content(seed(place, number), *bytes),
            );
        }
    }
}

fn seed(place: u64, number: u64) -> u64 {
    1 + place * 1000 + number
}

/// Reads everything below a folder into memory, and compares every byte.
fn read_all(store: &S3, folder: &str, chunk_bytes: u64, depth: u32) -> Result<Receipt> {
    let executor = Executor::new(Settings {
        chunk_bytes,
        depth,
        ..suited(Settings::default())
    })?;
    let inside = store.below(OsStr::new(folder), Missing::Refuse)?;
    let names = list_all(&*inside)?.objects;
    let handles = inside.open(&names)?;
    let mut at = 0;
    let moves: Vec<_> = (0..)
        .zip(&handles)
        .map(|(object, handle)| {
            let extent = Extent::new(0, handle.object().bytes);
            // Not aligned to pages: sockets do not need alignment.
            let start = at;
            at += extent.bytes + 3;
            Move {
                object,
                extent,
                at: start,
            }
        })
        .collect();
    let mut region = Arc::new(Region::host(at.max(1))?);
    let objects = Objects::new(inside, handles);
    let receipt = executor.read(objects, moves.clone(), &region, Choice::Auto)?.wait()?;
    let bytes = Arc::get_mut(&mut region).expect("the job is over").as_slice();
    for (named, moved) in names.iter().zip(&moves) {
        let (place, number) = named.name.to_str().unwrap().split_once('-').unwrap();
        let seed = seed(place.parse().unwrap(), number.parse().unwrap());
        let start = usize::try_from(moved.at).unwrap();
        let length = usize::try_from(moved.extent.bytes).unwrap();
        assert_eq!(length, LENGTHS[place.parse::<usize>().unwrap()]);
        assert!(
            bytes[start..start + length] == content(seed, length),
            "{} differs",
            named.name.display()
        );
    }
    Ok(receipt)
}

#[test]
fn objects_are_read_byte_for_byte_at_every_depth() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    fill(weed, "executor", 4);
    let store = S3::new(S3Server::BUCKET, &access(&weed.url()), &impatient()).unwrap();
    for (chunk_bytes, depth) in [(64 << 10, 1), (1 << 20, 7), (8 << 20, 16), (8 << 20, 64)] {
        let receipt = read_all(&store, "executor", chunk_bytes, depth).unwrap();
        let total: usize = LENGTHS.iter().sum();
        assert_eq!(receipt.bytes, 4 * total as u64);
        assert!(receipt.routes.iter().all(|row| row.route == Route::Socket), "{receipt}");
    }
}

#[test]
fn concurrent_jobs_read_correctly() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    fill(weed, "beside", 2);
    let store = S3::new(S3Server::BUCKET, &access(&weed.url()), &impatient()).unwrap();
    std::thread::scope(|scope| {
        for depth in 1..=4 {
            let store = &store;
            scope.spawn(move || read_all(store, "beside", 1 << 20, depth).unwrap());
        }
    });
}

/// Reads through a proxy with these faults. All bytes must be correct, within a time limit.
#[track_caller]
fn survives(folder: &str, shares: &[(ProxyFault, u32)], seed: u64) -> Receipt {
    let weed = S3Server::shared().expect("the caller looked");
    fill(weed, folder, 3);
    let proxy = FaultProxy::start(&weed.address(), ProxyFaults::default()).unwrap();
    let store = S3::new(S3Server::BUCKET, &access(&proxy.url()), &impatient()).unwrap();
    proxy.set(ProxyFaults {
        seed,
        shares: shares.to_vec(),
        only: Some(folder.to_owned() + "/"),
        after: 0,
    });
    let start = Instant::now();
    let receipt = read_all(&store, folder, 256 << 10, 8).unwrap();
    let counts = proxy.counts();
    assert!(counts.faults > 0, "{counts:?}");
    assert!(start.elapsed() < Duration::from_mins(2), "{:?}", start.elapsed());
    receipt
}

#[test]
fn cut_connections_are_replaced() {
    let Some(_) = S3Server::shared() else { return };
    let cuts = [
        (ProxyFault::CutHead, 500),
        (ProxyFault::CutInHead, 500),
        (ProxyFault::CutBody, 1500),
        (ProxyFault::Reset, 500),
    ];
    let receipt = survives("cuts", &cuts, 11);
    let requests = receipt.requests.expect("it came over a network");
    assert!(requests.retries > 0, "{receipt}");
}

#[test]
fn reads_survive_stalls_and_lost_responses() {
    let Some(_) = S3Server::shared() else { return };
    let second = Duration::from_secs(1);
    let stalls = [
        (ProxyFault::Stall(second), 200),
        (ProxyFault::StallBody(second), 200),
        (ProxyFault::Lose, 100),
        (ProxyFault::Drip, 500),
    ];
    survives("stalls", &stalls, 12);
}

#[test]
fn reads_survive_many_500_and_503_responses() {
    let Some(_) = S3Server::shared() else { return };
    let storms = [(ProxyFault::Status(500), 1000), (ProxyFault::Status(503), 1000)];
    survives("storms", &storms, 13);
}

#[test]
fn responses_with_another_range_are_never_accepted() {
    let Some(_) = S3Server::shared() else { return };
    survives(
        "ranges",
        &[(ProxyFault::WrongRange, 700), (ProxyFault::WrongLength, 700)],
        14,
    );
}

#[test]
fn surplus_bytes_on_a_connection_are_never_accepted() {
    let Some(_) = S3Server::shared() else { return };
    survives(
        "leftover",
        &[(ProxyFault::Leftover, 1500), (ProxyFault::Twice, 1500)],
        15,
    );
}

/// Reads through a proxy with a fault that no retry overcomes: an error of this kind, and no bytes.
#[track_caller]
fn is_refused(folder: &str, fault: ProxyFault, kind: ErrorKind) {
    let weed = S3Server::shared().expect("the caller looked");
    fill(weed, folder, 1);
    let proxy = FaultProxy::start(&weed.address(), ProxyFaults::default()).unwrap();
    let store = S3::new(S3Server::BUCKET, &access(&proxy.url()), &impatient()).unwrap();
    proxy.set(ProxyFaults {
        seed: 1,
        shares: vec![(fault, 10_000)],
        only: Some(folder.to_owned() + "/"),
        after: 0,
    });
    let start = Instant::now();
    let error = read_all(&store, folder, 256 << 10, 8).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(folder), "{error}");
    assert!(start.elapsed() < Duration::from_mins(1), "{:?}", start.elapsed());
}

/// Puts an object with a checksum that the service stores.
fn put_summed(weed: &S3Server, target: &str, bytes: Vec<u8>) {
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &bytes);
    let sum = BASE64_STANDARD.encode(sum.to_be_bytes());
    let status = weed.put_with(target, &[("x-amz-checksum-crc64nvme", &sum)], bytes);
    assert_eq!(status, 200);
}

#[test]
fn damaged_bytes_of_whole_objects_are_detected_and_read_again() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    for number in 0..3 {
        for (bytes, place) in LENGTHS.iter().zip(0..) {
            put_summed(
                weed,
                &format!("summed/{place}-{number}"),
                content(seed(place, number), *bytes),
            );
        }
    }
    if weed.header_of("summed/1-0", "x-amz-checksum-crc64nvme").is_none() {
        return skip("the server stores no checksums");
    }
    let proxy = FaultProxy::start(&weed.address(), ProxyFaults::default()).unwrap();
    let store = S3::new(S3Server::BUCKET, &access(&proxy.url()), &impatient()).unwrap();
    let faults = |share| ProxyFaults {
        seed: 16,
        shares: vec![(ProxyFault::FlipBit, share)],
        only: Some("summed/".to_owned()),
        after: 0,
    };
    proxy.set(faults(2000));
    // Each object in one request.
    let receipt = read_all(&store, "summed", 16 << 20, 8).unwrap();
    assert!(
        receipt.requests.is_some_and(|requests| requests.retries > 0),
        "{receipt}"
    );
    proxy.set(faults(10_000));
    let error = read_all(&store, "summed", 16 << 20, 8).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("checksum"), "{error}");
}

#[test]
fn a_response_with_another_tag_is_refused() {
    let Some(_) = S3Server::shared() else { return };
    is_refused("tags", ProxyFault::OtherTag, ErrorKind::Precondition);
}

#[test]
fn a_whole_object_instead_of_a_range_is_refused() {
    let Some(_) = S3Server::shared() else { return };
    is_refused("whole", ProxyFault::Whole, ErrorKind::Unsupported);
}

#[test]
fn an_object_replaced_during_loads_is_refused_or_of_one_version() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    let store = S3::new(S3Server::BUCKET, &access(&weed.url()), &impatient()).unwrap();
    let length = LENGTHS[7];
    let versions = [content(seed(7, 0), length), content(seed(7, 0) + 1, length)];
    weed.put("swapped/7-0", versions[0].clone());
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (mut whole, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                number += 1;
                weed.put("swapped/7-0", versions[number % 2].clone());
                std::thread::sleep(Duration::from_millis(15));
            }
        });
        for _ in 0..60 {
            match read_one_version(&store, &versions) {
                Ok(()) => whole += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
                    refused += 1;
                }
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(whole > 0 && refused > 0, "{whole} whole, {refused} refused");
}

/// Reads the object in many ranges. The result is one of the versions, or an error.
fn read_one_version(store: &S3, versions: &[Vec<u8>]) -> Result<()> {
    let executor = Executor::new(Settings {
        chunk_bytes: 64 << 10,
        ..suited(Settings::default())
    })?;
    let handle = super::open(store, "swapped/7-0")?;
    let bytes = handle.object().bytes;
    let mut region = Arc::new(Region::host(bytes)?);
    let moves = vec![Extent::new(0, bytes).into()];
    let objects = Objects::new(Arc::new(store.clone()), vec![handle]);
    executor.read(objects, moves, &region, Choice::Auto)?.wait()?;
    let read = Arc::get_mut(&mut region).expect("the job is over").as_slice();
    assert!(
        versions.iter().any(|version| version == read),
        "two versions were mixed"
    );
    Ok(())
}

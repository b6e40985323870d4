//! Checked jobs side by side on one lane: each unpacks its own portions.

#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "fixture/files.rs"]
mod files;

use std::sync::{Arc, Barrier};

use files::{bytes_of, folder, write_file};
use straightway_core::{Choice, Delivery, Error, ErrorKind, Extent, Portion, Result};
use straightway_io::{Checked, Executor, File, Image, Inspect, Region, Settings, Ticket, wrapper::faulty::Faults};

const PORTIONS: u64 = 8;

/// Unpacks every stored byte to two.
#[derive(Debug)]
struct Doubling {
    /// Where the inspection of the first portion stops twice.
    stop: Option<Arc<Barrier>>,
}

impl Inspect for Doubling {
    fn unpacks(&self) -> bool {
        true
    }

    fn inspect(&self, number: usize, stored: &[u8], unpacked: &mut [u8]) -> Result<Image, Error> {
        if let (0, Some(stop)) = (number, &self.stop) {
            stop.wait();
            stop.wait();
        }
        if unpacked.len() != 2 * stored.len() {
            let why = format!("there is room for {} bytes", unpacked.len());
            let target = format!("portion {number}");
            return Err(Error::new(ErrorKind::Corrupt, "unpack", target, why));
        }
        unpacked.copy_from_slice(&doubled(stored));
        Ok(Image::Unpacked)
    }

    fn refuse(&self, _number: usize, _error: Error) -> bool {
        false
    }
}

fn doubled(stored: &[u8]) -> Vec<u8> {
    stored.iter().flat_map(|byte| [*byte, !byte]).collect()
}

/// Starts to read a file in equal portions. Returns the ticket and the region.
fn start(executor: &Executor, file: &Arc<File>, stop: Option<&Arc<Barrier>>) -> (Ticket, Arc<Region>) {
    let stored_bytes = file.bytes() / PORTIONS;
    let bytes = 2 * stored_bytes;
    let region = Arc::new(Region::host(PORTIONS * bytes).unwrap());
    let portion = |number: u64| Portion {
        object: 0,
        extent: Extent::new(number * stored_bytes, stored_bytes),
        image_bytes: bytes,
        wanted_bytes: bytes,
        deliveries: 1,
    };
    let delivery = |number: u64| Delivery {
        from: 0,
        bytes,
        region: 0,
        at: number * bytes,
    };
    let checked = Checked {
        from: vec![Arc::clone(file)].into(),
        portions: (0..PORTIONS).map(portion).collect(),
        deliveries: (0..PORTIONS).map(delivery).collect(),
        to: vec![Arc::clone(&region)],
        inspect: Arc::new(Doubling { stop: stop.cloned() }),
    };
    (executor.check(checked, Choice::Auto).unwrap(), region)
}

#[test]
fn portions_in_flight_are_unpacked_while_another_job_waits_for_longer_slots() {
    const SHORT_BYTES: usize = 4 << 10;
    const LONG_BYTES: usize = 32 << 10;
    let folder = folder();
    let portions = PORTIONS as usize;
    let short = write_file(&folder.path().join("short"), portions * SHORT_BYTES);
    let long = write_file(&folder.path().join("long"), portions * LONG_BYTES);
    let settings = Settings {
        cached_lanes: 1,
        chunk_bytes: 16 << 10,
        // Four slots of 32 KiB. The images of the long file need 64 KiB, so the ring is cut again.
        staging_bytes: 128 << 10,
        ..Settings::default()
    };
    // Each completion is late, so that a portion is in flight while another is inspected.
    let faults = Faults {
        late_per_mille: 1000,
        ..Faults::default()
    };
    let executor = Executor::with_parts(settings, faults.into()).unwrap();
    let stop = Arc::new(Barrier::new(2));
    let (first, first_region) = start(&executor, &short, Some(&stop));
    // The second job is posted while the lane inspects a portion of the first, and takes its turn next.
    stop.wait();
    let (second, second_region) = start(&executor, &long, None);
    stop.wait();
    first.wait().unwrap();
    second.wait().unwrap();
    for (mut region, bytes) in [
        (first_region, portions * SHORT_BYTES),
        (second_region, portions * LONG_BYTES),
    ] {
        let region = Arc::get_mut(&mut region).expect("both jobs are over");
        assert!(region.as_slice() == doubled(&bytes_of(bytes)));
    }
}

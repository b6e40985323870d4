//! Inspected portions: some are packed, some refused, and their bytes go to several regions.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use straightway_core::{Choice, Delivery, Error, Extent, Leg, Place, Portion, Result, random::Rng};
use straightway_io::{Image, Inspect, Objects};

use super::{Checked, JobRun, content, range, region_at};
use crate::content::BLANK;

/// The most bytes of a portion, so that any case's ring holds some.
const PORTION_BYTES_MAX: u64 = 200_000;

/// The kind of a portion.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PortionKind {
    /// It is stored unpacked.
    Raw,
    /// Each stored byte unpacks to two.
    Packed,
    /// The inspection fails.
    Bad,
    /// It extends past the end of its object.
    PastEnd,
}

/// Unpacks portions, refuses bad ones, and compares each with its expected content.
#[derive(Debug)]
struct TestInspector {
    kinds: Vec<PortionKind>,
    stored: Vec<Vec<u8>>,
    unpacks: bool,
    looks: AtomicUsize,
    refused: Mutex<Vec<usize>>,
    wrong: Mutex<Option<String>>,
}

impl Inspect for TestInspector {
    fn unpacks(&self) -> bool {
        self.unpacks
    }

    fn inspect(&self, number: usize, stored: &[u8], unpacked: &mut [u8]) -> Result<Image, Error> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        if let Some(difference) = content::difference(stored, &self.stored[number]) {
            *self.wrong.lock().unwrap() = Some(format!("portion {number}: {difference}"));
        }
        match self.kinds[number] {
            PortionKind::Raw => Ok(Image::Stored),
            PortionKind::Packed => {
                unpacked.copy_from_slice(&unpack(stored));
                Ok(Image::Unpacked)
            }
            PortionKind::Bad | PortionKind::PastEnd => {
                let message = "for a test";
                Err(Error::new(
                    straightway_core::ErrorKind::Corrupt,
                    "read",
                    "a portion",
                    message,
                ))
            }
        }
    }

    fn refuse(&self, number: usize, _error: Error) -> bool {
        self.refused.lock().unwrap().push(number);
        true
    }
}

fn unpack(stored: &[u8]) -> Vec<u8> {
    stored.iter().flat_map(|byte| [*byte, byte ^ 0x5A]).collect()
}

impl JobRun<'_> {
    /// Reads portions, inspects them, and delivers parts of their images to several regions.
    pub(super) fn checked(mut self) -> Checked {
        let (objects, contents, _) = self.sources();
        let unpacks = self.rng.chance(0.5);
        let lengths: Vec<_> = contents.iter().map(Vec::len).collect();
        let mut extents = self.extents(&lengths);
        for (_, extent) in &mut extents {
            extent.bytes = extent.bytes.min(PORTION_BYTES_MAX);
        }
        if self.rng.chance(0.5) {
            self.rng.shuffle(&mut extents);
        }
        let mut wanted = CheckedJob::new(1 + self.rng.below(5) as usize);
        for (object, extent) in extents {
            let kind = match self.rng.below(20) {
                0 => PortionKind::Bad,
                1 => PortionKind::PastEnd,
                _ if unpacks && self.rng.chance(0.5) => PortionKind::Packed,
                _ => PortionKind::Raw,
            };
            let source = &contents[object as usize];
            wanted.add(&mut self.rng, object, extent, source, kind);
        }
        self.run_checked(objects, wanted, unpacks)
    }

    fn run_checked(&self, objects: Objects, wanted: CheckedJob, unpacks: bool) -> Checked {
        let mut regions = Vec::new();
        for (number, expected) in wanted.regions.iter().enumerate() {
            let blank = vec![BLANK; expected.len().max(1)];
            // Every third region is in host memory.
            let place = if number % 3 == 2 { Place::Host } else { self.case.place };
            regions.push(region_at(place, &blank)?);
        }
        let inspector = Arc::new(TestInspector {
            kinds: wanted.kinds,
            stored: wanted.stored,
            unpacks,
            looks: AtomicUsize::new(0),
            refused: Mutex::default(),
            wrong: Mutex::default(),
        });
        let job = self.executor.check(
            straightway_io::Checked {
                from: objects,
                portions: wanted.portions,
                deliveries: wanted.deliveries,
                to: regions.clone(),
                inspect: Arc::clone(&inspector) as _,
            },
            Choice::Auto,
        )?;
        let receipt = job.wait()?;
        if let Some(wrong) = inspector.wrong.lock().unwrap().take() {
            return Ok(Err(wrong));
        }
        let mut refused = inspector.refused.lock().unwrap().clone();
        refused.sort_unstable();
        let kinds = &inspector.kinds;
        let is_bad = |n: &usize| matches!(kinds[*n], PortionKind::Bad | PortionKind::PastEnd);
        let bad: Vec<_> = (0..kinds.len()).filter(is_bad).collect();
        if refused != bad {
            return Ok(Err(format!("refused {refused:?} instead of {bad:?}")));
        }
        let is_past_end = |kind: &&PortionKind| **kind == PortionKind::PastEnd;
        let past_end = kinds.iter().filter(is_past_end).count();
        let looks = inspector.looks.load(Ordering::Relaxed);
        if looks + past_end != kinds.len() {
            return Ok(Err(format!("{looks} portions were looked at")));
        }
        for (number, (region, expected)) in regions.iter_mut().zip(&wanted.regions).enumerate() {
            let region = Arc::get_mut(region).expect("the transfer is over");
            let mut seen = vec![0; expected.len()];
            region.read_at(0, &mut seen)?;
            if let Some(difference) = content::difference(&seen, expected) {
                return Ok(Err(format!("region {number}: {difference}")));
            }
        }
        let rows = receipt.routes.iter().filter(|r| r.leg == Leg::Read);
        let counted: u64 = rows.map(|r| r.bytes).sum();
        if receipt.bytes != wanted.bytes || counted != wanted.bytes {
            let wanted = wanted.bytes;
            return Ok(Err(format!("the receipt does not count {wanted}: {receipt:?}")));
        }
        Ok(Ok(wanted.bytes))
    }
}

/// The portions and deliveries of a job, and the expected content of its regions.
struct CheckedJob {
    portions: Vec<Portion>,
    deliveries: Vec<Delivery>,
    kinds: Vec<PortionKind>,
    stored: Vec<Vec<u8>>,
    regions: Vec<Vec<u8>>,
    bytes: u64,
}

impl CheckedJob {
    fn new(regions: usize) -> Self {
        Self {
            portions: Vec::new(),
            deliveries: Vec::new(),
            kinds: Vec::new(),
            stored: Vec::new(),
            regions: vec![Vec::new(); regions],
            bytes: 0,
        }
    }

    /// Adds a portion with up to four deliveries of parts of its image, which may overlap in the image.
    fn add(&mut self, rng: &mut Rng, object: u32, extent: Extent, source: &[u8], kind: PortionKind) {
        let stored = source[range(extent)].to_vec();
        let image = match kind {
            PortionKind::Packed => unpack(&stored),
            _ => stored.clone(),
        };
        let mut extent = extent;
        if kind == PortionKind::PastEnd {
            extent = Extent::new(extent.offset, source.len() as u64 - extent.offset + 1 + rng.below(9000));
        }
        let (mut deliveries, mut wanted_bytes) = (0, 0);
        for _ in 0..rng.below(5) {
            let from = rng.below(image.len() as u64);
            let bytes = 1 + rng.below(image.len() as u64 - from);
            let number = rng.index(self.regions.len());
            let region = &mut self.regions[number];
            region.resize(region.len() + rng.below(9) as usize, BLANK);
            let at = region.len() as u64;
            if matches!(kind, PortionKind::Raw | PortionKind::Packed) {
                region.extend_from_slice(&image[from as usize..(from + bytes) as usize]);
            } else {
                region.resize(region.len() + bytes as usize, BLANK);
            }
            self.deliveries.push(Delivery {
                from,
                bytes,
                region: number as u32,
                at,
            });
            deliveries += 1;
            wanted_bytes += bytes;
        }
        if deliveries == 0 {
            wanted_bytes = image.len() as u64;
        }
        if matches!(kind, PortionKind::Raw | PortionKind::Packed) {
            self.bytes += wanted_bytes;
        }
        self.portions.push(Portion {
            object,
            extent,
            image_bytes: image.len() as u64,
            wanted_bytes,
            deliveries,
        });
        self.kinds.push(kind);
        self.stored.push(stored);
    }
}

//! Runs one case and compares every byte, and the receipt.

mod checked;
mod objects;
mod remote;

use std::{cell::RefCell, path::Path, sync::Arc};

use straightway_core::{
    Choice, ErrorKind, Extent, Leg, Move, Place, Receipt, Result, Route,
    random::{Rng, Seed},
};
use straightway_io::{Executor, File, Region};
use straightway_sys::cuda::Driver;

use remote::Served;

use crate::{
    case::{Case, Density, Verb},
    content::{self, BLANK},
    mounts::System,
};

/// The approximate payload of one job. If there are many objects, they are small.
const JOB_BYTES: u64 = 6 << 20;
const OBJECT_BYTES_MIN: u64 = 8 << 10;
const OBJECT_BYTES_MAX: u64 = 4 << 20;

/// The result of a case.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// The bytes that were moved and compared.
    pub(crate) bytes: u64,
    /// The jobs whose demanded route was refused, where that is allowed.
    pub(crate) refused: u32,
    /// The number of injected faults.
    pub(crate) faults: u64,
}

/// Runs the jobs of a case in sequence, in a folder below `base`. The error says what is wrong.
pub(crate) fn run(case: &Case, base: &Path) -> Result<Outcome, String> {
    let executor = case.executor().map_err(|e| e.to_string())?;
    let mut outcome = Outcome::default();
    for number in 0..case.jobs {
        let folder = tempfile::tempdir_in(base).map_err(|e| e.to_string())?;
        let served = RefCell::new(Served::default());
        let job_run = JobRun {
            case,
            executor: &executor,
            folder: folder.path(),
            served: &served,
            rng: Seed(case.seed).part((case.number << 8) + u64::from(number) + 1).rng(),
        };
        let verb = case.verb_of(number);
        let done = match verb {
            Verb::Read => job_run.read(),
            Verb::Write => job_run.write(),
            Verb::Relay => job_run.relay(),
            Verb::Check => job_run.checked(),
        };
        outcome.faults += served.borrow().faults();
        match done {
            Ok(Ok(bytes)) => outcome.bytes += bytes,
            Ok(Err(wrong)) => return Err(format!("job {number}, {verb:?}: {wrong}")),
            Err(error) if error.kind() == ErrorKind::Unsupported && case.may_be_refused() => {
                outcome.refused += 1;
            }
            Err(error) => return Err(format!("job {number}, {verb:?}: {error}")),
        }
    }
    Ok(outcome)
}

/// One job of a case.
struct JobRun<'a> {
    case: &'a Case,
    executor: &'a Executor,
    folder: &'a Path,
    /// The servers of remote objects.
    served: &'a RefCell<Served>,
    rng: Rng,
}

/// The result of a job: the bytes that it moved, or what is wrong with them.
type Checked = Result<Result<u64, String>>;

impl JobRun<'_> {
    /// Reads extents of files into a region.
    fn read(mut self) -> Checked {
        let (objects, contents, _) = self.sources();
        let mut extents = self.extents(&contents.iter().map(Vec::len).collect::<Vec<_>>());
        // Extents may be read twice.
        let again = extents.iter().copied().filter(|_| self.rng.chance(0.1));
        let again: Vec<_> = again.collect();
        extents.extend(again);
        let (moves, region_bytes) = self.moves(extents);
        let mut expected = vec![BLANK; region_bytes as usize];
        for m in &moves {
            let source = &contents[m.object as usize][range(m.extent)];
            expected[range(Extent::new(m.at, m.extent.bytes))].copy_from_slice(source);
        }
        let mut region = self.region(&vec![BLANK; region_bytes as usize])?;
        let bytes = payload(moves.iter().map(|m| m.extent));
        let choice = self.case.choice;
        let job = self.executor.read(objects, moves, &region, choice)?;
        let receipt = job.wait()?;
        let mut seen = vec![0; expected.len()];
        let region = Arc::get_mut(&mut region).expect("the transfer is over");
        region.read_at(0, &mut seen)?;
        if let Some(difference) = content::difference(&seen, &expected) {
            return Ok(Err(format!("region of {region_bytes}: {difference}")));
        }
        Ok(self.check(&receipt, &[Leg::Read], bytes))
    }

    /// Writes parts of a region to extents of new files.
    fn write(mut self) -> Checked {
        let lengths: Vec<_> = (0..self.case.objects).map(|_| self.length()).collect();
        let extents = self.extents(&lengths);
        let (moves, region_bytes) = self.moves(extents);
        let source = content::bytes(self.rng.bits(), region_bytes as usize);
        let region = self.region(&source)?;
        let targets = self.targets(&lengths)?;
        let mut expected: Vec<_> = lengths.iter().map(|len| vec![0; *len]).collect();
        for m in &moves {
            let bytes = &source[range(Extent::new(m.at, m.extent.bytes))];
            expected[m.object as usize][range(m.extent)].copy_from_slice(bytes);
        }
        let bytes = payload(moves.iter().map(|m| m.extent));
        let choice = self.case.choice;
        let objects = targets.objects.clone();
        let job = self.executor.write(&region, objects, moves, choice)?;
        let receipt = job.wait()?;
        Ok(self
            .compare(targets, &expected)
            .and_then(|()| self.check(&receipt, &[Leg::Write], bytes)))
    }

    /// Copies extents of files to the same place in new files. Of sparse files, copies the data or other extents.
    fn relay(mut self) -> Checked {
        let (objects, contents, files) = self.sources();
        let lengths: Vec<_> = contents.iter().map(Vec::len).collect();
        let extents = match self.case.density {
            Density::Sparse(_) if !files.is_empty() && self.rng.chance(0.5) => {
                let data = |(n, file): (u32, &Arc<File>)| {
                    let extents = file.data_extents();
                    extents.map(|all| all.into_iter().map(move |extent| (n, extent)))
                };
                let data = (0..).zip(&files).map(data).collect::<Result<Vec<_>>>()?;
                data.into_iter().flatten().collect()
            }
            _ => self.extents(&lengths),
        };
        let targets = self.targets(&lengths)?;
        let mut expected: Vec<_> = lengths.iter().map(|len| vec![0; *len]).collect();
        for (object, extent) in &extents {
            let object = *object as usize;
            expected[object][range(*extent)].copy_from_slice(&contents[object][range(*extent)]);
        }
        let bytes = payload(extents.iter().map(|(_, extent)| *extent));
        let choice = self.case.choice;
        let twins = targets.objects.clone();
        let job = self.executor.relay(objects, twins, extents, choice)?;
        let receipt = job.wait()?;
        Ok(self
            .compare(targets, &expected)
            .and_then(|()| self.check(&receipt, &[Leg::Read, Leg::Write], bytes)))
    }

    /// A random length of one object: tiny, whole pages, or anything.
    fn length(&mut self) -> usize {
        let share = JOB_BYTES / u64::from(self.case.objects);
        let most = share.clamp(OBJECT_BYTES_MIN, OBJECT_BYTES_MAX);
        let bytes = match self.rng.below(4) {
            0 => 1 + self.rng.below(4096),
            1 => (1 + self.rng.below(most / 4096)) * 4096,
            _ => 1 + self.rng.below(most),
        };
        bytes as usize
    }

    /// The extents of all objects.
    fn extents(&mut self, lengths: &[usize]) -> Vec<(u32, Extent)> {
        let mut extents = Vec::new();
        for (object, len) in (0..).zip(lengths) {
            let own = self.case.shape.extents(*len as u64, &mut self.rng);
            extents.extend(own.into_iter().map(|extent| (object, extent)));
        }
        extents
    }

    /// Gives each extent its own place in a region. Returns the moves and the region's length.
    fn moves(&mut self, mut extents: Vec<(u32, Extent)>) -> (Vec<Move>, u64) {
        if self.rng.chance(0.5) {
            self.rng.shuffle(&mut extents);
        }
        let mut end = 0;
        let mut moves = Vec::new();
        for (object, extent) in extents {
            let at = if self.case.keeps_page_offset {
                let ahead = (extent.offset + 4096 - end % 4096) % 4096;
                end + ahead
            } else {
                end + self.rng.below(7)
            };
            end = at + extent.bytes;
            moves.push(Move { object, extent, at });
        }
        (moves, end + self.rng.below(100) + 1)
    }

    /// A region that holds `bytes`.
    fn region(&self, bytes: &[u8]) -> Result<Arc<Region>> {
        region_at(self.case.place, bytes)
    }

    /// Checks that the receipt counts every byte once on each leg, by an allowed route.
    fn check(&self, receipt: &Receipt, legs: &[Leg], bytes: u64) -> Result<u64, String> {
        let sum = |leg: &Leg| {
            let rows = receipt.routes.iter().filter(|r| r.leg == *leg);
            rows.map(|r| r.bytes).sum::<u64>()
        };
        if receipt.bytes != bytes || legs.iter().any(|leg| sum(leg) != bytes) {
            return Err(format!("the receipt does not count {bytes} bytes: {receipt:?}"));
        }
        if self.case.system == System::NvmeFaulty && bytes > 0 {
            let is_socket = receipt.routes.iter().all(|r| r.route == Route::Socket);
            let is_staged = self.case.place == Place::Host || receipt.staging_bytes_peak > 0;
            if !is_socket || !is_staged || receipt.sockets.is_none() {
                return Err(format!("the receipt is not that of sockets: {receipt:?}"));
            }
        }
        let is_allowed = |route: Route| match self.case.choice {
            Choice::Auto => true,
            Choice::Only(Route::Direct) => route != Route::Buffered,
            Choice::Only(only) => route == only || route == Route::Socket,
        };
        match receipt.routes.iter().find(|r| !is_allowed(r.route)) {
            Some(row) => Err(format!("{} bytes went {}", row.bytes, row.route)),
            None => Ok(bytes),
        }
    }
}

/// A region at a place that holds `bytes`.
fn region_at(place: Place, bytes: &[u8]) -> Result<Arc<Region>> {
    let len = bytes.len() as u64;
    let mut region = match place {
        Place::Host => Region::host(len)?,
        Place::P2p(_) => Region::at(place, len)?,
        Place::Gpu(number) => Region::device(&Driver::load()?.device(number)?.context()?, len)?,
    };
    region.write_at(0, bytes)?;
    Ok(Arc::new(region))
}

fn range(extent: Extent) -> std::ops::Range<usize> {
    extent.offset as usize..extent.end() as usize
}

fn payload(extents: impl Iterator<Item = Extent>) -> u64 {
    extents.map(|extent| extent.bytes).sum()
}

//! A hundred concurrent jobs of every class, cancelled and failing at random, in host memory and on the stand-in's GPU:
//! successful jobs have moved the right bytes, and nothing is leaked.

#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "fixture/files.rs"]
mod files;
#[path = "fixture/gpu.rs"]
#[expect(dead_code, reason = "jobs are only started here")]
mod gpu;

use std::{fs, path::Path, sync::Arc};

use files::{bytes_of, folder, write_file};
use gpu::{context, small, whole};
use straightway_core::{
    Choice, Class, ErrorKind, Extent, Rate, Result, Route, Share,
    random::{Rng, Seed},
};
use straightway_io::{
    Executor, File, FileDraft, Region, Settings, Ticket, settings::DriveEngine, wrapper::faulty::Faults,
};
use straightway_standin::Standin;

const SIZES: [usize; 6] = [0, 1, 4096, 33_000, 200_001, 1 << 20];

/// The memory of jobs, and its possible routes.
#[derive(Clone, Copy)]
struct Memory {
    make: fn(u64) -> Result<Region>,
    routes: [Choice; 3],
}

const HOST: Memory = Memory {
    make: Region::host,
    routes: [
        Choice::Only(Route::Direct),
        Choice::Only(Route::Staged),
        Choice::Only(Route::Buffered),
    ],
};

const GPU: Memory = Memory {
    make: |bytes| Region::device(&context()?, bytes),
    routes: [Choice::Auto, Choice::Only(Route::Staged), Choice::Only(Route::Buffered)],
};

/// A running job, its number of bytes, and its destination.
struct Started {
    ticket: Ticket,
    bytes: usize,
    /// The region that a read fills or a write reads from.
    region: Option<Arc<Region>>,
    /// The file that a write or a copy makes.
    draft: Option<FileDraft>,
}

/// The content of a region that nothing else references any more.
fn taken(mut region: Arc<Region>) -> Vec<u8> {
    let region = Arc::get_mut(&mut region).expect("nothing is in flight");
    let mut bytes = vec![0; region.bytes() as usize];
    region.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Starts a random job.
fn any_job(rng: &mut Rng, executor: &Executor, memory: Memory, files: &[Arc<File>], folder: &Path) -> Started {
    let (class, limit) = match rng.below(4) {
        0 => (Class::Now, None),
        1 => (Class::Background, Some(Rate(20e6))),
        2 => (Class::Background, None),
        _ => (Class::Soon, None),
    };
    let share = Share {
        limit,
        weight: *rng.pick(&[1.0, 2.0, 8.0]),
        ..Share::default()
    };
    let executor = executor.sharing(share, class).unwrap();
    let file = rng.pick(files);
    let bytes = file.bytes();
    let route = *rng.pick(&memory.routes);
    let kind = rng.below(3);
    let region = (kind < 2).then(|| (memory.make)(bytes).unwrap());
    let region = region.map(|mut region| {
        let is_source = kind == 1;
        let content = if is_source {
            bytes_of(bytes as usize)
        } else {
            vec![0xEE; bytes as usize]
        };
        region.write_at(0, &content).unwrap();
        Arc::new(region)
    });
    let draft = (kind > 0).then(|| {
        let name = format!("{}-{}", rng.below(1 << 30), rng.below(1 << 30));
        FileDraft::new(&folder.join(name), bytes).unwrap()
    });
    let from = vec![Arc::clone(file)];
    let to: Vec<_> = draft.iter().map(|draft| Arc::clone(draft.file())).collect();
    let ticket = match &region {
        Some(region) if kind == 0 => executor.read(from, whole(file), region, route),
        Some(region) => executor.write(region, to, whole(file), route),
        None => {
            // A copy goes between files, independent of the other jobs' memory.
            let route = *rng.pick(&HOST.routes);
            executor.relay(from, to, vec![(0, Extent::new(0, bytes))], route)
        }
    };
    Started {
        ticket: ticket.unwrap(),
        bytes: bytes as usize,
        region,
        draft,
    }
}

/// Runs a hundred jobs, and cancels about a third of them.
fn crowd(seed: u64, engine: DriveEngine, memory: Memory) {
    let folder = folder();
    let files: Vec<_> = SIZES
        .iter()
        .map(|bytes| write_file(&folder.path().join(bytes.to_string()), *bytes))
        .collect();
    let mut rng = Seed(seed).rng();
    let settings = Settings { engine, ..small() };
    let faults = Faults {
        seed,
        error_per_mille: 10,
        error_code: 5,
        short_per_mille: 50,
        late_per_mille: 100,
    };
    let executor = Executor::with_parts(settings, faults.into()).unwrap();
    // Some are cancelled as soon as they begin, the others while more begin: a job that has ended stays as it is.
    let mut jobs = Vec::new();
    for number in 0..100 {
        jobs.push(any_job(&mut rng, &executor, memory, &files, folder.path()));
        let cancelled = if number % 4 == 0 { jobs.last() } else { None };
        let cancelled = cancelled.or_else(|| (number % 4 == 1).then(|| rng.pick(&jobs)));
        if let Some(job) = cancelled {
            job.ticket.cancel();
        }
    }
    let mut ended = [0; 3];
    let mut left = Vec::new();
    for started in jobs {
        match started.ticket.wait() {
            Ok(receipt) => {
                ended[0] += 1;
                let wanted = bytes_of(started.bytes);
                assert_eq!(receipt.bytes, started.bytes as u64);
                if let Some(draft) = started.draft {
                    let path = draft.file().path().to_owned();
                    draft.commit().unwrap();
                    assert!(fs::read(path).unwrap() == wanted, "{} bytes written", started.bytes);
                }
                if let Some(region) = started.region {
                    assert!(taken(region) == wanted, "{} bytes in memory", started.bytes);
                }
            }
            Err(error) => {
                let is_cancelled = error.kind() == ErrorKind::Cancelled;
                ended[1 + usize::from(is_cancelled)] += 1;
                assert!(is_cancelled || error.os_code() == Some(5), "{error}");
                left.extend(started.region);
            }
        }
    }
    assert!(ended.iter().all(|count| *count > 0), "seed {seed}: {ended:?}");
    // Nothing references the memory of failed jobs any more.
    for region in left {
        taken(region);
    }
    // No slot is lost: the rings are as large as those of a new executor.
    let largest = files.last().unwrap();
    let read = |executor: &Executor| {
        let region = Arc::new((memory.make)(largest.bytes()).unwrap());
        let route = Choice::Only(Route::Staged);
        let from = vec![Arc::clone(largest)];
        let ticket = executor.read(from, whole(largest), &region, route);
        match ticket.unwrap().wait() {
            Ok(receipt) => {
                assert!(taken(region) == bytes_of(SIZES[5]));
                receipt.pinned_bytes_peak
            }
            Err(error) => {
                assert_eq!(error.os_code(), Some(5), "{error}");
                0
            }
        }
    };
    // If one lane finishes a read before the other begins, only its ring is counted.
    let rings = |executor: &Executor| (0..30).map(|_| read(executor)).max();
    assert_eq!(rings(&executor), rings(&Executor::new(settings).unwrap()));
}

#[test]
fn a_hundred_jobs_in_host_memory_leave_nothing_behind() {
    crowd(1, DriveEngine::Auto, HOST);
    crowd(2, DriveEngine::Pool, HOST);
    crowd(3, DriveEngine::Auto, HOST);
}

#[test]
fn a_hundred_jobs_on_a_gpu_leave_nothing_behind() {
    for seed in 4..7 {
        Standin::run(&format!("seed={seed} delay_us_max=300"), |standin| {
            crowd(seed, DriveEngine::Auto, GPU);
            standin.assert_clean();
        });
    }
}

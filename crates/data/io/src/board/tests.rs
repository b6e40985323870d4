//! Shares, reservations and limits on a drive of fixed rate, in virtual time.

use std::path::Path;

use proptest::{
    collection::vec,
    option,
    prelude::*,
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};
use straightway_core::{Choice, Direction, Extent, Move, Rate, Route, Share};
use straightway_sys::{File, Region};

use super::*;
use crate::{
    parts::{ExecutorParts, Outfit},
    settings::Settings,
    tenant::Reservations,
};

const CHUNK_BYTES: u64 = 4096;
const CHUNKS: u64 = 1 << 14;

/// A tenant that always has more to read.
#[derive(Clone, Copy, Debug)]
struct Demand {
    share: Share,
    class: Class,
}

/// A read with more chunks than any test takes. Nothing is ever read.
fn job(path: &Path, region: &Arc<Region>) -> Arc<Job> {
    let settings = Settings {
        chunk_bytes: CHUNK_BYTES,
        cached_chunk_bytes: CHUNK_BYTES,
        ..Settings::default()
    };
    let whole = Move::from(Extent::new(0, CHUNKS * CHUNK_BYTES));
    let file = Arc::new(File::open(path).unwrap());
    let choice = Choice::Only(Route::Buffered);
    let (files, ask) = (vec![file].into(), choice.into());
    let outfit = Outfit::new(settings, ExecutorParts::default());
    let job = Job::with_region(Direction::In, files, vec![whole], region, ask, &outfit);
    Arc::new(job.unwrap())
}

/// Simulates a drive of `rate` for `seconds`. Returns the times and sizes of the chunks that each of `demands` was
/// given.
fn simulate(demands: &[Demand], rate: f64, seconds: f64, traffic: &Arc<Traffic>) -> Vec<Vec<(f64, u64)>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse");
    let sparse = std::fs::File::create(&path).unwrap();
    sparse.set_len(CHUNKS * CHUNK_BYTES).unwrap();
    let region = Arc::new(Region::host(CHUNKS * CHUNK_BYTES).unwrap());
    let board = Board::new(Track::Cached, traffic);
    let measured = Arc::new(Reservations::new(Some(Rate(rate))));
    let tallies = Tallies::new(|_| {});
    let jobs: Vec<_> = demands
        .iter()
        .map(|demand| {
            let job = job(&path, &region);
            let posted = Posted {
                job: Arc::clone(&job),
                tenant: Arc::new(Tenant::new(demand.share, demand.class, &measured).unwrap()),
                lanes: 1,
                since: Instant::now(),
                _urgent: None,
            };
            board.post(posted, &tallies, 0.0);
            job
        })
        .collect();
    let mut handed = vec![Vec::new(); demands.len()];
    let mut now_s = 0.0;
    while now_s < seconds {
        match board.take(0, now_s) {
            Next::Run(grant, chunk) => {
                let bytes = chunk.extent.bytes;
                let who = jobs.iter().position(|job| Arc::ptr_eq(job, &grant.posted.job));
                handed[who.unwrap()].push((now_s, bytes));
                let admitted = grant.posted.tenant.admits(usize::try_from(bytes).unwrap(), || now_s);
                assert!(admitted, "the limiter admits a granted chunk");
                now_s += bytes as f64 / rate;
            }
            Next::NotBefore(due_s) => {
                assert!(due_s > now_s, "it would have been due already");
                now_s = due_s;
            }
            Next::Idle => panic!("there is always more"),
        }
    }
    handed
}

fn sum(handed: &[(f64, u64)]) -> f64 {
    handed.iter().map(|(_, bytes)| *bytes as f64).sum()
}

/// The fair share of each in `rate`: a level times its weight, at least its reservation and at most its limit.
fn fair(demands: &[Demand], rate: f64) -> Vec<f64> {
    let at = |level: f64| -> Vec<f64> {
        let one = |Share {
                       reservation,
                       limit,
                       weight,
                   }: Share| {
            let least = reservation.map_or(0.0, |rate| rate.0);
            (weight * level).clamp(least, limit.map_or(f64::INFINITY, |rate| rate.0))
        };
        demands.iter().map(|demand| one(demand.share)).collect()
    };
    let (mut low, mut high) = (0.0, 1e12);
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if at(middle).iter().sum::<f64>() < rate {
            low = middle;
        } else {
            high = middle;
        }
    }
    at(low)
}

#[test]
fn every_mixture_of_shares_is_served_fairly_to_the_chunk() {
    let (rate, seconds) = (4096.0 * 1000.0, 10.0);
    // The reservations sum to at most the whole rate, and each is below its limit.
    let one = (option::of(0.0..0.2), option::of(0.2..1.0), 0.1..10.0);
    let mixtures = vec(one, 1..6);
    let simulate_one = |mixture: Vec<(Option<f64>, Option<f64>, f64)>| {
        let demands: Vec<_> = mixture
            .into_iter()
            .map(|(reservation, limit, weight)| Demand {
                share: Share {
                    reservation: reservation.map(|part: f64| Rate(part.max(1e-3) * rate)),
                    limit: limit.map(|part| Rate(part * rate)),
                    weight,
                },
                class: Class::Soon,
            })
            .collect();
        let handed = simulate(&demands, rate, seconds, &Arc::default());
        let fair = fair(&demands, rate);
        for ((demand, handed), fair) in demands.iter().zip(&handed).zip(fair) {
            let (got, meant) = (sum(handed), fair * seconds);
            let off = (got - meant).abs() / CHUNK_BYTES as f64;
            // Each of the others may be one chunk early. A limit that is not a whole number of chunks per window is
            // missed by a little, which the others get.
            let limited = demands.iter().any(|demand| demand.share.limit.is_some());
            let slack = if limited { 0.005 * rate * seconds } else { 0.0 };
            let most = (1 + demands.len()) as f64 + slack / CHUNK_BYTES as f64;
            prop_assert!(off <= most, "{demand:?} got {got}, not {meant}");
            if let Some(limit) = demand.share.limit {
                assert_within(handed, limit.0);
            }
        }
        Ok(())
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::with_cases(64), rng);
    runner.run(&mixtures, simulate_one).unwrap();
}

/// Asserts that no 100 ms window has more than the limit plus one chunk.
fn assert_within(handed: &[(f64, u64)], limit: f64) {
    for (first, (start, _)) in handed.iter().enumerate() {
        let window = handed[first..].iter().take_while(|(at, _)| at - start < 0.1 - 1e-9);
        let bytes: u64 = window.map(|(_, bytes)| bytes).sum();
        let most = limit * 0.1 + CHUNK_BYTES as f64;
        assert!(bytes as f64 <= most + 1e-6, "{bytes} of {most} from {start} on");
    }
}

#[test]
fn a_late_job_gets_its_share_from_then_on_without_catching_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse");
    let bytes = CHUNKS * CHUNK_BYTES;
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    let region = Arc::new(Region::host(bytes).unwrap());
    let board = Board::new(Track::Cached, &Arc::default());
    let nothing = Arc::new(Reservations::new(None));
    let tallies = Tallies::new(|_| {});
    let post = |weight| {
        let share = Share {
            weight,
            ..Share::default()
        };
        let job = job(&path, &region);
        let posted = Posted {
            job: Arc::clone(&job),
            tenant: Arc::new(Tenant::new(share, Class::Soon, &nothing).unwrap()),
            lanes: 1,
            since: Instant::now(),
            _urgent: None,
        };
        board.post(posted, &tallies, 0.0);
        job
    };
    let first = post(1.0);
    for _ in 0..1000 {
        let Next::Run(grant, _) = board.take(0, 0.0) else {
            panic!("there is more")
        };
        assert!(grant.alone.is_some());
    }
    let late = post(3.0);
    let mut counts = [0, 0];
    for _ in 0..400 {
        let Next::Run(grant, _) = board.take(0, 0.0) else {
            panic!("there is more")
        };
        assert!(grant.alone.is_none());
        counts[usize::from(Arc::ptr_eq(&grant.posted.job, &late))] += 1;
    }
    assert!((99..=101).contains(&counts[0]), "{counts:?}");
    late.stop_flag().store(true, Ordering::Relaxed);
    let Next::Run(grant, _) = board.take(0, 0.0) else {
        panic!("there is more")
    };
    assert!(Arc::ptr_eq(&grant.posted.job, &first) && grant.alone.is_some());
}

#[test]
fn background_jobs_at_their_byte_limit_wait_while_a_job_is_urgent() {
    let traffic = Arc::new(Traffic::default());
    let demand = |class| Demand {
        share: Share::of(class),
        class,
    };
    let demands = [demand(Class::Background), demand(Class::Soon)];
    traffic.begin(1 << 30);
    let rate = 4096.0 * 1000.0;
    let handed = simulate(&demands, rate, 0.5, &traffic);
    assert!(!handed[0].is_empty() && sum(&handed[1]) > 8.0 * sum(&handed[0]));
    let _urgent = traffic.enter();
    let handed = simulate(&demands, rate, 0.5, &traffic);
    assert!(handed[0].is_empty() && !handed[1].is_empty());
}

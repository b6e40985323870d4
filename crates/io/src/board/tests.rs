//! Shares, reservations and limits, exact on a drive of a fixed rate in virtual time.

use std::{path::Path, sync::mpsc::channel};

use proptest::{
    collection::vec,
    option,
    prelude::*,
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};
use straightway_core::{Choice, Direction, Extent, Move, Rate, Route, Share};
use straightway_sys::{File, Region};

use super::*;
use crate::{settings::Settings, tenant::Reservations};

const CHUNK_BYTES: u64 = 4096;
const CHUNKS: u64 = 1 << 14;

/// One who always has more to do.
#[derive(Clone, Copy, Debug)]
struct Wish {
    share: Share,
    class: Class,
}

/// A read of more chunks than any test takes. Nothing is ever read.
fn job(path: &Path, region: &Arc<Region>) -> Arc<Job> {
    let settings = Settings {
        chunk_bytes: CHUNK_BYTES,
        cached_chunk_bytes: CHUNK_BYTES,
        ..Settings::default()
    };
    let whole = Move {
        object: 0,
        extent: Extent::new(0, CHUNKS * CHUNK_BYTES),
        at: 0,
    };
    let file = Arc::new(File::open(path).unwrap());
    let choice = Choice::Only(Route::Buffered);
    let (files, ask) = (vec![file].into(), choice.into());
    let job = Job::with_region(Direction::In, files, vec![whole], region, ask, &settings);
    Arc::new(job.unwrap())
}

/// What each of `wishes` was handed, and when, by a drive of `rate` that runs for `seconds`.
fn play(wishes: &[Wish], rate: f64, seconds: f64, traffic: &Arc<Traffic>) -> Vec<Vec<(f64, u64)>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse");
    let sparse = std::fs::File::create(&path).unwrap();
    sparse.set_len(CHUNKS * CHUNK_BYTES).unwrap();
    let region = Arc::new(Region::host(CHUNKS * CHUNK_BYTES).unwrap());
    let board = Board::new(Track::Cached, traffic);
    let measured = Arc::new(Reservations::new(Some(Rate(rate))));
    let (answers, _inbox) = channel();
    let jobs: Vec<_> = wishes
        .iter()
        .map(|wish| {
            let job = job(&path, &region);
            let posted = Posted {
                job: Arc::clone(&job),
                tenant: Arc::new(Tenant::new(wish.share, wish.class, &measured).unwrap()),
                lanes: 1,
                since: Instant::now(),
                _urgent: None,
            };
            board.post(posted, &answers, 0.0);
            job
        })
        .collect();
    let mut handed = vec![Vec::new(); wishes.len()];
    let mut now_s = 0.0;
    while now_s < seconds {
        match board.take(0, now_s) {
            Next::Run(grant, chunk) => {
                let bytes = chunk.extent.bytes;
                let who = jobs
                    .iter()
                    .position(|job| Arc::ptr_eq(job, &grant.posted.job));
                handed[who.unwrap()].push((now_s, bytes));
                let admitted = grant
                    .posted
                    .tenant
                    .admits(usize::try_from(bytes).unwrap(), || now_s);
                assert!(admitted, "what is granted may go");
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

/// What each gets of `rate` in the end: a level times its weight, but no less than it reserved and no more than its
/// limit.
fn fair(wishes: &[Wish], rate: f64) -> Vec<f64> {
    let at = |level: f64| -> Vec<f64> {
        let one = |Share {
                       reservation,
                       limit,
                       weight,
                   }: Share| {
            let least = reservation.map_or(0.0, |rate| rate.0);
            (weight * level).clamp(least, limit.map_or(f64::INFINITY, |rate| rate.0))
        };
        wishes.iter().map(|wish| one(wish.share)).collect()
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
fn every_mixture_of_shares_gets_what_is_fair_to_the_chunk() {
    let (rate, seconds) = (4096.0 * 1000.0, 10.0);
    // What is reserved is at most all, and within the limit.
    let one = (option::of(0.0..0.2), option::of(0.2..1.0), 0.1..10.0);
    let mixtures = vec(one, 1..6);
    let play_one = |mixture: Vec<(Option<f64>, Option<f64>, f64)>| {
        let wishes: Vec<_> = mixture
            .into_iter()
            .map(|(reservation, limit, weight)| Wish {
                share: Share {
                    reservation: reservation.map(|part: f64| Rate(part.max(1e-3) * rate)),
                    limit: limit.map(|part| Rate(part * rate)),
                    weight,
                },
                class: Class::Soon,
            })
            .collect();
        let handed = play(&wishes, rate, seconds, &Arc::default());
        let fair = fair(&wishes, rate);
        for ((wish, handed), fair) in wishes.iter().zip(&handed).zip(fair) {
            let (got, meant) = (sum(handed), fair * seconds);
            let off = (got - meant).abs() / CHUNK_BYTES as f64;
            // Each of the others may be one chunk early. A limit that no whole number of chunks adds up to in a window is
            // missed by a little, which the others get.
            let limited = wishes.iter().any(|wish| wish.share.limit.is_some());
            let slack = if limited { 0.005 * rate * seconds } else { 0.0 };
            let most = (1 + wishes.len()) as f64 + slack / CHUNK_BYTES as f64;
            prop_assert!(off <= most, "{wish:?} got {got}, not {meant}");
            if let Some(limit) = wish.share.limit {
                assert_within(handed, limit.0);
            }
        }
        Ok(())
    };
    let dice = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::with_cases(64), dice);
    runner.run(&mixtures, play_one).unwrap();
}

/// In no 100 ms more than the limit allows, and one chunk.
fn assert_within(handed: &[(f64, u64)], limit: f64) {
    for (first, (start, _)) in handed.iter().enumerate() {
        let window = handed[first..]
            .iter()
            .take_while(|(at, _)| at - start < 0.1 - 1e-9);
        let bytes: u64 = window.map(|(_, bytes)| bytes).sum();
        let most = limit * 0.1 + CHUNK_BYTES as f64;
        assert!(
            bytes as f64 <= most + 1e-6,
            "{bytes} of {most} from {start} on"
        );
    }
}

#[test]
fn a_job_that_comes_late_has_its_share_from_then_on_and_nothing_to_catch_up_with() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse");
    let bytes = CHUNKS * CHUNK_BYTES;
    std::fs::File::create(&path)
        .unwrap()
        .set_len(bytes)
        .unwrap();
    let region = Arc::new(Region::host(bytes).unwrap());
    let board = Board::new(Track::Cached, &Arc::default());
    let nothing = Arc::new(Reservations::new(None));
    let (answers, _inbox) = channel();
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
        board.post(posted, &answers, 0.0);
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
    late.cancel();
    let Next::Run(grant, _) = board.take(0, 0.0) else {
        panic!("there is more")
    };
    assert!(Arc::ptr_eq(&grant.posted.job, &first) && grant.alone.is_some());
}

#[test]
fn background_jobs_wait_while_their_bytes_in_flight_are_at_their_bound_and_another_is_urgent() {
    let traffic = Arc::new(Traffic::default());
    let wish = |class| Wish {
        share: Share::of(class),
        class,
    };
    let wishes = [wish(Class::Background), wish(Class::Soon)];
    traffic.begin(1 << 30);
    let rate = 4096.0 * 1000.0;
    let handed = play(&wishes, rate, 0.5, &traffic);
    assert!(!handed[0].is_empty() && sum(&handed[1]) > 8.0 * sum(&handed[0]));
    let _urgent = traffic.enter();
    let handed = play(&wishes, rate, 0.5, &traffic);
    assert!(handed[0].is_empty() && !handed[1].is_empty());
}

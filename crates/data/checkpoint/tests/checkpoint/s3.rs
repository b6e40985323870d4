//! Checkpoints in a bucket of a real S3 server: the same as in a folder, and through a proxy that drops responses.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use straightway_checkpoint::{CheckpointSaver, Rank, Steps, fresh_run};
use straightway_core::Route;
use straightway_io::{
    Store,
    store::{Missing, Sweep, list_all},
};
use straightway_lab::{FaultProxy, ProxyFault, ProxyFaults, S3Server};
use straightway_net::Network;
use straightway_s3::{S3, S3Access};

use crate::{
    fixture::{State, executor, options, sources},
    store::{assert_holds, save, saved_and_restored, tagged_and_pruned},
};

/// The store below a prefix of the bucket at this address.
pub(crate) fn prefix(url: &str, name: &str) -> Arc<dyn Store> {
    let access = S3Access::with_keys(url, S3Server::ACCESS_KEY_ID, S3Server::SECRET_ACCESS_KEY);
    let network = Network::new(straightway_net::NetworkSettings {
        stall_max: Duration::from_secs(5),
        ..straightway_net::NetworkSettings::default()
    });
    let bucket = S3::new(S3Server::BUCKET, &access, &network).unwrap();
    bucket.below(name.as_ref(), Missing::Create).unwrap()
}

pub(crate) fn fresh(url: &str) -> Arc<dyn Store> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    prefix(url, &format!("checkpoints-{number}"))
}

/// All objects below a store.
pub(crate) fn objects(store: &dyn Store) -> Vec<String> {
    let all = list_all(store).unwrap();
    let mut names: Vec<_> = all.objects.iter().map(|o| store.describe(&o.name)).collect();
    for folder in &all.folders {
        names.extend(objects(&*store.below(folder, Missing::Refuse).unwrap()));
    }
    names
}

#[test]
fn a_state_saved_to_a_bucket_is_restored_by_any_number_of_ranks() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    let make = || Steps::in_store(fresh(&weed.url()));
    for receipt in saved_and_restored(make, &[1, 2]) {
        assert!(receipt.routes.iter().all(|row| row.route == Route::Socket));
    }
}

#[test]
fn steps_in_a_bucket_are_tagged_pruned_and_removed_and_leave_nothing() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    let store = fresh(&weed.url());
    let steps = Steps::in_store(Arc::clone(&store));
    tagged_and_pruned(&steps);
    steps.untag(2, "keep").unwrap();
    steps.remove(2).unwrap();
    steps.remove(4).unwrap();
    assert_eq!(objects(&*store), [""; 0], "nothing is left");
    assert!(store.sweep(Sweep::OlderThan(Duration::ZERO)).unwrap().is_empty());
}

#[test]
fn of_two_jobs_that_save_one_step_one_wins_and_the_other_gets_an_error() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    for _ in 0..5 {
        let store = fresh(&weed.url());
        let job = |number: u64| {
            let steps = Steps::in_store(Arc::clone(&store));
            let state = State::small(number);
            let alone = Rank { rank: 0, world: 1 };
            let run = fresh_run();
            let mut saver = CheckpointSaver::new(steps, alone, &run, executor(), options()).unwrap();
            let pieces = state.cut(0, 0, 1);
            let begun = saver.save(7, &sources(&pieces), "null");
            begun.and_then(|()| saver.wait()).map(|_| number)
        };
        let outcomes = std::thread::scope(|scope| {
            let jobs = [1, 2].map(|number| scope.spawn(move || job(number)));
            jobs.map(|job| job.join().unwrap())
        });
        let winners: Vec<_> = outcomes.iter().flatten().collect();
        assert_eq!(winners.len(), 1, "{outcomes:?}");
        let loser = outcomes.iter().find_map(|o| o.as_ref().err()).unwrap();
        assert!(loser.to_string().contains("there already"), "{loser}");
        let steps = Steps::in_store(Arc::clone(&store));
        assert_holds(&steps, 7, &State::small(*winners[0]), 1);
        // The objects of the losing job are gone.
        let shards = objects(&*store);
        assert_eq!(shards.len(), 2, "{shards:?}");
    }
}

#[test]
fn saves_with_lost_responses_and_cut_connections_are_whole_or_fail() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    let proxy = FaultProxy::start(&weed.address(), ProxyFaults::default()).unwrap();
    let store = prefix(&proxy.url(), "checkpoints-lost");
    let plain = Steps::in_store(prefix(&weed.url(), "checkpoints-lost"));
    proxy.set(ProxyFaults {
        seed: 77,
        shares: vec![
            (ProxyFault::LoseAnswer, 1200),
            (ProxyFault::CutUpload, 600),
            (ProxyFault::RefuseUpload(503), 300),
        ],
        only: Some("checkpoints-lost".to_owned()),
        after: 0,
    });
    let steps = Steps::in_store(store);
    for step in 1..=6 {
        let state = State::small(step);
        save(&steps, step, &state, 2, &options());
        assert_holds(&plain, step, &state, 1);
    }
    assert!(proxy.counts().faults > 10, "{:?}", proxy.counts());
    assert_eq!(plain.steps().unwrap(), [1, 2, 3, 4, 5, 6]);
}

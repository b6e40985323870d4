//! Checkpoints in a store that has only put-if-absent, get, list and remove: no folder, lock or rename.

mod stalled;

use std::{
    fs,
    sync::{Mutex, atomic::AtomicBool},
};

use straightway_io::{
    Executor, Settings,
    store::{CommitMode, Condition},
};
use straightway_memory::Memory;
use straightway_weights::{Dtype, Shape};

use super::*;
use crate::{
    CheckpointSaver, Rank, Retention, SaveSource, SaverOptions, ShardReport, Steps,
    name::{Removal, part_file, shard_draft, shard_file, tag_file},
    removal::{self, Ledger},
    rendezvous::{Rendezvous, TrustedCoordinator, WaitLimit, announce, gather},
};

fn memory() -> Steps {
    Steps::in_store(Arc::new(Memory::new("run")))
}

fn objects(steps: &Steps) -> ObjectCoordination {
    let root = Arc::clone(steps.shared());
    ObjectCoordination { root }
}

fn all(steps: &Steps) -> Vec<String> {
    names(steps.root()).unwrap()
}

/// Writes the shard of a rank to a folder, and then into an attempt of `steps`, as a rank would.
fn write(steps: &Steps, attempt: &Attempt, rank: Rank, content: &[u8]) -> ShardReport {
    let folder = tempfile::tempdir().unwrap();
    let local = Steps::create(folder.path()).unwrap();
    let executor = Arc::new(Executor::new(Settings::default()).unwrap());
    let alone = Rank { rank: 0, world: 1 };
    let options = SaverOptions::default();
    let mut saver = CheckpointSaver::new(local, alone, &attempt.run, executor, options).unwrap();
    let name = format!("tensor-{}", rank.rank);
    let shape = Shape::from(&[content.len() as u64][..]);
    let source = SaveSource::whole(&name, Dtype::U8, shape, content);
    saver.write_shard(attempt.step, &[source]).unwrap();
    let mut part = saver.wait_part().unwrap();
    let draft = shard_draft(0, &part.writer);
    let bytes = fs::read(folder.path().join(part.attempt.folder()).join(draft)).unwrap();
    part.attempt = attempt.clone();
    (part.world, part.shard.rank) = (rank.world, rank.rank);
    steps.coordination().begin(attempt).unwrap();
    let records = steps.root().below(attempt.folder().as_ref(), Missing::Refuse).unwrap();
    put(&*records, &writer_file(&part.writer), "", Durability::Unsynced).unwrap();
    let home = steps.coordination().home(attempt, &part.writer).unwrap();
    part.shard.file = shard_file(rank.rank, rank.world, true, home.mark.as_deref());
    let draft = home
        .store
        .create(part.shard.file.as_ref(), bytes.len() as u64, &Like::Replaced)
        .unwrap();
    draft.write_all_at(0, &bytes).unwrap();
    home.store.commit(vec![draft], CommitMode::InOrder).unwrap();
    part
}

fn attempt(step: u64, sequence: u64) -> Attempt {
    let run = "run".to_owned();
    Attempt { step, run, sequence }
}

fn save(steps: &Steps, step: u64) -> Result<Manifest> {
    let attempt = attempt(step, step + 1);
    let part = write(steps, &attempt, Rank { rank: 0, world: 1 }, &step.to_le_bytes());
    steps.commit(vec![part], "null", 1)
}

#[test]
fn steps_are_committed_listed_tagged_pruned_and_removed_without_a_folder() {
    let steps = memory();
    assert!(steps.latest().is_err());
    for step in 0..5 {
        save(&steps, step).unwrap();
    }
    assert_eq!(steps.steps().unwrap(), [0, 1, 2, 3, 4]);
    let checkpoint = steps.open_latest().unwrap();
    let chunk = checkpoint.read_chunk(0, 0).unwrap();
    assert!(chunk.ends_with(&4_u64.to_le_bytes()), "{chunk:?}");
    let error = save(&steps, 3).unwrap_err();
    assert!(error.to_string().contains("there already"), "{error}");
    steps.abandon(&attempt(3, 4));

    steps.tag(1, "best").unwrap();
    assert_eq!(steps.tags(1).unwrap(), ["best"]);
    assert!(steps.remove(1).is_err(), "a tag keeps it");
    let retention = Retention {
        last: 2,
        ..Retention::default()
    };
    let pruned = steps.prune(&retention).unwrap();
    assert_eq!((pruned.removed, pruned.kept), (vec![0, 2], vec![1, 3, 4]));
    assert_eq!(all(&steps), ["step-1", "step-3", "step-4"], "no record is left");
    steps.untag(1, "best").unwrap();
    for step in [1, 3, 4] {
        steps.remove(step).unwrap();
    }
    assert_eq!(all(&steps), [""; 0], "nothing is left");
    assert!(steps.remove(1).is_err() && steps.tag(1, "late").is_err());
    save(&steps, 1).unwrap();
    assert_eq!(steps.steps().unwrap(), [1], "a number can be used again");
}

#[test]
fn a_sweep_keeps_the_shards_of_a_save_that_was_killed_right_after_its_commit() {
    let steps = memory();
    let attempt = attempt(1, 2);
    let rank = Rank { rank: 0, world: 1 };
    let part = write(&steps, &attempt, rank, b"content");
    let writer = part.writer.clone();
    steps.commit(vec![part], "null", 1).unwrap();
    // Its records still exist.
    let records = steps.root().below(attempt.folder().as_ref(), Missing::Refuse).unwrap();
    put(&*records, &writer_file(&writer), "", Durability::Unsynced).unwrap();
    let swept = steps.sweep_left(Duration::ZERO).unwrap();
    assert_eq!(swept, [attempt.folder()]);
    assert_eq!(all(&steps), ["step-1"]);
    let chunk = steps.open_latest().unwrap().read_chunk(0, 0).unwrap();
    assert!(chunk.ends_with(b"content"), "{chunk:?}");
}

#[test]
fn shards_outlive_a_commit_whose_manifest_may_still_appear() {
    let steps = memory();
    let (late, rank) = (attempt(1, 2), Rank { rank: 0, world: 1 });
    let part = write(&steps, &late, rank, b"content");
    let records = steps.root().below(late.folder().as_ref(), Missing::Refuse);
    let records = records.unwrap();
    put(&*records, &writer_file(&part.writer), "", Durability::Unsynced).unwrap();
    objects(&steps).note_undecided(&late);
    steps.abandon(&late);
    // The request of the first attempt is carried out now.
    steps.commit(vec![part], "null", 0).unwrap();
    let chunk = steps.open_latest().unwrap().read_chunk(0, 0).unwrap();
    assert!(chunk.ends_with(b"content"), "{chunk:?}");
    // Without a manifest, only a sweep by age removes the attempt.
    let lost = attempt(3, 4);
    let part = write(&steps, &lost, rank, b"lost");
    let records = steps.root().below(lost.folder().as_ref(), Missing::Refuse);
    put(&*records.unwrap(), &writer_file(&part.writer), "", Durability::Unsynced).unwrap();
    objects(&steps).note_undecided(&lost);
    steps.abandon(&lost);
    assert!(all(&steps).contains(&"step-3".to_owned()));
    steps.sweep_left(Duration::ZERO).unwrap();
    assert_eq!(all(&steps), ["step-1"]);
}

#[test]
fn shards_outlive_an_attempt_whose_records_cannot_be_listed() {
    let store: Arc<dyn Store> = Arc::new(Memory::new("run"));
    let steps = Steps::in_store(Arc::clone(&store));
    let late = attempt(1, 2);
    let part = write(&steps, &late, Rank { rank: 0, world: 1 }, b"content");
    objects(&steps).note_undecided(&late);
    let failing = stalled::Stalled {
        inner: store,
        name: String::new(),
        meanwhile: Arc::default(),
        has_condition: true,
        fails_to_list: Arc::new(AtomicBool::new(true)),
    };
    Steps::in_store(Arc::new(failing)).abandon(&late);
    // The request of the attempt is carried out now.
    steps.commit(vec![part], "null", 0).unwrap();
    let chunk = steps.open_latest().unwrap().read_chunk(0, 0).unwrap();
    assert!(chunk.ends_with(b"content"), "{chunk:?}");
}

#[test]
fn the_shard_of_a_rank_that_comes_after_the_coordinator_gave_up_goes() {
    let steps = memory();
    let given_up = attempt(3, 1);
    let rank = |rank| Rank { rank, world: 2 };
    let mut coordinator = write(&steps, &given_up, rank(0), b"first").writer;
    let late = write(&steps, &given_up, rank(1), b"late");
    let shards = || {
        let step = steps.root().below("step-3".as_ref(), Missing::Refuse);
        names(&*step.unwrap()).unwrap().len()
    };
    // While the coordinator may commit it, a rank that gives up must not remove its shard.
    objects(&steps).withdraw(&given_up, &late.writer).unwrap();
    assert_eq!(shards(), 2);
    for is_killed in [true, false] {
        objects(&steps).give_up(&given_up, &coordinator).unwrap();
        assert_eq!(shards(), 0);
        // The shard of the slow rank becomes visible only now. If the rank is killed, a sweep finds the shard.
        let step = steps.root().below("step-3".as_ref(), Missing::Refuse);
        let always = Condition::Always;
        let file = late.shard.file.as_ref();
        let put = step.unwrap().put(file, b"late", &always, Durability::Unsynced);
        put.unwrap();
        assert_eq!(shards(), 1);
        if is_killed {
            steps.sweep_left(Duration::ZERO).unwrap();
        } else {
            objects(&steps).withdraw(&given_up, &late.writer).unwrap();
        }
        assert_eq!(all(&steps), Vec::<String>::new());
        coordinator = write(&steps, &given_up, rank(0), b"again").writer;
        let records = steps.root().below(given_up.folder().as_ref(), Missing::Refuse);
        let name = writer_file(&late.writer);
        put_record(&*records.unwrap(), &name);
    }
}

#[test]
fn the_record_of_a_rank_that_begins_while_the_coordinator_gives_up_stays() {
    let store: Arc<dyn Store> = Arc::new(Memory::new("run"));
    let steps = Steps::in_store(Arc::clone(&store));
    let given_up = attempt(3, 1);
    let own = write(&steps, &given_up, Rank { rank: 0, world: 2 }, b"first");
    let late = writer_file(&"0".repeat(own.writer.len()));
    let below = |folder: &str| steps.root().below(folder.as_ref(), Missing::Refuse);
    let records = below(&given_up.folder()).unwrap();
    let meanwhile = {
        let (records, late) = (Arc::clone(&records), late.clone());
        move || put_record(&*records, &late)
    };
    let stalled = stalled::Stalled {
        inner: store,
        name: own.shard.file.clone(),
        meanwhile: Arc::new(Mutex::new(Some(Box::new(meanwhile)))),
        has_condition: true,
        fails_to_list: Arc::default(),
    };
    let root = Arc::new(stalled);
    ObjectCoordination { root }.give_up(&given_up, &own.writer).unwrap();
    // A sweep finds the shard of that rank by its record.
    assert_eq!(names(&*records).unwrap(), [late]);
    assert_eq!(names(&*below("step-3").unwrap()).unwrap(), [""; 0]);
}

fn put_record(records: &dyn Store, name: &str) {
    put(records, name, "", Durability::Unsynced).unwrap();
}

#[test]
fn of_many_commits_of_one_step_one_wins_and_is_whole() {
    let steps = memory();
    let race = |sequence: u64| {
        let attempt = attempt(7, sequence);
        let rank = Rank { rank: 0, world: 1 };
        let part = write(&steps, &attempt, rank, &sequence.to_le_bytes());
        let committed = steps.commit(vec![part], "null", 0);
        if committed.is_err() {
            steps.abandon(&attempt);
        }
        committed.is_ok().then_some(sequence)
    };
    let won: Vec<_> = std::thread::scope(|scope| {
        let racers: Vec<_> = (1..9).map(|n| scope.spawn(move || race(n))).collect();
        racers.into_iter().filter_map(|racer| racer.join().unwrap()).collect()
    });
    let [winner] = won[..] else { panic!("{won:?}") };
    let chunk = steps.checkpoint(7).unwrap().read_chunk(0, 0).unwrap();
    assert!(chunk.ends_with(&winner.to_le_bytes()));
    assert_eq!(all(&steps), ["step-7"]);
    assert_eq!(
        names(&*steps.step(7).unwrap()).unwrap().len(),
        2,
        "a shard and the manifest"
    );
}

#[test]
fn an_abandoned_attempt_removes_its_own_objects_and_no_others() {
    let steps = memory();
    let (kept, given_up) = (attempt(7, 1), attempt(7, 2));
    let alone = Rank { rank: 0, world: 1 };
    let part = write(&steps, &kept, alone, b"kept");
    write(&steps, &given_up, alone, b"given up");
    steps.abandon(&given_up);
    assert!(steps.steps().unwrap().is_empty(), "nothing is a step before its commit");
    steps.commit(vec![part], "null", 0).unwrap();
    assert!(
        steps
            .checkpoint(7)
            .unwrap()
            .read_chunk(0, 0)
            .unwrap()
            .ends_with(b"kept")
    );
    assert_eq!(all(&steps), ["step-7"]);
}

#[test]
fn ranks_meet_in_a_store_without_folders() {
    let steps = memory();
    let attempt = attempt(3, 1);
    let parts = [0, 1].map(|rank| write(&steps, &attempt, Rank { rank, world: 2 }, &rank.to_le_bytes()));
    let [first, second] = parts;
    let wait = WaitLimit {
        timeout: Duration::from_secs(20),
        progress: Arc::default(),
    };
    let trusted = TrustedCoordinator::default();
    let rendezvous = Rendezvous {
        store: &steps,
        attempt: &attempt,
        rank: 1,
        trusted: &trusted,
        wait: &wait,
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| rendezvous.attend(&second));
        let records = steps.root().below(attempt.folder().as_ref(), Missing::Refuse).unwrap();
        announce(&*records, &first.writer).unwrap();
        let coordinator = first.writer.clone();
        let parts = gather(&*records, first, &wait).unwrap();
        assert!(names(&*records).unwrap().contains(&part_file(1, &coordinator)));
        steps.commit(parts, "null", 0).unwrap();
        other.join().unwrap().unwrap();
    });
    assert_eq!(all(&steps), ["step-3"]);
    let error = rendezvous.attend(&second.clone()).err();
    assert!(error.is_none(), "a rank that comes late finds the step: {error:?}");
}

/// Leaves what a remover leaves that dies after its decision. Returns the step.
fn decide_removal(steps: &Steps, step: u64) -> Arc<dyn Store> {
    let held = Ledger::open(steps, step).unwrap().unwrap();
    let identity = steps.identity(&held).unwrap();
    let nonce = "0123456789abcdef".to_owned();
    let removal = Removal { step, nonce };
    Ledger::put(steps, &removal.intent(), "", Durability::Synced).unwrap();
    let text = format!("remove {identity}");
    Ledger::put(steps, &removal.decision(), &text, Durability::Synced).unwrap();
    held
}

#[test]
fn an_interrupted_removal_is_finished_by_the_next_save_of_that_step() {
    let steps = memory();
    save(&steps, 5).unwrap();
    decide_removal(&steps, 5);
    assert!(steps.steps().unwrap().is_empty() && steps.manifest(5).is_err());
    steps.abandon(&attempt(5, 6));
    save(&steps, 5).unwrap();
    assert_eq!(
        (steps.steps().unwrap(), all(&steps)),
        (vec![5], vec!["step-5".to_owned()])
    );
}

/// A process carries out the removal of a step and stalls before it removes `name`. Others finish the removal, save the
/// step again and tag it. Returns whether the new step and its tag exist when the first process is done.
fn new_step_survives(name: &str, has_condition: bool) -> (bool, bool) {
    let store: Arc<dyn Store> = Arc::new(Memory::new("run"));
    let others = Steps::in_store(Arc::clone(&store));
    save(&others, 5).unwrap();
    let held = decide_removal(&others, 5);
    // A tag that was put too late.
    assert!(put(&*held, &tag_file("best"), "best\n", Durability::Synced).unwrap());
    let meanwhile = {
        let others = others.clone();
        move || {
            removal::settle(&others, None).unwrap();
            others.abandon(&attempt(5, 6));
            save(&others, 5).unwrap();
            others.tag(5, "best").unwrap();
        }
    };
    let stalled = stalled::Stalled {
        inner: store,
        name: name.to_owned(),
        meanwhile: Arc::new(Mutex::new(Some(Box::new(meanwhile)))),
        has_condition,
        fails_to_list: Arc::default(),
    };
    removal::settle(&Steps::in_store(Arc::new(stalled)), None).unwrap();
    let is_there = others.steps().unwrap() == [5];
    (is_there, is_there && others.tags(5).unwrap() == ["best"])
}

#[test]
fn a_step_that_is_saved_and_tagged_again_while_another_process_removes_the_old_one_stays() {
    for name in [MANIFEST, &tag_file("best")] {
        assert_eq!(new_step_survives(name, true), (true, true), "{name}");
    }
    // The gap in a store without remove-if-match.
    assert_eq!(new_step_survives(MANIFEST, false), (false, false));
    assert_eq!(new_step_survives(&tag_file("best"), false), (true, false));
}

#[test]
fn old_leftovers_of_killed_saves_are_swept_in_a_store_without_locks() {
    let steps = memory();
    save(&steps, 3).unwrap();
    let (left, alone) = (attempt(4, 1), Rank { rank: 0, world: 1 });
    write(&steps, &left, alone, b"left");
    let hold = Hold {
        step: 3,
        attempt: left.clone(),
    };
    Ledger::put(&steps, &hold.name(), "", Durability::Unsynced).unwrap();
    let before = all(&steps);
    // An attempt that may be alive is kept, with its hold.
    let now = SystemTime::now();
    objects(&steps).clear_aged(now + LEFT_AFTER / 2, LEFT_AFTER).unwrap();
    assert_eq!(all(&steps), before);
    objects(&steps).clear_aged(now + LEFT_AFTER * 2, LEFT_AFTER).unwrap();
    assert_eq!(all(&steps), ["step-3"], "with the shards and the hold");
    assert_eq!(steps.steps().unwrap(), [3]);
}

//! Processes killed at random moments of saving, tagging and pruning in a bucket, while answers are lost.
//!
//! A child does all of these, over and over; the state of a step follows from its number. After each kill every step that
//! is listed must be whole, and every step that the child was told is committed must still be there, unless it was pruned.
//! At the end a sweep leaves nothing but the steps.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_io::store::Missing;
use straightway_lab::{Fault, Faults, Proxy, Weed};
use straightway_pipeline::{
    checkpoint::{Codec, Options, Rank, Retention, Saver, Steps, fresh_run},
    weights::Dtype,
};

use crate::{
    fixture::{State, executor, noise, options, sources},
    s3::{objects, prefix},
    store::assert_holds,
};

/// How often, unless the environment says otherwise.
const KILLS: u64 = 12;

/// The environment: what makes this process a child, where its log is, and how many are killed.
const URL: &str = "STRAIGHTWAY_S3_KILL_URL";
const LOG: &str = "STRAIGHTWAY_S3_KILL_LOG";
const COUNT: &str = "STRAIGHTWAY_S3_KILLS";

/// How long a child lives at most: between these, by how fast it saves.
const LIFE_MIN: Duration = Duration::from_secs(3);
const LIFE_MAX: Duration = Duration::from_secs(15);

/// After how many kills what is left is swept.
const SWEEP_EVERY: u64 = 10;

/// Where the steps are.
const PREFIX: &str = "killed";

/// Steps that the child keeps.
const KEPT: usize = 3;

/// Every fourth state is stored in several parts.
fn state(step: u64) -> State {
    let large: u64 = if step.is_multiple_of(4) {
        9 << 20
    } else {
        9000
    };
    let mut state = State::of(
        1,
        &[("same", Dtype::U8, &[large]), ("new", Dtype::F32, &[500])],
    );
    state.tensors[1].bytes = noise(step, 2000);
    state
}

fn child_options(step: u64) -> Options {
    Options {
        incremental: step.is_multiple_of(3),
        codec: if step.is_multiple_of(2) {
            Codec::Raw
        } else {
            Codec::Lz4
        },
        parity: usize::from(step.is_multiple_of(5)),
        ..options()
    }
}

/// The child's life: it never ends by itself.
#[test]
fn child() {
    let Ok(url) = std::env::var(URL) else {
        return;
    };
    let log = PathBuf::from(std::env::var_os(LOG).unwrap());
    let steps = Steps::in_store(prefix(&url, PREFIX));
    let mut log = fs::OpenOptions::new().append(true).open(log).unwrap();
    let mut step = steps.steps().unwrap().pop().unwrap_or(0);
    loop {
        step += 1;
        let alone = Rank { rank: 0, world: 1 };
        let (run, chosen) = (fresh_run(), child_options(step));
        let mut saver = Saver::new(steps.clone(), alone, &run, executor(), chosen).unwrap();
        let pieces = state(step).cut(0, 0, 1);
        saver.save(step, &sources(&pieces), "null").unwrap();
        saver.wait().unwrap().unwrap();
        // In one call: a kill between the number and its end would join it to the next.
        log.write_all(format!("{step}\n").as_bytes()).unwrap();
        if step.is_multiple_of(2) {
            steps.tag(step, "even").unwrap();
        }
        let retention = Retention {
            last: KEPT,
            every: None,
            ..Retention::default()
        };
        steps.prune(&retention).unwrap();
        if step.is_multiple_of(2) {
            steps.untag(step, "even").unwrap();
        }
    }
}

fn spawn(url: &str, log: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "s3_kill::child", "--nocapture"])
        .env(URL, url)
        .env(LOG, log)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// The longest that a child lives: some rounds, however slow the machine is. A child runs until it has saved two steps, to see.
fn longest_life(url: &str, log: &Path) -> Duration {
    let mut child = spawn(url, log);
    let start = Instant::now();
    let saved = || fs::read_to_string(log).unwrap().lines().count();
    while saved() < 2 && start.elapsed() < LIFE_MAX {
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    (start.elapsed() * 2).clamp(LIFE_MIN, LIFE_MAX)
}

#[test]
fn whatever_is_killed_while_answers_are_lost_every_committed_step_is_whole_and_a_sweep_leaves_nothing_else()
 {
    if std::env::var_os(URL).is_some() {
        return;
    }
    let Some(weed) = Weed::shared() else { return };
    let kills = std::env::var(COUNT).map_or(KILLS, |count| count.parse().unwrap());
    let proxy = Proxy::start(&weed.address(), Faults::default()).unwrap();
    proxy.set(Faults {
        seed: 3,
        shares: vec![(Fault::LoseAnswer, 500), (Fault::CutUpload, 200)],
        only: Some(PREFIX.to_owned()),
        after: 0,
    });
    let log = tempfile::NamedTempFile::new().unwrap();
    let store = prefix(&weed.url(), PREFIX);
    let steps = Steps::in_store(Arc::clone(&store));
    let (mut known, mut swept) = (0, 0);
    let longest_ms = longest_life(&proxy.url(), log.path()).as_millis() as u64;
    for kill in 0..kills {
        let mut child = spawn(&proxy.url(), log.path());
        // From before it has begun to after some rounds.
        let delay = noise(kill, 2);
        let delay = u64::from(u16::from_le_bytes([delay[0], delay[1]])) % longest_ms;
        std::thread::sleep(Duration::from_millis(100 + delay));
        let early = child.try_wait().unwrap();
        assert!(early.is_none(), "the child ended by itself: {early:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        let listed = steps.steps().unwrap();
        for &step in listed.iter().filter(|step| **step > known) {
            assert_holds(&steps, step, &state(step), 1);
        }
        let told = fs::read_to_string(log.path()).unwrap();
        let told: u64 = told.lines().last().map_or(0, |line| line.parse().unwrap());
        let last = listed.last().copied().unwrap_or(0);
        assert!(
            last >= told,
            "step {told} was committed and is gone: {listed:?}"
        );
        known = last;
        // A job looks at all that is left when it begins: after some kills nothing else would be done.
        if kill % SWEEP_EVERY == SWEEP_EVERY - 1 {
            swept += steps.sweep_left(Duration::ZERO).unwrap().len();
        }
    }
    assert!(known > 0, "no step was saved at all");
    swept += steps.sweep_left(Duration::ZERO).unwrap().len();
    let listed = steps.steps().unwrap();
    let mut wanted = Vec::new();
    for &step in &listed {
        assert_holds(&steps, step, &state(step), 1);
        let folder = store
            .below(format!("step-{step}").as_ref(), Missing::Refuse)
            .unwrap();
        wanted.extend(objects(&*folder));
    }
    let all = objects(&*store);
    let orphans: Vec<_> = all.iter().filter(|name| !wanted.contains(name)).collect();
    assert!(orphans.is_empty(), "{orphans:?}");
    // In each step there is what its manifest names, the manifest, and tags.
    for &step in &listed {
        let manifest = steps.manifest(step).unwrap();
        let named = manifest.shards.len() + manifest.parity.len() + 1;
        let tags = steps.tags(step).unwrap().len();
        let folder = format!("/step-{step}/");
        let there: Vec<_> = all.iter().filter(|name| name.contains(&folder)).collect();
        assert_eq!(there.len(), named + tags, "{there:?}");
    }
    assert!(store.sweep_drafts(Duration::ZERO).unwrap().is_empty());
    eprintln!(
        "{kills} kills; {known} steps were saved on the way, {} faults, {swept} leftovers swept",
        proxy.counts().faults,
    );
}

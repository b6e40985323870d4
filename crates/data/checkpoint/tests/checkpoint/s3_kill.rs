//! Kills processes at random moments of saving, tagging and pruning in a bucket, while responses are lost.
//!
//! A child repeats these phases. The state of a step is a function of its number. The child logs the start of each
//! phase. The test waits for the phase to kill in, and kills the child at a random moment of the time that this phase
//! took before. So kills are spread over all phases on slow machines too, and most children save a step.
//!
//! After each kill, every listed step must be complete, and every step that a child was told is committed must still
//! exist, unless it was pruned. At the end, a sweep leaves nothing but the steps.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_checkpoint::{CheckpointSaver, Codec, Rank, SaverOptions, Steps, fresh_run};
use straightway_io::store::{Missing, Store, Sweep};
use straightway_lab::{FaultProxy, ProxyFault, ProxyFaults, S3Server};
use straightway_weights::Dtype;

use crate::{
    fixture::{State, executor, keep_last, noise, options, sources},
    s3::{objects, prefix},
    store::assert_holds,
};

/// The number of kills, unless the environment sets it.
const KILLS: u64 = 12;

/// Environment variables: the URL, which makes this process a child, the path of its log, and the number of kills.
const URL: &str = "STRAIGHTWAY_S3_KILL_URL";
const LOG: &str = "STRAIGHTWAY_S3_KILL_LOG";
const COUNT: &str = "STRAIGHTWAY_S3_KILLS";

/// The phases of a child, which it repeats. It logs the start of each, so every phase but the first also shows that the
/// step is saved.
const PHASES: [&str; 4] = ["save", "tag", "prune", "untag"];

/// The maximum time to wait for a child to begin a phase.
const PHASE_WAIT_MAX: Duration = Duration::from_mins(1);

/// The assumed duration of a phase that was not measured yet.
const PHASE_GUESS: Duration = Duration::from_millis(300);

/// The maximum life of a child that is killed before its first phase.
const START_GUESS: Duration = Duration::from_millis(50);

/// The number of kills between sweeps.
const SWEEP_EVERY: u64 = 5;

/// The object whose put commits a step.
const MANIFEST: &str = "manifest";

/// The prefix of the steps.
const PREFIX: &str = "killed";

/// Steps that the child keeps.
const KEPT: usize = 3;

/// Every fourth state is uploaded in several parts.
fn state(step: u64) -> State {
    let large: u64 = if step.is_multiple_of(4) { 9 << 20 } else { 9000 };
    let mut state = State::of(1, &[("same", Dtype::U8, &[large]), ("new", Dtype::F32, &[500])]);
    state.tensors[1].bytes = noise(step, 2000);
    state
}

fn child_options(step: u64) -> SaverOptions {
    SaverOptions {
        incremental: step.is_multiple_of(3),
        codec: if step.is_multiple_of(2) { Codec::Raw } else { Codec::Lz4 },
        parity: usize::from(step.is_multiple_of(5)),
        ..options()
    }
}

/// The child process. It never ends by itself.
#[test]
#[ignore = "it runs as a child of another test"]
fn child() {
    let url = std::env::var(URL).expect("set by the test that starts it");
    let log = PathBuf::from(std::env::var_os(LOG).unwrap());
    let steps = Steps::in_store(prefix(&url, PREFIX));
    let mut log = fs::OpenOptions::new().append(true).open(log).unwrap();
    let start = Instant::now();
    // In one write: a kill between the number and its newline would join it to the next.
    let mut note = |phase: &str, step: u64| {
        let line = format!("{phase} {step} {}\n", start.elapsed().as_micros());
        log.write_all(line.as_bytes()).unwrap();
    };
    let mut step = steps.steps().unwrap().pop().unwrap_or(0);
    loop {
        step += 1;
        note("save", step);
        let alone = Rank { rank: 0, world: 1 };
        let (run, chosen) = (fresh_run(), child_options(step));
        let mut saver = CheckpointSaver::new(steps.clone(), alone, &run, executor(), chosen).unwrap();
        let pieces = state(step).cut(0, 0, 1);
        saver.save(step, &sources(&pieces), "null").unwrap();
        saver.wait().unwrap().unwrap();
        note("tag", step);
        if step.is_multiple_of(2) {
            steps.tag(step, "even").unwrap();
        }
        note("prune", step);
        let retention = keep_last(KEPT);
        steps.prune(&retention).unwrap();
        note("untag", step);
        if step.is_multiple_of(2) {
            steps.untag(step, "even").unwrap();
        }
    }
}

/// A log entry of a child: the start of a phase of a step.
struct Note {
    phase: usize,
    step: u64,
    at: Duration,
}

impl Note {
    /// Whether the phase does anything: every second step is tagged.
    fn has_work(&self) -> bool {
        !matches!(PHASES[self.phase], "tag" | "untag") || self.step.is_multiple_of(2)
    }

    fn parse(line: &str) -> Self {
        let mut words = line.split(' ');
        let phase = words.next().unwrap();
        Self {
            phase: PHASES.iter().position(|known| *known == phase).unwrap(),
            step: words.next().unwrap().parse().unwrap(),
            at: Duration::from_micros(words.next().unwrap().parse().unwrap()),
        }
    }
}

/// The observations so far.
#[derive(Default)]
struct Seen {
    /// The last listed step.
    last: u64,
    /// Steps that a child was told are saved.
    told: BTreeSet<u64>,
    /// The number of kills before the first phase, and in each phase.
    kills: [u64; 1 + PHASES.len()],
    /// The last measured duration of each phase.
    durations: [Option<Duration>; PHASES.len()],
}

impl Seen {
    /// Adds the log of a killed child.
    fn learn(&mut self, notes: &[Note]) {
        for pair in notes.windows(2).filter(|pair| pair[0].has_work()) {
            self.durations[pair[0].phase] = Some(pair[1].at.saturating_sub(pair[0].at));
        }
        let saved = notes.iter().filter(|note| note.phase > 0);
        self.told.extend(saved.map(|note| note.step));
        self.kills[notes.last().map_or(0, |note| note.phase + 1)] += 1;
    }

    /// Asserts that every new step is complete, and that every step that a child was told is saved exists or was
    /// pruned, in which case enough later ones exist.
    fn check(&mut self, steps: &Steps) {
        let listed = steps.steps().unwrap();
        for &step in listed.iter().filter(|step| **step > self.last) {
            assert_holds(steps, step, &state(step), 1);
        }
        for &told in &self.told {
            let later = listed.iter().filter(|step| **step > told).count();
            assert!(
                listed.contains(&told) || later >= KEPT,
                "step {told} was saved and is gone: {listed:?}"
            );
        }
        self.last = listed.last().copied().unwrap_or(0);
    }
}

/// A running child.
struct Running<'a> {
    child: Child,
    log: &'a Path,
    /// The offset of its entries in the log.
    from: usize,
}

impl<'a> Running<'a> {
    fn spawn(url: &str, log: &'a Path) -> Self {
        let from = fs::read_to_string(log).unwrap().len();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "s3_kill::child", "--nocapture"])
            .env(URL, url)
            .env(LOG, log)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, log, from }
    }

    fn notes(&self) -> Vec<Note> {
        let all = fs::read_to_string(self.log).unwrap();
        all[self.from..].lines().map(Note::parse).collect()
    }

    /// Waits until the child has begun a phase.
    fn wait_for(&mut self, phase: usize) {
        let start = Instant::now();
        let is_wanted = |note: &Note| note.phase == phase && note.has_work();
        let has_begun = |notes: &[Note]| notes.iter().any(is_wanted);
        while !has_begun(&self.notes()) && start.elapsed() < PHASE_WAIT_MAX {
            let early = self.child.try_wait().unwrap();
            assert!(early.is_none(), "the child ended by itself: {early:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Kills the child. Returns its log.
    fn kill(mut self) -> Vec<Note> {
        let early = self.child.try_wait().unwrap();
        assert!(early.is_none(), "the child ended by itself: {early:?}");
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.notes()
    }
}

/// Runs a child and kills it in a phase that depends on the number of the kill. Every tenth child is killed before its
/// first phase.
fn run_and_kill(kill: u64, url: &str, log: &Path, seen: &mut Seen) {
    let mut child = Running::spawn(url, log);
    let share = noise(kill, 2);
    let share = f64::from(u16::from_le_bytes([share[0], share[1]])) / f64::from(u16::MAX);
    let mut lasts = START_GUESS;
    if kill % 10 != 9 {
        // Two in five kills are in a save, the longest phase.
        let phase = (kill % 5).saturating_sub(1) as usize;
        child.wait_for(phase);
        lasts = seen.durations[phase].unwrap_or(PHASE_GUESS);
    }
    std::thread::sleep(lasts.mul_f64(share));
    seen.learn(&child.kill());
}

#[test]
fn after_kills_and_lost_responses_every_committed_step_is_whole_and_a_sweep_leaves_nothing_else() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    let kills = std::env::var(COUNT).map_or(KILLS, |count| count.parse().unwrap());
    let proxy_with = |seed, shares: &[(ProxyFault, u32)], only: &str| {
        let proxy = FaultProxy::start(&weed.address(), ProxyFaults::default()).unwrap();
        proxy.set(ProxyFaults {
            seed,
            shares: shares.to_vec(),
            only: Some(only.to_owned()),
            after: 0,
        });
        proxy
    };
    let usual = [(ProxyFault::LoseAnswer, 500), (ProxyFault::CutUpload, 200)];
    let anywhere = proxy_with(3, &usual, PREFIX);
    // Half of the requests that put or remove a manifest lose their response.
    let at_commit = proxy_with(4, &[(ProxyFault::LoseAnswer, 5000)], MANIFEST);
    let log = tempfile::NamedTempFile::new().unwrap();
    let store = prefix(&weed.url(), PREFIX);
    let steps = Steps::in_store(Arc::clone(&store));
    let (mut seen, mut swept) = (Seen::default(), 0);
    for kill in 0..kills {
        let proxy = if kill % 3 == 2 { &at_commit } else { &anywhere };
        run_and_kill(kill, &proxy.url(), log.path(), &mut seen);
        seen.check(&steps);
        // A job reads all leftovers at its start: without sweeps it would soon do nothing else.
        if kill % SWEEP_EVERY == SWEEP_EVERY - 1 {
            swept += steps.sweep_left(Duration::ZERO).unwrap().len();
        }
    }
    swept += steps.sweep_left(Duration::ZERO).unwrap().len();
    seen.check(&steps);
    assert_only_steps(&store, &steps);
    let saved = seen.told.len();
    eprintln!(
        "{kills} kills: {} before the first save, {:?} in {PHASES:?}; {saved} steps were told to be saved, the last is {}; \
         {} faults, {} answers about manifests lost; {swept} leftovers swept",
        seen.kills[0],
        &seen.kills[1..],
        seen.last,
        anywhere.counts().faults,
        at_commit.counts().faults,
    );
    assert!(saved as u64 * 4 >= kills, "{saved} steps were saved");
}

/// Asserts that only complete steps are left: the objects that each manifest names, the manifest, and tags.
fn assert_only_steps(store: &Arc<dyn Store>, steps: &Steps) {
    let listed = steps.steps().unwrap();
    let mut wanted = Vec::new();
    for &step in &listed {
        assert_holds(steps, step, &state(step), 1);
        let folder = store.below(format!("step-{step}").as_ref(), Missing::Refuse).unwrap();
        wanted.extend(objects(&*folder));
    }
    let all = objects(&**store);
    let orphans: Vec<_> = all.iter().filter(|name| !wanted.contains(name)).collect();
    assert!(orphans.is_empty(), "{orphans:?}");
    for &step in &listed {
        let manifest = steps.manifest(step).unwrap();
        let named = manifest.shards.len() + manifest.parity.len() + 1;
        let tags = steps.tags(step).unwrap().len();
        let folder = format!("/step-{step}/");
        let there: Vec<_> = all.iter().filter(|name| name.contains(&folder)).collect();
        assert_eq!(there.len(), named + tags, "{there:?}");
    }
    assert!(store.sweep(Sweep::OlderThan(Duration::ZERO)).unwrap().is_empty());
}

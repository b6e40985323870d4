//! A model check of the slot protocol: runs processes in every order. Each may be overtaken, or die, before any access.
//!
//! The processes run the real code on shared words in memory. A process is a function of the responses that it got so
//! far. So it is not suspended, but run again from its start with those responses until it makes one more access. A
//! state is the memory and the responses of all processes. Every reachable state is visited once.
//!
//! The memory has one slot. Its bytes are two halves, each written and read in a separate access, so that a chunk can
//! be torn. A write goes to a queue, and reaches the slot later: in any order, and also after its process died. In some
//! cases the proof of the bytes is not checked. There the generations alone have to keep chunks apart; then a process
//! that dies has no writes in its queue, which is what the lock on the descriptor of I/Os provides.
//!
//! Of a record's words, the state, one word of the key, the proof and the checksum are accessed one by one. The others
//! follow from them here (the four words of a key are equal) or are constant, and would only multiply the states.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeSet, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    rc::Rc,
};

use super::*;
use crate::{
    format::{SlotAt, TierId},
    key::{Key, KvNamespace},
    record::{Binding, Proof},
};

/// The environment variable that enables the longest cases.
const EVERY: &str = "STRAIGHTWAY_MODEL_ALL";

const POSITION: Position = Position {
    tier: TierId([1, 2]),
    at: SlotAt { segment: 0, number: 0 },
};

const NAMESPACE: [u64; 2] = [3, 4];

/// One access to what the processes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Access {
    Load(usize),
    Store(usize, u64),
    /// Asks for the lease.
    Lock,
    Unlock,
    /// Queues the write of one half.
    Write(usize, u64),
    /// Waits until the queue of the process is empty.
    Drain,
    Read(usize),
}

/// What the processes share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Memory {
    words: [u64; RECORD_WORDS],
    halves: [u64; 2],
    /// The process that has the lease.
    holder: Option<usize>,
    /// Writes that have not reached the slot: the process, the half and its content.
    queue: Vec<(usize, usize, u64)>,
}

impl Memory {
    /// Performs one access; `None` if the process has to wait.
    fn answer(&mut self, process: usize, access: Access) -> Option<u64> {
        match access {
            Access::Load(at) => Some(self.words[at]),
            Access::Store(at, value) => {
                self.words[at] = value;
                Some(0)
            }
            Access::Lock => {
                let is_free = self.holder.is_none();
                if is_free {
                    self.holder = Some(process);
                }
                Some(is_free.into())
            }
            Access::Unlock => {
                self.holder = None;
                Some(0)
            }
            Access::Write(half, content) => {
                self.queue.push((process, half, content));
                Some(0)
            }
            Access::Drain => self.queue.iter().all(|(of, ..)| *of != process).then_some(0),
            Access::Read(half) => Some(self.halves[half]),
        }
    }
}

/// What one process sees: replays the responses that it got, and then records the first new access.
struct View<'a> {
    answers: &'a [u64],
    next: Cell<usize>,
    key: Cell<u64>,
    pending: RefCell<Option<Access>>,
}

impl<'a> View<'a> {
    fn new(answers: &'a [u64]) -> Self {
        Self {
            answers,
            next: Cell::new(0),
            key: Cell::new(0),
            pending: RefCell::new(None),
        }
    }

    fn ask(&self, access: Access) -> Option<u64> {
        let next = self.next.get();
        if self.pending.borrow().is_none()
            && let Some(answer) = self.answers.get(next)
        {
            self.next.set(next + 1);
            return Some(*answer);
        }
        self.pending.borrow_mut().get_or_insert(access);
        None
    }
}

impl Words for View<'_> {
    fn load(&self, at: usize) -> Option<u64> {
        if let Some(value) = implied(at, self.key.get()) {
            return Some(value);
        }
        let value = self.ask(Access::Load(at))?;
        if at == KEY {
            self.key.set(value);
        }
        Some(value)
    }

    fn store(&self, at: usize, value: u64) -> Option<()> {
        match implied(at, 0) {
            Some(_) => Some(()),
            None => self.ask(Access::Store(at, value)).map(drop),
        }
    }
}

/// The word of a record that stands for its key.
const KEY: usize = 1;

/// The value of a word that follows from the key, or is constant; `None` for one that is accessed.
fn implied(at: usize, key: u64) -> Option<u64> {
    match at {
        2..=4 => Some(key),
        5 => Some(NAMESPACE[0]),
        6 => Some(NAMESPACE[1]),
        8..=13 => Some(0),
        _ => None,
    }
}

/// The work of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    /// Stores the chunks with these keys, one after the other, each in the place of the one before.
    Store(&'static [u8]),
    /// Loads the chunk with this key.
    Load(u8),
    /// Loads it by a defective protocol, without the second look at the generation.
    LoadOnce(u8),
    /// Stores a chunk by a defective protocol, which leaves the old generation in place while it writes.
    StoreVisibly(u8),
}

/// What a process found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum End {
    Stored,
    /// Another process had the lease.
    Refused,
    Hit,
    Miss,
    /// Bytes of another chunk.
    Wrong,
}

/// The two halves of a key's chunk.
fn content(key: u8) -> [u64; 2] {
    [u64::from(key) * 2, u64::from(key) * 2 + 1]
}

fn binding(key: u8, generation: u64) -> Binding {
    Binding {
        position: POSITION,
        generation,
        namespace: KvNamespace(NAMESPACE),
        key: Key([key; 32]),
    }
}

/// The record of a chunk with these halves.
fn record(key: u8, generation: u64, halves: [u64; 2]) -> Record {
    let binding = binding(key, generation);
    Record {
        binding,
        proof: Proof::Sum(binding.sum(crate::format::crc_of(&halves))),
    }
}

impl Job {
    /// Runs the job; `None` if it makes one more access.
    fn run(self, view: &View<'_>, proves: bool) -> Option<End> {
        match self {
            Self::Store(keys) => {
                if view.ask(Access::Lock)? == 0 {
                    return Some(End::Refused);
                }
                for key in keys {
                    let generation = begin(view, 0)?;
                    put(view, *key)?;
                    publish(view, 0, &record(*key, generation, content(*key)))?;
                }
                view.ask(Access::Unlock)?;
                Some(End::Stored)
            }
            Self::StoreVisibly(key) => {
                view.ask(Access::Lock)?;
                let state = view.load(STATE)?;
                put(view, key)?;
                publish(view, 0, &record(key, state + 2, content(key)))?;
                view.ask(Access::Unlock)?;
                Some(End::Stored)
            }
            Self::Load(key) | Self::LoadOnce(key) => {
                let Slot::Stored(found) = read(view, 0, POSITION)? else {
                    return Some(End::Miss);
                };
                if found.binding.key != (Key([key; 32])) {
                    return Some(End::Miss);
                }
                let halves = [view.ask(Access::Read(0))?, view.ask(Access::Read(1))?];
                let generation = found.binding.generation;
                if proves && record(key, generation, halves).proof != found.proof {
                    return Some(End::Miss);
                }
                if matches!(self, Self::Load(_)) {
                    let now = view.load(STATE)?;
                    if now != generation {
                        return Some(End::Miss);
                    }
                }
                Some(if halves == content(key) { End::Hit } else { End::Wrong })
            }
        }
    }
}

/// Writes the bytes of a chunk, and waits for them.
fn put(view: &View<'_>, key: u8) -> Option<()> {
    let [first, second] = content(key);
    view.ask(Access::Write(0, first))?;
    view.ask(Access::Write(1, second))?;
    view.ask(Access::Drain).map(drop)
}

/// The state of a process.
#[derive(Clone, Debug, Hash)]
enum Life {
    At(Rc<Vec<u64>>),
    Ended(End),
    Dead,
}

#[derive(Clone, Debug, Hash)]
struct State {
    memory: Memory,
    lives: Vec<Life>,
}

/// A case of the model.
#[derive(Clone, Copy, Debug)]
struct Case {
    jobs: &'static [Job],
    /// Whether loads check the bytes. If not, a dead process has no writes in its queue.
    proves: bool,
    /// Whether processes that write may die.
    dies: bool,
}

impl State {
    /// The states that follow from a step of process `number`.
    fn steps(&self, case: Case, number: usize) -> Vec<Self> {
        let Life::At(answers) = &self.lives[number] else {
            return Vec::new();
        };
        let mut nexts = Vec::new();
        let view = View::new(answers);
        let end = case.jobs[number].run(&view, case.proves);
        let mut next = self.clone();
        match (view.pending.take(), end) {
            (Some(access), _) => {
                if let Some(answer) = next.memory.answer(number, access) {
                    let mut answers = Vec::clone(answers);
                    answers.push(answer);
                    next.lives[number] = Life::At(Rc::new(answers));
                    nexts.push(next);
                }
            }
            (None, Some(end)) => {
                next.lives[number] = Life::Ended(end);
                nexts.push(next);
            }
            (None, None) => unreachable!("a job ends or makes an access"),
        }
        let writes = matches!(case.jobs[number], Job::Store(_) | Job::StoreVisibly(_));
        let has_queued = self.memory.queue.iter().any(|(of, ..)| *of == number);
        if case.dies && writes && (case.proves || !has_queued) {
            let mut dead = self.clone();
            dead.lives[number] = Life::Dead;
            if dead.memory.holder == Some(number) {
                dead.memory.holder = None;
            }
            nexts.push(dead);
        }
        nexts
    }

    /// The states after one more queued write has reached the slot.
    fn landings(&self) -> impl Iterator<Item = Self> {
        (0..self.memory.queue.len()).map(|at| {
            let mut next = self.clone();
            let (_, half, content) = next.memory.queue.remove(at);
            next.memory.halves[half] = content;
            next
        })
    }
}

/// Visits all states. Returns their number, and the ends of each process.
fn explore(case: Case) -> (usize, Vec<BTreeSet<End>>) {
    let fingerprint = |state: &State| {
        let mut hasher = DefaultHasher::new();
        state.hash(&mut hasher);
        hasher.finish()
    };
    let start = State {
        memory: Memory::default(),
        lives: vec![Life::At(Rc::default()); case.jobs.len()],
    };
    let mut seen = HashSet::from([fingerprint(&start)]);
    let mut open = vec![start];
    let mut ends = vec![BTreeSet::new(); case.jobs.len()];
    while let Some(state) = open.pop() {
        let steps = (0..case.jobs.len()).flat_map(|number| state.steps(case, number));
        for next in steps.chain(state.landings()) {
            for (life, ends) in next.lives.iter().zip(&mut ends) {
                if let Life::Ended(end) = life {
                    ends.insert(*end);
                }
            }
            check_acknowledged(case, &next);
            if seen.insert(fingerprint(&next)) {
                open.push(next);
            }
        }
    }
    (seen.len(), ends)
}

/// A chunk whose store was acknowledged is found, unless another process may have taken its place or died.
fn check_acknowledged(case: Case, state: &State) {
    let [Job::Store(keys), others @ ..] = case.jobs else {
        return;
    };
    let alone = !others
        .iter()
        .any(|job| matches!(job, Job::Store(_) | Job::StoreVisibly(_)));
    if alone && matches!(state.lives[0], Life::Ended(End::Stored)) {
        let key = keys[keys.len() - 1];
        let Slot::Stored(found) = decode(&state.memory) else {
            panic!("an acknowledged chunk is gone: {state:?}");
        };
        assert_eq!(found.binding.key, Key([key; 32]));
        assert_eq!(state.memory.halves, content(key));
    }
}

fn decode(memory: &Memory) -> Slot {
    struct Direct<'a>(&'a Memory);
    impl Words for Direct<'_> {
        fn load(&self, at: usize) -> Option<u64> {
            Some(implied(at, self.0.words[KEY]).unwrap_or(self.0.words[at]))
        }

        fn store(&self, _: usize, _: u64) -> Option<()> {
            None
        }
    }
    read(&Direct(memory), 0, POSITION).expect("no word is lost")
}

#[test]
fn in_every_order_and_after_every_crash_a_load_returns_its_chunk_or_a_miss() {
    use Job::{Load, Store};
    let case = |jobs, proves, dies| Case { jobs, proves, dies };
    // The last three have many states, so they run only on request.
    let cases = [
        case(&[Store(&[1]), Load(1)], false, true),
        case(&[Store(&[1, 2]), Load(1)], false, true),
        case(&[Store(&[1, 2, 1]), Load(1)], false, true),
        case(&[Store(&[1, 2]), Load(1)], true, true),
        case(&[Store(&[1]), Store(&[2])], true, true),
        case(&[Store(&[1]), Store(&[2]), Load(1)], false, true),
        case(&[Store(&[1]), Store(&[2]), Load(1)], true, true),
        case(&[Store(&[1, 2]), Load(1), Load(2)], false, false),
        case(&[Store(&[1, 2]), Store(&[3, 1]), Load(1)], true, true),
        case(&[Store(&[1]), Store(&[2]), Store(&[1]), Load(1)], true, true),
        case(&[Store(&[1, 2]), Store(&[2]), Load(1), Load(2)], true, true),
    ];
    let few = cases.len() - if std::env::var_os(EVERY).is_none() { 3 } else { 0 };
    for case in &cases[..few] {
        let (states, ends) = explore(*case);
        eprintln!("{states:>9} states: {case:?}");
        for (job, ends) in case.jobs.iter().zip(&ends) {
            let wanted = match job {
                Load(_) => [End::Hit, End::Miss].into(),
                // Nobody else wants the lease.
                _ if case.jobs.iter().filter(|job| matches!(job, Store(_))).count() == 1 => [End::Stored].into(),
                _ => BTreeSet::from([End::Stored, End::Refused]),
            };
            assert_eq!(*ends, wanted, "{job:?} of {case:?}");
        }
    }
}

#[test]
fn the_model_finds_the_defects_of_weaker_protocols() {
    use Job::{Load, LoadOnce, Store, StoreVisibly};
    // Without the second look at the generation, or with a store that does not hide the old chunk, generations alone do
    // not keep chunks apart.
    let weaker: [&[Job]; 2] = [
        &[Store(&[1, 2]), LoadOnce(1)],
        &[StoreVisibly(1), StoreVisibly(2), Load(1)],
    ];
    for jobs in weaker {
        let case = |proves, dies| Case { jobs, proves, dies };
        let (_, ends) = explore(case(false, false));
        assert!(ends[jobs.len() - 1].contains(&End::Wrong), "{jobs:?}");
        // The proof alone finds every wrong byte.
        let (_, ends) = explore(case(true, false));
        assert!(!ends[jobs.len() - 1].contains(&End::Wrong), "{jobs:?}");
    }
    // A write of a dead process that arrives late is found by the proof only.
    let late = Case {
        jobs: &[Store(&[1]), Store(&[2]), Load(2)],
        proves: true,
        dies: true,
    };
    let (_, ends) = explore(late);
    assert_eq!(ends[2], [End::Hit, End::Miss].into());
}

//! A model check of the removal protocol: runs processes in every order. Each may be overtaken, or die, before any
//! access to the store.
//!
//! The processes run the real code on a memory store. A process is a function of the responses that it got so far. So
//! it is not suspended, but run again from its start with those responses until it makes one more access. A state is
//! the store and the responses of all processes. Every reachable state is visited once. In each of them, nothing that
//! was promised may be lost, neither now nor after all processes died and a sweep ran.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    rc::Rc,
};

use super::*;
use crate::name::{step_folder, step_of};

/// The environment variable that enables the longest case.
const EVERY: &str = "STRAIGHTWAY_MODEL_ALL";

/// One save of a step number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Incarnation {
    step: u64,
    manifest: bool,
    files: bool,
    tags: BTreeSet<String>,
    /// The incarnation of the step that it references.
    parent: Option<usize>,
}

/// The store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Memory {
    records: BTreeMap<String, String>,
    attempts: BTreeSet<String>,
    steps: BTreeMap<u64, usize>,
    incarnations: Vec<Incarnation>,
}

/// One access to the store.
#[derive(Clone, Debug)]
enum Access {
    Names,
    Put(String, String),
    Get(String),
    Discard(String),
    Open(u64),
    Identity(usize),
    Tags(usize),
    Dependant(u64),
    EraseManifest(usize),
    EraseFiles(usize),
    EraseName(u64, usize),
    PutTag(usize),
    Commit(u64, Attempt, Option<usize>),
    ForgetAttempts,
}

/// The response to an access.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Answer {
    Done,
    Flag(bool),
    Names(Vec<String>),
    Text(Option<String>),
    Number(Option<usize>),
}

impl Memory {
    /// A store with one step, 1.
    fn new() -> Self {
        let mut memory = Self::default();
        memory.commit(1, None);
        memory
    }

    fn commit(&mut self, step: u64, parent: Option<usize>) {
        let (manifest, files, tags) = (true, true, BTreeSet::new());
        let number = self.incarnations.len();
        self.incarnations.push(Incarnation {
            step,
            manifest,
            files,
            tags,
            parent,
        });
        assert!(self.steps.insert(step, number).is_none(), "a step is never replaced");
    }

    /// Performs one access atomically.
    fn answer(&mut self, access: &Access) -> Answer {
        match access {
            Access::Names => {
                let steps = self.steps.keys().map(|step| step_folder(*step));
                let names = self.records.keys().cloned().chain(steps);
                Answer::Names(names.chain(self.attempts.iter().cloned()).collect())
            }
            Access::Put(name, text) => {
                let is_new = !self.records.contains_key(name);
                self.records.entry(name.clone()).or_insert_with(|| text.clone());
                Answer::Flag(is_new)
            }
            Access::Get(name) => Answer::Text(self.records.get(name).cloned()),
            Access::Discard(name) => {
                self.records.remove(name);
                Answer::Done
            }
            Access::Open(step) => Answer::Number(self.steps.get(step).copied()),
            Access::Identity(number) => Answer::Flag(self.incarnations[*number].manifest),
            Access::Tags(number) => Answer::Names(self.incarnations[*number].tags.iter().cloned().collect()),
            Access::Dependant(step) => {
                let number = self.steps.get(step).copied();
                let mut listed = self.listed().into_iter();
                let found = listed.any(|other| {
                    let parent = self.incarnations[other].parent;
                    parent.is_some() && parent == number
                });
                Answer::Flag(found)
            }
            Access::EraseManifest(number) => {
                self.incarnations[*number].manifest = false;
                Answer::Done
            }
            Access::EraseFiles(number) => {
                self.incarnations[*number].files = false;
                self.incarnations[*number].tags.clear();
                Answer::Done
            }
            Access::EraseName(step, number) => {
                let is_empty = self.incarnations[*number].tags.is_empty();
                let is_own = self.steps.get(step) == Some(number);
                if is_own && is_empty {
                    self.steps.remove(step);
                }
                Answer::Flag(!is_own || is_empty)
            }
            Access::PutTag(number) => {
                let is_there = self.steps.values().any(|known| known == number);
                if is_there {
                    self.incarnations[*number].tags.insert("best".to_owned());
                }
                Answer::Flag(is_there)
            }
            Access::Commit(step, attempt, parent) => {
                let is_free = !self.steps.contains_key(step);
                self.attempts.remove(&attempt.folder());
                if is_free {
                    self.commit(*step, *parent);
                }
                Answer::Flag(is_free)
            }
            Access::ForgetAttempts => {
                self.attempts.clear();
                self.records.retain(|name, _| Hold::of(name).is_none());
                Answer::Done
            }
        }
    }

    /// The listed steps, computed by the code that lists them.
    fn listed(&self) -> Vec<usize> {
        let direct = View::direct(self);
        let names = direct.names().unwrap();
        let steps = names.iter().filter_map(|name| step_of(name));
        let steps = steps.filter(|step| !is_removed(&direct, &names, *step).unwrap());
        let listed = steps.map(|step| self.steps[&step]);
        listed.filter(|number| self.incarnations[*number].manifest).collect()
    }
}

/// The responses that a process got, and a hash of them.
#[derive(Clone, Debug, Default)]
struct History {
    answers: Vec<Rc<Answer>>,
    mark: u64,
}

impl History {
    fn push(&mut self, answer: Answer) {
        self.mark = fingerprint(&(self.mark, &answer));
        self.answers.push(Rc::new(answer));
    }
}

impl Hash for History {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.mark.hash(state);
    }
}

/// The store as one process sees it: replays the responses that it got, and then records the first new access.
struct View {
    answers: Vec<Rc<Answer>>,
    next: Cell<usize>,
    pending: RefCell<Option<Access>>,
    /// A store to access directly, without the scheduler.
    direct: Option<RefCell<Memory>>,
    /// The number of the process, which makes its nonces unique.
    process: u64,
    nonces: Cell<u64>,
}

impl View {
    fn replay(process: u64, answers: &[Rc<Answer>]) -> Self {
        Self {
            answers: answers.to_vec(),
            next: Cell::new(0),
            pending: RefCell::new(None),
            direct: None,
            process,
            nonces: Cell::new(0),
        }
    }

    fn direct(memory: &Memory) -> Self {
        Self {
            direct: Some(RefCell::new(memory.clone())),
            ..Self::replay(15, &[])
        }
    }

    fn ask(&self, access: Access) -> Result<Answer> {
        if let Some(memory) = &self.direct {
            return Ok(memory.borrow_mut().answer(&access));
        }
        let next = self.next.get();
        if self.pending.borrow().is_none()
            && let Some(answer) = self.answers.get(next)
        {
            self.next.set(next + 1);
            return Ok(Answer::clone(answer));
        }
        self.pending.borrow_mut().get_or_insert(access);
        Err(Error::new(
            ErrorKind::Cancelled,
            "await",
            "an answer",
            "it has none yet",
        ))
    }

    fn flag(&self, access: Access) -> Result<bool> {
        Ok(self.ask(access)? == Answer::Flag(true))
    }

    fn nonce(&self) -> String {
        self.nonces.set(self.nonces.get() + 1);
        format!("{:016x}", self.process * 16 + self.nonces.get())
    }
}

impl Ledger for View {
    type Held = usize;

    fn names(&self) -> Result<Vec<String>> {
        match self.ask(Access::Names)? {
            Answer::Names(names) => Ok(names),
            other => unreachable!("{other:?}"),
        }
    }

    fn put(&self, name: &str, text: &str, _: Durability) -> Result<bool> {
        self.flag(Access::Put(name.to_owned(), text.to_owned()))
    }

    fn get(&self, name: &str) -> Result<Option<String>> {
        match self.ask(Access::Get(name.to_owned()))? {
            Answer::Text(text) => Ok(text),
            other => unreachable!("{other:?}"),
        }
    }

    fn discard(&self, name: &str) -> Result<()> {
        self.ask(Access::Discard(name.to_owned())).map(drop)
    }

    fn open(&self, step: u64) -> Result<Option<usize>> {
        match self.ask(Access::Open(step))? {
            Answer::Number(number) => Ok(number),
            other => unreachable!("{other:?}"),
        }
    }

    fn identity(&self, held: &usize) -> Result<StepIdentity> {
        let has_manifest = self.flag(Access::Identity(*held))?;
        let inode = *held as u64;
        Ok(StepIdentity {
            inode,
            manifest: has_manifest.then_some(Sum(inode)),
        })
    }

    fn tags(&self, held: &usize) -> Result<Vec<String>> {
        match self.ask(Access::Tags(*held))? {
            Answer::Names(names) => Ok(names),
            other => unreachable!("{other:?}"),
        }
    }

    fn dependant(&self, step: u64) -> Result<Option<String>> {
        let found = self.flag(Access::Dependant(step))?;
        Ok(found.then(|| "a step refers to it".to_owned()))
    }

    fn erase(&self, step: u64, held: &usize, _: &StepIdentity) -> Result<()> {
        self.ask(Access::EraseManifest(*held))?;
        for _ in 0..3 {
            self.ask(Access::EraseFiles(*held))?;
            if self.flag(Access::EraseName(step, *held))? {
                return Ok(());
            }
        }
        Err(Error::new(ErrorKind::Transient, "erase", step, "somebody writes to it"))
    }
}

/// The work of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Job {
    /// Removes step 1.
    Remove,
    /// Tags step 1.
    Tag,
    /// Saves step 2, which refers to step 1.
    Save,
    /// Removes step 2 if possible, then step 1.
    Prune,
    /// Saves step 1 again once it is gone.
    Resave,
    /// Sweeps, as a job that starts after all saving processes have ended or died.
    Sweep,
}

fn attempt(step: u64) -> Attempt {
    let run = "run".to_owned();
    Attempt { step, run, sequence: 1 }
}

impl Job {
    /// Runs the job. Returns whether it succeeded; an error promises nothing.
    fn run(self, view: &View) -> Result<bool> {
        match self {
            Self::Remove => Ok(remove(view, 1, || view.nonce())? == Outcome::Removed),
            Self::Tag => {
                let put = |held: &usize| {
                    if view.flag(Access::PutTag(*held))? {
                        Ok(())
                    } else {
                        Err(Error::new(ErrorKind::NotFound, "tag", "it", "it is gone"))
                    }
                };
                keep(view, 1, put)
            }
            Self::Save => {
                let (attempt, parents) = (attempt(2), [1]);
                let parent = view.open(1)?;
                if parent.is_none() || hold(view, &attempt, &parents)?.is_some() {
                    release(view, &attempt, &parents)?;
                    return Ok(false);
                }
                let done = view.flag(Access::Commit(2, attempt.clone(), parent))?;
                release(view, &attempt, &parents)?;
                Ok(done)
            }
            Self::Prune => {
                // It may not exist yet.
                let _ = remove(view, 2, || view.nonce());
                Ok(remove(view, 1, || view.nonce())? == Outcome::Removed)
            }
            Self::Resave => {
                settle(view, Some(1))?;
                if view.open(1)?.is_some() {
                    return Ok(false);
                }
                settle(view, Some(1))?;
                view.flag(Access::Commit(1, attempt(1), None))
            }
            Self::Sweep => {
                view.ask(Access::ForgetAttempts)?;
                settle(view, None)?;
                Ok(true)
            }
        }
    }
}

/// The state of a process.
#[derive(Clone, Debug, Hash)]
enum Life {
    At(History),
    Ended(bool),
    Dead,
}

#[derive(Clone, Debug, Hash)]
struct State {
    memory: Memory,
    lives: Vec<Life>,
    /// Incarnations that a successful tag or save promised to keep.
    promised: BTreeSet<usize>,
}

impl State {
    /// Checks that everything promised is listed, and that every listed step is complete.
    fn check(&self, jobs: &[Job]) -> std::result::Result<(), String> {
        let listed = self.memory.listed();
        let whole = |number: usize| {
            let of = &self.memory.incarnations[number];
            of.manifest && of.files
        };
        for &number in &listed {
            let of = &self.memory.incarnations[number];
            let parent = of.parent.is_none_or(|parent| self.memory.incarnations[parent].files);
            if !whole(number) || !parent {
                return Err(format!("step {} is listed and not whole", of.step));
            }
        }
        for &number in &self.promised {
            if !listed.contains(&number) {
                let step = self.memory.incarnations[number].step;
                return Err(format!("step {step} was promised to stay and is gone"));
            }
        }
        let is_first = |number: &usize| *number == 0;
        if self.has_removed(jobs) && listed.iter().any(is_first) {
            return Err("step 1 was removed and is listed".to_owned());
        }
        Ok(())
    }

    /// Whether a process was told that step 1 is removed.
    fn has_removed(&self, jobs: &[Job]) -> bool {
        let mut lives = jobs.iter().zip(&self.lives);
        lives.any(|(job, life)| matches!(job, Job::Remove | Job::Prune) && matches!(life, Life::Ended(true)))
    }

    /// The state after all processes died and a new job has swept.
    fn swept(&self) -> Self {
        let direct = View::direct(&self.memory);
        direct.ask(Access::ForgetAttempts).unwrap();
        settle(&direct, None).unwrap();
        Self {
            memory: direct.direct.unwrap().into_inner(),
            ..self.clone()
        }
    }

    /// The state after the next access of process `number`, or after its end.
    fn step(&self, jobs: &[Job], number: usize) -> Option<Self> {
        let Life::At(history) = &self.lives[number] else {
            return None;
        };
        let saves = |job: &Job| matches!(job, Job::Save | Job::Resave);
        let mut others = jobs.iter().zip(&self.lives);
        if jobs[number] == Job::Sweep && others.any(|(job, life)| saves(job) && matches!(life, Life::At(_))) {
            // A saving process holds the lock.
            return None;
        }
        let mut next = self.clone();
        let view = View::replay(number as u64 + 1, &history.answers);
        let outcome = jobs[number].run(&view);
        if let Some(access) = view.pending.take() {
            let answer = next.memory.answer(&access);
            let Life::At(history) = &mut next.lives[number] else {
                unreachable!("it was there above");
            };
            history.push(answer);
            return Some(next);
        }
        let is_done = outcome.unwrap_or(false);
        let removers = jobs.iter().filter(|job| **job == Job::Remove).count();
        next.lives[number] = Life::Ended(is_done);
        if is_done {
            match jobs[number] {
                Job::Tag => next.promised.insert(opened(&history.answers)),
                // Pruning may remove it again, and then the step that it references.
                Job::Save if jobs.contains(&Job::Prune) => false,
                Job::Save => next.promised.insert(next.memory.steps[&2]),
                // The other remover may have begun later, and remove the new step.
                Job::Resave if removers > 1 => false,
                Job::Resave => next.promised.insert(next.memory.steps[&1]),
                Job::Remove | Job::Prune | Job::Sweep => false,
            };
        }
        Some(next)
    }
}

/// The incarnation that a process opened first.
fn opened(answers: &[Rc<Answer>]) -> usize {
    match *answers[0] {
        Answer::Number(Some(number)) => number,
        ref other => unreachable!("{other:?}"),
    }
}

fn fingerprint(state: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

/// Visits all states that these processes can reach. Returns their number, and the possible results of each process.
fn explore(jobs: &[Job]) -> (usize, Vec<BTreeSet<bool>>) {
    let mut memory = Memory::new();
    for (job, step) in [(Job::Save, 2), (Job::Resave, 1)] {
        if jobs.contains(&job) {
            memory.attempts.insert(attempt(step).folder());
        }
    }
    let start = State {
        memory,
        lives: vec![Life::At(History::default()); jobs.len()],
        promised: BTreeSet::new(),
    };
    let mut seen = HashSet::from([fingerprint(&start)]);
    let mut open = vec![start];
    let mut ends = vec![BTreeSet::new(); jobs.len()];
    let mut checked = HashSet::new();
    while let Some(state) = open.pop() {
        let failed = |why: &str| panic!("{jobs:?}: {why}\n{state:#?}");
        // The checks depend only on the store and on what was promised.
        if checked.insert(fingerprint(&(&state.memory, &state.promised, state.has_removed(jobs)))) {
            state.check(jobs).unwrap_or_else(|why| failed(&why));
            let swept = state.swept();
            let after = |why: String| failed(&format!("after a sweep {why}"));
            swept.check(jobs).unwrap_or_else(after);
            let records = &swept.memory.records;
            assert!(records.is_empty(), "{jobs:?}: left behind {records:?}");
        }
        for number in 0..jobs.len() {
            let mut nexts: Vec<_> = state.step(jobs, number).into_iter().collect();
            // Deaths are modelled only for processes whose lock the sweep waits for.
            if matches!(jobs[number], Job::Save | Job::Resave)
                && matches!(state.lives[number], Life::At(_))
                && jobs.contains(&Job::Sweep)
            {
                let mut dead = state.clone();
                dead.lives[number] = Life::Dead;
                nexts.push(dead);
            }
            for next in nexts {
                if let Life::Ended(outcome) = next.lives[number] {
                    ends[number].insert(outcome);
                }
                if seen.insert(fingerprint(&next)) {
                    open.push(next);
                }
            }
        }
    }
    (seen.len(), ends)
}

#[test]
fn in_every_order_and_after_every_crash_promises_hold_and_listed_steps_are_whole() {
    use Job::{Prune, Remove, Resave, Save, Sweep, Tag};
    let mut all = 0;
    // The last case has half a million states and takes a minute, so it runs only on request.
    let cases: [&[Job]; 10] = [
        &[Remove],
        &[Remove, Tag],
        &[Remove, Save],
        &[Prune, Save],
        &[Remove, Resave],
        &[Remove, Save, Sweep],
        &[Remove, Tag, Sweep],
        &[Remove, Save, Tag],
        &[Remove, Resave, Tag],
        &[Remove, Remove, Tag],
    ];
    let few = cases.len() - usize::from(std::env::var_os(EVERY).is_none());
    for jobs in &cases[..few] {
        let (states, ends) = explore(jobs);
        eprintln!("{states:>8} states: {jobs:?}");
        all += states;
        let both = BTreeSet::from([false, true]);
        for (job, ends) in jobs.iter().zip(&ends) {
            let wanted = match (job, jobs.len()) {
                (Remove, 1) | (Sweep, _) => BTreeSet::from([true]),
                _ => both.clone(),
            };
            assert_eq!(*ends, wanted, "{job:?} of {jobs:?}");
        }
    }
    eprintln!("{all} states");
}

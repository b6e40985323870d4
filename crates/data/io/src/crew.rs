//! A crew: the lanes that serve one track and one place, each on its own thread.
//!
//! Threads start when first needed and then wait for jobs on their board: an engine, a stream and a ring, once made and
//! registered, serve every later transfer. A lane that cannot serve again is replaced ([`supervisor`]).

mod ring_spaces;
mod supervisor;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread::{Builder, JoinHandle},
    time::Duration,
};

use straightway_core::{Error, ErrorKind, Lock, Place, Result};
use straightway_sys::{RingSpace, cuda::Context};

use crate::{
    board::{Board, Posted, RingWork, Wake},
    lane::{Lane, Parts, Ring, Settle},
    parts::Outfit,
    placement::{cpus_near, stay_on},
    settings::CHECKED_FILE_RING_BYTES,
    stage::{DeviceStage, HostStage, Stage},
    store::{LaneSpec, Store},
    tallies::Tallies,
    tenant::{Traffic, now_s},
    track::Track,
};
pub(crate) use ring_spaces::RingSpaces;
use ring_spaces::is_by_slot;
use supervisor::LaneSupervisor;

/// How long a lane waits for the I/Os of a stopped job. A user who cancels one waits for at most 2 s, of which a lane
/// has half.
const SETTLE: Settle = Settle {
    usual: Duration::from_mins(1),
    hurried: Duration::from_secs(1),
};

/// How often an idle thread polls for late I/Os of lanes that were set aside.
const REAP_INTERVAL: Duration = Duration::from_secs(1);

/// What a crew serves, and with which settings.
#[derive(Clone, Debug)]
struct CrewSpec {
    store: Arc<dyn Store>,
    track: Track,
    place: Place,
    /// The GPU, if that is the place.
    context: Option<Context>,
    /// The memory of the lanes' rings, if that is a GPU.
    space: Arc<RingSpace>,
    cpus: Vec<usize>,
    outfit: Outfit,
    board: Arc<Board>,
}

/// The lanes of one track and one place.
#[derive(Debug)]
pub(crate) struct Crew {
    spec: CrewSpec,
    /// The threads, by lane number.
    lanes: Lock<HashMap<usize, JoinHandle<()>>>,
}

/// Receives whether a new lane could be made.
type Ready = Receiver<Result<()>>;

impl Crew {
    /// A crew without lanes yet.
    pub(crate) fn new(
        store: &Arc<dyn Store>,
        track: Track,
        place: Place,
        context: Option<&Context>,
        (outfit, traffic): (&Outfit, &Arc<Traffic>),
        spaces: &mut RingSpaces,
    ) -> Self {
        let cpus = context.map_or_else(Vec::new, |context| cpus_near(context.device()));
        Self {
            spec: CrewSpec {
                store: Arc::clone(store),
                track,
                place,
                context: context.cloned(),
                space: spaces.of(track, place, context, &outfit.settings),
                cpus,
                outfit: outfit.clone(),
                board: Arc::new(Board::new(track, traffic)),
            },
            lanes: Lock::default(),
        }
    }

    /// Whether its lanes copy with this context of a GPU, or with none.
    pub(crate) fn is_on(&self, context: Option<&Context>) -> bool {
        match (&self.spec.context, context) {
            (Some(own), Some(other)) => own.is_same(other),
            (own, other) => own.is_none() && other.is_none(),
        }
    }

    /// Posts a job for at most one lane per chunk.
    pub(crate) fn post(&self, mut posted: Posted, chunks: usize, tallies: &Tallies) -> Result<()> {
        // A lane without a chunk would wake up for nothing.
        let CrewSpec { track, place, .. } = self.spec;
        let lanes = self.spec.outfit.settings.lanes_for(posted.job.plan(), track, place);
        posted.lanes = (lanes as usize).min(chunks).min(posted.job.lanes_max());
        self.grow(posted.lanes)?;
        self.spec.board.post(posted, tallies, now_s());
        Ok(())
    }

    /// Starts all lanes and makes their rings. Rings that are made slot by slot get the first slot of each lane, then the
    /// next; lanes without a job then give the slots back.
    pub(crate) fn make_ready(&self) -> Result<()> {
        let CrewSpec { track, place, .. } = self.spec;
        let lanes = self.spec.outfit.settings.lanes(track, place) as usize;
        self.grow(lanes)?;
        let is_by_slot = is_by_slot(track, place);
        let slots = self.spec.outfit.settings.ring(track, place).slots;
        let mut rounds = vec![RingWork::Make; if is_by_slot { slots } else { 1 }];
        rounds.extend(is_by_slot.then_some(RingWork::GiveBack));
        let mut outcome = Ok(());
        for work in rounds {
            let (answers, inbox) = channel();
            for number in 0..lanes {
                self.spec.board.ask_for_ring(number, work, &answers);
            }
            drop(answers);
            let made: Vec<Result<()>> = inbox.into_iter().collect();
            // One lane with a slot suffices.
            let suffices = is_by_slot && made.iter().any(Result::is_ok);
            if !suffices {
                outcome = made.into_iter().fold(outcome, Result::and);
            }
        }
        outcome
    }

    /// Starts the missing lanes among the first `wanted`, in parallel, because making one takes time.
    fn grow(&self, wanted: usize) -> Result<()> {
        let mut lanes = self.lanes.lock();
        lanes.retain(|_, lane| !lane.is_finished());
        let missing = (0..wanted).filter(|number| !lanes.contains_key(number));
        let starting: Vec<_> = missing
            .map(|number| (number, self.spec.clone().start(number)))
            .collect();
        let mut outcome = Ok(());
        for (number, started) in starting {
            let ready = started.and_then(|(lane, ready)| {
                let ended = || Error::new(ErrorKind::Transient, "start", "a lane", "its thread has ended");
                match ready.recv().unwrap_or_else(|_| Err(ended())) {
                    Ok(()) => Ok(lane),
                    Err(error) => {
                        // Its resources are released before the error is reported.
                        let _ = lane.join();
                        Err(error)
                    }
                }
            });
            outcome = outcome.and(ready.map(|lane| drop(lanes.insert(number, lane))));
        }
        outcome
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.spec.board.close();
        let lanes = self.lanes.get_mut();
        for (_, lane) in lanes.drain() {
            // A lane that panicked has failed its jobs already.
            let _ = lane.join();
        }
    }
}

impl CrewSpec {
    /// Starts a lane's thread. The lane is made on that thread: an io_uring belongs to the thread that made it, and
    /// memory to the NUMA node of the thread that first touched it.
    fn start(self, number: usize) -> Result<(JoinHandle<()>, Ready)> {
        let (answer, ready) = channel();
        let place = match self.place {
            Place::Host => String::new(),
            Place::Gpu(ordinal) => format!("-gpu{ordinal}"),
            Place::P2p(_) => "-p2p".to_owned(),
        };
        let track = match self.track {
            Track::Drive => "drive",
            Track::Cached => "cache",
            Track::Checked => "check",
        };
        let thread = Builder::new()
            .name(format!("straightway-{track}{place}-{number}"))
            .spawn(move || self.serve(number, &answer))
            .map_err(|e| Error::os("start", "a lane", e))?;
        Ok((thread, ready))
    }

    /// The main loop of a lane's thread: waits for jobs and runs them.
    fn serve(&self, number: usize, ready: &Sender<Result<()>>) {
        stay_on(&self.cpus);
        let made = LaneSupervisor::new(number, &self.board, || self.lane(number));
        let mut supervisor = match made {
            Ok(supervisor) => supervisor,
            Err(error) => {
                // If the receiver is gone, the lane is not wanted.
                let _ = ready.send(Err(error));
                return;
            }
        };
        if ready.send(Ok(())).is_err() {
            return;
        }
        tracing::trace!(number, track = ?self.track, "a lane is ready");
        loop {
            let timeout = supervisor.has_late().then_some(REAP_INTERVAL);
            match self.board.wait(number, timeout) {
                Wake::Work => supervisor.serve(),
                Wake::Ring((work, answer)) => {
                    let lane = supervisor.lane();
                    let _ = answer.send(lane.and_then(|lane| lane.work_on_ring(work, &self.board)));
                }
                Wake::Nothing => supervisor.reap(),
                Wake::End => return,
            }
        }
    }

    fn lane(&self, number: usize) -> Result<Lane> {
        let settings = &self.outfit.settings;
        let spec = LaneSpec {
            track: self.track,
            place: self.place,
            settings,
            gds: &self.outfit.gds,
        };
        let engine = self.outfit.engine(&*self.store, &spec)?;
        let stage: Box<dyn Stage> = match &self.context {
            None => Box::new(HostStage::with_ring_at(self.place)),
            Some(context) => Box::new(DeviceStage::new(context, &self.space)?),
        };
        let mut ring = settings.ring(self.track, self.place);
        let is_local = self.store.facts().tuning.is_none();
        if is_local && (self.track, self.place) == (Track::Checked, Place::Host) {
            ring = ring.within(CHECKED_FILE_RING_BYTES);
        }
        Ok(Lane::new(Parts {
            number,
            track: self.track,
            engine,
            depths_unused: [settings.write_depth, settings.depth]
                .map(|depth| spec.depth().saturating_sub(depth) as usize),
            stage,
            ring: Ring::new(ring, is_by_slot(self.track, self.place)),
            settle: SETTLE,
        }))
    }
}

//! A crew: the lanes that serve one track and one place, each on its own thread.
//!
//! Threads start when they are first needed and then wait for orders: an engine, a stream and a
//! ring, once made and registered, serve every later transfer. A lane that cannot is replaced ([`berth`]).

mod berth;

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::{Builder, JoinHandle},
    time::Duration,
};

use straightway_core::{Error, Kind, Place, Result};
use straightway_sys::cuda::Context;

use crate::{
    job::Job,
    lane::Lane,
    placement::{cpus_near, stay_on},
    settings::Settings,
    stage::{DeviceStage, HostStage, Stage},
    store::{LaneSpec, Store},
    tally::Tally,
    track::Track,
};
use berth::Berth;

/// How long a lane waits after a failure for the I/Os that are still in flight.
const SETTLE_MAX: Duration = Duration::from_mins(1);

/// How often an idle thread looks for late I/Os of lanes that were set aside.
const REAP_INTERVAL: Duration = Duration::from_secs(1);

/// What a crew serves, and how.
#[derive(Clone, Debug)]
struct Post {
    store: Arc<dyn Store>,
    track: Track,
    place: Place,
    /// The GPU, if that is the place.
    context: Option<Context>,
    cpus: Vec<usize>,
    settings: Settings,
}

/// The lanes of one track and one place.
#[derive(Debug)]
pub(crate) struct Crew {
    post: Post,
    lanes: Vec<Handle>,
}

/// What a lane is asked to do, and where its answer goes.
enum Order {
    /// Run its share of a job.
    Run(Arc<Job>, Sender<Tally>),
    /// Make its ring, so that the first job need not.
    MakeRing(Sender<Result<()>>),
}

/// A lane's thread. Dropping it waits for it to end.
#[derive(Debug)]
struct Handle {
    /// `None` only while being dropped.
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

/// Where a lane that was just started says whether it has all that it needs.
type Ready = Receiver<Result<()>>;

impl Crew {
    /// A crew without lanes yet.
    pub(crate) fn new(
        store: &Arc<dyn Store>,
        track: Track,
        place: Place,
        context: Option<&Context>,
        settings: &Settings,
    ) -> Self {
        let cpus = context.map_or_else(Vec::new, |context| cpus_near(context.device()));
        Self {
            post: Post {
                store: Arc::clone(store),
                track,
                place,
                context: context.cloned(),
                cpus,
                settings: settings.clone(),
            },
            lanes: Vec::new(),
        }
    }

    /// Sends `job` to as many lanes as have a chunk to do.
    pub(crate) fn order(
        &mut self,
        job: &Arc<Job>,
        chunks: usize,
        answers: &Sender<Tally>,
    ) -> Result<()> {
        // A lane without a chunk would only wake up to find that out.
        let Post { track, place, .. } = self.post;
        let lanes = self.post.settings.lanes_for(job.plan(), track, place);
        let wanted = (lanes as usize).min(chunks);
        self.grow(wanted)?;
        for lane in &self.lanes[..wanted] {
            lane.send(Order::Run(Arc::clone(job), answers.clone()))?;
        }
        Ok(())
    }

    /// Starts all lanes and makes their rings.
    pub(crate) fn make_ready(&mut self) -> Result<()> {
        self.grow(self.size())?;
        let (answers, inbox) = channel();
        for lane in &self.lanes {
            lane.send(Order::MakeRing(answers.clone()))?;
        }
        drop(answers);
        inbox.into_iter().fold(Ok(()), Result::and)
    }

    /// How many lanes it has when all are there.
    fn size(&self) -> usize {
        let Post { track, place, .. } = self.post;
        self.post.settings.lanes(track, place) as usize
    }

    /// Starts lanes until there are `wanted`, side by side: making one takes a while.
    fn grow(&mut self, wanted: usize) -> Result<()> {
        self.lanes.retain(|lane| !lane.has_ended());
        let fresh = self.lanes.len()..wanted;
        let starting: Vec<_> = fresh
            .map(|number| self.post.clone().start(number))
            .collect::<Result<_>>()?;
        for (lane, ready) in starting {
            ready.recv().unwrap_or_else(|_| Err(ended("start")))?;
            self.lanes.push(lane);
        }
        Ok(())
    }
}

impl Post {
    /// Starts a lane's thread. What the lane needs is made on it: an io_uring belongs to the thread
    /// that made it, and memory to the node of the thread that faulted it in.
    fn start(self, number: usize) -> Result<(Handle, Ready)> {
        let (orders, inbox) = channel();
        let (answer, ready) = channel();
        let place = match self.place {
            Place::Host => String::new(),
            Place::Gpu(ordinal) => format!("-gpu{ordinal}"),
        };
        let track = match self.track {
            Track::Drive => "drive",
            Track::Cached => "cache",
            Track::Checked => "check",
        };
        let thread = Builder::new()
            .name(format!("straightway-{track}{place}-{number}"))
            .spawn(move || self.serve(&answer, &inbox))
            .map_err(|e| Error::os("start", "a lane", e))?;
        let handle = Handle {
            orders: Some(orders),
            thread: Some(thread),
        };
        Ok((handle, ready))
    }

    /// The life of a lane's thread: one order after the other.
    fn serve(&self, ready: &Sender<Result<()>>, inbox: &Receiver<Order>) {
        stay_on(&self.cpus);
        let made = Berth::new(|| self.lane());
        let mut berth = match made {
            Ok(berth) => berth,
            Err(error) => {
                // If nobody waits for the answer, nobody wants the lane.
                let _ = ready.send(Err(error));
                return;
            }
        };
        if ready.send(Ok(())).is_err() {
            return;
        }
        while let Some(order) = next_order(inbox, &mut berth) {
            match order {
                Order::Run(job, answer) => {
                    let tally = berth.run(&job);
                    drop(job);
                    let _ = answer.send(tally);
                }
                Order::MakeRing(answer) => {
                    let _ = answer.send(berth.lane().and_then(|lane| lane.make_ring(0)));
                }
            }
        }
    }

    fn lane(&self) -> Result<Lane> {
        let engine = self.store.engine(&LaneSpec {
            track: self.track,
            place: self.place,
            settings: &self.settings,
        })?;
        let engine = self.settings.wrap(engine);
        let stage: Box<dyn Stage> = match &self.context {
            None => Box::new(HostStage::default()),
            Some(context) => Box::new(DeviceStage::new(context)?),
        };
        let ring = self.settings.ring(self.track, self.place);
        Ok(Lane::new(self.track, engine, stage, ring, SETTLE_MAX))
    }
}

/// The next order, or `None` when there will be no more. Late I/Os are taken home meanwhile.
fn next_order<F: FnMut() -> Result<Lane>>(
    inbox: &Receiver<Order>,
    berth: &mut Berth<F>,
) -> Option<Order> {
    while berth.has_late() {
        match inbox.recv_timeout(REAP_INTERVAL) {
            Ok(order) => return Some(order),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => berth.reap(),
        }
    }
    inbox.recv().ok()
}

impl Handle {
    /// Whether its thread is no longer there.
    fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn send(&self, order: Order) -> Result<()> {
        let orders = self.orders.as_ref().expect("there until it is dropped");
        orders.send(order).map_err(|_| ended("use"))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.orders = None;
        // A lane that panicked has failed its job already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn ended(operation: &'static str) -> Error {
    Error::new(Kind::Transient, operation, "a lane", "its thread has ended")
}

//! The executor: its lanes live as long as it does and run jobs side by side.
//!
//! Lanes are grouped in crews, one for each family of stores, track and place. A crew outlives its jobs. Jobs of class
//! *now* have their own crews, so they never wait behind another job's I/Os in a lane's queue.

use std::{collections::HashMap, sync::Arc, time::Instant};

use straightway_core::{Choice, Class, Direction, Extent, Lock, Move, Place, Plan, Result, Share};
use straightway_sys::{Process, Region, cuda::Context};

use crate::{
    ask::{Ask, Checked},
    board::Posted,
    books::Books,
    completion::Completion,
    crew::{Crew, RingSpaces},
    direct_path::DirectPath,
    finish::{self, Finish, FinishKey},
    gds::Gds,
    job::{
        Job,
        planning::{self, in_place, is_in_memory, is_in_one_memory},
    },
    learning::{Learning, Method, WorkKind},
    objects::Objects,
    opening::Running,
    parts::{ExecutorParts, Outfit},
    scattered::Scattered,
    settings::Settings,
    store::{Files, Store},
    tallies::Tallies,
    tenant::{Reservations, Tenant, Traffic},
    threads::Threads,
    ticket::Ticket,
    track::Track,
};

mod trial;

/// Plans jobs and runs them on lanes, on behalf of one tenant. [`sharing`](Self::sharing) makes executors for other
/// tenants on the same lanes.
#[derive(Clone, Debug)]
pub struct Executor {
    lanes: Arc<Lanes>,
    tenant: Arc<Tenant>,
    /// The known faster methods for the drive of its transfers.
    learning: Option<Learning>,
    /// The origin of its settings, if they are not the defaults: a profile.
    settings_from: Option<Arc<str>>,
}

/// The family of a crew's stores, its track and place, and whether it serves jobs of class *now*.
type CrewKey = (&'static str, Track, Place, bool);

/// All lanes of an executor.
#[derive(Debug)]
struct Lanes {
    outfit: Outfit,
    crews: Lock<Crews>,
    traffic: Arc<Traffic>,
    reservations: Arc<Reservations>,
    /// The threads that finish jobs.
    finishers: Arc<Threads<FinishKey>>,
    /// The process that has its threads. A forked child does not.
    process: Process,
}

/// The crews, and the memory that those of a GPU share.
#[derive(Debug, Default)]
struct Crews {
    by_key: HashMap<CrewKey, Arc<Crew>>,
    spaces: RingSpaces,
}

impl Executor {
    /// Creates an executor with these settings. Its lanes start when first needed.
    pub fn new(settings: Settings) -> Result<Self> {
        Self::with_parts(settings, ExecutorParts::default())
    }

    /// Creates an executor with these settings and parts.
    pub fn with_parts(settings: Settings, parts: ExecutorParts) -> Result<Self> {
        settings.check()?;
        let share = Share {
            limit: settings.rate_max,
            ..Share::default()
        };
        let reservations = Arc::new(Reservations::new(settings.rate_measured));
        let tenant = Tenant::new(share, Class::default(), &reservations)?;
        Ok(Self {
            tenant: Arc::new(tenant),
            learning: None,
            settings_from: None,
            lanes: Arc::new(Lanes {
                outfit: Outfit::new(settings, parts),
                crews: Lock::default(),
                traffic: Arc::default(),
                reservations,
                finishers: Arc::new(Threads::new(finish::THREADS)),
                process: Process::this(),
            }),
        })
    }

    /// An executor on the same lanes for jobs with another share and class. The share covers all jobs of the returned
    /// executor and its clones together.
    ///
    /// # Errors
    ///
    /// `Invalid` if the share is out of range, or reserves more than is left of the measured rate.
    pub fn sharing(&self, share: Share, class: Class) -> Result<Self> {
        let tenant = Tenant::new(share, class, &self.lanes.reservations)?;
        Ok(Self {
            tenant: Arc::new(tenant),
            lanes: Arc::clone(&self.lanes),
            learning: self.learning.clone(),
            settings_from: self.settings_from.clone(),
        })
    }

    /// An executor on the same lanes for transfers with a drive that this `Learning` is about.
    #[must_use]
    pub fn learning(&self, learning: Option<Learning>) -> Self {
        Self {
            learning,
            ..self.clone()
        }
    }

    /// An executor on the same lanes whose receipts name this origin of the settings: a profile.
    #[must_use]
    pub fn settings_from(&self, origin: Option<Arc<str>>) -> Self {
        Self {
            settings_from: origin,
            ..self.clone()
        }
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.lanes.outfit.settings
    }

    /// Its handle to GPUDirect Storage.
    pub fn gds(&self) -> &Gds {
        &self.lanes.outfit.gds
    }

    /// The share of its tenant.
    pub fn share(&self) -> &Share {
        self.tenant.share()
    }

    /// Whether its jobs have neither a limit nor a reservation.
    pub(crate) fn is_free(&self) -> bool {
        self.tenant.is_free()
    }

    /// Reads extents of objects into a region.
    pub fn read(
        &self,
        from: impl Into<Objects>,
        moves: Vec<Move>,
        to: &Arc<Region>,
        ask: impl Into<Ask>,
    ) -> Result<Ticket> {
        let from = from.into();
        let work = (to.place() == Place::Host).then_some(WorkKind::Read);
        self.begin(work, moves, ask.into(), |moves, method, ask| {
            let from = from.clone();
            self.planned(method, |outfit| {
                Job::with_region(Direction::In, from, moves, to, ask, outfit)
            })
        })
    }

    /// Reads extents of objects into several regions of a GPU, whose memory may be allocated meanwhile.
    pub fn read_scattered(
        &self,
        from: impl Into<Objects>,
        moves: Vec<Move>,
        to: &Arc<Scattered>,
        ask: impl Into<Ask>,
    ) -> Result<Ticket> {
        let (from, ask) = (from.into(), ask.into());
        Job::scattered(Direction::In, from, moves, to, ask, self.settings()).map(|j| self.post(j))
    }

    /// Writes parts of a region to extents of new objects. Bytes outside all moves are zero.
    pub fn write(
        &self,
        from: &Arc<Region>,
        to: impl Into<Objects>,
        moves: Vec<Move>,
        ask: impl Into<Ask>,
    ) -> Result<Ticket> {
        self.write_planned(&to.into(), moves, ask.into(), |to, moves, ask, outfit| {
            Job::with_region(Direction::Out, to, moves, from, ask, outfit)
        })
    }

    /// Like [`write`](Self::write), from several regions of a GPU that act as one.
    pub fn write_scattered(
        &self,
        from: &Arc<Scattered>,
        to: impl Into<Objects>,
        moves: Vec<Move>,
        ask: impl Into<Ask>,
    ) -> Result<Ticket> {
        self.write_planned(&to.into(), moves, ask.into(), |to, moves, ask, outfit| {
            Job::scattered(Direction::Out, to, moves, from, ask, &outfit.settings)
        })
    }

    /// Copies extents of each object to the same offset in its twin, which is new and may be in a store of another
    /// family.
    pub fn relay(
        &self,
        from: impl Into<Objects>,
        to: impl Into<Objects>,
        extents: Vec<(u32, Extent)>,
        ask: impl Into<Ask>,
    ) -> Result<Ticket> {
        let (from, to) = (from.into(), to.into());
        let moves = in_place(extents);
        let work = is_in_one_memory(&from, &to).then_some(WorkKind::Copy);
        self.begin(work, moves, ask.into(), |moves, method, ask| {
            self.planned(method, |s| Job::relay(&from, to.clone(), moves, ask, s))
        })
    }

    /// Begins a write whose jobs `plan` makes.
    fn write_planned(
        &self,
        to: &Objects,
        moves: Vec<Move>,
        ask: Ask,
        plan: impl Fn(Objects, Vec<Move>, Ask, &Outfit) -> Result<Job>,
    ) -> Result<Ticket> {
        let work = is_in_memory(to).then_some(WorkKind::Write);
        self.begin(work, moves, ask, |moves, method, ask| {
            self.planned(method, |outfit| plan(to.clone(), moves, ask, outfit))
        })
    }

    /// Plans a job by a method, if there is a choice.
    fn planned(&self, method: Option<Method>, make: impl FnOnce(&Outfit) -> Result<Job>) -> Result<Job> {
        let outfit = &self.lanes.outfit;
        let known = &outfit.settings;
        let ring_first = method.filter(|method| WorkKind::Read.methods().contains(method));
        let mut job = match ring_first.map(|method| method == Method::Ring) {
            Some(ring_first) if ring_first != known.ring_first => make(&outfit.with(known.with_ring_first(ring_first))),
            _ => make(outfit),
        }?;
        if let Some(method) = method {
            job.set_method(method, self.settings_from.is_some());
        }
        Ok(job)
    }

    /// Reads portions of objects and inspects each of them before any byte of it goes to a region.
    pub fn check(&self, checked: Checked, ask: impl Into<Ask>) -> Result<Ticket> {
        Job::check(checked, ask.into()).map(|j| self.post(j))
    }

    /// Plans a read into a region that does not exist yet, given its place and length. The region is assumed to begin
    /// on a page. GPUDirect Storage is not considered.
    pub fn plan_read(&self, from: &Objects, moves: Vec<Move>, to: (Place, u64), choice: Choice) -> Result<Plan> {
        planning::plan_read(from, moves, to, choice, self.settings())
    }

    /// Posts a job to its lanes.
    fn post(&self, job: Job) -> Ticket {
        self.post_after(None, job)
    }

    /// Posts the last job of a transfer, after those in the books `earlier`.
    fn post_after(&self, earlier: Option<Books>, mut job: Job) -> Ticket {
        // Not part of the job: what it owns, perhaps an executor, must not be dropped by a lane.
        let at_end = job.ask.at_end.take();
        job.settings_from.extend(self.settings_from.clone());
        let job = Arc::new(job);
        tracing::trace!(chunks = job.plan().chunks().len(), "a job is planned");
        let completion = Arc::<Completion<Result<Books>>>::default();
        let ticket = Ticket::new(Arc::clone(&completion), Arc::clone(job.stop_flag()));
        let finish = Finish {
            job: Arc::clone(&job),
            at_end,
            earlier,
            counted: job.direct_path.as_ref().and_then(DirectPath::counters),
            limit: self.share().limit,
            running: Running::begin(),
            completion,
        };
        let (finishers, is_own) = (Arc::clone(&self.lanes.finishers), self.lanes.process.is_this());
        let tallies = Tallies::new(move |lanes| match finish.waits_on().filter(|_| is_own) {
            None => finish.run(lanes),
            // Without a thread it is done here.
            Some(key) => {
                let given = finishers.run(key, move || finish.run(lanes));
                given.unwrap_or_else(|(_, work)| work());
            }
        });
        for track in Track::ALL {
            let chunks = job.chunks(track).len();
            if chunks == 0 {
                continue;
            }
            let is_urgent = self.tenant.class() == Class::Now;
            let posted = Posted {
                job: Arc::clone(&job),
                tenant: Arc::clone(&self.tenant),
                lanes: 0,
                since: Instant::now(),
                _urgent: is_urgent.then(|| self.lanes.traffic.enter()),
            };
            let context = job.lead_region().and_then(|region| region.context());
            let crew = self.crew(job.objects.store(), track, job.lanes_place(), context);
            let posted = crew.and_then(|crew| crew.post(posted, chunks, &tallies));
            // Lanes of another track may have started already: they stop, and are waited for.
            posted.unwrap_or_else(|error| job.fail(error));
        }
        // At its end, only the end itself holds the job.
        drop(job);
        ticket
    }

    /// Prepares the lanes, streams and rings for transfers between files and `region`. Otherwise the first transfer
    /// pays for that.
    pub fn prepare(&self, region: &Region) -> Result<()> {
        let files: Arc<dyn Store> = Arc::new(Files::default());
        [Track::Drive, Track::Cached].into_iter().try_for_each(|track| {
            let place = match region.place() {
                place @ Place::Gpu(_) => place,
                Place::Host | Place::P2p(_) => Place::Host,
            };
            let crew = self.crew(&files, track, place, region.context())?;
            crew.make_ready()
        })
    }

    /// Prepares transfers between the page cache and a GPU. A transfer that begins meanwhile can use each lane as soon
    /// as the lane has a slot.
    pub fn prepare_gpu(&self, context: &Context) -> Result<()> {
        let files: Arc<dyn Store> = Arc::new(Files::default());
        let place = Place::Gpu(context.device().ordinal());
        self.crew(&files, Track::Cached, place, Some(context))?.make_ready()
    }

    /// The crew for a store, a track and a place; `context` is that of the GPU, if the place is one.
    fn crew(&self, store: &Arc<dyn Store>, track: Track, place: Place, context: Option<&Context>) -> Result<Arc<Crew>> {
        // In a forked child, locks may be held by threads that only its parent has.
        self.lanes.process.check("an executor", "make one in the child")?;
        let Lanes {
            outfit, crews, traffic, ..
        } = &*self.lanes;
        if let Some(context) = context {
            outfit.settings.check_gpu()?;
            context.check_alive()?;
        }
        let key = (store.facts().family, track, place, self.tenant.class() == Class::Now);
        let mut crews = crews.lock();
        let Crews { by_key, spaces } = &mut *crews;
        // A reset of the GPU's context destroyed the streams and slots of its lanes.
        let is_lost = by_key.get(&key).is_some_and(|crew| !crew.is_on(context));
        let lost = is_lost.then(|| by_key.remove(&key));
        let crew = by_key.entry(key).or_insert_with(|| {
            let of = (outfit, traffic);
            Arc::new(Crew::new(store, track, place, context, of, spaces))
        });
        let crew = Arc::clone(crew);
        drop(crews);
        // This waits for its lanes.
        drop(lost);
        Ok(crew)
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // Dropping them would wait for threads, or for locks of threads, that this process does not have.
            let crews = self.crews.get_mut();
            std::mem::forget((std::mem::take(crews), Arc::clone(&self.finishers)));
        }
    }
}

//! The executor: lanes that live as long as it does, and the jobs that they run side by side.
//!
//! Lanes stand in crews, one for each kind of store, track and place, and a crew outlives its jobs. Jobs of class *now*
//! have crews of their own: they never wait behind what another job has in a lane's queue.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, mpsc::channel},
    time::Instant,
};

use straightway_core::{Choice, Class, Direction, Extent, Move, Place, Plan, Result, Share};
use straightway_sys::{Region, cuda::Context};

use crate::{
    ask::{Ask, Checked},
    board::Posted,
    books::Running,
    crew::Crew,
    job::{
        Job,
        planning::{self, in_place, is_in_memory, is_in_one_memory},
    },
    learning::{Learning, Way, Work},
    objects::Objects,
    pass::Pass,
    scattered::Scattered,
    settings::Settings,
    store::{Files, Store},
    tenant::{Reservations, Tenant, Traffic},
    ticket::Ticket,
    track::Track,
};

mod trial;

/// Plans jobs and runs them on lanes, on behalf of one tenant. Those that [`sharing`](Self::sharing) makes run on the same lanes on
/// behalf of others.
#[derive(Clone, Debug)]
pub struct Executor {
    lanes: Arc<Lanes>,
    tenant: Arc<Tenant>,
    /// What is known of the drive that its transfers are with.
    learning: Option<Learning>,
}

/// The family of a crew's stores, its track and its place, and whether it is for jobs of class *now*.
type Post = (&'static str, Track, Place, bool);

/// All lanes of an executor.
#[derive(Debug)]
struct Lanes {
    settings: Settings,
    crews: Mutex<HashMap<Post, Arc<Crew>>>,
    traffic: Arc<Traffic>,
    reservations: Arc<Reservations>,
}

impl Executor {
    /// An executor with these settings. Its lanes start when they are first needed.
    pub fn new(settings: Settings) -> Result<Self> {
        settings.check()?;
        let share = Share {
            limit: settings.rate_max,
            ..Share::default()
        };
        let reservations = Arc::new(Reservations::new(settings.rate_measured));
        let tenant = Tenant::new(share, Class::default(), &reservations)?;
        Ok(Self {
            tenant: Arc::new(tenant),
            learning: settings.learning.clone(),
            lanes: Arc::new(Lanes {
                settings,
                crews: Mutex::default(),
                traffic: Arc::default(),
                reservations,
            }),
        })
    }

    /// The same lanes, for jobs with another share and of another class. The share holds for all jobs together that are
    /// run by the answer and its clones.
    ///
    /// # Errors
    ///
    /// `Invalid` where the share is out of range, or reserves more than is left of the rate that was measured.
    pub fn sharing(&self, share: Share, class: Class) -> Result<Self> {
        let tenant = Tenant::new(share, class, &self.lanes.reservations)?;
        Ok(Self {
            tenant: Arc::new(tenant),
            lanes: Arc::clone(&self.lanes),
            learning: self.learning.clone(),
        })
    }

    /// The same lanes, for transfers with a drive of which this is known.
    #[must_use]
    pub fn learning(&self, learning: Option<Learning>) -> Self {
        Self {
            learning,
            ..self.clone()
        }
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.lanes.settings
    }

    /// What its jobs get of the lanes.
    pub fn share(&self) -> &Share {
        self.tenant.share()
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
        let work = (to.place() == Place::Host).then_some(Work::Read);
        self.begin(work, moves, ask.into(), |moves, way, ask| {
            let from = from.clone();
            self.planned(way, |s| {
                Job::with_region(Direction::In, from, moves, to, ask, s)
            })
        })
    }

    /// Reads extents of objects into several regions of a GPU, which may be given their memory meanwhile.
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

    /// Writes parts of a region to extents of objects, which are new: what no move names is zero.
    pub fn write(
        &self,
        from: &Arc<Region>,
        to: impl Into<Objects>,
        moves: Vec<Move>,
        ask: impl Into<Ask>,
    ) -> Result<Ticket> {
        self.write_planned(&to.into(), moves, ask.into(), |to, moves, ask, settings| {
            Job::with_region(Direction::Out, to, moves, from, ask, settings)
        })
    }

    /// As [`write`](Self::write), from several regions of a GPU that stand for one.
    pub fn write_scattered(
        &self,
        from: &Arc<Scattered>,
        to: impl Into<Objects>,
        moves: Vec<Move>,
        ask: impl Into<Ask>,
    ) -> Result<Ticket> {
        self.write_planned(&to.into(), moves, ask.into(), |to, moves, ask, settings| {
            Job::scattered(Direction::Out, to, moves, from, ask, settings)
        })
    }

    /// Copies extents of each object to the same place in its twin, which is new and may be in a store of another family.
    pub fn relay(
        &self,
        from: impl Into<Objects>,
        to: impl Into<Objects>,
        extents: Vec<(u32, Extent)>,
        ask: impl Into<Ask>,
    ) -> Result<Ticket> {
        let (from, to) = (from.into(), to.into());
        let moves = in_place(extents);
        let work = is_in_one_memory(&from, &to).then_some(Work::Copy);
        self.begin(work, moves, ask.into(), |moves, way, ask| {
            self.planned(way, |s| Job::relay(&from, to.clone(), moves, ask, s))
        })
    }

    /// Begins a write by jobs that `plan` makes.
    fn write_planned(
        &self,
        to: &Objects,
        moves: Vec<Move>,
        ask: Ask,
        plan: impl Fn(Objects, Vec<Move>, Ask, &Settings) -> Result<Job>,
    ) -> Result<Ticket> {
        let work = is_in_memory(to).then_some(Work::Write);
        self.begin(work, moves, ask, |moves, way, ask| {
            self.planned(way, |settings| plan(to.clone(), moves, ask, settings))
        })
    }

    /// Plans a job that goes one of two ways, where there are two.
    fn planned(
        &self,
        way: Option<Way>,
        make: impl FnOnce(&Settings) -> Result<Job>,
    ) -> Result<Job> {
        let known = self.settings();
        let ring_first = way.filter(|way| Work::Read.ways().contains(way));
        let mut job = match ring_first.map(|way| way == Way::Ring) {
            Some(ring_first) if ring_first != known.ring_first => make(&Settings {
                ring_first,
                ..known.clone()
            }),
            _ => make(known),
        }?;
        if let Some(way) = way {
            job.set_way(way);
        }
        Ok(job)
    }

    /// Reads portions of objects and has each of them inspected before anything of it goes to a region.
    pub fn check(&self, checked: Checked, ask: impl Into<Ask>) -> Result<Ticket> {
        Job::check(checked, ask.into()).map(|j| self.post(j))
    }

    /// The plan of a read into a region that is not there yet: its place, which begins on a page, and
    /// its length. What GPUDirect Storage could do is not asked.
    pub fn plan_read(
        &self,
        from: &Objects,
        moves: Vec<Move>,
        to: (Place, u64),
        choice: Choice,
    ) -> Result<Plan> {
        planning::plan_read(from, moves, to, choice, self.settings())
    }

    /// Gives a job to its lanes.
    fn post(&self, job: Job) -> Ticket {
        let job = Arc::new(job);
        tracing::trace!(chunks = job.plan().chunks().len(), "a job is planned");
        let counted = job.pass.as_ref().and_then(Pass::counters);
        let (answers, inbox) = channel();
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
            let posted = crew.and_then(|crew| crew.post(posted, chunks, &answers));
            // Lanes of another track may be at work already: they stop, and are waited for.
            posted.unwrap_or_else(|error| job.fail(error));
        }
        Ticket {
            job,
            earlier: Vec::new(),
            inbox,
            lanes: None,
            counted,
            limit: self.share().limit,
            _running: Running::begin(),
        }
    }

    /// Makes everything ready that a transfer between files and `region` needs: lanes, streams, rings. Without
    /// it the first transfer pays for that.
    pub fn prepare(&self, region: &Region) -> Result<()> {
        let files: Arc<dyn Store> = Arc::new(Files::default());
        [Track::Drive, Track::Cached]
            .into_iter()
            .try_for_each(|track| {
                let place = match region.place() {
                    place @ Place::Gpu(_) => place,
                    Place::Host | Place::P2p(_) => Place::Host,
                };
                let crew = self.crew(&files, track, place, region.context())?;
                crew.make_ready()
            })
    }

    /// Makes ready what a transfer between the page cache and a GPU needs. A transfer that begins meanwhile takes each
    /// lane as soon as that has a slot.
    pub fn prepare_gpu(&self, context: &Context) -> Result<()> {
        let files: Arc<dyn Store> = Arc::new(Files::default());
        let place = Place::Gpu(context.device().ordinal());
        self.crew(&files, Track::Cached, place, Some(context))?
            .make_ready()
    }

    /// The lanes of a track that serve a store and a place; `context` is that of the GPU where the place is one.
    fn crew(
        &self,
        store: &Arc<dyn Store>,
        track: Track,
        place: Place,
        context: Option<&Context>,
    ) -> Result<Arc<Crew>> {
        let Lanes {
            settings,
            crews,
            traffic,
            ..
        } = &*self.lanes;
        if context.is_some() {
            settings.check_gpu()?;
        }
        let post = (
            store.family(),
            track,
            place,
            self.tenant.class() == Class::Now,
        );
        let mut crews = crews.lock().unwrap_or_else(PoisonError::into_inner);
        let crew = crews.entry(post).or_insert_with(|| {
            Arc::new(Crew::new(store, track, place, context, settings, traffic))
        });
        Ok(Arc::clone(crew))
    }
}

//! The executor: lanes that live as long as it does, and the jobs that they run side by side.
//!
//! Lanes stand in crews, one for each kind of store, track and place, and a crew outlives its jobs. Jobs of class *now*
//! have crews of their own: they never wait behind what another job has in a lane's queue.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, mpsc::channel},
    time::Instant,
};

use straightway_core::{Class, Place, Receipt, Result, Share};
use straightway_sys::Region;

use crate::{
    board::Posted,
    books::{Books, Running},
    crew::Crew,
    job::Job,
    settings::Settings,
    store::{Files, Store},
    tenant::{Reservations, Tenant, Traffic},
    ticket::{Run, Ticket},
    track::Track,
};

/// Runs jobs on lanes, on behalf of one tenant. Those that [`sharing`](Self::sharing) makes run on the same lanes on
/// behalf of others.
#[derive(Clone, Debug)]
pub struct Executor {
    lanes: Arc<Lanes>,
    tenant: Arc<Tenant>,
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
        })
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.lanes.settings
    }

    /// What its jobs get of the lanes.
    pub fn share(&self) -> &Share {
        self.tenant.share()
    }

    /// Starts a job, which then runs beside those that were started before.
    ///
    /// # Errors
    ///
    /// `Invalid` where the job was planned with larger chunks than this executor's slots hold.
    pub fn start(&self, job: Job) -> Result<Ticket> {
        let books = Books::default();
        Ok(Ticket::new(books, self.post(job)?))
    }

    /// Runs a job and waits for it. What was written is synced before this returns, unless the job
    /// leaves that to another.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and what happens to the job.
    pub fn run(&self, job: Job) -> Result<Receipt> {
        self.start(job)?.wait()
    }

    /// Runs jobs one after the other, each with what is to be done once its bytes are durable, and
    /// makes one receipt of all. The first error ends it.
    pub fn run_all<F: FnOnce() -> Result<()>>(
        &self,
        jobs: impl IntoIterator<Item = Result<(Job, F)>>,
    ) -> Result<Receipt> {
        let mut books = Books::default();
        for job in jobs {
            let (job, after) = job?;
            self.run_one(job, &mut books)?;
            after()?;
        }
        Ok(books.close(self.share().limit))
    }

    /// Runs a job, waits for it, and enters it in the books. For what is part of something larger.
    pub fn run_one(&self, job: Job, books: &mut Books) -> Result<()> {
        self.post(job)?.finish(books)
    }

    /// Gives a job to its lanes.
    fn post(&self, job: Job) -> Result<Run> {
        job.check_runs_with(self.settings())?;
        let job = Arc::new(job);
        let counted = job.pass().and_then(|pass| pass.session.counters());
        let (answers, inbox) = channel();
        let tracks = [
            (Track::Drive, job.plan().drive().len()),
            (Track::Cached, job.plan().cached().len()),
            (Track::Checked, job.plan().checked().len()),
        ];
        for (track, chunks) in tracks {
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
            let region = job.lead_region().map(Arc::as_ref);
            let crew = self.crew(job.objects().store(), track, region);
            let posted = crew.and_then(|crew| crew.post(posted, chunks, &answers));
            // Lanes of another track may be at work already: they stop, and are waited for.
            posted.unwrap_or_else(|error| job.fail(error));
        }
        Ok(Run {
            job,
            inbox,
            lanes: None,
            counted,
            limit: self.share().limit,
            _running: Running::begin(),
        })
    }

    /// Makes everything ready that a transfer between files and `region` needs: lanes, streams, rings. Without
    /// it the first transfer pays for that.
    pub fn prepare(&self, region: &Region) -> Result<()> {
        let files: Arc<dyn Store> = Arc::new(Files::default());
        [Track::Drive, Track::Cached]
            .into_iter()
            .try_for_each(|track| self.crew(&files, track, Some(region))?.make_ready())
    }

    /// The lanes of a track that serve a store and the place of `region`.
    fn crew(
        &self,
        store: &Arc<dyn Store>,
        track: Track,
        region: Option<&Region>,
    ) -> Result<Arc<Crew>> {
        let Lanes {
            settings,
            crews,
            traffic,
            ..
        } = &*self.lanes;
        let place = region.map_or(Place::Host, Region::place);
        let context = region.and_then(Region::device_memory).map(|m| m.context());
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

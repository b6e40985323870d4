//! The executor: lanes that live as long as it does, and the receipts of what they ran.
//!
//! Lanes stand in crews, one for each track and place, and a crew outlives its jobs.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, mpsc::channel},
    time::Instant,
};

use straightway_core::{Direction, Error, Kind, Leg, Place, Receipt, Result};
use straightway_sys::Region;

use crate::{
    books::Books,
    crew::Crew,
    job::Job,
    settings::Settings,
    store::{Files, Store},
    tally::Tally,
    track::Track,
};

/// Runs jobs on lanes.
#[derive(Debug)]
pub struct Executor {
    settings: Settings,
    /// By the family of their stores, their track and their place.
    crews: Mutex<HashMap<(&'static str, Track, Place), Crew>>,
}

impl Executor {
    /// An executor with these settings. Its lanes start when they are first needed.
    pub fn new(settings: Settings) -> Result<Self> {
        settings.check()?;
        Ok(Self {
            settings,
            crews: Mutex::default(),
        })
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Runs a job and waits for it. What was written is synced before this returns, unless the job
    /// leaves that to another.
    ///
    /// # Errors
    ///
    /// `Invalid` where the job was planned with larger chunks than this executor's slots hold.
    pub fn run(&self, job: Job) -> Result<Receipt> {
        self.run_all([Ok((job, || Ok(())))])
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
        Ok(books.close(self.settings.rate_max))
    }

    /// Runs a job, waits for it, and enters it in the books. For what is part of something larger.
    pub fn run_one(&self, job: Job, books: &mut Books) -> Result<()> {
        job.check_runs_with(&self.settings)?;
        let job = Arc::new(job);
        let counted = job.pass().map(|pass| pass.session.counters());
        let (answers, inbox) = channel::<Tally>();
        let tracks = [
            (Track::Drive, job.plan().drive().len()),
            (Track::Cached, job.plan().cached().len()),
            (Track::Checked, job.plan().checked().len()),
        ];
        for (track, chunks) in tracks {
            if chunks == 0 {
                continue;
            }
            let region = job.lead_region().map(Arc::as_ref);
            let store = job.objects().store();
            let order = |crew: &mut Crew| crew.order(&job, chunks, &answers);
            let ordered = self.with_crew(store, track, region, order);
            // Lanes of another track may be at work already: they stop, and are waited for.
            ordered.unwrap_or_else(|error| job.fail(error));
        }
        drop(answers);
        let mut lanes = inbox.into_iter().reduce(|mut all, lane| {
            all.add(&lane);
            all
        });
        job.outcome()?;
        if let (Some(pass), Some(before), Some(lanes)) = (job.pass(), counted, &mut lanes) {
            let leg = job.direction().leg();
            let proof = pass.session.proof_since(before, leg);
            job.check_route(proof)?;
            lanes.attribute(leg, proof);
            books.register(pass.registration_s);
            books.name("cuFile");
        }
        check_all_moved(&job, lanes.as_ref())?;
        let synced = Instant::now();
        finish(&job)?;
        books.add(&job, lanes.as_ref(), synced.elapsed());
        Ok(())
    }

    /// Makes everything ready that a transfer between files and `region` needs: lanes, streams, rings. Without
    /// it the first transfer pays for that.
    pub fn prepare(&self, region: &Region) -> Result<()> {
        let files: Arc<dyn Store> = Arc::new(Files::default());
        [Track::Drive, Track::Cached]
            .into_iter()
            .try_for_each(|track| self.with_crew(&files, track, Some(region), Crew::make_ready))
    }

    /// Calls on the lanes of a track that serve a store and the place of `region`.
    fn with_crew<T>(
        &self,
        store: &Arc<dyn Store>,
        track: Track,
        region: Option<&Region>,
        call: impl FnOnce(&mut Crew) -> Result<T>,
    ) -> Result<T> {
        let place = region.map_or(Place::Host, Region::place);
        let context = region.and_then(Region::device_memory).map(|m| m.context());
        if context.is_some() {
            self.settings.check_gpu()?;
        }
        let mut crews = self.crews.lock().unwrap_or_else(PoisonError::into_inner);
        let crew = crews
            .entry((store.family(), track, place))
            .or_insert_with(|| Crew::new(store, track, place, context, &self.settings));
        call(crew)
    }
}

/// Every byte must have been counted once on each leg. A lane that panicked is missing here, and
/// its job must not pass for done.
fn check_all_moved(job: &Job, lanes: Option<&Tally>) -> Result<()> {
    let legs: &[_] = match job.direction() {
        Direction::In => &[Leg::Read],
        Direction::Out => &[Leg::Write],
        Direction::Across => &[Leg::Read, Leg::Write],
    };
    let wanted = job.arrived_bytes();
    for &leg in legs {
        let rows = lanes.map(Tally::routes).unwrap_or_default();
        let moved: u64 = rows.iter().filter(|r| r.leg == leg).map(|r| r.bytes).sum();
        if moved != wanted {
            let name = job.objects().name();
            let message = format!("a lane ended early, after {moved} of {wanted} bytes");
            return Err(Error::new(Kind::Transient, "finish with", name, message));
        }
    }
    Ok(())
}

/// What is left when all bytes have moved: objects that were read must not have changed, and those that were written are
/// made durable, unless a later job sees to that.
fn finish(job: &Job) -> Result<()> {
    if job.direction() != Direction::Out {
        let read = job.objects().handles();
        read.iter()
            .try_for_each(|object| object.check_unchanged())?;
    }
    match job.written().filter(|_| job.syncs()) {
        Some(written) => written.store().sync(written.handles()),
        None => Ok(()),
    }
}

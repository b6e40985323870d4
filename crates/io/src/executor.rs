//! The executor: lanes that live as long as it does, and the receipts of what they ran.
//!
//! A lane's thread starts when its track is first needed and then waits for jobs: a ring, once
//! made and registered, serves every later transfer.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread::{Builder, JoinHandle},
    time::Instant,
};

use straightway_core::{Direction, Error, Kind, Leg, Receipt, Result};
use straightway_sys::File;

use crate::{
    books::Books,
    job::{Job, Track},
    lane::Lane,
    settings::Settings,
    tally::Tally,
};

/// Runs jobs on lanes.
#[derive(Debug)]
pub struct Executor {
    settings: Settings,
    drive: Mutex<Vec<Handle>>,
    cached: Mutex<Vec<Handle>>,
}

/// A job for a lane, and where the lane's answer goes.
type Order = (Arc<Job>, Sender<Tally>);

/// A lane's thread.
#[derive(Debug)]
struct Handle {
    engine: &'static str,
    /// `None` only while being dropped.
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Executor {
    /// An executor with these settings. Its lanes start when they are first needed.
    pub fn new(settings: Settings) -> Result<Self> {
        settings.check()?;
        Ok(Self {
            settings,
            drive: Mutex::default(),
            cached: Mutex::default(),
        })
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Runs a job and waits for it. What was written is synced before this returns.
    pub fn run(&self, job: Job) -> Result<Receipt> {
        self.run_all([Ok((job, || Ok(())))])
    }

    /// Runs jobs one after the other, each with what is to be done once its bytes are durable, and
    /// makes one receipt of all. The first error ends it.
    pub fn run_all<F: FnOnce() -> Result<()>>(
        &self,
        jobs: impl IntoIterator<Item = Result<(Job, F)>>,
    ) -> Result<Receipt> {
        let mut books = Books::new();
        for job in jobs {
            let (job, after) = job?;
            self.run_one(job, &mut books)?;
            after()?;
        }
        Ok(books.close(self.settings.rate_max))
    }

    fn run_one(&self, job: Job, books: &mut Books) -> Result<()> {
        let job = Arc::new(job);
        let (answers, inbox) = channel::<Tally>();
        let tracks = [
            (Track::Drive, job.plan().drive().len()),
            (Track::Cached, job.plan().cached().len()),
        ];
        for (track, chunks) in tracks {
            if chunks > 0 {
                books.name(self.order(track, chunks, &job, &answers)?);
            }
        }
        drop(answers);
        let lanes = inbox.into_iter().reduce(|mut all, lane| {
            all.add(&lane);
            all
        });
        job.outcome()?;
        check_all_moved(&job, lanes.as_ref())?;
        let synced = Instant::now();
        finish(&job)?;
        books.add(job.plan().bytes(), lanes.as_ref(), synced.elapsed());
        Ok(())
    }

    /// Sends the job to the lanes of a track, starting them where they are not running yet.
    fn order(
        &self,
        track: Track,
        chunks: usize,
        job: &Arc<Job>,
        answers: &Sender<Tally>,
    ) -> Result<&'static str> {
        let (lanes, count) = match track {
            Track::Drive => (&self.drive, self.settings.drive_lanes),
            Track::Cached => (&self.cached, self.settings.cached_lanes),
        };
        let mut lanes = lanes.lock().unwrap_or_else(PoisonError::into_inner);
        // A lane without a chunk would only wake up to find that out.
        let wanted = (count as usize).min(chunks);
        while lanes.len() < wanted {
            let lane = self.start(track, lanes.len())?;
            lanes.push(lane);
        }
        for lane in &lanes[..wanted] {
            let orders = lane.orders.as_ref().expect("there until it is dropped");
            if orders.send((Arc::clone(job), answers.clone())).is_err() {
                let message = "its thread has ended";
                return Err(Error::new(Kind::Transient, "use", "a lane", message));
            }
        }
        Ok(lanes[0].engine)
    }

    fn start(&self, track: Track, number: usize) -> Result<Handle> {
        let settings = self.settings.clone();
        let (orders, inbox) = channel::<Order>();
        let (ready, started) = channel();
        let word = if track == Track::Drive {
            "drive"
        } else {
            "cache"
        };
        let life = move || serve(track, &settings, &ready, &inbox);
        let thread = Builder::new()
            .name(format!("straightway-{word}-{number}"))
            .spawn(life)
            .map_err(|e| Error::os("start", "a lane", e))?;
        // The engine is made on the lane's own thread: an io_uring belongs to the thread that
        // made it.
        let engine = started.recv().unwrap_or_else(|_| {
            Err(Error::new(
                Kind::Transient,
                "start",
                "a lane",
                "its thread has ended",
            ))
        })?;
        Ok(Handle {
            engine,
            orders: Some(orders),
            thread: Some(thread),
        })
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        for lanes in [&mut self.drive, &mut self.cached] {
            for mut lane in lanes
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner)
                .drain(..)
            {
                lane.orders = None;
                // A lane that panicked has failed its job already.
                let _ = lane.thread.take().map(JoinHandle::join);
            }
        }
    }
}

/// A lane's life: one engine, one job after the other.
fn serve(
    track: Track,
    settings: &Settings,
    ready: &Sender<Result<&'static str>>,
    inbox: &Receiver<Order>,
) {
    let engine = match track {
        Track::Drive => settings.drive_engine(),
        Track::Cached => Ok(settings.cached_engine()),
    };
    let mut lane = match engine {
        Ok(engine) => {
            let slot_bytes = usize::try_from(settings.chunk_bytes).unwrap_or(usize::MAX);
            Lane::new(track, engine, settings.slots_per_lane(), slot_bytes)
        }
        Err(error) => {
            // If nobody waits for the answer, nobody wants the lane.
            let _ = ready.send(Err(error));
            return;
        }
    };
    if ready.send(Ok(lane.engine_name())).is_err() {
        return;
    }
    for (job, answer) in inbox {
        let tally = lane.run(&job);
        drop(job);
        let _ = answer.send(tally);
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
    let wanted = job.plan().bytes();
    for &leg in legs {
        let rows = lanes.map(Tally::routes).unwrap_or_default();
        let moved: u64 = rows.iter().filter(|r| r.leg == leg).map(|r| r.bytes).sum();
        if moved != wanted {
            let name = job
                .files()
                .first()
                .map_or_else(String::new, |f| f.object().name);
            let message = format!("a lane ended early, after {moved} of {wanted} bytes");
            return Err(Error::new(Kind::Transient, "finish with", name, message));
        }
    }
    Ok(())
}

/// What is left when all bytes have moved: files that were read must not have changed, files that
/// were written get their length and are made durable.
fn finish(job: &Job) -> Result<()> {
    let written = match job.direction() {
        Direction::In => &[],
        Direction::Out => job.files(),
        Direction::Across => job.twins(),
    };
    if job.direction() != Direction::Out {
        job.files().iter().try_for_each(|f| f.check_unchanged())?;
    }
    written.iter().try_for_each(|f| f.truncate(f.bytes()))?;
    File::sync_all(written)
}

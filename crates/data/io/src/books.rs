//! The accounts of one or more jobs, from which a receipt is made.

use std::{sync::Arc, time::Duration};

use straightway_core::{
    Direction, Leg, Rate, Reason, Receipt, Route,
    receipt::{Bound, Registration, SCHEMA},
};
use straightway_sys::CpuTime;

use crate::{job::Job, opening::Opening, tally::Tally};

/// The sum of all jobs since the books were opened.
#[derive(Debug)]
pub struct Books {
    opening: Opening,
    /// The number of jobs that were entered. Other jobs that were begun meanwhile ran in parallel.
    jobs: u64,
    tally: Tally,
    engines: Vec<&'static str>,
    lanes: u32,
    /// Bytes read and bytes written.
    legs: [u64; 2],
    /// Bytes that were mapped instead of moved.
    mapped: u64,
    sync: Duration,
    /// The number of registrations with cuFile, and the seconds they took.
    registrations: Option<(u64, f64)>,
    /// The rate limit of its jobs.
    rate_max: Option<Rate>,
    /// The origins of settings that are not the defaults.
    settings_from: Vec<Arc<str>>,
    /// The time and the CPU time that they cover, once they are sealed.
    sealed: Option<Closing>,
}

/// What is measured when books are closed.
#[derive(Clone, Copy, Debug)]
struct Closing {
    seconds: f64,
    cpu: CpuTime,
    /// Whether jobs ran meanwhile that are not in the books.
    is_shared: bool,
}

impl Default for Books {
    fn default() -> Self {
        Self::since(Opening::now())
    }
}

impl Books {
    /// Books opened at this time.
    pub(crate) fn since(opening: Opening) -> Self {
        Self {
            opening,
            jobs: 0,
            tally: Tally::default(),
            engines: Vec::new(),
            lanes: 0,
            legs: [0; 2],
            mapped: 0,
            sync: Duration::ZERO,
            registrations: None,
            rate_max: None,
            settings_from: Vec::new(),
            sealed: None,
        }
    }

    /// Records an engine that took part.
    pub(crate) fn name(&mut self, engine: &'static str) {
        if !self.engines.contains(&engine) {
            self.engines.push(engine);
        }
    }

    /// Records a job that used cuFile, and the time of its registration if one was made.
    pub(crate) fn register(&mut self, seconds: Option<f64>) {
        let (count, sum) = self.registrations.unwrap_or_default();
        let fresh = u64::from(seconds.is_some());
        self.registrations = Some((count + fresh, sum + seconds.unwrap_or(0.0)));
    }

    /// Adds a job: its bytes, its lanes' counts, the duration of its sync, and its rate limit.
    pub(crate) fn add(&mut self, job: &Job, lanes: Option<&Tally>, sync: Duration, rate_max: Option<Rate>) {
        let has_legs = match job.direction() {
            Direction::In => [true, false],
            Direction::Out => [false, true],
            Direction::Across => [true, true],
        };
        for (leg, has) in self.legs.iter_mut().zip(has_legs) {
            *leg += if has { job.arrived_bytes() } else { 0 };
        }
        self.jobs += 1;
        job.warnings.iter().for_each(|w| self.tally.warn(w));
        self.sync += sync;
        self.rate_max = rate_max;
        self.note_settings(&job.settings_from);
        if let Some(lanes) = lanes {
            self.add_lanes(lanes);
        }
    }

    /// Adds reads of lanes that run without a plan.
    pub fn add_read(&mut self, lanes: &Tally) {
        self.legs[0] += lanes.bytes();
        self.add_lanes(lanes);
    }

    /// Adds bytes that a service copied itself.
    pub fn add_served(&mut self, bytes: u64) {
        self.legs.iter_mut().for_each(|leg| *leg += bytes);
        for leg in [Leg::Read, Leg::Write] {
            self.tally.count(leg, Route::Service, Reason::SameService, bytes);
        }
        self.name("service");
    }

    /// Adds bytes of a stream that were written without a job, the time of these writes, and that of their sync.
    pub fn add_streamed(&mut self, route: Route, bytes: u64, writing: Duration, sync: Duration) {
        self.legs[1] += bytes;
        self.tally.count(Leg::Write, route, Reason::Stream, bytes);
        let time = match route {
            Route::Socket => &mut self.tally.drive,
            _ => &mut self.tally.page_cache,
        };
        *time += writing;
        self.sync += sync;
        self.name(if route == Route::Socket { "http" } else { "pwrite" });
    }

    /// Adds the jobs of other books.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (leg, bytes) in self.legs.iter_mut().zip(other.legs) {
            *leg += bytes;
        }
        self.jobs += other.jobs;
        self.mapped += other.mapped;
        self.sync += other.sync;
        if let Some((count, seconds)) = other.registrations {
            let (known_count, known_seconds) = self.registrations.unwrap_or_default();
            self.registrations = Some((known_count + count, known_seconds + seconds));
        }
        self.rate_max = other.rate_max;
        self.note_settings(&other.settings_from);
        other.engines.iter().for_each(|engine| self.name(engine));
        self.add_counts(other.lanes, &other.tally);
    }

    /// Records the origins of settings, each once.
    fn note_settings(&mut self, origins: &[Arc<str>]) {
        for origin in origins {
            if !self.settings_from.contains(origin) {
                self.settings_from.push(Arc::clone(origin));
            }
        }
    }

    fn add_lanes(&mut self, lanes: &Tally) {
        lanes.engines().iter().for_each(|engine| self.name(engine));
        self.add_counts(lanes.lanes, lanes);
    }

    fn add_counts(&mut self, count: u32, lanes: &Tally) {
        // Jobs run one after another on the same lanes and rings: their peaks do not add up.
        self.lanes = self.lanes.max(count);
        let staging = self.tally.staging_bytes_peak.max(lanes.staging_bytes_peak);
        let pinned = self.tally.pinned_bytes.max(lanes.pinned_bytes);
        self.tally.add(lanes);
        self.tally.staging_bytes_peak = staging;
        self.tally.pinned_bytes = pinned;
    }

    /// Adds bytes that were mapped instead of moved.
    pub fn map(&mut self, bytes: u64) {
        self.mapped += bytes;
        self.tally.count(Leg::Read, Route::Mapped, Reason::FilePages, bytes);
    }

    /// Adds a warning.
    pub fn warn(&mut self, warning: &str) {
        self.tally.warn(warning);
    }

    /// The bytes moved. Bytes that one job read and another wrote count once.
    fn bytes(&self) -> u64 {
        self.legs[0].max(self.legs[1])
    }

    /// Ends the time that they cover: the receipt is of the end of the job, whenever its owner asks for it.
    pub(crate) fn seal(&mut self) {
        // An earlier job of the same transfer may have sealed them: the trial of two methods.
        self.sealed = None;
        self.sealed = Some(self.closing());
    }

    fn closing(&self) -> Closing {
        self.sealed.unwrap_or_else(|| Closing {
            seconds: self.opening.elapsed().as_secs_f64(),
            cpu: self.opening.cpu_time(),
            is_shared: self.opening.jobs_since() > self.jobs,
        })
    }

    /// The time that its lanes spent on other jobs. Parallel jobs in the same books do not count as others.
    fn waiting(&self, is_shared: bool) -> Duration {
        if is_shared {
            self.tally.others / self.lanes.max(1)
        } else {
            Duration::ZERO
        }
    }

    /// Makes the receipt.
    pub fn close(self) -> Receipt {
        self.receipt()
    }

    /// The receipt so far.
    pub(crate) fn receipt(&self) -> Receipt {
        let closing = self.closing();
        let Closing {
            seconds,
            cpu,
            is_shared: cpu_shared,
        } = closing;
        let bytes = self.bytes();
        let rate_bytes_per_s = bytes as f64 / seconds.max(1e-9);
        let engine = if self.engines.is_empty() {
            "none".to_owned()
        } else {
            self.engines.join(" + ")
        };
        let gigabytes = bytes as f64 / 1e9;
        Receipt {
            schema: SCHEMA.to_owned(),
            bytes: bytes + self.mapped,
            seconds,
            rate_bytes_per_s,
            routes: self.tally.routes(),
            latency: self.tally.latency(),
            cpu_user_s: cpu.user_s,
            cpu_system_s: cpu.system_s,
            cpu_shared,
            cpu_s_per_gb: if bytes == 0 { 0.0 } else { cpu.total_s() / gigabytes },
            staging_bytes_peak: self.tally.staging_bytes_peak,
            pinned_bytes_peak: self.tally.pinned_bytes,
            ios: self.tally.ios,
            storage_bytes: self.tally.storage_bytes,
            sync_s: self.sync.as_secs_f64(),
            waiting_s: self.waiting(cpu_shared).as_secs_f64(),
            engine,
            lanes: self.lanes,
            registration: self
                .registrations
                .map(|(count, took)| Registration::new(count, took, seconds)),
            requests: self.tally.requests(),
            sockets: self.tally.sockets(),
            verified: None,
            bound_by: self.bound(closing),
            settings_from: self.settings_from.iter().map(ToString::to_string).collect(),
            warnings: self.tally.warnings().to_vec(),
        }
    }

    /// The resource that took most of the time.
    fn bound(&self, Closing { seconds, is_shared, .. }: Closing) -> Bound {
        if self.bytes() == 0 {
            return Bound::Nothing;
        }
        // A limit counts each byte of a copy once, although it is read and written.
        let legs = if self.legs.contains(&0) { 1 } else { 2 };
        let counted_bytes = (self.tally.storage_bytes / legs).max(self.bytes());
        let rate = counted_bytes as f64 / seconds.max(1e-9);
        if self.rate_max.is_some_and(|limit| rate >= 0.9 * limit.0) {
            return Bound::Throttle;
        }
        // On a busy machine the rate stays further below its limit, and the limit can still be the longest wait.
        let held = match self.rate_max {
            Some(_) => self.tally.idle,
            None => Duration::ZERO,
        };
        // The lanes run in parallel; the sync follows them.
        let lanes = self.lanes.max(1);
        let storage = match self.tally.requests() {
            Some(_) => Bound::Network,
            None => Bound::Storage,
        };
        [
            (storage, self.tally.drive / lanes),
            (Bound::PageCache, self.tally.page_cache / lanes),
            (Bound::Copy, self.tally.copying / lanes),
            (Bound::Cpu, self.tally.rest / lanes),
            (Bound::Throttle, held / lanes),
            (Bound::OtherJobs, self.waiting(is_shared)),
            (Bound::Sync, self.sync),
        ]
        .into_iter()
        .max_by_key(|(_, time)| *time)
        .map_or(Bound::Nothing, |(bound, _)| bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_took_most_of_the_time_is_the_bound_even_if_the_rate_is_far_below_it() {
        let mut lanes = Tally::default();
        lanes.lanes = 2;
        lanes.drive = Duration::from_millis(300);
        lanes.idle = Duration::from_millis(900);
        lanes.rest = Duration::from_millis(100);
        lanes.count(Leg::Read, Route::Staged, Reason::RaggedEdge, 1000);
        lanes.complete(Duration::from_millis(1), 1000, straightway_sys::Tries::default());
        let bound = |rate_max: Option<f64>| {
            let mut books = Books::default();
            books.add_read(&lanes);
            books.rate_max = rate_max.map(Rate);
            let closing = books.closing();
            books.bound(Closing {
                seconds: 1.0,
                ..closing
            })
        };
        assert_eq!(bound(Some(4000.0)), Bound::Throttle);
        assert_eq!(bound(Some(1050.0)), Bound::Throttle);
        // Without a limit, an idle lane waits for the other lanes.
        assert_eq!(bound(None), Bound::Storage);
    }
}

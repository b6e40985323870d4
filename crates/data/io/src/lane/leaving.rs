//! The end of a job on a lane.

use std::time::Duration;

use super::Lane;

/// How long a lane waits for the I/Os of a stopped job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settle {
    /// As a rule.
    pub(crate) usual: Duration,
    /// If the user cancelled the job and its I/Os can harm nobody.
    pub(crate) hurried: Duration,
}

impl Lane {
    /// Leaves jobs that are finished, and stopped jobs whose I/Os did not complete in time.
    pub(super) fn leave_jobs(&mut self) {
        for number in self.jobs.numbers() {
            let Some(joined) = self.jobs.get(number) else {
                continue;
            };
            let is_through = joined.chunks == 0 && joined.posted.job.is_over(self.track);
            let is_lost = self.broken.is_some() && joined.posted.job.is_stopped();
            let settle_max = if joined.posted.job.can_leave_ios() {
                self.settle.hurried
            } else {
                self.settle.usual
            };
            if !is_through && !is_lost && !joined.has_stop_timed_out(settle_max) {
                continue;
            }
            self.alone = None;
            let (engine, ring) = (&mut self.engine, &self.ring);
            self.jobs.leave(number, |tally| {
                let report = engine.report();
                report.sockets.into_iter().for_each(|seen| tally.watch(seen));
                report.names.into_iter().for_each(|name| tally.name(name));
                if let Some(warning) = &report.warning {
                    tally.warn(warning);
                }
                ring.book(tally);
            });
            self.set_depth();
        }
    }
}

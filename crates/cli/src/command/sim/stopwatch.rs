//! What a simulation took: by the clock, and of the processor.
//!
//! A simulator's speed is a claim about one core. On a machine that others use too, the clock counts
//! their share of it as well; CPU time does not.

use std::{fmt, time::Instant};

use straightway_sys::CpuTime;

/// A simulation under way.
#[derive(Debug)]
pub(super) struct Stopwatch {
    begin: Instant,
    cpu: CpuTime,
}

/// What it took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Took {
    pub(super) wall_s: f64,
    cpu_s: f64,
}

impl Stopwatch {
    pub(super) fn begin() -> Self {
        Self {
            begin: Instant::now(),
            cpu: CpuTime::of_process(),
        }
    }

    pub(super) fn took(&self) -> Took {
        Took {
            wall_s: self.begin.elapsed().as_secs_f64(),
            cpu_s: (CpuTime::of_process() - self.cpu).total_s(),
        }
    }
}

impl fmt::Display for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} s ({:.4} s of CPU)", self.wall_s, self.cpu_s)
    }
}

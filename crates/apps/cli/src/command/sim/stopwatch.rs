//! The wall-clock time and CPU time of a simulation.
//!
//! A simulator's speed is a claim about one core. On a shared machine the wall-clock time includes other processes; CPU
//! time does not.

use std::{fmt, time::Instant};

use straightway_sys::CpuTime;

/// Measures a running simulation.
#[derive(Debug)]
pub(super) struct Stopwatch {
    begin: Instant,
    cpu: CpuTime,
}

/// The time of a simulation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elapsed {
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

    pub(super) fn took(&self) -> Elapsed {
        Elapsed {
            wall_s: self.begin.elapsed().as_secs_f64(),
            cpu_s: (CpuTime::of_process() - self.cpu).total_s(),
        }
    }
}

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} s ({:.4} s of CPU)", self.wall_s, self.cpu_s)
    }
}

//! CPU time and the monotonic clock.

use std::ops::Sub;

/// User and system CPU seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuTime {
    /// In user code.
    pub user_s: f64,
    /// In the kernel, on behalf of the process.
    pub system_s: f64,
}

impl CpuTime {
    /// The CPU time of the whole process so far, including its kernel I/O workers.
    pub fn of_process() -> Self {
        Self::of(libc::RUSAGE_SELF)
    }

    /// The CPU time of this thread so far.
    pub fn of_thread() -> Self {
        Self::of(libc::RUSAGE_THREAD)
    }

    fn of(who: libc::c_int) -> Self {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: `usage` is valid for writes, and all zeroes is a valid `rusage` should it fail.
        let usage = unsafe {
            libc::getrusage(who, usage.as_mut_ptr());
            usage.assume_init()
        };
        let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 * 1e-6;
        Self {
            user_s: seconds(usage.ru_utime),
            system_s: seconds(usage.ru_stime),
        }
    }

    /// The sum of both.
    pub fn total_s(self) -> f64 {
        self.user_s + self.system_s
    }
}

/// Seconds on the monotonic clock, which `Instant` and Python's `time.perf_counter` also use.
pub fn monotonic_s() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

impl Sub for CpuTime {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            user_s: self.user_s - earlier.user_s,
            system_s: self.system_s - earlier.system_s,
        }
    }
}

//! The description of this machine that is stored with results.

use std::fmt;

use serde::{Deserialize, Serialize};
use straightway_core::Bytes;
use straightway_sys::root::Root;

/// A machine, as far as needed to tell its measurements from another machine's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// The number of cores this process may use.
    pub cores: u32,
    /// The size of the memory.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
}

impl Machine {
    /// This machine.
    pub fn here() -> Self {
        let root = Root::machine();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|l| l.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let processors = root.text("/proc/cpuinfo").unwrap_or_default();
        let memory = root.text("/proc/meminfo").unwrap_or_default();
        let kib = field(&memory, "MemTotal").and_then(|v| v.split(' ').next()?.parse().ok());
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            processor: field(&processors, "model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: u32::try_from(cores).unwrap_or(u32::MAX),
            memory_bytes: kib.map_or(0, |kib: u64| kib << 10),
            kernel: root
                .text("/proc/sys/kernel/osrelease")
                .unwrap_or_default()
                .trim()
                .to_owned(),
        }
    }

    /// Whether measurements on one machine apply to the other. Cores and memory do not count: a process may be given
    /// fewer of them at any time.
    pub fn is_like(&self, other: &Self) -> bool {
        (&self.processor, &self.kernel) == (&other.processor, &other.kernel)
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            processor,
            cores,
            memory_bytes,
            kernel,
        } = self;
        write!(
            f,
            "{processor}, {cores} cores, {}, Linux {kernel}",
            Bytes(*memory_bytes)
        )
    }
}

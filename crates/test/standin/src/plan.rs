//! The plan of the stand-in: its properties and its failures, as one line of text.
//!
//! `seed=7 devices=2 fail=cuMemAlloc_v2:1:2` is a machine with two GPUs whose first allocation runs out of memory. The
//! plan is text so that it can also come from the environment.

/// All settings, with their defaults.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The seed of the order and the delays of copies.
    pub(crate) seed: u64,
    /// The maximum delay of a copy.
    pub(crate) delay_us_max: u64,
    /// The number of GPUs.
    pub(crate) devices: usize,
    /// The CUDA version of the driver.
    pub(crate) version: i32,
    /// The memory of each GPU.
    pub(crate) memory_bytes: usize,
    /// The maximum size of pinned host memory.
    pub(crate) pinned_bytes_max: usize,
    /// `CU_COMPUTEMODE_*` of every GPU.
    pub(crate) compute_mode: i32,
    /// Whether another process uses every GPU in exclusive mode.
    pub(crate) held: bool,
    /// The size of the pieces in which allocations are reported, like memory that is mapped in pieces.
    pub(crate) piece_bytes: u64,
    /// The behaviour of cuFile.
    pub(crate) cufile: CufileMode,
    /// The version of cuFile.
    pub(crate) cufile_version: i32,
    /// The maximum device memory that cuFile reports as registrable.
    pub(crate) device_pinned_kib: u32,
    /// Calls that fail.
    pub(crate) failures: Vec<Failure>,
}

/// The behaviour of cuFile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CufileMode {
    /// Direct, by nvidia-fs.
    Nvfs,
    /// Direct, by peer-to-peer DMA.
    P2p,
    /// Through host memory.
    Compat,
    /// No file can be registered: error 5027, as without a udev database.
    Unregistrable,
    /// The driver does not open: error 5033.
    Closed,
    /// Opening the driver never returns, and descriptor 0 is closed.
    Hanging,
}

/// The `nth` call of `name` (counted from 1) returns `code`. The name `copy` stands for copies that fail when they
/// run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) name: String,
    pub(crate) nth: u64,
    pub(crate) code: u32,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            seed: 1,
            delay_us_max: 200,
            devices: 1,
            version: 13_000,
            memory_bytes: 1 << 30,
            pinned_bytes_max: 1 << 30,
            compute_mode: 0,
            held: false,
            piece_bytes: u64::MAX,
            cufile: CufileMode::Compat,
            cufile_version: 1150,
            device_pinned_kib: 32 << 20,
            failures: Vec::new(),
        }
    }
}

impl Plan {
    /// Parses `key=value` pairs, separated by spaces.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut plan = Self::default();
        for pair in text.split_whitespace() {
            let (key, value) = pair.split_once('=').ok_or(format!("{pair}: not key=value"))?;
            plan.set(key, value).ok_or(format!("{pair}: no such key or value"))?;
        }
        Ok(plan)
    }

    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "seed" => self.seed = value.parse().ok()?,
            "delay_us_max" => self.delay_us_max = value.parse().ok()?,
            "devices" => self.devices = value.parse().ok()?,
            "version" => self.version = value.parse().ok()?,
            "memory_bytes" => self.memory_bytes = value.parse().ok()?,
            "pinned_bytes_max" => self.pinned_bytes_max = value.parse().ok()?,
            "compute_mode" => self.compute_mode = value.parse().ok()?,
            "held" => self.held = value.parse().ok()?,
            "piece_bytes" => self.piece_bytes = value.parse().ok()?,
            "cufile" => self.cufile = CufileMode::parse(value)?,
            "cufile_version" => self.cufile_version = value.parse().ok()?,
            "device_pinned_kib" => self.device_pinned_kib = value.parse().ok()?,
            "fail" => self.failures.push(Failure::parse(value)?),
            _ => return None,
        }
        Some(())
    }
}

impl CufileMode {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "nvfs" => Self::Nvfs,
            "p2p" => Self::P2p,
            "compat" => Self::Compat,
            "unregistrable" => Self::Unregistrable,
            "closed" => Self::Closed,
            "hanging" => Self::Hanging,
            _ => return None,
        })
    }
}

impl Failure {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let name = parts.next()?.to_owned();
        let nth = parts.next()?.parse().ok()?;
        let code = parts.next()?.parse().ok()?;
        parts.next().is_none().then_some(Self { name, nth, code })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_parsed_and_an_invalid_one_is_refused() {
        let plan = Plan::parse("seed=7 cufile=p2p fail=cuMemAlloc_v2:2:46").unwrap();
        assert_eq!((plan.seed, plan.cufile), (7, CufileMode::P2p));
        let failure = Failure {
            name: "cuMemAlloc_v2".into(),
            nth: 2,
            code: 46,
        };
        assert_eq!(plan.failures, [failure]);
        for wrong in ["seed", "seed=x", "colour=red", "fail=cuInit:1", "fail=a:1:2:3"] {
            assert!(Plan::parse(wrong).is_err(), "{wrong}");
        }
    }
}

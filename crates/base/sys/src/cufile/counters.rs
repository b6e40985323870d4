//! cuFile's counters of the paths of requests, which are the only evidence of them.
//!
//! They exist since cuFile 1.15 at statistics level 3, one set for each GPU. In 1.19 the struct grew before
//! the counters, and it does not contain its size. Their offset therefore depends on the version. An unknown
//! version is `Unsupported`, which a receipt shows as *unknown*. The buffer is larger than any known version
//! needs.

use straightway_core::{Error, ErrorKind, Result};

use super::api::GpuCounters;
use super::paths::Paths;
use super::session::CuFile;
use crate::cuda::Version;

/// The statistics level with counters for each GPU.
const LEVEL: i32 = 3;

/// The length of the array in the struct (`maxGpus` in the header).
const GPUS_MAX: usize = 16;

/// The length of the buffer in words: 5112 bytes in cuFile 1.19, and as much again to grow.
const ANSWER_WORDS: usize = 1280;

/// The counters of one GPU at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests from files to the GPU.
    pub reads: Paths,
    /// Requests from the GPU to files.
    pub writes: Paths,
    /// Bytes from files to the GPU.
    pub read_bytes: u64,
    /// Bytes from the GPU to files.
    pub write_bytes: u64,
}

/// Enabled statistics. They have a small cost. Dropping this disables them.
#[derive(Debug)]
pub struct Watch {
    cufile: CuFile,
    first_gpu_at: usize,
}

impl CuFile {
    /// Enables the counters of the paths of transfers.
    pub fn watch(&self) -> Result<Watch> {
        let version = self.version();
        let first_gpu_at = version.and_then(first_gpu_at).ok_or_else(|| {
            let version = version.map_or_else(|| "unknown".into(), |v| v.to_string());
            unsupported(format!(
                "the layout of version {version} is unknown (supported: 1.15 to 1.19)"
            ))
        })?;
        let api = self.api();
        api.get_stats_l3()?;
        let (set_level, start) = (api.set_stats_level()?, api.stats_start()?);
        // SAFETY: the level is one the header defines, and the driver is open.
        unsafe { set_level(LEVEL) }.ok("set the level of", "cuFile's statistics")?;
        // SAFETY: the driver is open and a level set.
        unsafe { start() }.ok("start", "cuFile's statistics")?;
        Ok(Watch {
            cufile: self.clone(),
            first_gpu_at,
        })
    }
}

impl Watch {
    /// The current counters of the GPU with that UUID. Only differences are meaningful: other code in this
    /// process may use cuFile too.
    pub fn counters(&self, uuid: [u8; 16]) -> Result<Counters> {
        let mut answer = [0u64; ANSWER_WORDS];
        let ask = self.cufile.api().get_stats_l3()?;
        // SAFETY: the buffer is twice as long as the struct of every known version.
        unsafe { ask(answer.as_mut_ptr().cast()) }.ok("read", "cuFile's statistics")?;
        // The count is in the first four bytes of the word before the first GPU.
        let count = answer[self.first_gpu_at / 8 - 1] & u64::from(u32::MAX);
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(GPUS_MAX);
        let gpus = answer[self.first_gpu_at / 8..].as_ptr().cast::<GpuCounters>();
        for i in 0..count {
            // SAFETY: `first_gpu_at` is 1144 at most, so 16 entries of 248 bytes end at 5112, well
            // within the answer; the start is a multiple of 8, and any bits are a value.
            let gpu = unsafe { gpus.add(i).read() };
            if gpu.uuid == uuid {
                return Ok(Counters {
                    reads: gpu.reads,
                    writes: gpu.writes,
                    read_bytes: gpu.read_bytes,
                    write_bytes: gpu.write_bytes,
                });
            }
        }
        Err(unsupported(format!("they list {count} GPU(s), but not this one")))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Ok(stop) = self.cufile.api().stats_stop() {
            // SAFETY: started in `watch`, and the driver is open.
            let status = unsafe { stop() };
            if let Err(error) = status.ok("stop", "cuFile's statistics") {
                tracing::debug!(%error, "cuFile's statistics stay enabled");
            }
        }
    }
}

impl Counters {
    /// The difference to `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            reads: self.reads.since(earlier.reads),
            writes: self.writes.since(earlier.writes),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            write_bytes: self.write_bytes.saturating_sub(earlier.write_bytes),
        }
    }
}

/// The offset of the first GPU in `CUfileStatsLevel3_t`, according to a C compiler with the headers of cuFile
/// 1.15.1, 1.18.1 and 1.19.1.
fn first_gpu_at(version: Version) -> Option<usize> {
    match version.0 {
        1150..1190 => Some(1032),
        1190..1200 => Some(1144),
        _ => None,
    }
}

fn unsupported(message: String) -> Error {
    Error::new(ErrorKind::Unsupported, "read", "cuFile's statistics", message)
}

//! Facts about an object that planning needs.
//!
//! The transfer planner is pure. Facts that take a system call (whether the file system supports O_DIRECT,
//! which pages are in the page cache) are therefore collected first and passed in as a value.

use crate::{
    extent::{Extent, up},
    route::Reason,
};

/// The alignment that direct I/O requires of offsets and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Offsets and lengths in the object are multiples of this.
    pub object_bytes: u64,
    /// Addresses in memory are multiples of this.
    pub memory_bytes: u64,
}

impl Alignment {
    /// A page, and the block of nearly every file system.
    ///
    /// Plans never use less than this, even if the drive accepts 512. Otherwise two chunks could share
    /// a page, and a buffered write of one could restore old bytes of the other.
    pub const PAGE_BYTES: u64 = 4096;

    /// No requirement, as for a socket.
    pub const NONE: Self = Self {
        object_bytes: 1,
        memory_bytes: 1,
    };

    /// The block size of chunks: offsets and lengths of drive I/Os are multiples of it.
    pub const fn block_bytes(self) -> u64 {
        if self.object_bytes == 1 || self.object_bytes > Self::PAGE_BYTES {
            self.object_bytes
        } else {
            Self::PAGE_BYTES
        }
    }
}

/// The facts about one object that the transfer planner needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// The alignment that O_DIRECT requires; `None` if the file system does not support it.
    pub direct: Option<Alignment>,
    /// Why O_DIRECT does or may go through the page cache, or why it is not available. `None` if it is proven to bypass
    /// the page cache.
    pub doubt: Option<Reason>,
    /// Whether DMA between this object and the memory of the region's device is proven.
    pub device_direct: bool,
    /// The transport if the object is behind a socket. `direct` is then [`Alignment::NONE`], or the block size of a
    /// network block device.
    pub socket: Option<Reason>,
    /// The part size of an object that is written over a socket. A chunk does not cross a part boundary.
    pub part_bytes: Option<u64>,
    /// The extents in the page cache: sorted, disjoint, whole pages.
    pub resident: Vec<Extent>,
    /// The holes of the file, if the plan needs them: sorted, disjoint, whole pages.
    pub holes: Vec<Extent>,
}

impl Survey {
    /// An object that supports O_DIRECT, with nothing in the page cache.
    pub fn direct(alignment: Alignment) -> Self {
        Self {
            direct: Some(alignment),
            ..Self::default()
        }
    }

    /// An object behind a socket, over [`Reason::Tcp`] or [`Reason::Tls`].
    pub fn socket(reason: Reason) -> Self {
        Self {
            socket: Some(reason),
            ..Self::direct(Alignment::NONE)
        }
    }

    /// A network block device with blocks of `block_bytes`, which go to any memory address.
    pub fn block_socket(reason: Reason, block_bytes: u64) -> Self {
        let alignment = Alignment {
            object_bytes: block_bytes,
            memory_bytes: 1,
        };
        Self {
            socket: Some(reason),
            ..Self::direct(alignment)
        }
    }

    /// Whether it is a network block device.
    pub(crate) fn is_block(&self) -> bool {
        self.socket.is_some() && self.direct.is_some_and(|direct| direct != Alignment::NONE)
    }

    /// The alignment that O_DIRECT requires, or the reason not to use it. Proven device DMA (`device_direct`) overrides
    /// `doubt`.
    pub fn usable(&self) -> Result<Alignment, Reason> {
        match (self.direct, self.doubt) {
            (None, doubt) => Err(doubt.unwrap_or(Reason::NoDirectIo)),
            (Some(_), Some(doubt)) if !self.device_direct => Err(doubt),
            (Some(alignment), _) => Ok(alignment),
        }
    }

    /// The first run of `extent` whose blocks are all in the page cache (`true`) or not all there (`false`). Runs are
    /// separated on multiples of `block_bytes`, so that no block is in two of them.
    pub(crate) fn first_run(&self, extent: Extent, block_bytes: u64) -> (Extent, bool) {
        first_run(&self.resident, extent, block_bytes)
    }

    /// As `first_run`, for holes.
    pub(crate) fn first_hole(&self, extent: Extent, block_bytes: u64) -> (Extent, bool) {
        first_run(&self.holes, extent, block_bytes)
    }
}

/// The first run of `extent` that lies in one of `runs` (`true`) or in none (`false`).
fn first_run(runs: &[Extent], extent: Extent, block_bytes: u64) -> (Extent, bool) {
    let first = runs.partition_point(|run| run.end() <= extent.offset);
    let blocks = runs[first..].iter().map(|run| run.interior(block_bytes));
    let next = blocks
        .take_while(|run| run.offset < extent.end())
        .find(|run| !run.is_empty() && run.end() > extent.offset);
    match next {
        Some(run) if run.offset <= extent.offset => (Extent::between(extent.offset, run.end().min(extent.end())), true),
        Some(run) => (Extent::between(extent.offset, run.offset), false),
        None => (extent, false),
    }
}

/// Rounds a length up to whole pages.
pub fn whole_pages(bytes: u64) -> u64 {
    up(bytes, Alignment::PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_where_residency_changes() {
        let resident = vec![Extent::new(4096, 4096), Extent::new(16384, 8192)];
        let survey = Survey {
            resident,
            ..Survey::default()
        };
        assert_eq!(
            survey.first_run(Extent::new(0, 9999), 4096),
            (Extent::new(0, 4096), false)
        );
        assert_eq!(
            survey.first_run(Extent::new(5000, 9999), 4096),
            (Extent::between(5000, 8192), true)
        );
        assert_eq!(
            survey.first_run(Extent::new(8192, 100), 4096),
            (Extent::new(8192, 100), false)
        );
        assert_eq!(
            survey.first_run(Extent::new(20000, 99999), 4096).0,
            Extent::between(20000, 24576)
        );
        assert_eq!(
            survey.first_run(Extent::new(30000, 9), 4096),
            (Extent::new(30000, 9), false)
        );
    }

    #[test]
    fn a_run_is_cut_to_whole_blocks() {
        let resident = vec![Extent::between(4096, 36_864), Extent::new(40_960, 4096)];
        let survey = Survey {
            resident,
            ..Survey::default()
        };
        let whole = Extent::new(0, 65_536);
        assert_eq!(survey.first_run(whole, 16_384), (Extent::new(0, 16_384), false));
        assert_eq!(
            survey.first_run(Extent::between(16_384, 65_536), 16_384),
            (Extent::new(16_384, 16_384), true)
        );
        assert_eq!(
            survey.first_run(Extent::between(32_768, 65_536), 16_384),
            (Extent::between(32_768, 65_536), false)
        );
    }
}

//! The paths of cuFile requests.

/// The number of requests of one direction by path, as cuFile counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Paths {
    /// All requests.
    pub total: u64,
    /// Direct, by peer-to-peer DMA of the kernel.
    pub p2p: u64,
    /// Direct, by nvidia-fs.
    pub nvfs: u64,
    /// Through host memory: compat mode.
    pub posix: u64,
    /// Through cuFile's cache on the GPU, because they were not aligned.
    pub unaligned: u64,
}

impl Paths {
    /// The difference to `earlier`.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            total: self.total.saturating_sub(earlier.total),
            p2p: self.p2p.saturating_sub(earlier.p2p),
            nvfs: self.nvfs.saturating_sub(earlier.nvfs),
            posix: self.posix.saturating_sub(earlier.posix),
            unaligned: self.unaligned.saturating_sub(earlier.unaligned),
        }
    }
}

//! The proof of which path planned-direct bytes took: by cuFile's counters, or by a comparison.

use straightway_core::{Reason, Route};
use straightway_sys::cufile::Paths;

/// The proven path of bytes between a drive and device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Direct, by the kernel's peer-to-peer DMA.
    P2pdma,
    /// Direct, by nvidia-fs.
    NvidiaFs,
    /// Direct, by the kernel's peer-to-peer DMA without cuFile: bytes were compared.
    Compared,
    /// Through host memory.
    Compat,
    /// There are no counters, or they show several paths.
    Unknown,
}

impl Proof {
    /// The path that the counters prove for all requests together.
    pub fn of(paths: Paths) -> Self {
        let Paths {
            p2p,
            nvfs,
            posix,
            unaligned,
            ..
        } = paths;
        match (p2p > 0, nvfs > 0, posix > 0, unaligned > 0) {
            (true, false, false, false) => Self::P2pdma,
            (false, true, false, false) => Self::NvidiaFs,
            (false, false, true, false) => Self::Compat,
            _ => Self::Unknown,
        }
    }

    /// Whether the bytes went directly between drive and GPU.
    pub fn is_direct(self) -> bool {
        matches!(self, Self::P2pdma | Self::NvidiaFs | Self::Compared)
    }

    /// The route and reason in a receipt: only proven bytes are direct.
    pub fn route_and_reason(self) -> (Route, Reason) {
        match self {
            Self::P2pdma => (Route::Direct, Reason::ProvenP2pdma),
            Self::NvidiaFs => (Route::Direct, Reason::ProvenNvidiaFs),
            Self::Compared => (Route::Direct, Reason::ComparedP2pdma),
            Self::Compat => (Route::Staged, Reason::CompatMode),
            Self::Unknown => (Route::Staged, Reason::Unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_counters_of_a_single_path_are_a_proof() {
        let paths = |p2p, nvfs, posix, unaligned| {
            Proof::of(Paths {
                total: p2p + nvfs + posix + unaligned,
                p2p,
                nvfs,
                posix,
                unaligned,
            })
        };
        assert_eq!(paths(3, 0, 0, 0), Proof::P2pdma);
        assert_eq!(paths(0, 3, 0, 0), Proof::NvidiaFs);
        assert_eq!(paths(0, 0, 3, 0), Proof::Compat);
        assert_eq!(paths(0, 0, 0, 0), Proof::Unknown);
        assert_eq!(paths(99, 0, 1, 0), Proof::Unknown);
        assert_eq!(paths(99, 0, 0, 1), Proof::Unknown);
        assert_eq!(paths(1, 1, 0, 0), Proof::Unknown);
    }
}

//! The paths of cuFile from storage to GPU memory, and the sets of paths that checks concern.

use serde::Serialize;

/// A path of cuFile from storage to GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CufilePath {
    /// DMA into GPU memory, arranged by the nvidia-fs kernel module.
    NvidiaFs,
    /// DMA into GPU memory, arranged by the kernel's own peer-to-peer support.
    P2pDma,
    /// Copies by cuFile through host memory, which are not direct.
    Compat,
}

impl CufilePath {
    /// The name for display.
    pub fn title(self) -> &'static str {
        match self {
            Self::NvidiaFs => "nvidia-fs",
            Self::P2pDma => "P2PDMA",
            Self::Compat => "cuFile compat mode",
        }
    }
}

/// The two direct paths.
pub(super) const DIRECT: &[CufilePath] = &[CufilePath::NvidiaFs, CufilePath::P2pDma];
/// All paths: cuFile does not work at all.
pub(super) const ALL_PATHS: &[CufilePath] = &[CufilePath::NvidiaFs, CufilePath::P2pDma, CufilePath::Compat];
/// Peer-to-peer DMA alone.
pub(super) const P2PDMA: &[CufilePath] = &[CufilePath::P2pDma];
/// nvidia-fs alone.
pub(super) const NVIDIA_FS: &[CufilePath] = &[CufilePath::NvidiaFs];
/// Compat mode alone.
pub(super) const COMPAT: &[CufilePath] = &[CufilePath::Compat];
/// No path is closed: the problem costs speed or hides facts.
pub(super) const ADVICE: &[CufilePath] = &[];

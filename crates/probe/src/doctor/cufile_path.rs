//! The ways from storage to GPU memory that cuFile has, and which of them a check is about.

use serde::Serialize;

/// A way from storage to GPU memory through cuFile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// DMA into GPU memory, arranged by the nvidia-fs kernel module.
    NvidiaFs,
    /// DMA into GPU memory, arranged by the kernel's own peer-to-peer support.
    P2pDma,
    /// cuFile copying through host memory: it works, and is not direct.
    Compat,
}

impl Way {
    /// What people call it.
    pub fn title(self) -> &'static str {
        match self {
            Self::NvidiaFs => "nvidia-fs",
            Self::P2pDma => "P2PDMA",
            Self::Compat => "cuFile compat mode",
        }
    }
}

/// The two ways that are direct.
pub(super) const DIRECT: &[Way] = &[Way::NvidiaFs, Way::P2pDma];
/// All ways: nothing of cuFile works without it.
pub(super) const EVERY: &[Way] = &[Way::NvidiaFs, Way::P2pDma, Way::Compat];
/// Peer-to-peer DMA alone.
pub(super) const P2PDMA: &[Way] = &[Way::P2pDma];
/// nvidia-fs alone.
pub(super) const NVIDIA_FS: &[Way] = &[Way::NvidiaFs];
/// Compat mode alone.
pub(super) const COMPAT: &[Way] = &[Way::Compat];
/// No way is closed by it: it costs speed, or hides the truth.
pub(super) const ADVICE: &[Way] = &[];

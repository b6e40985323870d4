//! Routes: how bytes are moved, and why that way.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// The way in which a chunk is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// By DMA directly into or out of the region: O_DIRECT for memory that the CPU can map, cuFile for a GPU.
    Direct,
    /// By DMA between the object and a small ring, and by a copy between the ring and the region.
    Staged,
    /// Through the page cache.
    Buffered,
    /// Received from or sent to a socket, by the CPU. Only receipts use it: a plan has `Direct` if the socket's buffer
    /// is the region, and `Staged` if it is the ring.
    Socket,
    /// Not moved: the file's pages are mapped as the memory. Only receipts use it.
    Mapped,
    /// Copied inside a remote service, without passing through this machine. Only receipts use it.
    Service,
}

/// The user's choice of a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// The most direct route that the machine supports, chosen for each extent.
    #[default]
    Auto,
    /// This route. An object that does not support it is an error.
    Only(Route),
}

impl Choice {
    /// The words for all choices, and what they mean.
    pub const WORDS: [(&'static str, Self, &'static str); 4] = [
        (
            "auto",
            Self::Auto,
            "The most direct route that the machine allows, chosen for each extent",
        ),
        ("direct", Self::Only(Route::Direct), "By O_DIRECT, or an error"),
        (
            "staged",
            Self::Only(Route::Staged),
            "By O_DIRECT through the ring, or an error",
        ),
        ("buffered", Self::Only(Route::Buffered), "Through the page cache"),
    ];
}

impl FromStr for Choice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::WORDS.iter().find(|(word, ..)| *word == text);
        found.map(|(_, choice, _)| *choice).ok_or_else(|| {
            let why = "a route is auto, direct, staged or buffered";
            Error::new(ErrorKind::Invalid, "use route", format!("{text:?}"), why)
        })
    }
}

/// A leg of a transfer: reading from an object, or writing to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Leg {
    /// From an object.
    Read,
    /// To an object.
    Write,
}

/// Why a chunk took its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// Aligned in the object and in memory.
    Aligned,
    /// A head or tail that is not aligned. It is moved as part of an aligned superset. In a write to blocks longer than
    /// a page it goes through the page cache instead, unless adjacent extents fill its block.
    RaggedEdge,
    /// Its aligned interior is too small to be worth a separate I/O.
    Small,
    /// According to the profile, reads through the ring are faster on this drive.
    RingFaster,
    /// The memory address is not aligned with the offset in the object.
    MemoryMisaligned,
    /// The bytes are checked in the ring before any of them is delivered.
    Checked,
    /// The bytes were already in the page cache.
    Resident,
    /// The bytes were expected in the page cache, because most bytes around them were there, but they were not, or not
    /// all of them.
    Evicted,
    /// The bytes of a remote object were in the local cache. Their checksums were verified.
    LocalCache,
    /// The file system does not support O_DIRECT.
    NoDirectIo,
    /// The kernel copied the bytes from file to file, inside the page cache.
    KernelCopy,
    /// The store is in this process's memory.
    StoreInMemory,
    /// The tensors are mapped pages of the file, which are read on first access.
    FilePages,
    /// The file system accepts O_DIRECT but uses the page cache anyway: btrfs for compressed or checksummed data, ext4
    /// for holes of files without extents.
    FileSystemBuffers,
    /// The file system does not say whether O_DIRECT bypasses the page cache.
    DirectUnproven,
    /// The bytes went over TCP: the kernel copied them from or to packets.
    Tcp,
    /// The bytes went over TLS: the CPU decrypted or encrypted them, with one extra copy.
    Tls,
    /// Source and target are in the same service, which copied the bytes itself.
    SameService,
    /// The user asked for this route.
    Demanded,
    /// The bytes were damaged or lost, and were rebuilt from parity.
    Rebuilt,
    /// DMA between this object and the region's device is not proven.
    NotProven,
    /// A hole of the file: no drive stores these bytes, and the CPU writes the zeros.
    Hole,
    /// The bytes came from a stream, whose length was not known when the file was begun.
    Stream,
    /// cuFile moved the bytes through host memory.
    CompatMode,
    /// cuFile moved the bytes and did not report how.
    Unknown,
    /// Proven by cuFile's counters: peer-to-peer DMA.
    ProvenP2pdma,
    /// Proven by cuFile's counters: the nvidia-fs driver.
    ProvenNvidiaFs,
    /// Peer-to-peer DMA into or out of BAR memory by the kernel (P2PDMA), proven by a comparison of bytes.
    ComparedP2pdma,
}

impl Route {
    /// The route that a receipt reports: `Socket` for TCP and TLS, whatever the plan's route.
    #[must_use]
    pub fn reported(self, reason: Reason) -> Self {
        match reason {
            Reason::Tcp | Reason::Tls => Self::Socket,
            _ => self,
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Direct => "direct",
            Self::Staged => "staged",
            Self::Buffered => "buffered",
            Self::Socket => "socket",
            Self::Mapped => "mapped",
            Self::Service => "service",
        })
    }
}

impl fmt::Display for Leg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Aligned => "aligned",
            Self::RaggedEdge => "ragged edge, inside an aligned superset",
            Self::Small => "small, inside an aligned superset",
            Self::RingFaster => "the ring is faster on this drive",
            Self::MemoryMisaligned => "memory address not aligned with the file offset",
            Self::Checked => "checked in the ring before delivery",
            Self::Resident => "already in the page cache",
            Self::Evicted => "expected in the page cache, and not there",
            Self::LocalCache => "in the local cache of remote objects, checksum verified",
            Self::NoDirectIo => "the file system has no O_DIRECT",
            Self::KernelCopy => "copied by the kernel from file to file, in the page cache",
            Self::StoreInMemory => "the store is in this process's memory",
            Self::FilePages => "pages of the file, read when used; no promise about later changes",
            Self::FileSystemBuffers => "the file system uses the page cache for O_DIRECT here",
            Self::DirectUnproven => "the file system does not say whether O_DIRECT bypasses the page cache",
            Self::Tcp => "over TCP",
            Self::Tls => "over TLS, with one extra copy",
            Self::SameService => "copied inside the service",
            Self::Demanded => "requested",
            Self::Rebuilt => "rebuilt from parity",
            Self::NotProven => "DMA to that memory is not proven here",
            Self::Hole => "a hole: zeros by the CPU",
            Self::Stream => "from a stream of unknown length",
            Self::CompatMode => "cuFile's compatibility mode",
            Self::Unknown => "cuFile did not say how",
            Self::ProvenP2pdma => "proven by cuFile's counters, P2PDMA",
            Self::ProvenNvidiaFs => "proven by cuFile's counters, nvidia-fs",
            Self::ComparedP2pdma => "P2PDMA, proven by comparison",
        })
    }
}

//! How bytes travel, and why that way.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Kind, Result},
    pci::PciAddress,
};

/// Where a region's memory is. As text: `host:`, `cuda:0`, `p2p:0000:04:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Host memory.
    Host,
    /// The memory of the GPU with this number.
    Gpu(u32),
    /// Memory in a BAR of this PCI device, which other devices reach by peer-to-peer DMA and the CPU by a mapping:
    /// the controller memory buffer of an NVMe drive, or a GPU's memory that its driver offers as `p2pmem`.
    P2p(PciAddress),
}

/// How a chunk travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// By DMA straight into or out of the region: O_DIRECT for memory that the CPU can map, cuFile for a GPU.
    Direct,
    /// By DMA into a small ring, and on from there by a copy.
    Staged,
    /// Through the page cache.
    Buffered,
    /// Received from a socket or sent to one, by the CPU. Only receipts have it: a plan says `Direct` where that is
    /// done with the region, and `Staged` where it is done with the ring.
    Socket,
    /// Not moved: the pages of the file are the memory. Only receipts have it.
    Mapped,
    /// Copied inside a service: the bytes did not come to this machine. Only receipts have it.
    Service,
}

/// Which route the user wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// The straightest that the machine allows, extent by extent.
    #[default]
    Auto,
    /// This one; what cannot take it is an error.
    Only(Route),
}

/// Which half of the way: out of an object, or into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Leg {
    /// Out of an object.
    Read,
    /// Into an object.
    Write,
}

/// Why a chunk took its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// Aligned in the object and in memory: nothing stands in the way.
    Aligned,
    /// A head or tail that is not aligned; it travels inside an aligned superset.
    RaggedEdge,
    /// Too small for its aligned interior to be worth an I/O of its own.
    Small,
    /// The profile says that this drive is faster by way of the ring.
    RingFaster,
    /// The region's address is out of step with the offset in the object.
    MemoryMisaligned,
    /// The bytes are checked in the ring before any of them goes on.
    Checked,
    /// The bytes were in the page cache already.
    Resident,
    /// The bytes were taken to be in the page cache, and some turned out not to be.
    Evicted,
    /// The bytes of a remote object were in the local cache, and were compared with their checksums.
    LocalCache,
    /// The file system has no O_DIRECT.
    NoDirectIo,
    /// The kernel copied the bytes from file to file, inside the page cache.
    KernelCopy,
    /// The store is memory of this process.
    StoreInMemory,
    /// The tensors are the pages of the file, which are read when they are used.
    FilePages,
    /// The file system takes O_DIRECT and goes through the page cache all the same: btrfs with what is
    /// compressed or checksummed, ext4 with holes of files without extents.
    FileSystemBuffers,
    /// The file system does not say whether O_DIRECT bypasses the page cache.
    DirectUnproven,
    /// The bytes went over TCP: the kernel copied them out of the packets or into them.
    Tcp,
    /// The bytes went over TLS: the CPU decrypted or encrypted them, and copied them once more.
    Tls,
    /// Source and target are in one service, which copied them itself.
    SameService,
    /// The user asked for this route.
    Demanded,
    /// The bytes were damaged or lost, and were made anew from parity.
    Rebuilt,
    /// DMA between this object and the region's device is not proven.
    NotProven,
    /// A hole of the file. No drive has these bytes: the CPU makes the zeros.
    Hole,
    /// cuFile moved the bytes itself, by way of host memory.
    CompatMode,
    /// cuFile moved the bytes and did not say how.
    Unknown,
    /// Proven by cuFile's counters: peer-to-peer DMA.
    ProvenP2pdma,
    /// Proven by cuFile's counters: the nvidia-fs driver.
    ProvenNvidiaFs,
    /// Peer-to-peer DMA into or out of BAR memory by the kernel (P2PDMA), proven by a comparison of bytes.
    ComparedP2pdma,
}

impl Route {
    /// The route as a receipt has it. What is received from a socket takes no DMA, wherever it lands.
    #[must_use]
    pub fn reported(self, reason: Reason) -> Self {
        match reason {
            Reason::Tcp | Reason::Tls => Self::Socket,
            _ => self,
        }
    }
}

impl FromStr for Place {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let number = text.strip_prefix("cuda:").map(str::parse);
        let address = text.strip_prefix("p2p:").map(str::parse);
        match (text, number, address) {
            ("host:", _, _) => Ok(Self::Host),
            (_, Some(Ok(number)), _) => Ok(Self::Gpu(number)),
            (_, _, Some(Ok(address))) => Ok(Self::P2p(address)),
            _ => {
                let message =
                    "memory is `host:`, `cuda:` and a number, or `p2p:` and a PCI address";
                Err(Error::new(Kind::Invalid, "find memory", text, message))
            }
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.pad("host:"),
            Self::Gpu(number) => f.pad(&format!("cuda:{number}")),
            Self::P2p(address) => f.pad(&format!("p2p:{address}")),
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
            Self::MemoryMisaligned => "memory out of step with the file",
            Self::Checked => "checked in the ring before it goes on",
            Self::Resident => "in the page cache already",
            Self::Evicted => "taken to be in the page cache, and not all of it was",
            Self::LocalCache => "in the local cache of remote objects, compared with its checksum",
            Self::NoDirectIo => "the file system has no O_DIRECT",
            Self::KernelCopy => "copied by the kernel from file to file, in the page cache",
            Self::StoreInMemory => "the store is memory of this process",
            Self::FilePages => "pages of the file, read when used; no promise about later changes",
            Self::FileSystemBuffers => "the file system takes O_DIRECT through the page cache here",
            Self::DirectUnproven => {
                "the file system does not say whether O_DIRECT bypasses the page cache"
            }
            Self::Tcp => "over TCP",
            Self::Tls => "over TLS, with a copy more",
            Self::SameService => "copied inside the service",
            Self::Demanded => "asked for",
            Self::Rebuilt => "made anew from parity",
            Self::NotProven => "DMA to that memory is not proven here",
            Self::Hole => "a hole: zeros by the CPU",
            Self::CompatMode => "cuFile's compatibility mode",
            Self::Unknown => "cuFile did not say how",
            Self::ProvenP2pdma => "proven by cuFile's counters, P2PDMA",
            Self::ProvenNvidiaFs => "proven by cuFile's counters, nvidia-fs",
            Self::ComparedP2pdma => "P2PDMA, proven by comparison",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_is_shown() {
        for text in ["host:", "cuda:0", "cuda:15", "p2p:0000:04:00.0"] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "cuda:",
            "cuda:x",
            "cuda:-1",
            "gpu:0",
            "tpu",
            "p2p:",
            "p2p:04:00.0",
            "p2p:0000:04:20.0",
        ] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }
}

//! Submission and completion queue entries.

use crate::{Status, wire};

/// The size of a submission queue entry.
pub const SQE_BYTES: usize = 64;

/// The size of a completion queue entry.
pub const CQE_BYTES: usize = 16;

/// The flags of every command over fabrics: data by SGL, not fused.
pub const FLAGS_SGL: u8 = 0x40;

/// The SGL descriptor of a command: the location of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sgl {
    /// The offset of in-capsule data from the start of the capsule's data; otherwise 0.
    pub address: u64,
    /// The length of the data.
    pub bytes: u32,
    /// [`Sgl::IN_CAPSULE`] or [`Sgl::TRANSPORT`].
    pub kind: u8,
}

impl Sgl {
    /// The descriptor type of in-capsule data.
    pub const IN_CAPSULE: u8 = 0x01;

    /// The descriptor type of data that data PDUs transfer.
    pub const TRANSPORT: u8 = 0x5a;

    /// `bytes` of in-capsule data.
    pub const fn in_capsule(bytes: u32) -> Self {
        Self {
            address: 0,
            bytes,
            kind: Self::IN_CAPSULE,
        }
    }

    /// `bytes` transferred by data PDUs.
    pub const fn transport(bytes: u32) -> Self {
        Self {
            address: 0,
            bytes,
            kind: Self::TRANSPORT,
        }
    }

    /// No data.
    pub const fn none() -> Self {
        Self::transport(0)
    }

    /// Whether the data is in the capsule.
    pub const fn is_in_capsule(self) -> bool {
        self.kind == Self::IN_CAPSULE
    }
}

/// A submission queue entry. The typed commands of [`crate::fabrics`], [`crate::admin`] and [`crate::nvm`] convert from
/// and to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sqe {
    /// The opcode.
    pub opcode: u8,
    /// Fused operation and data pointer type: [`FLAGS_SGL`].
    pub flags: u8,
    /// The command identifier.
    pub cid: u16,
    /// The namespace identifier; for a fabrics command, its type in the lowest byte.
    pub nsid: u32,
    /// Command dwords 2 and 3.
    pub low: [u32; 2],
    /// The metadata pointer: 0.
    pub metadata: u64,
    /// The location of its data.
    pub sgl: Sgl,
    /// Command dwords 10 to 15.
    pub dwords: [u32; 6],
}

impl Sqe {
    /// A command without data.
    pub const fn new(opcode: u8, nsid: u32, dwords: [u32; 6]) -> Self {
        Self {
            opcode,
            flags: FLAGS_SGL,
            cid: 0,
            nsid,
            low: [0; 2],
            metadata: 0,
            sgl: Sgl::none(),
            dwords,
        }
    }

    /// The same command with this command identifier.
    #[must_use]
    pub const fn with_cid(self, cid: u16) -> Self {
        Self { cid, ..self }
    }

    /// The same command with this SGL descriptor.
    #[must_use]
    pub const fn with_sgl(self, sgl: Sgl) -> Self {
        Self { sgl, ..self }
    }

    /// The type of a fabrics command.
    pub const fn fabrics_type(&self) -> u8 {
        (self.nsid & 0xff) as u8
    }

    /// Dwords 10 and 11 as one 64-bit value: the starting LBA.
    pub(crate) const fn dwords_10_11(&self) -> u64 {
        self.dwords[0] as u64 | (self.dwords[1] as u64) << 32
    }

    /// Encodes the entry.
    pub fn encode(&self) -> [u8; SQE_BYTES] {
        let mut bytes = [0; SQE_BYTES];
        bytes[0] = self.opcode;
        bytes[1] = self.flags;
        wire::put(&mut bytes, 2, &self.cid.to_le_bytes());
        wire::put(&mut bytes, 4, &self.nsid.to_le_bytes());
        wire::put(&mut bytes, 8, &self.low[0].to_le_bytes());
        wire::put(&mut bytes, 12, &self.low[1].to_le_bytes());
        wire::put(&mut bytes, 16, &self.metadata.to_le_bytes());
        wire::put(&mut bytes, 24, &self.sgl.address.to_le_bytes());
        wire::put(&mut bytes, 32, &self.sgl.bytes.to_le_bytes());
        bytes[39] = self.sgl.kind;
        for (index, dword) in self.dwords.iter().enumerate() {
            wire::put(&mut bytes, 40 + 4 * index, &dword.to_le_bytes());
        }
        bytes
    }

    /// Decodes an entry. The three reserved bytes of the SGL descriptor are ignored.
    pub fn decode(bytes: &[u8; SQE_BYTES]) -> Self {
        Self {
            opcode: bytes[0],
            flags: bytes[1],
            cid: wire::u16_at(bytes, 2),
            nsid: wire::u32_at(bytes, 4),
            low: [wire::u32_at(bytes, 8), wire::u32_at(bytes, 12)],
            metadata: wire::u64_at(bytes, 16),
            sgl: Sgl {
                address: wire::u64_at(bytes, 24),
                bytes: wire::u32_at(bytes, 32),
                kind: bytes[39],
            },
            dwords: std::array::from_fn(|index| wire::u32_at(bytes, 40 + 4 * index)),
        }
    }
}

/// A completion queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cqe {
    /// Dwords 0 and 1: the command-specific result.
    pub result: u64,
    /// The submission queue head pointer; 0 without flow control.
    pub sq_head: u16,
    /// The submission queue identifier; 0 over fabrics.
    pub sq_id: u16,
    /// The command identifier.
    pub cid: u16,
    /// The status.
    pub status: Status,
}

impl Cqe {
    /// The completion of command `cid` with `status` and no result.
    pub const fn new(cid: u16, status: Status) -> Self {
        Self {
            result: 0,
            sq_head: 0,
            sq_id: 0,
            cid,
            status,
        }
    }

    /// Encodes the entry.
    pub fn encode(&self) -> [u8; CQE_BYTES] {
        let mut bytes = [0; CQE_BYTES];
        wire::put(&mut bytes, 0, &self.result.to_le_bytes());
        wire::put(&mut bytes, 8, &self.sq_head.to_le_bytes());
        wire::put(&mut bytes, 10, &self.sq_id.to_le_bytes());
        wire::put(&mut bytes, 12, &self.cid.to_le_bytes());
        wire::put(&mut bytes, 14, &self.status.to_wire().to_le_bytes());
        bytes
    }

    /// Decodes an entry. The phase bit is ignored.
    pub fn decode(bytes: &[u8; CQE_BYTES]) -> Self {
        Self {
            result: wire::u64_at(bytes, 0),
            sq_head: wire::u16_at(bytes, 8),
            sq_id: wire::u16_at(bytes, 10),
            cid: wire::u16_at(bytes, 12),
            status: Status::from_wire(wire::u16_at(bytes, 14)),
        }
    }
}

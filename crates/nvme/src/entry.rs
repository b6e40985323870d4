//! Entries of submission and completion queues.

use crate::{Status, wire};

/// The bytes of a submission entry.
pub const SQE_BYTES: usize = 64;

/// The bytes of a completion entry.
pub const CQE_BYTES: usize = 16;

/// The flags that every command over fabrics carries: data by SGL, no fused pair.
pub const FLAGS_SGL: u8 = 0x40;

/// Where a command's data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sgl {
    /// For data in the capsule, its offset from the start of the data; otherwise 0.
    pub address: u64,
    /// The length of the data.
    pub bytes: u32,
    /// [`Sgl::IN_CAPSULE`] or [`Sgl::TRANSPORT`].
    pub kind: u8,
}

impl Sgl {
    /// The type of data that stands in the capsule.
    pub const IN_CAPSULE: u8 = 0x01;

    /// The type of data that data PDUs transfer.
    pub const TRANSPORT: u8 = 0x5a;

    /// `bytes` behind the command in its capsule.
    pub const fn in_capsule(bytes: u32) -> Self {
        Self {
            address: 0,
            bytes,
            kind: Self::IN_CAPSULE,
        }
    }

    /// `bytes` by data PDUs.
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

    /// Whether the data stands in the capsule.
    pub const fn is_in_capsule(self) -> bool {
        self.kind == Self::IN_CAPSULE
    }
}

/// A submission entry. The typed commands of [`crate::fabrics`], [`crate::admin`] and [`crate::nvm`] are made from it
/// and turned into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sqe {
    /// The operation.
    pub opcode: u8,
    /// Fused pair and kind of data pointer: [`FLAGS_SGL`].
    pub flags: u8,
    /// The number that its completion names.
    pub cid: u16,
    /// The namespace; for a fabrics command, its type in the lowest byte.
    pub nsid: u32,
    /// Command dwords 2 and 3.
    pub low: [u32; 2],
    /// The metadata pointer: 0.
    pub metadata: u64,
    /// Where its data is.
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

    /// The same command with this number.
    #[must_use]
    pub const fn with_cid(self, cid: u16) -> Self {
        Self { cid, ..self }
    }

    /// The same command with its data there.
    #[must_use]
    pub const fn with_sgl(self, sgl: Sgl) -> Self {
        Self { sgl, ..self }
    }

    /// The namespace-independent type of a fabrics command.
    pub const fn fabrics_type(&self) -> u8 {
        (self.nsid & 0xff) as u8
    }

    /// What a 64-bit starting block in dwords 10 and 11 is.
    pub(crate) const fn dwords_10_11(&self) -> u64 {
        self.dwords[0] as u64 | (self.dwords[1] as u64) << 32
    }

    /// As it is on the wire.
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

    /// From the wire. The three reserved bytes of the SGL are ignored.
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

/// A completion entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cqe {
    /// Dwords 0 and 1: what the command answers.
    pub result: u64,
    /// The head of the submission queue; 0 without flow control.
    pub sq_head: u16,
    /// The submission queue; 0 over fabrics.
    pub sq_id: u16,
    /// The number of the command.
    pub cid: u16,
    /// How it went.
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

    /// As it is on the wire.
    pub fn encode(&self) -> [u8; CQE_BYTES] {
        let mut bytes = [0; CQE_BYTES];
        wire::put(&mut bytes, 0, &self.result.to_le_bytes());
        wire::put(&mut bytes, 8, &self.sq_head.to_le_bytes());
        wire::put(&mut bytes, 10, &self.sq_id.to_le_bytes());
        wire::put(&mut bytes, 12, &self.cid.to_le_bytes());
        wire::put(&mut bytes, 14, &self.status.to_wire().to_le_bytes());
        bytes
    }

    /// From the wire. The phase bit is ignored.
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

//! The rate of one link: the analytic model of pcie-bench, extended by FLIT mode.
//!
//! Up to Gen5 a link loses a little of its raw rate to the packets of the data link layer (an Ack and a flow-control
//! update at intervals given by the specification's tables) and to clock compensation. The rest carries TLPs, each
//! with its header and eight bytes of framing. Since Gen6 the wire carries fixed 256-byte flits with 236 bytes for
//! TLPs, without further framing or Ack packets. Errors are not modelled: FEC corrects most, and a flit whose CRC
//! still fails is replayed, which at the specified error rate costs less than 0.01 % of the time.

use serde::{Deserialize, Serialize};

use straightway_scenario::provenance::{Citation, Formula};

/// The source of the formulas and tables of this file.
pub const PCIE_BENCH: Citation = Citation::read(
    "pcie-bench model (Neugebauer et al., SIGCOMM 2018)",
    "pcie-bench/pcie-model, model/pcie.py and mem_bw.py",
);

/// The source of the layout of a flit.
pub const FLIT: Citation = Citation::quoted("PCI Express 6.0", "flit mode: 236 + 6 + 8 + 6 bytes");

/// The formulas of the analytic bound.
pub const FORMULAS: [Formula; 4] = [
    Formula {
        gives: "usable link rate, Gen1 to Gen5",
        text: "raw·(1 − 8/AckLimit − 8/FCguide − 4/1538)",
        source: PCIE_BENCH,
    },
    Formula {
        gives: "usable link rate, Gen6",
        text: "raw·236/256",
        source: FLIT,
    },
    Formula {
        gives: "write rate",
        text: "usable·S/(S + 24⌈S/MPS⌉), 16 in flit mode",
        source: PCIE_BENCH,
    },
    Formula {
        gives: "read rate",
        text: "min(usable·S/(S + 20⌈S/MPS⌉), usable·S/(24⌈S/MRRS⌉)), 12 and 16 in flit mode",
        source: PCIE_BENCH,
    },
];

/// A generation of PCI Express.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub enum Generation {
    /// 2.5 GT/s a lane, 8b/10b.
    Gen1,
    /// 5 GT/s, 8b/10b.
    Gen2,
    /// 8 GT/s, 128b/130b.
    Gen3,
    /// 16 GT/s.
    Gen4,
    /// 32 GT/s.
    Gen5,
    /// 64 GT/s, PAM4, flits.
    Gen6,
}

/// The kind of a TLP, which determines its overhead and its credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packet {
    /// A posted memory write.
    Write,
    /// A memory read request.
    Read,
    /// A completion with data.
    Completion,
}

/// A link as trained: its generation and its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Width {
    /// The generation both ends agreed on.
    pub generation: Generation,
    /// The number of lanes.
    pub lanes: u8,
}

/// The widths a link can train to.
pub const LANES: [u8; 5] = [1, 2, 4, 8, 16];

/// The payload sizes of the specification.
pub const PAYLOADS: [u32; 6] = [128, 256, 512, 1024, 2048, 4096];

/// Symbols between two Acks and between two flow-control updates, by width (rows as in
/// [`LANES`]) and payload (columns as in [`PAYLOADS`]), Gen3 and on: the base specification's
/// tables 2-46 to 2-48 and 3-7 to 3-9, which agree with each other.
const ACK_SYMBOLS: [[u32; 6]; 5] = [
    [333, 512, 655, 1167, 2191, 4239],
    [224, 313, 385, 641, 1153, 2177],
    [169, 214, 250, 378, 634, 1146],
    [163, 203, 182, 246, 374, 630],
    [144, 168, 182, 246, 374, 630],
];

/// The difference of the tables for the older generations, whose internal delay is shorter: 45 symbols for Gen2, 96
/// for Gen1.
const ACK_SYMBOLS_LESS: [u32; 2] = [96, 45];

/// An Ack or a flow-control packet on the wire.
const DLLP_BYTES: f64 = 8.0;

/// Clock compensation: 4 symbols in every 1,538.
const SKIP_SHARE: f64 = 4.0 / 1538.0;

/// Bytes of a flit, and how many of them carry TLPs.
const FLIT_BYTES: f64 = 256.0;
const FLIT_TLP_BYTES: f64 = 236.0;

impl TryFrom<u8> for Generation {
    type Error = String;

    fn try_from(number: u8) -> Result<Self, String> {
        Ok(match number {
            1 => Self::Gen1,
            2 => Self::Gen2,
            3 => Self::Gen3,
            4 => Self::Gen4,
            5 => Self::Gen5,
            6 => Self::Gen6,
            _ => return Err("a generation from 1 to 6".to_owned()),
        })
    }
}

impl From<Generation> for u8 {
    fn from(generation: Generation) -> Self {
        generation as Self + 1
    }
}

impl Generation {
    /// Whether the wire carries flits.
    pub fn flits(self) -> bool {
        self >= Self::Gen6
    }

    /// Bits per second on one lane, without the line code. The overhead of flits is not a line code.
    fn lane_bits_per_s(self) -> f64 {
        match self {
            Self::Gen1 => 2.5e9 * 8.0 / 10.0,
            Self::Gen2 => 5e9 * 8.0 / 10.0,
            Self::Gen3 => 8e9 * 128.0 / 130.0,
            Self::Gen4 => 16e9 * 128.0 / 130.0,
            Self::Gen5 => 32e9 * 128.0 / 130.0,
            Self::Gen6 => 64e9,
        }
    }

    /// The next generation, if there is one.
    pub fn next(self) -> Option<Self> {
        Self::try_from(u8::from(self) + 1).ok()
    }
}

impl Packet {
    /// Header and framing: 64-bit addresses, no ECRC. Flits need no framing of their own.
    pub fn overhead_bytes(self, generation: Generation) -> u32 {
        let framing = if generation.flits() { 0 } else { 8 };
        framing
            + match self {
                Self::Write | Self::Read => 16,
                Self::Completion => 12,
            }
    }
}

impl Width {
    /// Bytes per second before any protocol overhead, comparable with the article's x16 figures.
    pub fn raw_bytes_per_s(self) -> f64 {
        self.generation.lane_bits_per_s() * f64::from(self.lanes) / 8.0
    }

    /// Bytes per second left for TLPs with payloads of at most `mps_bytes`.
    ///
    /// # Panics
    /// On a width or a payload that [`LANES`] and [`PAYLOADS`] do not hold.
    pub fn usable_bytes_per_s(self, mps_bytes: u32) -> f64 {
        if self.generation.flits() {
            return self.raw_bytes_per_s() * FLIT_TLP_BYTES / FLIT_BYTES;
        }
        let row = LANES.iter().position(|lanes| *lanes == self.lanes);
        let column = PAYLOADS.iter().position(|bytes| *bytes == mps_bytes);
        let symbols = ACK_SYMBOLS[row.expect("a checked width")][column.expect("a checked payload")];
        let less = ACK_SYMBOLS_LESS.get(self.generation as usize).unwrap_or(&0);
        // An Ack and a flow-control update each take their turn.
        let link_layer = 2.0 * DLLP_BYTES / f64::from(symbols - less);
        self.raw_bytes_per_s() * (1.0 - link_layer - SKIP_SHARE)
    }

    /// Bytes per second that a device can write in transfers of `size_bytes`.
    pub fn write_bytes_per_s(self, size_bytes: u64, mps_bytes: u32) -> f64 {
        let header = u64::from(Packet::Write.overhead_bytes(self.generation));
        let wire = size_bytes + header * size_bytes.div_ceil(u64::from(mps_bytes));
        self.usable_bytes_per_s(mps_bytes) * size_bytes as f64 / wire as f64
    }

    /// Bytes per second that a device can read in transfers of `size_bytes`: limited by incoming completions or by
    /// outgoing requests, whichever fills its direction first.
    pub fn read_bytes_per_s(self, size_bytes: u64, mps_bytes: u32, mrrs_bytes: u32) -> f64 {
        let usable = self.usable_bytes_per_s(mps_bytes);
        let completion = u64::from(Packet::Completion.overhead_bytes(self.generation));
        let request = u64::from(Packet::Read.overhead_bytes(self.generation));
        let inward = size_bytes + completion * size_bytes.div_ceil(u64::from(mps_bytes));
        let outward = request * size_bytes.div_ceil(u64::from(mrrs_bytes));
        usable * size_bytes as f64 / inward.max(outward) as f64
    }
}

impl std::fmt::Display for Width {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("Gen{} x{}", u8::from(self.generation), self.lanes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn width(generation: Generation, lanes: u8) -> Width {
        Width { generation, lanes }
    }

    #[track_caller]
    fn near(got: f64, want: f64, share: f64) {
        assert!((got / want - 1.0).abs() <= share, "{got} against {want}");
    }

    #[test]
    fn four_kib_writes_and_reads_match_the_reference_vectors_to_half_a_percent() {
        // Gb/s for MPS 128, 256 and 512 (write, read): computed with pcie-bench's own model.
        let table = [
            (
                width(Generation::Gen3, 8),
                [(47.72, 49.01), (52.92, 53.69), (54.75, 55.16)],
            ),
            (
                width(Generation::Gen4, 16),
                [(188.1, 193.2), (207.9, 210.9), (219.0, 220.6)],
            ),
            (
                width(Generation::Gen5, 4),
                [(95.8, 98.4), (106.3, 107.9), (112.4, 113.2)],
            ),
            (
                width(Generation::Gen5, 16),
                [(376.3, 386.4), (415.8, 421.8), (438.0, 441.3)],
            ),
        ];
        for (link, row) in table {
            for ((write, read), mps) in row.into_iter().zip([128, 256, 512]) {
                near(link.write_bytes_per_s(4096, mps) * 8e-9, write, 0.005);
                near(link.read_bytes_per_s(4096, mps, 512) * 8e-9, read, 0.005);
            }
        }
    }

    #[test]
    fn a_gen6_x16_link_has_118_gb_of_tlp_space_and_111_of_payload_at_mps_256() {
        // PCI Express 6.0: 236 of a flit's 256 bytes; 16-byte headers without framing.
        let link = width(Generation::Gen6, 16);
        near(link.usable_bytes_per_s(256), 118.0e9, 0.0005);
        near(link.write_bytes_per_s(1 << 20, 256), 111.1e9, 0.001);
    }

    #[test]
    fn small_reads_are_bound_by_their_requests() {
        // 4 bytes: 24 on the wire for the request and 24 for the completion.
        let link = width(Generation::Gen3, 8);
        near(
            link.read_bytes_per_s(4, 256, 512),
            link.usable_bytes_per_s(256) * 4.0 / 24.0,
            1e-9,
        );
    }

    #[test]
    fn the_older_generations_use_their_own_ack_tables() {
        // Base specification: Gen1 x1 at 128 bytes 237 symbols, Gen2 x16 at 512 bytes 137.
        let symbols =
            |g: Generation, row: usize, column: usize| ACK_SYMBOLS[row][column] - ACK_SYMBOLS_LESS[g as usize];
        assert_eq!(symbols(Generation::Gen1, 0, 0), 237);
        assert_eq!(symbols(Generation::Gen2, 4, 2), 137);
    }
}

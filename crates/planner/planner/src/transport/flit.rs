//! A PCIe link in FLIT mode: fixed frames of 256 bytes, and their payload.

use serde::{Deserialize, Serialize};
use straightway_core::Bytes;

use straightway_scenario::check::{Checkable, Checker};

/// A PCIe link in FLIT mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Flit {
    /// The number of lanes.
    pub lanes: u64,
    /// GT/s of a lane, which in FLIT mode is Gb/s.
    pub gt_per_s: f64,
    /// The largest payload of a packet.
    pub payload: Bytes,
    /// The header size of a packet.
    pub header: Bytes,
}

/// The rates of a FLIT link in one direction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlitRates {
    /// The raw rate on the wire.
    pub raw_bytes_per_s: f64,
    /// The rate of packets: 236 of each 256 bytes.
    pub packet_bytes_per_s: f64,
    /// The payload rate with the largest packets.
    pub payload_bytes_per_s: f64,
}

/// A 256-byte FLIT: 236 for packets, 6 DLP, 8 CRC, 6 FEC.
const FLIT_BYTES: f64 = 256.0;
const FLIT_PACKET_BYTES: f64 = 236.0;

impl Default for Flit {
    fn default() -> Self {
        Self {
            lanes: 16,
            gt_per_s: 64.0,
            payload: Bytes(256),
            header: Bytes(16),
        }
    }
}

impl Checkable for Flit {
    fn check(&self, c: &mut Checker) {
        c.count("lanes", self.lanes, 1..=32);
        c.range("gt_per_s", self.gt_per_s, 2.5..=256.0, "GT/s");
        c.bytes("payload", self.payload, Bytes(4)..=Bytes(4096));
        c.bytes("header", self.header, Bytes(4)..=Bytes(64));
    }
}

impl Flit {
    /// Computes the rates in one direction.
    pub(super) fn rates(&self) -> FlitRates {
        let raw = self.lanes as f64 * self.gt_per_s * 1e9 / 8.0;
        let packets = raw * FLIT_PACKET_BYTES / FLIT_BYTES;
        let (payload, header) = (self.payload.0 as f64, self.header.0 as f64);
        FlitRates {
            raw_bytes_per_s: raw,
            packet_bytes_per_s: packets,
            payload_bytes_per_s: packets * payload / (payload + header),
        }
    }
}

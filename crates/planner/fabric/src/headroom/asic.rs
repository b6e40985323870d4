//! The ASICs that SONiC describes, and the computations that give their shipped tables.

use serde::{Deserialize, Serialize};
use straightway_core::Bytes;

/// An ASIC whose buffer SONiC describes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Asic {
    /// SN2000.
    #[serde(rename = "spectrum")]
    Spectrum1,
    /// SN3000.
    #[serde(rename = "spectrum-2")]
    Spectrum2,
    /// SN4000.
    #[serde(rename = "spectrum-3")]
    Spectrum3,
    /// SN5400 and SN5600.
    #[default]
    #[serde(rename = "spectrum-4")]
    Spectrum4,
    /// SN5640.
    #[serde(rename = "spectrum-5")]
    Spectrum5,
    /// SN6600.
    #[serde(rename = "spectrum-6")]
    Spectrum6,
}

/// One of SONiC's computations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// The Lua script: kilobytes of 1,024, the peer response by speed.
    #[default]
    Lua,
    /// The tables of Spectrum 1 to 3: kilobytes of 1,000, one peer response for all speeds.
    Tables,
    /// The table of the SN4280: kilobytes of 1,000, the peer response by speed, whole cells.
    Sn4280,
    /// The table of the SN5600: as that of the SN4280, and 60 ns each way in the PHY.
    Sn5600,
}

impl Asic {
    /// A cell of its buffer.
    pub fn cell(self) -> Bytes {
        Bytes(match self {
            Self::Spectrum1 => 96,
            Self::Spectrum2 | Self::Spectrum3 => 144,
            Self::Spectrum4 | Self::Spectrum5 => 192,
            Self::Spectrum6 => 256,
        })
    }

    /// The pipeline's latency.
    pub(super) fn pipeline(self) -> Bytes {
        Bytes::kib(match self {
            Self::Spectrum6 => 42,
            _ => 19,
        })
    }

    /// The computation that gives its shipped table; the script for those without one.
    pub(super) fn rule(self) -> Rule {
        match self {
            Self::Spectrum1 | Self::Spectrum2 | Self::Spectrum3 => Rule::Tables,
            Self::Spectrum4 => Rule::Sn5600,
            Self::Spectrum5 | Self::Spectrum6 => Rule::Lua,
        }
    }
}

impl Rule {
    /// The longest frame that it assumes.
    pub(super) fn mtu(self) -> Bytes {
        Bytes(match self {
            Self::Lua | Self::Sn4280 => 9100,
            Self::Tables | Self::Sn5600 => 9216,
        })
    }

    /// The share of small packets that it assumes.
    pub(super) fn small_packet_share(self) -> f64 {
        match self {
            Self::Lua => 0.5,
            Self::Sn4280 => 0.01,
            Self::Tables | Self::Sn5600 => 1.0,
        }
    }

    /// The delay of the PHY in one direction, in seconds.
    pub(super) fn phy_s(self) -> f64 {
        match self {
            Self::Sn5600 => 60e-9,
            _ => 0.0,
        }
    }
}

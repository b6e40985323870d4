//! The network between a node and its storage, or none: the drives are then in the node.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};
use straightway_core::{Rate, Seconds};
use straightway_pcie::machine::LINK_EFFICIENCY;

/// The network between the node and its storage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hop {
    /// The round-trip time.
    pub latency: Seconds,
    /// The combined line rate of the node's storage ports; absent for all ports of the machine.
    pub rate: Option<Rate>,
    /// The share of `rate` that carries data. The machine's ports have their own.
    pub efficiency: f64,
    /// Host CPU seconds of the protocol per GB: zero for RDMA.
    pub cpu_s_per_gb: f64,
}

impl Default for Hop {
    fn default() -> Self {
        Self {
            latency: Seconds(10e-6),
            rate: None,
            efficiency: LINK_EFFICIENCY[1],
            cpu_s_per_gb: 0.0,
        }
    }
}

/// The value of `node.hop` for drives in the node.
const NONE: &str = "none";

/// Writes a hop as its table, and no hop as `"none"`: an absent field is the default hop.
#[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
pub(super) fn serialize<S: Serializer>(hop: &Option<Hop>, serializer: S) -> Result<S::Ok, S::Error> {
    match hop {
        Some(hop) => hop.serialize(serializer),
        None => serializer.serialize_str(NONE),
    }
}

/// Reads a table or `"none"`.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Hop>, D::Error> {
    deserializer.deserialize_any(HopOrNone)
}

struct HopOrNone;

impl<'de> Visitor<'de> for HopOrNone {
    type Value = Option<Hop>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table, or \"none\" for drives in the node")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        if text == NONE {
            return Ok(None);
        }
        Err(E::invalid_value(de::Unexpected::Str(text), &self))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        Hop::deserialize(MapAccessDeserializer::new(map)).map(Some)
    }
}

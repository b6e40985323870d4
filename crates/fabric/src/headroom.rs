//! The headroom of a lossless port: how many bytes still arrive after the switch has said stop.
//!
//! SONiC's formula, as NVIDIA's SN4280 table follows from it to the byte. Between the moment a
//! switch decides to pause its neighbour and the moment the wire falls silent, a frame is already
//! leaving the switch (the pause waits behind it), the cable is full both ways, the neighbour takes
//! its time to react (the peer response, in quanta of 512 bits) and is in the middle of a frame of
//! its own. Small packets waste part of the buffer's cells, which `occupancy` accounts for.
//!
//! It answers for one port and one lossless class. It does not choose the XOFF threshold.

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

use straightway_scenario::{
    check::{Checked, Checker},
    provenance::{Basis, Correction, Formula, Source},
};

/// How fast a signal runs along a cable, metres per second: SONiC's constant, two thirds of light.
pub const SIGNAL_M_PER_S: f64 = 1.98e8;

/// The longest pause a frame can ask for, in quanta of 512 bits (IEEE 802.1Qbb).
pub const PAUSE_QUANTA_MAX: u32 = 65_535;

/// Bits of one pause quantum.
const QUANTUM_BITS: f64 = 512.0;

/// The neighbour's reaction time by link speed, in quanta: Gb/s, quanta (SONiC).
pub const PEER_RESPONSE_QUANTA: [(u32, u32); 8] = [
    (10, 67),
    (25, 80),
    (40, 118),
    (50, 147),
    (100, 394),
    (200, 453),
    (400, 905),
    (800, 905),
];

/// A lossless port and its cable.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Port {
    /// The link's rate.
    pub rate: Rate,
    /// The cable, in metres.
    pub cable_m: f64,
    /// The longest frame of any class.
    pub mtu: Bytes,
    /// The longest frame of the lossless class.
    pub lossless_mtu: Bytes,
    /// What MAC and PHY hold.
    pub mac_phy: Bytes,
    /// What a gearbox on the way holds.
    pub gearbox: Bytes,
    /// A cell of the buffer.
    pub cell: Bytes,
    /// The share of packets small enough to waste cells.
    pub small_packet_share: f64,
    /// The neighbour's reaction in quanta, where the table does not know better.
    pub peer_quanta: Option<u32>,
}

impl Default for Port {
    /// The SN4280 at 100 Gb/s with a cable of 5 m.
    fn default() -> Self {
        Self {
            rate: Rate::gbit(100.0),
            cable_m: 5.0,
            mtu: Bytes(9100),
            lossless_mtu: Bytes(1024),
            // 0.8 KiB.
            mac_phy: Bytes(819),
            gearbox: Bytes(0),
            cell: Bytes(192),
            small_packet_share: 0.01,
            peer_quanta: None,
        }
    }
}

/// What a port needs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Headroom {
    /// What to reserve beyond the XOFF threshold.
    pub xoff: Bytes,
    /// What arrives after XOFF at the worst, before the waste of cells.
    pub propagation: Bytes,
    /// Of that, what is on the cable in both directions.
    pub cable: Bytes,
    /// Of that, what the neighbour sends while it reacts.
    pub peer_response: Bytes,
    /// How much more of the buffer small packets take.
    pub occupancy: f64,
    /// How long the longest single pause lasts.
    pub pause_max: Seconds,
    /// Formulas, constants and sources.
    pub basis: Basis,
}

const SONIC: Source = Source::read(
    "SONiC",
    "buffer_headroom_mellanox.lua and its peer response time table",
);

const FORMULAS: [Formula; 4] = [
    Formula {
        gives: "xoff",
        text: "⌈(lossless_mtu + propagation·occupancy) / 1024⌉ · 1024",
        source: SONIC,
    },
    Formula {
        gives: "propagation",
        text: "mtu + 2·cable·rate/1.98e8/8 + 2·gearbox + mac_phy + quanta·64",
        source: SONIC,
    },
    Formula {
        gives: "occupancy",
        text: "1 + small_packet_share·(w − 1), w = ⌈cell/64⌉ for cells above 128 B, else 2 (1 at 64 B)",
        source: SONIC,
    },
    Formula {
        gives: "pause_max",
        text: "65,535 · 512 bit / rate",
        source: Source::quoted("IEEE 802.1Qbb", "the pause time field has 16 bits"),
    },
];

impl Port {
    /// A port of the given rate and cable, all else as on the SN4280.
    pub fn new(rate: Rate, cable_m: f64) -> Self {
        Self {
            rate,
            cable_m,
            ..Self::default()
        }
    }

    /// The neighbour's reaction in quanta: as given, or that of the next faster speed in the table.
    pub fn quanta(&self) -> u32 {
        let gbit = self.rate.as_gbit();
        self.peer_quanta.unwrap_or_else(|| {
            PEER_RESPONSE_QUANTA
                .iter()
                .find(|(speed, _)| gbit <= f64::from(*speed) * 1.000_001)
                .map_or(905, |(_, quanta)| *quanta)
        })
    }

    /// How long the neighbour takes to fall silent after it has the pause frame.
    pub fn peer_response(&self) -> Seconds {
        Seconds(f64::from(self.quanta()) * QUANTUM_BITS / 8.0 / self.rate.0)
    }

    /// The headroom this port needs.
    pub fn headroom(&self) -> Headroom {
        let cable = 2.0 * self.cable_m * self.rate.0 / SIGNAL_M_PER_S;
        let peer_response = f64::from(self.quanta()) * QUANTUM_BITS / 8.0;
        let propagation = self.mtu.0 as f64
            + cable
            + 2.0 * self.gearbox.0 as f64
            + self.mac_phy.0 as f64
            + peer_response;
        let occupancy = 1.0 + self.small_packet_share * (self.worst_cells() - 1.0);
        let needed = self.lossless_mtu.0 as f64 + propagation * occupancy;
        Headroom {
            xoff: Bytes(whole(needed / 1024.0) * 1024),
            propagation: Bytes(whole(propagation)),
            cable: Bytes(whole(cable)),
            peer_response: Bytes(whole(peer_response)),
            occupancy,
            pause_max: pause_max(self.rate),
            basis: self.basis(),
        }
    }

    /// Cells the worst small packet takes, in units of the 64 bytes it carries.
    fn worst_cells(&self) -> f64 {
        let cell = self.cell.0;
        if cell > 128 {
            cell.div_ceil(64) as f64
        } else if cell > 64 {
            2.0
        } else {
            1.0
        }
    }

    fn basis(&self) -> Basis {
        let mut basis = Basis::of(&FORMULAS);
        basis.assume("signal speed", SIGNAL_M_PER_S, "m/s", SONIC);
        let peer = if self.peer_quanta.is_some() {
            Source::GIVEN
        } else {
            SONIC
        };
        basis.assume("peer response", f64::from(self.quanta()), "quanta", peer);
        basis.assume(
            "packets that waste cells",
            self.small_packet_share,
            "share",
            Source::GIVEN,
        );
        basis
    }
}

/// How long the longest pause frame can silence a link.
pub fn pause_max(rate: Rate) -> Seconds {
    Seconds(f64::from(PAUSE_QUANTA_MAX) * QUANTUM_BITS / 8.0 / rate.0)
}

/// How long a buffer behind one port lasts when `senders` of the port's own rate meet there.
pub fn fill_time(buffer: Bytes, senders: u32, rate: Rate) -> Seconds {
    Seconds(buffer.0 as f64 / (f64::from(senders.saturating_sub(1)) * rate.0))
}

/// The articles' figures on incast, beside what follows.
pub fn incast_corrections() -> Vec<Correction> {
    let rate = Rate::gbit(400.0);
    let buffer = Bytes(64_000_000);
    let [all, fifty] = [1024, 50].map(|senders| fill_time(buffer, senders, rate));
    vec![
        Correction {
            claim: "1,024 GPUs asking for their next batch at once offer the network".to_owned(),
            article_says: "400 Tb/s".to_owned(),
            model_says: format!("{:.1} Tb/s", 1024.0 * rate.as_gbit() / 1e3),
            holds: true,
            why: "1,024 × 400 Gb/s, rounded in the article".to_owned(),
        },
        Correction {
            claim: "such an incast destroys the switch buffer".to_owned(),
            article_says: "in the first 500 µs".to_owned(),
            model_says: format!("in {all} at 1,024:1, in {fifty} at 50:1"),
            holds: false,
            why: "64 MB behind one 400 Gb/s port fill at (senders − 1) × 50 GB/s: \
                  500 µs is 19 to 400 times too long to react in"
                .to_owned(),
        },
    ]
}

impl Checked for Port {
    fn check(&self, c: &mut Checker) {
        c.rate("rate", self.rate, Rate::gbit(0.01)..=Rate::gbit(10_000.0));
        c.range("cable_m", self.cable_m, 0.0..=100_000.0, "m");
        let frame = Bytes(64)..=Bytes(65_535);
        c.bytes("mtu", self.mtu, frame.clone());
        c.bytes("lossless_mtu", self.lossless_mtu, frame);
        if self.lossless_mtu > self.mtu {
            let allowed = format!(
                "at most mtu, {}: that is the longest frame of any class",
                self.mtu
            );
            c.refuse("lossless_mtu", self.lossless_mtu, allowed);
        }
        c.bytes("mac_phy", self.mac_phy, Bytes(0)..=Bytes::mib(1));
        c.bytes("gearbox", self.gearbox, Bytes(0)..=Bytes::mib(1));
        c.bytes("cell", self.cell, Bytes(32)..=Bytes(4096));
        c.share("small_packet_share", self.small_packet_share);
        if let Some(quanta) = self.peer_quanta {
            c.count("peer_quanta", u64::from(quanta), 0..=65_535);
        }
    }
}

/// The next whole number; sizes here are far below 2^53.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a checked, positive size"
)]
fn whole(value: f64) -> u64 {
    value.ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(gbit: f64, cable_m: f64) -> Port {
        Port::new(Rate::gbit(gbit), cable_m)
    }

    #[test]
    fn the_lossless_class_has_no_longer_frames_than_the_longest_of_any() {
        let port = Port {
            mtu: Bytes(100),
            lossless_mtu: Bytes(9000),
            ..port(400.0, 5.0)
        };
        let refusals = straightway_scenario::check::checked(&port)
            .unwrap_err()
            .to_string();
        assert!(refusals.contains("lossless_mtu"), "{refusals}");
    }

    #[test]
    fn the_sn4280_table_is_met_to_the_byte() {
        // NVIDIA SN4280, pg_profile_lookup.ini: Gb/s, then xoff at 5, 40 and 300 m.
        for (gbit, table) in [
            (100.0, [37_888, 43_008, 75_776]),
            (200.0, [43_008, 51_200, 118_784]),
            (400.0, [73_728, 91_136, 225_280]),
        ] {
            let ours = [5.0, 40.0, 300.0].map(|m| port(gbit, m).headroom().xoff.0);
            assert_eq!(ours, table, "{gbit} Gb/s");
        }
    }

    #[test]
    fn the_longest_pause_is_839_us_at_40g_and_84_us_at_400g() {
        let us = |gbit| pause_max(Rate::gbit(gbit)).0 * 1e6;
        assert!((us(40.0) - 838.8).abs() < 0.1, "{}", us(40.0));
        assert!((us(400.0) - 83.9).abs() < 0.1, "{}", us(400.0));
    }

    #[test]
    fn a_64_mb_buffer_fills_in_1_25_us_at_1024_to_one_and_26_us_at_50_to_one() {
        let us = |senders| fill_time(Bytes(64_000_000), senders, Rate::gbit(400.0)).0 * 1e6;
        assert!((us(1024) - 1.25).abs() < 0.005, "{}", us(1024));
        assert!((us(50) - 26.1).abs() < 0.05, "{}", us(50));
        let corrections = incast_corrections();
        assert_eq!(corrections[0].model_says, "409.6 Tb/s");
        assert!(!corrections[1].holds);
    }

    #[test]
    fn a_longer_cable_a_faster_link_and_a_larger_frame_all_need_more() {
        let base = port(100.0, 5.0).headroom().xoff;
        assert!(port(100.0, 500.0).headroom().xoff > base);
        assert!(port(400.0, 5.0).headroom().xoff > base);
        let jumbo = Port {
            lossless_mtu: Bytes(9100),
            ..port(100.0, 5.0)
        };
        assert!(jumbo.headroom().xoff > base);
    }
}

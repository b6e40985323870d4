//! The headroom of a lossless port: the bytes that still arrive after the switch has sent XOFF.
//!
//! Data arrives between a switch's decision to pause its neighbour and the last bit on the wire, since a frame is
//! already leaving the switch (the pause frame waits behind it), the cable is full in both directions, and the
//! neighbour needs time to react and is in the middle of a frame. Small packets waste part of the buffer's cells,
//! which `occupancy` accounts for.
//!
//! [`Rule::Lua`] reproduces SONiC's Lua script: xon, xoff and size, the worst-case factor by cell size, kilobytes of
//! 1,024 for the cable, the gearbox, and ports of eight lanes. The tables that SONiC ships for Spectrum 1 to 3
//! ([`Rule::Tables`]) were made by an older computation: every packet small, MTU 9,216, kilobytes of 1,000, and one
//! peer response for all speeds. It reproduces every xoff of the SN2700, SN3700, SN3800 and SN4700 to the byte.
//! [`Rule::Sn4280`] reproduces the SN4280's table up to 300 m. [`Rule::Sn5600`] reproduces every xoff of the SN5600
//! (Spectrum-4): every packet small, the peer response by speed, kilobytes of 1,000, and 60 ns each way in the PHY,
//! which were fitted to the table. The rule follows from the ASIC unless it is given, and the frame and the share of
//! small packets from the rule.
//!
//! No rule reproduces the SN4280's rows of 1,500 and 2,000 m, where 400 Gb/s needs no more than 200 Gb/s. SONiC ships no
//! table for Spectrum-6: its cells and pipeline are those of `asic_table.j2`.
//!
//! The result is for one port and one lossless class. The XOFF threshold is not computed.

mod asic;

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

pub use self::asic::{Asic, Rule};
use straightway_scenario::{
    check::{Checkable, Checker},
    provenance::{Basis, Citation, Correction, Formula},
};

/// The signal speed in a cable, metres per second: SONiC's constant, two thirds of the speed of light.
pub const SIGNAL_M_PER_S: f64 = 1.98e8;

/// The longest pause of a pause frame, in quanta of 512 bits (IEEE 802.1Qbb).
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
    /// The length of the cable in metres.
    pub cable_m: f64,
    /// The switch's ASIC.
    pub asic: Asic,
    /// The computation to use; absent for that of the ASIC.
    pub rule: Option<Rule>,
    /// The longest frame of any class; absent for that of the rule.
    pub mtu: Option<Bytes>,
    /// The longest frame of the lossless class.
    pub lossless_mtu: Bytes,
    /// The delay of a gearbox.
    pub gearbox: Seconds,
    /// Lanes of the port: eight lanes need twice the pipeline and one more frame.
    pub lanes: u8,
    /// The share of packets small enough to waste cells; absent for that of the rule.
    pub small_packet_share: Option<f64>,
    /// Whether all ports share one pool of headroom.
    pub shared_pool: bool,
    /// A cell of the buffer, instead of the ASIC's.
    pub cell: Option<Bytes>,
    /// The pipeline's latency in bytes, instead of the ASIC's.
    pub pipeline: Option<Bytes>,
    /// The bytes in MAC and PHY, instead of the ASIC's.
    pub mac_phy: Option<Bytes>,
    /// The neighbour's reaction in quanta, instead of the table's.
    pub peer_quanta: Option<u32>,
}

impl Default for Port {
    /// A Spectrum-4 at 100 Gb/s with a cable of 5 m, by its shipped table.
    fn default() -> Self {
        Self {
            rate: Rate::gbit(100.0),
            cable_m: 5.0,
            asic: Asic::default(),
            rule: None,
            mtu: None,
            lossless_mtu: Bytes(1024),
            gearbox: Seconds(0.0),
            lanes: 4,
            small_packet_share: None,
            shared_pool: false,
            cell: None,
            pipeline: None,
            mac_phy: None,
            peer_quanta: None,
        }
    }
}

/// The headroom of a port.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Headroom {
    /// The reserve above the XOFF threshold.
    pub xoff: Bytes,
    /// The reserve below the threshold: the pipeline's latency.
    pub xon: Bytes,
    /// The total reserve of the port.
    pub size: Bytes,
    /// The maximum bytes that arrive after XOFF, before the waste of cells.
    pub propagation: Bytes,
    /// The part of it that is on the cable in both directions.
    pub cable: Bytes,
    /// The part of it that the neighbour sends while it reacts.
    pub peer_response: Bytes,
    /// The factor by which small packets increase the buffer use.
    pub occupancy: f64,
    /// The duration of the longest single pause.
    pub pause_max: Seconds,
    /// Formulas, constants and sources.
    pub basis: Basis,
}

const SONIC: Citation = Citation::read("SONiC", "buffer_headroom_mellanox.lua and its peer response time table");

const FORMULAS: [Formula; 5] = [
    Formula {
        gives: "xoff",
        text: "⌈(lossless_mtu + propagation·occupancy) / 1024⌉ · 1024",
        source: SONIC,
    },
    Formula {
        gives: "propagation",
        text: "mtu + 2·cable·rate/1.98e8/8·1000/k + 2·gearbox·rate/8·1000/k + mac_phy + quanta·64; k = 1024 in the Lua",
        source: SONIC,
    },
    Formula {
        gives: "occupancy",
        text: "1 + small_packet_share·(w − 1), w = cell/64 for cells above 128 B, else 2·cell/(1 + cell)",
        source: SONIC,
    },
    Formula {
        gives: "xon and size",
        text: "xon = ⌈pipeline⌉, twice less 1 KiB for 8 lanes; size = xoff + xon, and a frame for 8 lanes; xon alone with a shared pool",
        source: SONIC,
    },
    Formula {
        gives: "pause_max",
        text: "65,535 · 512 bit / rate",
        source: Citation::quoted("IEEE 802.1Qbb", "the pause time field has 16 bits"),
    },
];

/// The data in MAC and PHY, in KiB, on every ASIC.
const MAC_PHY_KIB: f64 = 0.8;
/// The peer response that the tables assume for every speed, in KiB.
const TABLES_RESPONSE_KIB: f64 = 3.8;

impl Port {
    /// A port of the given rate and cable by the rule of the SN4280, with nearly all packets large. The packet
    /// simulator reserves this headroom if its buffers have no cells.
    pub fn new(rate: Rate, cable_m: f64) -> Self {
        Self {
            rate,
            cable_m,
            asic: Asic::Spectrum3,
            rule: Some(Rule::Sn4280),
            ..Self::default()
        }
    }

    /// The computation: as given, or that of the ASIC.
    pub fn rule(&self) -> Rule {
        self.rule.unwrap_or(self.asic.rule())
    }

    /// The longest frame of any class: as given, or that of the rule.
    pub fn mtu(&self) -> Bytes {
        self.mtu.unwrap_or(self.rule().mtu())
    }

    fn small_packet_share(&self) -> f64 {
        self.small_packet_share.unwrap_or(self.rule().small_packet_share())
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

    /// The time from the neighbour's receipt of the pause frame until it stops sending.
    pub fn peer_response(&self) -> Seconds {
        Seconds(f64::from(self.quanta()) * QUANTUM_BITS / 8.0 / self.rate.0)
    }

    /// The headroom this port needs.
    pub fn headroom(&self) -> Headroom {
        // The Lua divides megabits by 8 · 1024 and calls the result bytes.
        let rule = self.rule();
        let kilo = if rule == Rule::Lua { 1000.0 / 1024.0 } else { 1.0 };
        let cable = 2.0 * self.cable_m * self.rate.0 / SIGNAL_M_PER_S * kilo;
        let gearbox = 2.0 * (self.gearbox.0 + rule.phy_s()) * self.rate.0 * kilo;
        let peer_response = match (rule, self.peer_quanta) {
            (Rule::Tables, None) => TABLES_RESPONSE_KIB * 1024.0,
            _ => f64::from(self.quanta()) * QUANTUM_BITS / 8.0,
        };
        let mac_phy = self.mac_phy.map_or(MAC_PHY_KIB * 1024.0, |bytes| bytes.0 as f64);
        let mtu = self.mtu().0;
        let propagation = mtu as f64 + cable + gearbox + mac_phy + peer_response;
        let occupancy = 1.0 + self.small_packet_share() * (self.worst_factor() - 1.0);
        let needed = self.lossless_mtu.0 as f64 + propagation * occupancy;
        let xoff = whole(needed / 1024.0) * 1024;
        let pipeline = self.pipeline.unwrap_or(self.asic.pipeline()).0.next_multiple_of(1024);
        let (xon, overhead) = match self.lanes {
            8 => ((pipeline * 2).saturating_sub(1024), mtu),
            _ => (pipeline, 0),
        };
        let size = if self.shared_pool { xon } else { xoff + xon + overhead };
        Headroom {
            xoff: Bytes(xoff),
            xon: Bytes(xon),
            size: Bytes(size.next_multiple_of(1024)),
            propagation: Bytes(whole(propagation)),
            cable: Bytes(whole(cable)),
            peer_response: Bytes(whole(peer_response)),
            occupancy,
            pause_max: pause_max(self.rate),
            basis: self.basis(),
        }
    }

    fn cell(&self) -> u64 {
        self.cell.unwrap_or(self.asic.cell()).0
    }

    /// The buffer use of the worst small packet, as a multiple of its 64 bytes.
    fn worst_factor(&self) -> f64 {
        let cell = self.cell();
        match (self.rule(), cell > 128) {
            (Rule::Sn4280 | Rule::Sn5600, true) => cell.div_ceil(64) as f64,
            (_, true) => cell as f64 / 64.0,
            (_, false) => 2.0 * cell as f64 / (1.0 + cell as f64),
        }
    }

    fn basis(&self) -> Basis {
        let mut basis = Basis::of(&FORMULAS);
        basis.assume("signal speed", SIGNAL_M_PER_S, "m/s", SONIC);
        let cell = self.cell() as f64;
        basis.parameter("cell", "a cell of the buffer", cell, "B", ASIC_TABLE);
        if self.rule() == Rule::Sn5600 {
            basis.assume("delay of the PHY, one way", self.rule().phy_s(), "s", SN5600);
        }
        if self.rule() == Rule::Tables && self.peer_quanta.is_none() {
            basis.assume("peer response", TABLES_RESPONSE_KIB * 1024.0, "B", ASIC_TABLE);
        } else {
            let quanta = f64::from(self.quanta());
            basis.parameter("peer_quanta", "peer response", quanta, "quanta", SONIC);
        }
        basis
            .parameter(
                "small_packet_share",
                "packets that waste cells",
                self.small_packet_share(),
                "share",
                PATTERN,
            )
            .between(0.0, 1.0, PATTERN);
        basis
    }
}

const SN5600: Citation = Citation::fitted(
    "SONiC, pg_profile_lookup.ini of the SN5600",
    "24 rows: 8 speeds at 5, 40 and 300 m",
);

const ASIC_TABLE: Citation = Citation::read("SONiC", "platform/mellanox/asic_table.j2");

const PATTERN: Citation = Citation::read(
    "SONiC",
    "files/build_templates/buffers_config.j2: LOSSLESS_TRAFFIC_PATTERN, 50 %; shipped tables 100 %",
);

/// The longest time for which one pause frame can stop a link.
pub fn pause_max(rate: Rate) -> Seconds {
    Seconds(f64::from(PAUSE_QUANTA_MAX) * QUANTUM_BITS / 8.0 / rate.0)
}

/// The time until the buffer of one port is full if `senders` send to it, each at the port's rate.
pub fn fill_time(buffer: Bytes, senders: u32, rate: Rate) -> Seconds {
    Seconds(buffer.0 as f64 / (f64::from(senders.saturating_sub(1)) * rate.0))
}

/// The articles' figures on incast, with the computed ones.
pub fn incast_corrections() -> Vec<Correction> {
    let rate = Rate::gbit(400.0);
    let buffer = Bytes(64_000_000);
    let [all, fifty] = [1024, 50].map(|senders| fill_time(buffer, senders, rate));
    let offered_tbit = 1024.0 * rate.as_gbit() / 1e3;
    let response = Bytes::mib(4);
    // 49 of 50 such responses stay in the buffer while the port drains the fiftieth.
    let left = Bytes(49 * response.0);
    vec![
        Correction {
            claim: "50 storage nodes that answer one GPU node at once overflow the switch buffer".to_owned(),
            article_says: "they overflow it".to_owned(),
            model_says: format!("50 responses of {response} leave {left} in a buffer of {buffer}, full in {fifty}"),
            holds: left > buffer,
            fitted: false,
            why: "64 MB behind one port of 400 Gb/s".to_owned(),
        },
        Correction {
            claim: "1,024 GPUs asking for their next batch at once offer the network".to_owned(),
            article_says: "400 Tb/s".to_owned(),
            model_says: format!("{offered_tbit:.1} Tb/s"),
            holds: (offered_tbit / 400.0 - 1.0).abs() <= 0.05,
            fitted: false,
            why: "1,024 × 400 Gb/s, rounded in the article".to_owned(),
        },
        Correction {
            claim: "such an incast destroys the switch buffer".to_owned(),
            article_says: "in the first 500 µs".to_owned(),
            model_says: format!("in {all} at 1,024:1, in {fifty} at 50:1"),
            holds: (fifty.0 / 500e-6 - 1.0).abs() <= 0.5,
            fitted: false,
            why: "64 MB behind one 400 Gb/s port fill at (senders − 1) × 50 GB/s: \
                  500 µs is 19 to 400 times too long"
                .to_owned(),
        },
    ]
}

impl Checkable for Port {
    fn check(&self, c: &mut Checker) {
        c.rate("rate", self.rate, Rate::gbit(0.01)..=Rate::gbit(10_000.0));
        c.range("cable_m", self.cable_m, 0.0..=100_000.0, "m");
        let frame = Bytes(64)..=Bytes(65_535);
        c.bytes("mtu", self.mtu(), frame.clone());
        c.bytes("lossless_mtu", self.lossless_mtu, frame);
        if self.lossless_mtu > self.mtu() {
            let allowed = format!("at most mtu, {}: that is the longest frame of any class", self.mtu());
            c.refuse("lossless_mtu", self.lossless_mtu, allowed);
        }
        if let Some(bytes) = self.pipeline {
            c.bytes("pipeline", bytes, Bytes(0)..=Bytes::mib(64));
        }
        if let Some(bytes) = self.mac_phy {
            c.bytes("mac_phy", bytes, Bytes(0)..=Bytes::mib(1));
        }
        c.seconds("gearbox", self.gearbox, Seconds(0.0)..=Seconds(1e-3));
        if ![1, 2, 4, 8].contains(&self.lanes) {
            c.refuse("lanes", self.lanes, "1, 2, 4 or 8");
        }
        if let Some(cell) = self.cell {
            c.bytes("cell", cell, Bytes(32)..=Bytes(4096));
            self.check_family(cell, c);
        }
        c.share("small_packet_share", self.small_packet_share());
        if let Some(quanta) = self.peer_quanta {
            c.count("peer_quanta", u64::from(quanta), 0..=65_535);
        } else if !is_known(self.rate) {
            let speeds = PEER_RESPONSE_QUANTA.map(|(speed, _)| speed.to_string()).join(", ");
            let allowed = format!("one of {speeds} Gb/s, for which SONiC has a peer response; or give peer_quanta");
            c.refuse("rate", format!("{} Gb/s", self.rate.as_gbit()), allowed);
        }
    }
}

impl Port {
    /// Refuses a cell of another family: its pipeline, its MAC and PHY and its peer response are not those of the ASIC.
    fn check_family(&self, cell: Bytes, c: &mut Checker) {
        let known = self.pipeline.is_some() && self.mac_phy.is_some() && self.peer_quanta.is_some();
        if cell != self.asic.cell() && !known {
            let allowed = format!(
                "{}, that of the ASIC: the pipeline and the response of a family with other cells are not known (or give \
                 pipeline, mac_phy and peer_quanta too)",
                self.asic.cell().0
            );
            c.refuse("cell", cell.0, allowed);
        }
    }
}

/// Whether SONiC's table has this speed.
fn is_known(rate: Rate) -> bool {
    let gbit = rate.as_gbit();
    let known = PEER_RESPONSE_QUANTA.iter();
    known
        .into_iter()
        .any(|(speed, _)| (gbit / f64::from(*speed) - 1.0).abs() < 1e-6)
}

/// Rounds up to a whole number; sizes here are far below 2^53.
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
    fn the_lossless_mtu_is_at_most_the_mtu() {
        let port = Port {
            mtu: Some(Bytes(100)),
            lossless_mtu: Bytes(9000),
            ..port(400.0, 5.0)
        };
        let refusals = straightway_scenario::check::checked(&port).unwrap_err().to_string();
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
    fn the_tables_of_spectrum_1_to_3_are_met_to_the_byte() {
        // sonic-buildimage, pg_profile_lookup.ini: Gb/s, then xoff at 5, 40 and 300 m.
        let sn2700: [(f64, [u64; 3]); 5] = [
            (10.0, [29_696, 29_696, 36_864]),
            (25.0, [29_696, 31_744, 48_128]),
            (40.0, [29_696, 32_768, 59_392]),
            (50.0, [29_696, 33_792, 66_560]),
            (100.0, [30_720, 38_912, 104_448]),
        ];
        let sn4700: [(f64, [u64; 3]); 7] = [
            (10.0, [32_768, 33_792, 40_960]),
            (25.0, [32_768, 35_840, 54_272]),
            (40.0, [33_792, 37_888, 66_560]),
            (50.0, [33_792, 38_912, 75_776]),
            (100.0, [33_792, 44_032, 117_760]),
            (200.0, [35_840, 55_296, 203_776]),
            (400.0, [38_912, 77_824, 373_760]),
        ];
        // The SN3800 has a gearbox of 400 ns.
        let sn3800: [(f64, [u64; 3]); 5] = [
            (10.0, [34_816, 35_840, 44_032]),
            (25.0, [38_912, 40_960, 59_392]),
            (40.0, [41_984, 46_080, 75_776]),
            (50.0, [45_056, 50_176, 87_040]),
            (100.0, [56_320, 66_560, 140_288]),
        ];
        for (asic, gearbox, table) in [
            (Asic::Spectrum1, 0.0, &sn2700[..]),
            (Asic::Spectrum3, 0.0, &sn4700[..]),
            (Asic::Spectrum2, 400e-9, &sn3800[..]),
        ] {
            for (gbit, xoffs) in table {
                let ours = [5.0, 40.0, 300.0].map(|cable_m| {
                    let port = Port {
                        rate: Rate::gbit(*gbit),
                        cable_m,
                        asic,
                        gearbox: Seconds(gearbox),
                        ..Port::default()
                    };
                    port.headroom().xoff.0
                });
                assert_eq!(ours, *xoffs, "{asic:?} at {gbit} Gb/s");
            }
        }
    }

    #[test]
    fn the_default_is_the_shipped_table_of_the_sn5600() {
        // sonic-buildimage, pg_profile_lookup.ini of the SN5600: Gb/s, then xoff at 5, 40 and 300 m. One number, the
        // delay of the PHY, was fitted to it.
        for (gbit, xoffs) in [
            (10.0, [45_056, 46_080, 56_320]),
            (25.0, [48_128, 52_224, 76_800]),
            (40.0, [57_344, 62_464, 101_376]),
            (50.0, [63_488, 69_632, 118_784]),
            (100.0, [113_664, 126_976, 225_280]),
            (200.0, [131_072, 157_696, 355_328]),
            (400.0, [231_424, 283_648, 677_888]),
            (800.0, [257_024, 362_496, 1_150_976]),
        ] {
            let ours = [5.0, 40.0, 300.0].map(|cable_m| {
                let port = Port {
                    rate: Rate::gbit(gbit),
                    cable_m,
                    ..Port::default()
                };
                port.headroom().xoff.0
            });
            assert_eq!(ours, xoffs, "{gbit} Gb/s");
        }
    }

    #[test]
    fn spectrum_6_has_the_cells_and_the_pipeline_of_asic_table() {
        let port = Port {
            asic: Asic::Spectrum6,
            ..Port::default()
        };
        let answer = port.headroom();
        assert_eq!((port.asic.cell().0, answer.xon.0), (256, 42 * 1024));
    }

    #[test]
    fn a_cell_of_an_unknown_family_is_refused() {
        // Tomahawk 5 has cells of 254 bytes, and a pipeline and a response that SONiC's script does not know.
        let tomahawk = Port {
            cell: Some(Bytes(254)),
            ..Port::default()
        };
        let refused = straightway_scenario::check::checked(&tomahawk).unwrap_err().to_string();
        assert!(
            refused.starts_with("cell = 254: allowed is 192, that of the ASIC"),
            "{refused}"
        );
        let told = Port {
            pipeline: Some(Bytes::kib(50)),
            mac_phy: Some(Bytes(1000)),
            peer_quanta: Some(905),
            ..tomahawk
        };
        straightway_scenario::check::checked(&told).unwrap();
    }

    #[test]
    fn the_lua_gives_xon_xoff_and_size() {
        // Worked by hand from buffer_headroom_mellanox.lua: 100 Gb/s, 5 m, cells of 192 bytes, half small:
        // cable 616.6, propagation 9100 + 616.6 + 819.2 + 25216 = 35751.8, twice that and 1024: 72527.6.
        let port = Port {
            rule: Some(Rule::Lua),
            ..Port::default()
        };
        let answer = port.headroom();
        assert_eq!((answer.xoff.0, answer.xon.0, answer.size.0), (72_704, 19_456, 92_160));
        let eight = Port {
            rate: Rate::gbit(400.0),
            lanes: 8,
            ..port
        }
        .headroom();
        assert_eq!(eight.xon.0, 37_888);
        assert_eq!(eight.size.0, (eight.xoff.0 + 37_888 + 9100).next_multiple_of(1024));
        let pooled = Port {
            shared_pool: true,
            ..port
        }
        .headroom();
        assert_eq!(pooled.size, pooled.xon);
    }

    #[test]
    fn a_speed_without_a_source_is_refused() {
        let fast = Port {
            rate: Rate::gbit(1600.0),
            ..Port::default()
        };
        let refused = straightway_scenario::check::checked(&fast).unwrap_err().to_string();
        assert!(
            refused.contains("1600 Gb/s") && refused.contains("peer_quanta"),
            "{refused}"
        );
        let told = Port {
            peer_quanta: Some(1810),
            ..fast
        };
        straightway_scenario::check::checked(&told).unwrap();
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
        assert!(corrections[0].holds);
        assert_eq!(corrections[1].model_says, "409.6 Tb/s");
        assert!(!corrections[2].holds);
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

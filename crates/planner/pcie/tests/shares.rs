//! The shares that each arbiter gives to two devices on one link: by turns, by weight, by bytes.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::ops::ControlFlow;

use straightway_pcie::{self as pcie, PcieOutcome, PcieScenario};
use straightway_scenario::check;

/// The payload, the weight and the size of one of the two devices.
struct Device {
    weight: u64,
    mps: u64,
    size_mib: u64,
}

const PLAIN: Device = Device {
    weight: 1,
    mps: 256,
    size_mib: 4,
};

/// Two HCAs behind one switch write to the host and share its uplink.
fn shared(arbiter: &str, devices: &[Device; 2]) -> PcieOutcome {
    let top = format!(
        "title = \"two\"\n[pcie]\nmps = 4096\narbiter = \"{arbiter}\"\n\
         [[node]]\nid = \"host\"\nkind = \"host\"\n\
         [[node]]\nid = \"switch\"\nkind = \"switch\"\nparent = \"host\"\ngen = 5\nlanes = 16\n"
    );
    let below = devices.iter().enumerate().map(|(i, device)| {
        format!(
            "[[node]]\nid = \"hca{i}\"\nkind = \"hca\"\nparent = \"switch\"\ngen = 5\nlanes = 16\n\
             weight = {}\nmps = {}\n\
             [[stream]]\nfrom = \"hca{i}\"\nto = \"host\"\nsize = \"{}MiB\"\nio = \"64KiB\"\ndepth = 16\n",
            device.weight, device.mps, device.size_mib
        )
    });
    let text: String = std::iter::once(top).chain(below).collect();
    let scenario: PcieScenario = check::read(&text).unwrap();
    pcie::simulate(&scenario, |_| ControlFlow::Continue(())).unwrap()
}

/// The first device's share of what both get. The sizes are such that both should be done at the
/// same time, so what they got over all is what they got while they shared.
#[track_caller]
fn gives(arbiter: &str, devices: &[Device; 2], want: f64) {
    let outcome = shared(arbiter, devices);
    let rates: Vec<f64> = outcome.streams.iter().map(|s| s.overall_bytes_per_s.0).collect();
    let share = rates[0] / (rates[0] + rates[1]);
    assert!(
        (share - want).abs() < 0.02,
        "{arbiter} gives {share}, not {want}: {rates:?}"
    );
    let full = outcome.links.iter().map(|l| l.utilisation).fold(0.0, f64::max);
    assert!(full > 0.97, "the link is {full} busy");
}

#[test]
fn every_arbiter_gives_equal_devices_the_same() {
    for arbiter in ["round_robin", "weighted_round_robin", "weighted_fair"] {
        gives(arbiter, &[PLAIN, PLAIN], 0.5);
    }
}

#[test]
fn a_weight_of_three_gets_three_times_as_much() {
    for arbiter in ["weighted_round_robin", "weighted_fair"] {
        let heavy = Device {
            weight: 3,
            size_mib: 12,
            ..PLAIN
        };
        gives(arbiter, &[PLAIN, heavy], 0.25);
    }
    // Round robin ignores weights.
    let heavy = Device { weight: 3, ..PLAIN };
    gives("round_robin", &[PLAIN, heavy], 0.5);
}

#[test]
fn turns_go_by_packets_and_fairness_by_bytes() {
    let long = |weight, size_mib| Device {
        weight,
        mps: 1024,
        size_mib,
    };
    let short = |size_mib| Device { size_mib, ..PLAIN };
    for arbiter in ["round_robin", "weighted_round_robin"] {
        gives(arbiter, &[short(4), long(1, 16)], 0.2);
    }
    // On the wire a Gen5 write takes 24 bytes more than its payload.
    let (short_pays, long_pays) = (256.0 / 280.0, 1024.0 / 1048.0);
    gives(
        "weighted_fair",
        &[short(8), long(1, 8)],
        short_pays / (short_pays + long_pays),
    );
    gives(
        "weighted_fair",
        &[short(4), long(3, 13)],
        short_pays / (short_pays + 3.0 * long_pays),
    );
}

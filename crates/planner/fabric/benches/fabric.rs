//! The speed of the fabric simulator: events per second, microseconds per packet, and whether time is proportional to
//! packets.
//!
//! `cargo bench -p straightway-fabric --bench fabric` prints a table; `-- --json` one line of JSON per case. `--
//! quick` omits the long case.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::{env, ops::ControlFlow, time::Instant};

use straightway_core::{Bytes, Rate, Seconds, random::Seed};
use straightway_fabric::{
    Control, FabricScenario, FabricTopology, FabricTransport, LeafSpine, Permutation, Switch, Traffic, simulate,
};

/// 1,024 hosts under 32 leaves and 32 spines at 400 Gb/s, every host sending `bytes` to another.
fn permutation(bytes: u64, control: Control) -> FabricScenario {
    FabricScenario {
        title: format!("permutation {} {control:?}", Bytes(bytes)),
        about: String::new(),
        seed: Seed(1),
        duration: None,
        topology: FabricTopology::LeafSpine(LeafSpine {
            leaves: 32,
            spines: 32,
            hosts_per_leaf: 32,
            host_rate: Rate::gbit(400.0),
            uplink_rate: None,
            host_cable_m: 5.0,
            uplink_cable_m: 40.0,
        }),
        switch: Switch::default(),
        transport: FabricTransport {
            control,
            ..FabricTransport::default()
        },
        traffic: vec![Traffic::Permutation(Permutation {
            bytes: Some(Bytes(bytes)),
            start: Seconds(0.0),
        })],
        slow: Vec::new(),
        watch: Vec::new(),
        claims: Vec::new(),
    }
}

/// The CPU time of this thread in seconds, which is independent of other load; the wall clock if the system does not
/// report it.
fn processor_s(begin: Instant) -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = stat.split_whitespace().next().and_then(|n| n.parse().ok());
    ns.map_or_else(|| begin.elapsed().as_secs_f64(), |ns: f64| ns / 1e9)
}

/// The peak memory of this process, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM:"));
    line.and_then(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok())
        .map_or(0, |kib| kib / 1024)
}

fn main() {
    let args: Vec<String> = env::args().collect();
    let json = args.iter().any(|a| a == "--json");
    let quick = args.iter().any(|a| a == "quick");
    // 2 MB each is the case htsim was measured with; 50 MB is 1 ms at 400 Gb/s.
    let mut cases = vec![
        permutation(2_000_000, Control::Dcqcn),
        permutation(4_000_000, Control::Dcqcn),
        permutation(8_000_000, Control::Dcqcn),
        permutation(4_000_000, Control::None),
        permutation(4_000_000, Control::Dctcp),
    ];
    if !quick {
        cases.push(permutation(50_000_000, Control::Dcqcn));
    }
    if !json {
        println!(
            "{:<30} {:>11} {:>12} {:>8} {:>8} {:>9} {:>9} {:>9}",
            "case", "packets", "events", "wall s", "CPU s", "Mevents/s", "µs/packet", "peak MiB"
        );
    }
    let start = Instant::now();
    for case in cases {
        let begin = Instant::now();
        let before = processor_s(start);
        let outcome = simulate(&case, |_| ControlFlow::Continue(())).expect("a sound scenario");
        let wall = begin.elapsed().as_secs_f64();
        let s = processor_s(start) - before;
        let (events, packets) = (outcome.effort.events, outcome.effort.packets);
        let mevents = events as f64 / s / 1e6;
        let us = s * 1e6 / packets as f64;
        let mib = peak_mib();
        if json {
            println!(
                "{{\"case\":\"{}\",\"packets\":{packets},\"events\":{events},\"wall_s\":{wall:.3},\"cpu_s\":{s:.3},\
                 \"events_per_s\":{:.0},\"us_per_packet\":{us:.3},\"peak_mib\":{mib}}}",
                case.title,
                mevents * 1e6
            );
        } else {
            println!(
                "{:<30} {packets:>11} {events:>12} {wall:>8.2} {s:>8.2} {mevents:>9.2} {us:>9.3} {mib:>9}",
                case.title
            );
        }
    }
}

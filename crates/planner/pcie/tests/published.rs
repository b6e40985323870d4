//! The simulator compared with published figures, each with its source.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::ops::ControlFlow;

use straightway_core::{Bytes, Seconds};
use straightway_pcie::{self as pcie, PcieOutcome, PcieScenario, scenario::Mode};
use straightway_scenario::check;

fn scenario(name: &str) -> PcieScenario {
    let case = pcie::case(name).expect("an embedded scenario");
    check::read(case.text).unwrap_or_else(|refusals| panic!("{name}: {refusals}"))
}

fn simulate(scenario: &PcieScenario) -> PcieOutcome {
    pcie::simulate(scenario, |_| ControlFlow::Continue(())).unwrap()
}

#[track_caller]
fn near(what: &str, got: f64, want: f64, share: f64) {
    let difference = got / want - 1.0;
    assert!(
        difference.abs() <= share,
        "{what}: {got} against {want}, {:+.1} %",
        difference * 100.0
    );
}

#[test]
fn every_claim_of_a_scenario_is_judged_as_its_file_says() {
    for case in pcie::CASES {
        let scenario = scenario(case.name);
        let outcome = simulate(&scenario);
        let judged = &outcome.basis.corrections;
        assert!(judged.len() >= scenario.claims.len(), "{}", case.name);
        for (claim, judged) in scenario.claims.iter().zip(judged) {
            assert_eq!(claim.holds, judged.holds, "{}: {judged:?}", case.name);
        }
        assert_eq!(outcome.audit.credits_missing, 0, "{}", case.name);
    }
}

/// pcie-bench/data, `bw_dma_sz_sweep.dat`, NFP6000 on a Xeon E5-2637v3, Gen3 x8: every size, Gb/s.
const READS: [(u64, f64); 40] = [
    (16, 7.64),
    (32, 15.062),
    (63, 20.991),
    (64, 28.65),
    (65, 21.537),
    (127, 41.815),
    (128, 42.962),
    (129, 34.113),
    (192, 41.826),
    (255, 45.543),
    (256, 46.892),
    (257, 39.094),
    (320, 42.906),
    (384, 45.56),
    (511, 55.006),
    (512, 55.11),
    (513, 43.157),
    (576, 45.099),
    (640, 46.495),
    (704, 45.837),
    (767, 54.161),
    (768, 47.855),
    (769, 46.005),
    (832, 47.183),
    (896, 48.414),
    (960, 48.23),
    (1023, 54.025),
    (1024, 49.103),
    (1025, 47.607),
    (1279, 49.734),
    (1280, 49.422),
    (1281, 50.057),
    (1535, 55.273),
    (1536, 55.344),
    (1537, 48.192),
    (1791, 54.051),
    (1792, 55.439),
    (1793, 50.039),
    (2047, 55.216),
    (2048, 55.248),
];
const WRITES: [(u64, f64); 40] = [
    (16, 6.091),
    (32, 12.169),
    (63, 23.889),
    (64, 24.269),
    (65, 24.605),
    (127, 42.071),
    (128, 42.402),
    (129, 27.157),
    (192, 40.42),
    (255, 50.348),
    (256, 50.545),
    (257, 37.381),
    (320, 46.545),
    (384, 49.907),
    (511, 54.269),
    (512, 54.443),
    (513, 46.112),
    (576, 50.49),
    (640, 51.527),
    (704, 51.31),
    (767, 53.022),
    (768, 53.091),
    (769, 49.977),
    (832, 51.92),
    (896, 52.327),
    (960, 52.034),
    (1023, 54.391),
    (1024, 54.444),
    (1025, 51.298),
    (1279, 53.573),
    (1280, 53.615),
    (1281, 52.134),
    (1535, 54.409),
    (1536, 54.444),
    (1537, 52.419),
    (1791, 53.84),
    (1792, 53.869),
    (1793, 52.456),
    (2047, 54.418),
    (2048, 54.444),
];

/// The simulator's rate for transfers of `bytes`, in Gb/s.
fn nfp_gbit(mode: Mode, bytes: u64) -> f64 {
    let mut scenario = scenario("nfp6000-writes");
    let stream = &mut scenario.stream[0];
    stream.mode = Some(mode);
    stream.io = Bytes(bytes);
    stream.size = Bytes(bytes * 20_000);
    if mode == Mode::Read {
        std::mem::swap(&mut stream.from, &mut stream.to);
    }
    simulate(&scenario).total_bytes_per_s.unwrap().as_gbit()
}

#[test]
fn every_size_of_pcie_bench_is_met_within_8_percent_on_average_and_25_at_most() {
    for (mode, table) in [(Mode::Write, &WRITES[..]), (Mode::Read, &READS[..])] {
        let errors: Vec<(u64, f64, f64)> = table
            .iter()
            .map(|(bytes, gbit)| (*bytes, *gbit, nfp_gbit(mode, *bytes) / gbit - 1.0))
            .collect();
        for (bytes, gbit, error) in &errors {
            println!("{mode:?} {bytes:5} {gbit:7.3} {:+6.1} %", error * 100.0);
        }
        let mean = errors.iter().map(|(.., e)| e.abs()).sum::<f64>() / errors.len() as f64;
        assert!(mean <= 0.08, "{mode:?}: {:.1} % on average", mean * 100.0);
        for (bytes, _, error) in &errors {
            assert!(error.abs() <= 0.25, "{mode:?} of {bytes} B: {:+.1} %", error * 100.0);
        }
    }
}

/// pcie-bench/data, `lat_dma_sizes.dat`, the same card and host: the median latency of a DMA read, ns.
const LATENCIES: [(u64, f64); 15] = [
    (4, 586.0),
    (8, 586.0),
    (16, 586.0),
    (24, 586.0),
    (32, 586.0),
    (48, 600.0),
    (64, 600.0),
    (128, 626.0),
    (256, 666.0),
    (512, 746.0),
    (768, 840.0),
    (1024, 906.0),
    (1280, 973.0),
    (1520, 1040.0),
    (2048, 1173.0),
];

#[test]
fn the_latency_of_a_dma_read_is_met_within_3_percent_at_every_size() {
    for (bytes, ns) in LATENCIES {
        let mut scenario = scenario("nfp6000-writes");
        let stream = &mut scenario.stream[0];
        stream.mode = Some(Mode::Read);
        std::mem::swap(&mut stream.from, &mut stream.to);
        (stream.io, stream.size, stream.depth) = (Bytes(bytes), Bytes(bytes * 1000), 1);
        let simulated = simulate(&scenario).streams[0].latency.median_s.0 * 1e9;
        println!("{bytes:5} {ns:6.0} {:+5.1} %", (simulated / ns - 1.0) * 100.0);
        near(&format!("{bytes} B"), simulated, ns, 0.03);
    }
}

#[test]
fn the_simulator_reaches_the_analytic_reference_to_half_a_percent() {
    // 4 KB writes over one Gen3 x8 link: pcie-bench's own model, in Gb/s.
    for (mps, gbit) in [(128, 47.72), (256, 52.92), (512, 54.75)] {
        let mut scenario = scenario("nfp6000-writes");
        scenario.pcie.mps = Bytes(mps);
        scenario.node[1].dma_writes_per_s = None;
        scenario.stream[0].io = Bytes(4096);
        let outcome = simulate(&scenario);
        near(
            &format!("MPS {mps}"),
            outcome.total_bytes_per_s.unwrap().as_gbit(),
            gbit,
            0.005,
        );
    }
}

#[test]
fn a_fence_costs_what_a_read_behind_a_write_was_measured_to_cost() {
    // pcie-bench: 613 ns for an 8-byte write followed by a read, 506 for the read alone. The
    // fence is sent right behind the write, so the write's own time on the wire is not in it.
    let mut scenario = scenario("nfp6000-writes");
    let stream = &mut scenario.stream[0];
    stream.io = Bytes(8);
    stream.size = Bytes(8 * 1000);
    stream.depth = 1;
    // The shortest fence that a scenario may have: here every I/O ends with a fence anyway.
    stream.fence = Some(Bytes(64));
    // Measured with the card's command interface, which bypasses its DMA engine.
    scenario.node[1].dma_latency = None;
    let outcome = simulate(&scenario);
    assert_eq!(outcome.streams[0].fences, 1000);
    near("write then read", outcome.streams[0].latency.median_s.0, 613e-9, 0.02);
}

#[test]
fn a_gpu_on_another_switch_of_a_dgx2_gets_forty_percent_less() {
    // GPUDirect Storage Benchmarking and Configuration Guide: 6.52 and 3.89 GiB/s.
    let same = simulate(&scenario("dgx2-same-switch"));
    let other = simulate(&scenario("dgx2-other-switch"));
    let ratio = other.total_bytes_per_s.unwrap().0 / same.total_bytes_per_s.unwrap().0;
    near("other to same", ratio, 3.89 / 6.52, 0.02);
    assert_eq!(other.bottleneck.what, "peer traffic of host");
}

/// The part of a 4 KB read that is spent on the links; the rest is the drive's.
const TRANSFER_S: f64 = 1.5e-6;

#[test]
fn dgx2_reads_follow_littles_law_within_3_4_percent() {
    // The guide's 4 KB random reads: threads and reads a second. Its latencies lie between 135
    // and 163 µs; the slow end fits up to 16 threads, the fast end 32 and 64.
    let series = [
        (4, 24_468.0, 163e-6),
        (8, 49_255.0, 163e-6),
        (16, 100_928.0, 163e-6),
        (32, 238_245.0, 135e-6),
        (64, 484_612.0, 135e-6),
    ];
    let reads = |threads: u64, latency_s: f64| {
        let mut scenario = scenario("dgx2-iops");
        scenario.stream[0].depth = threads / 2;
        scenario.node[3].latency = Some(Seconds(latency_s - TRANSFER_S));
        let outcome = simulate(&scenario);
        outcome.streams.iter().map(|s| s.ios_per_s).sum::<f64>()
    };
    for (threads, published, latency_s) in series {
        near(
            &format!("{threads} threads"),
            reads(threads, latency_s),
            published,
            0.034,
        );
    }
    // At 128 threads the drives themselves slow down: the figure lies between the two.
    let (slow, fast) = (reads(128, 163e-6), reads(128, 135e-6));
    assert!(slow < 850_240.0 && 850_240.0 < fast, "{slow} to {fast}");
}

#[test]
fn the_articles_eight_gpus_share_the_storage_switchs_uplink() {
    let outcome = simulate(&scenario("article-8gpu"));
    assert_eq!(outcome.bottleneck.what, "link storage → host");
    assert!(
        outcome.bottleneck.why.contains("round robin"),
        "{:?}",
        outcome.bottleneck
    );
    let rates = outcome.streams.iter().map(|s| s.bytes_per_s.0);
    let (least, most) = rates.fold((f64::MAX, 0.0f64), |(a, b), r| (a.min(r), b.max(r)));
    assert!(most / least < 1.01, "round robin is fair: {least} to {most}");
}

#[test]
fn strict_classes_starve_the_lowest_and_one_class_does_not() {
    let mut scenario = scenario("article-classes");
    let rate = |outcome: &PcieOutcome, name: &str| {
        let stream = outcome.streams.iter().find(|s| s.name == name);
        stream.expect("the stream is there").bytes_per_s.0
    };
    let strict = simulate(&scenario);
    scenario.channels = pcie::scenario::Channels::default();
    let one = simulate(&scenario);
    let (held, shared) = (rate(&strict, "gpu → hca"), rate(&one, "gpu → hca"));
    assert!(held < 0.85 * shared, "{held} against {shared}");
}

#[test]
fn a_short_run_names_the_full_link() {
    // 4 MiB per drive: of half a millisecond, the first byte takes a sixth.
    let mut scenario = scenario("dgx-h100");
    // At full line rate the ports and the drives together exceed the links of the GPUs.
    scenario.machine.as_mut().unwrap().ports[0].efficiency = 1.0;
    let outcome = simulate(&scenario);
    let held = |name: &str| {
        let stream = outcome.streams.iter().find(|s| s.name == name);
        stream.expect("the stream is there").limit.what.clone()
    };
    assert_eq!(held("nvme0 → gpu0"), "link nvme0 → switch0");
    assert_eq!(held("hca0 → gpu0"), "link switch0 → gpu0");
}

#[test]
fn four_streams_give_the_most_and_a_newer_uplink_helps_the_article_most() {
    let scenario = scenario("article-8gpu");
    let go = |_| ControlFlow::Continue(());
    let sweep = pcie::sweep(&scenario, go).unwrap();
    assert_eq!(sweep.best_streams, Some(4));
    let changes = pcie::what_if(&scenario, &simulate(&scenario), go).unwrap();
    assert_eq!(changes[0].text, "make the link of storage Gen6 x16");
    assert!(changes.is_sorted_by(|a, b| a.gain >= b.gain));
    // A drive on its GPU's switch does not use the shared uplink, which the others then fill.
    let moved = changes.iter().find(|c| c.text == "move nvme0 to switch0");
    near("a drive beside its GPU", moved.unwrap().gain, 13.29 / 51.98, 0.03);
}

//! `straightway sim fabric`, `headroom` and `ecn` as a user runs them: exit codes, JSON, refusals.

use std::process::{Command, Output};

fn sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_straightway"))
        .arg("sim")
        .args(args)
        .output()
        .expect("the binary was built for this test")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

#[test]
fn a_run_puts_data_on_stdout_and_its_speed_on_stderr() {
    let output = sim(&["fabric", "--scenario", "microburst"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).contains("leaf0->h0"));
    assert!(!stdout(&output).contains('\x1b'), "no colour in a pipe");
    let talk = stderr(&output);
    assert!(talk.contains("M events/s") && talk.contains("µs a packet"), "{talk}");
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_others() {
    let run = |seed| stdout(&sim(&["fabric", "--scenario", "microburst", "--seed", seed, "--json"]));
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7"), run("8"));
}

#[test]
fn a_deadlock_exits_with_1_and_names_the_circle() {
    let output = sim(&["fabric", "--scenario", "deadlock-ring", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let cycle = told["outcome"]["deadlock"]["happened"]["cycle"].as_array();
    assert_eq!(cycle.map(Vec::len), Some(5));
}

#[test]
fn a_lossless_fabric_that_loses_packets_exits_with_1() {
    let short = "switch.pfc.headroom=10KiB";
    let args = [
        "fabric",
        "--scenario",
        "incast-pfc",
        "--set",
        short,
        "--set",
        "duration=300us",
    ];
    let output = sim(&args);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("the headroom is too small"));
}

#[test]
fn a_run_that_ends_while_its_queues_fill_is_called_too_short() {
    // From 300 µs on the same scenario shows that congestion spreads.
    for duration in ["1us", "10us", "100us"] {
        let set = format!("duration={duration}");
        let page = stdout(&sim(&["fabric", "--scenario", "incast-dcqcn", "--set", &set]));
        assert!(page.contains("too short"), "{page}");
        assert!(!page.contains("✓ Nothing was lost"), "{page}");
    }
    let page = stdout(&sim(&["fabric", "--scenario", "rail"]));
    assert!(page.contains("✓ Nothing was lost"), "{page}");
}

#[test]
fn nonsense_is_refused_by_field_value_and_range() {
    for (args, says) in [
        (
            vec!["fabric", "--scenario", "nowhere"],
            "`straightway plan list` lists them",
        ),
        (
            vec!["fabric", "--scenario", "rail", "--set", "topology.rail.host_rate=0"],
            "topology.rail.host_rate = 0 B/s: allowed is from",
        ),
        (
            vec!["fabric", "--scenario", "rail", "--set", "traffic[0].shift.bytes=900TB"],
            "at most 1000000000 packets",
        ),
        (vec!["headroom", "--cable-m", "-5"], "cable_m = -5 m: allowed is from 0"),
        (vec!["headroom", "--rate", "0"], "rate = 0 B/s"),
        (
            vec!["ecn", "--flows", "0"],
            "'0' for '--flows <FLOWS>': it must be a whole number, at least 1",
        ),
        (vec!["ecn", "--pmax", "NaN"], "ecn.pmax = NaN"),
    ] {
        let output = sim(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(says), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn the_headroom_of_the_sn4280_is_printed_to_the_byte() {
    let args = [
        "headroom",
        "--rule",
        "sn4280",
        "--asic",
        "spectrum-3",
        "--small-packet-share",
        "0.01",
        "--json",
    ];
    let told = stdout(&sim(&args));
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    let xoff: Vec<u64> = told
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|row| row["headroom"]["xoff"].as_u64())
        .collect();
    assert_eq!(
        xoff,
        [37_888, 43_008, 75_776, 43_008, 51_200, 118_784, 73_728, 91_136, 225_280]
    );
}

#[test]
fn the_fixed_point_of_ten_flows_at_40g_is_where_equation_11_has_it() {
    let args = ["ecn", "--flows", "10", "--rate", "40Gb/s", "--packet", "1000", "--json"];
    let told: serde_json::Value = serde_json::from_str(&stdout(&sim(&args))).expect("JSON");
    let marked = told["choice"]["fixed"]["marked"].as_f64().expect("a number");
    assert!((marked / 6.03e-3 - 1.0).abs() < 0.02, "{marked}");
}

//! `--sweep` of the cluster planner and both simulators: one table, one JSON, any number of threads.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

const PCIE: [&str; 6] = [
    "sim",
    "pcie",
    "--scenario",
    "nfp6000-writes",
    "--sweep",
    "pcie.mps=128,256,512",
];

const FABRIC: [&str; 8] = [
    "sim",
    "fabric",
    "--scenario",
    "microburst",
    "--sweep",
    "seed=1..4:4",
    "--set",
    "duration=300us",
];

fn on_threads(threads: &str, args: &[&str], form: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_straightway"))
        .args(args)
        .args(form)
        .env("RAYON_NUM_THREADS", threads)
        .output()
        .expect("the binary was built for this test");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is text");
    let code = output.status.code().expect("it was not killed");
    (code, text(output.stdout), text(output.stderr))
}

fn swept(args: &[&str], form: &[&str]) -> String {
    let (code, out, talk) = on_threads("2", args, form);
    assert_eq!(code, 0, "{talk}");
    out
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
    let plan = [
        "plan",
        "checkpoint",
        "--sweep",
        "cluster.gpus=64..4096:4:log",
        "--sweep",
        "trials.seed=1,2",
    ];
    for args in [&plan[..], &PCIE, &FABRIC] {
        for form in [&["--json"][..], &["--csv"], &[]] {
            let (one, many) = (on_threads("1", args, form), on_threads("5", args, form));
            assert_eq!(one.0, 0, "{args:?}: {}", one.2);
            assert_eq!(one, many, "{args:?} {form:?}");
        }
    }
}

#[test]
fn every_topic_and_simulator_answers_the_same_on_any_number_of_threads() {
    let (_, listed, _) = on_threads("1", &["plan", "list"], &["--json"]);
    let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
    let commands = listed.iter().filter_map(|entry| entry["command"].as_str());
    let topics: BTreeSet<&str> = commands.filter(|c| c.starts_with("plan ")).collect();
    assert_eq!(topics.len(), 11, "{topics:?}");
    let mut asked: Vec<Vec<&str>> = topics.iter().map(|c| c.split(' ').collect()).collect();
    asked.push(vec!["plan", "claims"]);
    asked.push(vec!["sim", "ecn", "--flows", "4"]);
    asked.push(vec!["sim", "headroom"]);
    asked.push(vec!["sim", "pcie", "--scenario", "gen6"]);
    asked.push(vec!["sim", "fabric", "--scenario", "microburst"]);
    for args in asked {
        // The speed of a simulator goes to stderr.
        let [one, many] = ["1", "5"].map(|threads| on_threads(threads, &args, &["--json"]));
        assert_eq!(one.0, 0, "{args:?}: {}", one.2);
        assert_eq!((one.0, one.1), (many.0, many.1), "{args:?}");
    }
}

#[test]
fn another_seed_is_another_answer() {
    let points: Vec<Value> = serde_json::from_str(&swept(&FABRIC, &["--json"])).unwrap();
    assert_eq!(points.len(), 4);
    assert_eq!(points[1]["set"]["seed"], "2");
    assert_eq!(points[1]["answer"]["seed"], 2);
    assert_ne!(points[0]["answer"]["traffic"], points[1]["answer"]["traffic"]);
}

#[test]
fn a_point_of_a_sweep_equals_a_single_run() {
    let points: Vec<Value> = serde_json::from_str(&swept(&PCIE, &["--json"])).unwrap();
    let alone = swept(&PCIE[..4], &["--set", "pcie.mps=512", "--json"]);
    let mut alone: Value = serde_json::from_str(&alone).unwrap();
    // In a single run, the title lists the changes.
    assert_eq!(
        alone["outcome"]["title"],
        "NFP6000, 64-byte DMA writes, but pcie.mps = 512"
    );
    alone["outcome"]["title"] = points[2]["answer"]["title"].clone();
    let assumptions = |outcome: &mut Value| outcome["basis"]["assumptions"].take();
    let mut point = points[2]["answer"].clone();
    assert_ne!(assumptions(&mut point), assumptions(&mut alone["outcome"]));
    assert_eq!(point, alone["outcome"]);
}

#[test]
fn a_sweep_is_a_table_a_plot_csv_and_a_page() {
    let page = swept(&PCIE, &[]);
    assert!(page.starts_with("PCIe over pcie.mps"), "{page}");
    assert!(page.contains("bound by") && page.contains("DMA engine"), "{page}");
    let csv = swept(&PCIE, &["--csv", "--show", "total_bytes_per_s"]);
    assert_eq!(csv.lines().next(), Some("pcie_mps,total_bytes_per_s"));
    assert_eq!(csv.lines().count(), 4, "{csv}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    let html = ["--html", file.to_str().expect("a plain name")];
    swept(&PCIE, &html);
    let html = std::fs::read_to_string(&file).unwrap();
    // The payload of a TLP does not matter for writes of 64 bytes: that is a sentence and not a chart.
    assert!(html.contains("The same at every point: ") && !html.contains("src=\"http"));
}

#[test]
fn invalid_sweeps_are_refused_per_point_or_at_once() {
    let some = [&PCIE[..5], &["pcie.mps=200,256"]].concat();
    let points: Vec<Value> = serde_json::from_str(&swept(&some, &["--json"])).unwrap();
    assert_eq!(points[0]["refused"][0]["field"], "pcie.mps");
    assert!(points[1]["answer"].is_object());
    for (values, form, says) in [
        ("pcie.mps=200", &[][..], "pcie.mps = 200"),
        ("pcie.mps=1..9:1001", &[], "at most 1000 points in all"),
        ("pcie.mps=256", &["--show", "x"], "a figure of the answer; it has title"),
        ("pcie.mps=256", &["--what-if"], "cannot be used with"),
    ] {
        let args = [&PCIE[..5], &[values]].concat();
        let (code, out, talk) = on_threads("2", &args, form);
        assert_eq!((code, out.as_str()), (2, ""), "{values}");
        assert!(talk.contains(says), "{values}: {talk}");
    }
}

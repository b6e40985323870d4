//! The commands of the cluster planner as a user sees them.

use std::{collections::BTreeSet, path::Path, process::Command};

fn straightway(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_straightway"))
        .args(args)
        .env("NO_COLOR", "1")
        .output()
        .expect("the binary was built for this test");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is text");
    (
        output.status.code().expect("it was not killed"),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn every_scenario_is_listed_with_the_command_that_runs_it() {
    let (code, listed, _) = straightway(&["plan", "list", "--json"]);
    assert_eq!(code, 0);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let of = |entry: &serde_json::Value, key: &str| entry[key].as_str().unwrap().to_owned();
    let listed = listed.as_array().unwrap().iter();
    let listed: Vec<_> = listed
        .map(|entry| (of(entry, "scenario"), of(entry, "command")))
        .collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scenarios");
    let files = std::fs::read_dir(folder).unwrap();
    let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let files: BTreeSet<String> = files
        .filter_map(|name| name.strip_suffix(".toml").map(str::to_owned))
        .collect();
    let names: BTreeSet<String> = listed.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(names, files);
    for (name, command) in &listed {
        let (_, text, _) = straightway(&["plan", "list", name]);
        assert!(text.contains("title = "), "{name}");
        // Running all of them takes long. It is enough that the command knows the name.
        let mut args: Vec<&str> = command.split(' ').collect();
        args.extend(["--scenario", name, "--set", "nowhere=1"]);
        let (code, _, talk) = straightway(&args);
        assert_eq!(code, 2, "{name}");
        assert!(talk.contains("nowhere = 1: allowed is"), "{name}: {talk}");
    }
}

#[test]
fn every_planner_scenario_shows_what_was_published() {
    let (_, listed, _) = straightway(&["plan", "list", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    for entry in listed.as_array().unwrap() {
        let name = entry["scenario"].as_str().unwrap();
        let command = entry["command"].as_str().unwrap();
        let Some(topic) = command.strip_prefix("plan ") else {
            continue;
        };
        let (code, page, talk) = straightway(&["plan", topic, "--scenario", name]);
        assert_eq!((code, talk.as_str()), (0, ""), "{name}");
        assert!(page.contains("Published figures"), "{name}");
    }
}

#[test]
fn a_correction_is_shown_with_the_figure_of_the_article() {
    let (_, page, _) = straightway(&["plan", "registration", "--scenario", "article-registration-1mb"]);
    let line = page.lines().find(|line| line.contains("from the 3rd I/O on")).unwrap();
    assert!(line.contains("NO"), "{line}");
    assert!(page.contains("346 µs per I/O exceeds 50 + 80"), "{page}");
}

/// The page's verdict for these arguments, as one line.
fn page(args: &[&str]) -> String {
    let (code, page, talk) = straightway(args);
    assert_eq!((code, talk.as_str()), (0, ""), "{args:?}");
    page.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn verdicts_name_the_bottleneck_and_a_tie_has_no_winner() {
    let late = page(&[
        "plan",
        "checkpoint",
        "--set",
        "model.size=60TB",
        "--set",
        "storage.rate=100GB/s",
        "--set",
        "schedule.interval=610s",
    ]);
    assert!(
        late.contains("Saving through host memory and directly has the same goodput"),
        "{late}"
    );
    assert!(late.contains("both are bound by the storage"), "{late}");
    let level = page(&["plan", "architecture", "--set", "client_rate=1GB/s"]);
    assert!(level.contains("all write the checkpoint in the same time"), "{level}");
    let alone = page(&["plan", "checkpoint", "--set", "node.standard_depth=1"]);
    assert!(
        alone.contains("standard is bound by depth 1 over the latency, direct by the storage"),
        "{alone}"
    );
}

#[test]
fn a_job_that_fails_too_often_gets_no_recommendation() {
    let page = page(&["plan", "checkpoint", "--set", "cluster.mtbf_per_gpu=1s"]);
    assert!(page.contains("✗ The job fails every 977 µs, too often"), "{page}");
    assert!(!page.contains("has the highest goodput"), "{page}");
}

#[test]
fn slow_storage_is_named_as_the_cause() {
    let page = page(&["plan", "checkpoint", "--set", "storage.rate=1MB/s"]);
    assert!(page.contains("the storage is too slow"), "{page}");
    assert!(!page.contains("too often"), "{page}");
}

#[test]
fn the_title_lists_changes_and_the_basis_their_origin() {
    let args = [
        "plan",
        "checkpoint",
        "--scenario",
        "llama3-405b",
        "--set",
        "node.host.cores=8",
        "--basis",
    ];
    let page = page(&args);
    assert!(page.contains("54 days, but node.host.cores = 8"), "{page}");
    for says in ["user: the user", "scenario: the scenario", "default: "] {
        assert!(page.contains(says), "{says}: {page}");
    }
    let (_, json, _) = straightway(&[&args[..6], &["--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let assumptions = json["answer"]["basis"]["assumptions"].as_array().unwrap();
    let origin = |path: &str| {
        let of = assumptions.iter().find(|a| a["path"] == path).expect(path);
        of["origin"].as_str().unwrap().to_owned()
    };
    assert_eq!(assumptions[0]["path"], "storage.rate");
    assert_eq!(origin("storage.rate"), "scenario");
    assert_eq!(origin("node.host.cores"), "user");
    assert_eq!(origin("schedule.restart"), "default");
}

#[test]
fn every_csv_cell_of_an_answer_is_a_number_or_a_word() {
    for topic in [
        "checkpoint",
        "ingest",
        "s3",
        "reduction",
        "architecture",
        "headroom",
        "rail",
        "dpu",
        "transport",
    ] {
        let (code, csv, _) = straightway(&["plan", topic, "--csv"]);
        assert_eq!(code, 0, "{topic}");
        for cell in csv.lines().skip(1).flat_map(|line| line.split(',')) {
            let has_unit = cell
                .split_once(' ')
                .is_some_and(|(number, _)| number.parse::<f64>().is_ok());
            assert!(!has_unit, "{topic}: {cell}");
        }
    }
}

#[test]
fn a_run_without_failures_has_no_margin() {
    let page = page(&[
        "plan",
        "checkpoint",
        "--set",
        "cluster.mtbf_per_gpu=1e12s",
        "--set",
        "schedule.interval=1min",
    ]);
    assert!(page.contains("simulated – – –"), "{page}");
}

#[test]
fn a_sweep_over_a_count_shows_the_counts_it_answered_for() {
    let args = ["plan", "checkpoint", "--sweep", "cluster.gpus=100..101:5", "--csv"];
    let (code, csv, talk) = straightway(&args);
    assert_eq!((code, talk.as_str()), (0, ""));
    let gpus: Vec<_> = csv.lines().skip(1).map(|line| line.split(',').next()).collect();
    assert_eq!(gpus, [Some("100"), Some("101")], "{csv}");
}

#[test]
fn a_simulator_refers_scenarios_of_the_planner_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    std::fs::write(&file, "[checkpoint.cluster]\ngpus = 5\n").unwrap();
    let (code, _, talk) = straightway(&["sim", "pcie", "--scenario", file.to_str().unwrap()]);
    assert_eq!(code, 2);
    assert!(talk.contains("run `straightway plan checkpoint"), "{talk}");
}

#[test]
fn invalid_arguments_are_errors_that_name_the_allowed_values() {
    for (args, says) in [
        (
            vec!["plan", "checkpoint", "--scenario", "llama"],
            "did you mean llama3-405b?",
        ),
        (
            vec!["plan", "checkpoint", "--scenario", ""],
            "no scenario or file is named",
        ),
        (
            vec!["plan", "qos", "--set", "seed=1e308"],
            "seed = 1e308: allowed is a whole number from 0",
        ),
        (
            vec!["plan", "checkpoint", "--set", "cluster.gpus=1.4"],
            "cluster.gpus = 1.4: allowed is a whole number from 1 to 10000000",
        ),
        (
            vec!["plan", "dpu", "--scenario", "llama3-405b"],
            "is about checkpoint: run `straightway plan checkpoint",
        ),
        (
            vec!["plan", "dpu", "--scenario", "pcie-gen6"],
            "is for another command: run `straightway sim pcie --scenario pcie-gen6`",
        ),
        (
            vec!["sim", "fabric", "--scenario", "llama3-405b"],
            "is for another command: run `straightway plan checkpoint",
        ),
        (
            vec!["plan", "checkpoint", "--set", "cluster.gpus=0"],
            "cluster.gpus = 0: allowed is a whole number",
        ),
        (
            vec!["plan", "checkpoint", "--sweep", "cluster.gpus=1..2"],
            "how many steps?",
        ),
        (
            vec!["plan", "checkpoint", "--sweep", "x=1"],
            "x = 1: allowed is one of `model`",
        ),
        (
            vec!["plan", "checkpoint", "--sweep", "cluster.gpus=80,90", "--show", "x"],
            "a figure of the answer; it has",
        ),
        (
            vec!["plan", "checkpoint", "--scenario", "/dev/zero"],
            "the limit for scenarios is",
        ),
        (vec!["plan", "checkpoint", "--set", "schedule.interval=1ms"], "at least"),
    ] {
        let (code, out, talk) = straightway(&args);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}");
        assert!(talk.contains(says), "{args:?}: {talk}");
    }
}

#[test]
fn csv_has_a_row_per_point_and_html_is_self_contained() {
    let (code, csv, _) = straightway(&["plan", "s3", "--sweep", "rate=100GB/s..300GB/s:3", "--csv"]);
    assert_eq!((code, csv.lines().count()), (0, 4), "{csv}");
    assert!(csv.starts_with("rate_bytes_per_s,"), "{csv}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    let (code, _, talk) = straightway(&["plan", "registration", "--html", file.to_str().unwrap()]);
    assert_eq!(code, 0, "{talk}");
    let html = std::fs::read_to_string(&file).unwrap();
    assert!(
        html.contains("<svg") && html.contains("libfabric#4738"),
        "{}",
        html.len()
    );
    assert!(!html.contains("src=\"http"));
}

#[test]
fn compare_shows_measurements_and_predictions() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("measured.toml");
    let compare = |text: &str| {
        std::fs::write(&file, text).unwrap();
        straightway(&["plan", "compare", "--measured", path(&file)])
    };
    let good =
        "io = \"4MiB\"\ndepth = 48\nto_gpu = \"55.1GB/s\"\n[drive]\nread = \"3.4GB/s\"\n[staged]\nread = \"3.3GB/s\"\n";
    let (code, page, _) = compare(good);
    assert_eq!(code, 0, "{page}");
    assert!(page.contains("read, through a ring"), "{page}");
    let (code, ..) = compare(&good.replace("3.3GB/s", "1GB/s"));
    assert_eq!(code, 1, "a prediction that misses is a no");
    let (code, _, talk) = compare("[drive]\nread = -1\n");
    assert_eq!(code, 2);
    assert!(talk.contains("line 2: drive.read"), "{talk}");
}

/// `compare` uses the measurements that `bench` has stored.
#[test]
fn compare_uses_the_profile_of_bench() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_straightway"))
            .args(args)
            .current_dir(place.path())
            .env("XDG_STATE_HOME", place.path().join("state"))
            .output()
            .expect("the binary was built for this test");
        let text = String::from_utf8(output.stdout).expect("output is text");
        let talk = String::from_utf8(output.stderr).expect("output is text");
        (output.status.code().expect("it was not killed"), text, talk)
    };
    let (code, _, talk) = run(&["plan", "compare"]);
    assert_eq!(code, 2);
    assert!(talk.contains("run `straightway bench` first"), "{talk}");

    let small = [
        "bench", ".", "--size", "32MiB", "--runs", "1", "--block", "1MiB", "--depth", "4", "--json",
    ];
    let (code, measured, talk) = run(&small);
    assert_eq!(code, 0, "{talk}");
    let measured: serde_json::Value = serde_json::from_str(&measured).unwrap();
    let stages = measured["stages"].as_array().unwrap();

    let (code, page, talk) = run(&["plan", "compare"]);
    assert!(code == 0 || code == 1, "{talk}");
    let (same, compared, _) = run(&["plan", "compare", "--json"]);
    assert_eq!(code, same);
    let compared: serde_json::Value = serde_json::from_str(&compared).unwrap();
    let rows = compared[0]["rows"].as_array().unwrap();
    let mut missed = 0;
    for (what, whole) in [
        ("read, page cache cold", "cache_read"),
        ("read, through a ring", "ring_read"),
        ("write, page cache, synced", "cache_write"),
        ("write, through a ring", "ring_write"),
        ("copy on one drive", "drive_copy"),
    ] {
        assert!(page.contains(what), "{page}");
        let row = rows.iter().find(|row| row["what"] == what).expect(what);
        let rounds = stages.iter().find(|s| s["stage"] == whole).expect(what);
        let mut rates: Vec<f64> = serde_json::from_value(rounds["rates_bytes_per_s"].clone()).unwrap();
        assert_eq!(rates.len(), 3, "one run makes three rounds");
        rates.sort_by(f64::total_cmp);
        let [calibrated, measured, ratio] = ["calibrated", "measured", "ratio"].map(|key| row[key].as_f64().unwrap());
        assert!(
            (measured / rates[1] - 1.0).abs() < 1e-9,
            "{what}: {measured} and {rates:?}"
        );
        assert!(calibrated > 0.0 && (ratio - calibrated / measured).abs() < 1e-9);
        assert!(row["spread"].is_f64() && row["why"].is_null(), "{row}");
        missed += i32::from((ratio - 1.0).abs() > 0.15);
    }
    assert_eq!(rows.len(), 5);
    // With five rows, none may miss.
    assert_eq!(code, i32::from(missed > 0), "{page}");
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a temporary folder has a plain name")
}

#[test]
fn one_figure_is_shown_without_a_sweep() {
    let args = [
        "plan",
        "checkpoint",
        "--set",
        "model.parameters=70B",
        "--show",
        "size_bytes",
    ];
    let (code, json, _) = straightway(&[&args[..], &["--json"]].concat());
    assert_eq!(code, 0);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["size_bytes"], 980e9);
    assert!(page(&args).contains("size_bytes 913 GiB"), "{}", page(&args));
    let (code, _, talk) = straightway(&["plan", "checkpoint", "--show", "nothing"]);
    assert_eq!(code, 2);
    assert!(
        talk.contains("show = nothing: allowed is a figure of the answer"),
        "{talk}"
    );
}

#[test]
fn a_required_rate_that_is_missed_is_said_in_words() {
    let dpu = page(&["plan", "dpu", "--set", "rate=1PB/s"]);
    assert!(
        dpu.contains("The required 1000 TB/s are not reached: 25 GB/s are the most, bound by erasure coding."),
        "{dpu}"
    );
    let rail = page(&["plan", "rail", "--set", "wanted=1TB/s"]);
    assert!(
        rail.contains("The required 1 TB/s are not reached: 360 GB/s are the most, bound by network ports."),
        "{rail}"
    );
}

#[test]
fn a_further_gpu_behind_a_narrow_link_lowers_the_rate_of_the_node() {
    // Three ports on two switches: the third GPU shares the port of its switch, and all get no more than it.
    let page = page(&[
        "plan",
        "rail",
        "--set",
        "machine.switches=2",
        "--set",
        "machine.ports[0].count=3",
        "--set",
        "machine.uplink.lanes=1",
        "--set",
        "gpus=4",
    ]);
    assert!(page.contains("every GPU gets an equal share"), "{page}");
}

#[test]
fn the_page_of_a_checkpoint_says_what_decides_the_recovery_and_how_to_measure_it() {
    let page = page(&["plan", "checkpoint"]);
    assert!(page.contains("schedule.restart decides its range"), "{page}");
    assert!(page.contains("kill one rank"), "{page}");
}

#[test]
fn drives_in_the_node_are_planned_without_a_hop() {
    let rate = |settings: &[&str]| {
        let mut args = vec!["plan", "checkpoint", "--json", "--show", "direct.rate_bytes_per_s"];
        for setting in ["node.hop=none", "node.machine.drives[0].rate=5GB/s"]
            .iter()
            .chain(settings)
        {
            args.extend(["--set", setting]);
        }
        let (code, json, talk) = straightway(&args);
        assert_eq!(code, 0, "{talk}");
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        json["direct.rate_bytes_per_s"].as_f64().unwrap()
    };
    assert!((rate(&[]) - 40e9).abs() < 1.0);
    assert!((rate(&["node.machine.drives[0].count=2"]) - 10e9).abs() < 1.0);
    assert!((rate(&["node.machine.drives[0].write_rate=1GB/s"]) - 8e9).abs() < 1.0);
    let (code, _, talk) = straightway(&["plan", "ingest", "--set", "node.hop=no"]);
    assert_eq!(code, 2);
    assert!(talk.contains("\"none\" for drives in the node"), "{talk}");
}

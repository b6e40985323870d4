//! What people and programs read: colours, the words of receipts, errors as JSON, schemas, and reports.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
};

use rustix::process::Signal;
use serde_json::Value;

use crate::test_dir::{Ran, TestDir, noise};

const RED_ERROR: &str = "\u{1b}[1;31merror:\u{1b}[0m";

fn run(dir: &TestDir, line: &str) -> Ran {
    dir.run(line.split(' '))
}

/// A model of one file with one tensor.
fn model(dir: &TestDir, bytes: usize) {
    let header = format!("{{\"a\":{{\"dtype\":\"U8\",\"shape\":[{bytes}],\"data_offsets\":[0,{bytes}]}}}}");
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&noise(bytes, 1));
    fs::write(dir.path("model.safetensors"), file).unwrap();
}

#[test]
fn colours_follow_the_option_and_the_environment() {
    let dir = TestDir::new();
    let err = |variables: &[(&str, &str)], args: &str| dir.run_with(variables, args.split(' ')).err;
    let missing = "copy missing host:";
    assert!(!err(&[], missing).contains('\u{1b}'), "a pipe has no colours");
    let forced = err(&[], "--color always copy missing host:");
    assert!(forced.contains(RED_ERROR) && !forced.contains("\\u{1b}"), "{forced}");
    assert!(err(&[], "copy missing host: --color=always").contains(RED_ERROR));
    assert!(err(&[("CLICOLOR_FORCE", "1")], missing).contains(RED_ERROR));
    assert!(!err(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], missing).contains('\u{1b}'));
    assert!(!err(&[("CLICOLOR_FORCE", "1")], "--color never copy missing host:").contains('\u{1b}'));
    // The messages of the argument parser have the same colours.
    assert!(err(&[], "--color always copy --nonsense").contains("\u{1b}[1m\u{1b}[31merror:"));
    assert!(!err(&[("CLICOLOR_FORCE", "1")], "--color never copy --nonsense").contains('\u{1b}'));
    dir.file("small", 5000, 1);
    let out = dir.run_with(&[("CLICOLOR_FORCE", "1")], ["copy", "small", "host:"]).out;
    assert!(
        out.starts_with("\u{1b}[1m4.88 KiB in "),
        "a receipt begins in bold: {out:?}"
    );
}

#[test]
fn small_transfers_have_no_rates_and_memory_is_a_word() {
    let dir = TestDir::new();
    dir.file("small", 24, 1);
    let out = run(&dir, "copy small host:").out;
    assert!(
        out.starts_with("24 B in ") && out.contains(", too small for a rate\n"),
        "{out}"
    );
    assert!(!out.contains("per GB") && !out.contains("bound by"), "{out}");
    model(&dir, 100);
    let out = run(&dir, "load model.safetensors").out;
    assert!(
        out.starts_with("1 of 1 tensor in 1 file, to host memory: headers read in "),
        "{out}"
    );
    assert!(out.contains("memory allocated in "), "{out}");
    let out = run(&dir, "inspect model.safetensors").out;
    assert!(out.contains("model.safetensors, to host memory\n"), "{out}");
    assert!(out.contains("A load reads 100 B of 1 tensor from 1 file;"), "{out}");
    dir.folder("place");
    let bench = "checkpoint bench place --size 1MiB --ranks 1 --rounds 1";
    let out = run(&dir, bench).out;
    assert!(
        out.starts_with("Checkpoints of 1 MiB from 1 rank in host memory\n"),
        "{out}"
    );
    assert!(out.contains("A save is durable after "), "{out}");
    assert!(!out.contains("host:"), "{out}");
}

#[test]
fn with_json_an_error_is_an_object() {
    let dir = TestDir::new();
    for (line, kind) in [
        ("copy --json missing host:", "not_found"),
        ("copy --json --nonsense", "usage"),
        ("plan s3 --json --set nowhere=1", "other"),
        ("load --json .", "not_found"),
    ] {
        let ran = run(&dir, line);
        assert_eq!(ran.code, Some(2), "{line}");
        let object: Value = serde_json::from_str(&ran.err).unwrap_or_else(|e| panic!("{line}: {e}: {}", ran.err));
        assert_eq!(object["schema"], "straightway.error/1", "{line}");
        assert!(!object["error"].as_str().unwrap().is_empty(), "{line}");
        assert!(object.as_object().unwrap().contains_key("hint"), "{line}");
        if kind != "not_found" || line.starts_with("copy") {
            assert_eq!(object["kind"], kind, "{line}: {object}");
        }
    }
    assert!(
        run(&dir, "copy missing host:").err.starts_with("error: "),
        "text stays text"
    );
}

#[test]
fn every_json_document_has_a_schema() {
    let dir = TestDir::new();
    model(&dir, 100);
    dir.folder("steps");
    for (line, schema) in [
        ("inspect --json model.safetensors", "straightway.inspect/1"),
        ("load --json model.safetensors", "straightway.receipt/2"),
        ("ls --json .", "straightway.ls/1"),
        ("plan s3 --json", "straightway.plan-s3/1"),
        ("plan s3 --json --parameters", "straightway.plan-s3/1"),
        ("plan s3 --json --sweep processes=1,2", "straightway.plan-s3/1"),
        ("plan list --json", "straightway.plan-list/1"),
        ("plan claims --json", "straightway.plan-claims/1"),
        ("sim headroom --json", "straightway.sim-headroom/1"),
        ("checkpoint ls --json steps", "straightway.checkpoint-ls/1"),
        ("doctor --json .", "straightway.doctor/1"),
        ("profile show --json", "straightway.profile-show/1"),
        ("profile clear --json", "straightway.profile-clear/1"),
    ] {
        let ran = run(&dir, line);
        let documents = serde_json::Deserializer::from_str(&ran.out).into_iter::<Value>();
        let documents: Vec<Value> = documents
            .collect::<Result<_, _>>()
            .unwrap_or_else(|e| panic!("{line}: {e}"));
        assert!(!documents.is_empty(), "{line}: {}", ran.err);
        for document in &documents {
            match document.as_array() {
                Some(items) => assert!(items.iter().all(|item| item["schema"] == schema), "{line}"),
                None => assert_eq!(document["schema"], schema, "{line}"),
            }
        }
    }
}

#[test]
fn a_report_names_its_command_version_and_date() {
    let dir = TestDir::new();
    model(&dir, 100);
    let lines = [
        "plan qos --html page.html",
        "plan s3 --sweep processes=1,2,4 --html page.html",
        "inspect model.safetensors --html page.html",
        "sim headroom --html page.html",
    ];
    for line in lines {
        assert_eq!(run(&dir, line).code, Some(0), "{line}");
        let page = fs::read_to_string(dir.path("page.html")).unwrap();
        let fact = |name: &str, value: &str| page.contains(&format!("<dt>{name}</dt><dd>{value}"));
        assert!(fact("command", &format!("straightway {line}</dd>")), "{line}");
        assert!(fact("version", "straightway "), "{line}");
        assert!(page.contains(" GMT</dd>"), "{line}");
        assert!(page.contains("max-width:112rem"), "{line}");
        // Every chart has a title, and a name on its y axis.
        for chart in page.split("<svg ").skip(1) {
            assert!(!chart.contains("<title></title>"), "{line}");
            assert!(!chart.contains("<text x=\"16\" y=\"44\"></text>"), "{line}");
        }
    }
}

#[test]
fn the_parameters_of_a_topic_are_listed() {
    let dir = TestDir::new();
    let out = run(&dir, "plan checkpoint --parameters").out;
    for words in [
        "cluster.gpus",
        "a whole number from 1 to",
        "node.machine.ports[0].rate",
        "absent",
    ] {
        assert!(out.contains(words), "{words}: {out}");
    }
    let json: Value = serde_json::from_str(&run(&dir, "plan checkpoint --parameters --json").out).unwrap();
    let list = json["parameters"].as_array().unwrap();
    let gpus = list.iter().find(|one| one["path"] == "cluster.gpus").unwrap();
    assert_eq!(
        (&gpus["unit"], &gpus["text"]),
        (&"count".into(), &"The number of GPUs in the job.".into())
    );
    // The list of a scenario has its values.
    let named = run(&dir, "plan checkpoint --scenario llama3-405b --parameters --json").out;
    let named: Value = serde_json::from_str(&named).unwrap();
    let of = |json: &Value| {
        json["parameters"]
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["path"] == "cluster.gpus")
            .unwrap()["default"]
            .clone()
    };
    assert_ne!(of(&named), of(&json));
}

#[test]
fn the_profile_is_shown_and_cleared_and_bench_succeeds_without_a_place_for_it() {
    let dir = TestDir::new();
    dir.folder("place");
    let bench = "bench place --size 4MiB --runs 1 --depth 1 --block 64KiB --work read --route direct";
    let nothing = run(&dir, "profile show").out;
    assert!(nothing.contains("profile.toml: there is no such file."), "{nothing}");
    let ran = run(&dir, bench);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let shown = run(&dir, "profile show").out;
    assert!(
        shown.contains("profile.toml, written ") && shown.contains("64 KiB"),
        "{shown}"
    );
    let json: Value = serde_json::from_str(&run(&dir, "profile show --json").out).unwrap();
    assert_eq!(json["profile"]["is_used"], true, "{json}");
    assert!(
        json["profile"]["age_s"].as_f64().is_some_and(|age| age < 600.0),
        "{json}"
    );
    let cleared = run(&dir, "profile clear").out;
    assert!(cleared.starts_with("removed ") && !dir.profile().exists(), "{cleared}");
    assert_eq!(run(&dir, "profile clear").out, "nothing was kept\n");
    // A home that cannot be written to: /proc refuses new folders even for root.
    for variables in [
        &[("XDG_STATE_HOME", "/proc/none")][..],
        &[("XDG_STATE_HOME", ""), ("HOME", "")],
    ] {
        let ran = dir.run_with(variables, bench.split(' '));
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        assert!(ran.out.contains("64 KiB"), "{}", ran.out);
        assert!(ran.err.contains("warning: the profile was not stored"), "{}", ran.err);
        assert!(
            ran.err.contains("--no-profile") && ran.err.contains("XDG_STATE_HOME"),
            "{}",
            ran.err
        );
    }
}

#[test]
fn a_target_prints_addresses_to_paste_and_a_line_for_each_host() {
    let dir = TestDir::new();
    model(&dir, 100);
    dir.folder("served");
    fs::copy(dir.path("model.safetensors"), dir.path("served/model.safetensors")).unwrap();
    let mut child = dir
        .command(["target", "served", "--listen", "127.0.0.1:0"])
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    assert!(next().starts_with("serving 1 namespace, "));
    let uri = next().trim().to_owned();
    assert!(
        uri.starts_with("nvme-tcp://127.0.0.1:") && uri.ends_with("/served/"),
        "{uri}"
    );
    let ran = dir.run(["load", &uri]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let (came, left) = (next(), next());
    assert!(
        came.starts_with("info: host nqn.") && came.contains(" connected from 127.0.0.1:"),
        "{came}"
    );
    assert!(
        left.contains(" left; it has read ") && left.ends_with(" and written 0 B"),
        "{left}"
    );
    // A subsystem is listed the same with and without a slash.
    let subsystem = uri.trim_end_matches("/served/");
    let with = dir.run(["ls", &format!("{subsystem}/")]);
    assert_eq!(dir.run(["ls", subsystem]).out, with.out);
    assert!(with.out.contains("served/"), "{}", with.out);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    child.wait().unwrap();
}

#[test]
fn a_target_that_everybody_can_reach_warns() {
    let dir = TestDir::new();
    dir.file("file", 512, 1);
    let said = |line: &str| run(&dir, &format!("target file --for 10ms --listen {line}")).err;
    let open = said("0.0.0.0:0");
    assert!(open.contains("warning: everybody who can reach 0.0.0.0:"), "{open}");
    assert!(open.contains("hint: ") && open.contains("--allow NQN"), "{open}");
    assert!(!said("127.0.0.1:0").contains("warning"));
    assert!(!said("0.0.0.0:0 --allow nqn.2026-11.org.example:one").contains("warning"));
}

#[test]
fn verbose_output_says_what_is_done() {
    let dir = TestDir::new();
    model(&dir, 3 << 20);
    let said = run(&dir, "load -v model.safetensors").err;
    assert!(said.contains("info: ") && said.contains("model.safetensors"), "{said}");
    let said = run(&dir, "copy -v --verify model.safetensors copy").err;
    assert!(said.contains("info: ") && said.contains("verif"), "{said}");
    fs::set_permissions(dir.path("copy"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(
        run(&dir, "load model.safetensors").err,
        "",
        "without -v there is nothing"
    );
}

#[test]
fn the_effort_of_a_simulation_is_below_its_page() {
    let dir = TestDir::new();
    // Both streams in one pipe, in the order of the writes.
    let shell = "exec \"$0\" sim pcie --scenario article-1gpu 2>&1";
    let ran = dir.run_program("sh", &["-c", shell, env!("CARGO_BIN_EXE_straightway")]);
    let at = |words: &str| ran.out.find(words).unwrap_or_else(|| panic!("{words}: {}", ran.out));
    assert!(at("Streams") < at("TLP/s"), "{}", ran.out);
    assert!(ran.out.contains("valid for: server hosts"), "{}", ran.out);
}

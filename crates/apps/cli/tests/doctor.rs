//! `straightway doctor` as a user runs it: exit codes, JSON, captures.

use std::{
    path::Path,
    process::{Command, Output},
};

use straightway_standin::expand;

fn doctor(args: &[&str], folder: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_straightway"))
        .arg("doctor")
        .args(args)
        .current_dir(folder)
        .output()
        .expect("the binary was built for this test")
}

fn capture() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let virtual_machine = include_str!("../../../data/probe/fixtures/virtual-machine.txt");
    let h200 = include_str!("../../../data/probe/fixtures/h200-vm.txt");
    for manifest in [virtual_machine, h200] {
        expand(manifest, folder.path()).expect("the fixture is a manifest");
    }
    folder
}

#[test]
fn a_capture_that_is_not_direct_exits_with_1_and_says_why_on_stdout() {
    let machine = capture();
    let output = doctor(&["--root", ".", "/models"], machine.path());
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stderr.is_empty());
    let text = String::from_utf8(output.stdout).unwrap();
    let verdict = text.lines().next().unwrap();
    assert!(verdict.starts_with("not direct: vda is a virtio disk"), "{verdict}");
    assert!(!text.contains('\x1b'), "no colour if stdout is not a terminal");
}

#[test]
fn json_carries_every_check_with_its_state() {
    let machine = capture();
    let output = doctor(&["--json", "--root", "."], machine.path());
    let diagnosis: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(diagnosis["verdict"], "not_direct");
    let checks = diagnosis["checks"].as_array().unwrap();
    let udev = checks.iter().find(|check| check["id"] == "storage.udev").unwrap();
    assert_eq!(udev["state"], "fail");
    assert!(udev["mend"].as_str().unwrap().contains("/run/udev/data/b254:0"));
}

#[test]
fn the_doctor_examines_this_machine() {
    let folder = tempfile::tempdir().unwrap();
    let output = doctor(&["--json"], folder.path());
    let diagnosis: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let is_direct = diagnosis["verdict"] == "direct";
    assert_eq!(output.status.code(), Some(i32::from(!is_direct)));
    assert!(diagnosis["measured"]["host"].is_object());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_missing_path_or_capture_exits_with_2_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for args in [&["no-such-file"] as &[&str], &["--root", "no-such-file"]] {
        let output = doctor(args, folder.path());
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
        assert!(String::from_utf8(output.stderr).unwrap().contains("no-such-file"));
    }
}

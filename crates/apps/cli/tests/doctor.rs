//! `straightway doctor` as a user runs it: exit codes, JSON, captures.

use std::{
    path::Path,
    process::{Command, Output},
};

use straightway_standin::{expand, library_path};

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

#[test]
fn a_bundle_is_written_whole_with_receipts_and_replaces_only_an_older_bundle() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("data"), vec![7; 1 << 20]).unwrap();
    let receipt = r#"{"schema": "straightway.receipt/2", "warnings": ["from https://me:planted@host/x"]}"#;
    std::fs::write(folder.path().join("receipt.json"), receipt).unwrap();
    for _ in 0..2 {
        let output = doctor(
            &["--bundle", "out.tar.gz", "--receipt", "receipt.json", "data"],
            folder.path(),
        );
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(matches!(output.status.code(), Some(0 | 1)), "{told}");
        assert!(
            told.contains("bundle out.tar.gz") && told.contains("issue tracker"),
            "{told}"
        );
    }
    let unpacked = Command::new("tar")
        .args(["-xzf", "out.tar.gz"])
        .current_dir(folder.path())
        .status();
    assert!(unpacked.unwrap().success());
    let file = |name: &str| std::fs::read_to_string(folder.path().join("straightway-bundle").join(name)).unwrap();
    let diagnosis: serde_json::Value = serde_json::from_str(&file("diagnosis.json")).unwrap();
    assert!(diagnosis["measured"]["host"].is_object());
    assert!(file("receipt-1.json").contains("https://[masked]@host/x"));
    assert!(file("README.txt").contains("verdict.txt"));
}

#[test]
fn a_bundle_in_place_of_another_file_or_with_another_receipt_is_refused_before_the_examination() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model"), "weights").unwrap();
    for (args, why) in [
        (&["--bundle", "model"] as &[&str], "not an older report"),
        (&["--bundle", "b", "--receipt", "model"], "it is not a receipt"),
        (&["--bundle", "no/b"], "no/b"),
        (
            &["--bundle", "b", "s3://models"],
            "--bundle is for a path of this machine",
        ),
    ] {
        let output = doctor(args, folder.path());
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(why), "{args:?}: {told}");
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(std::fs::read_to_string(folder.path().join("model")).unwrap(), "weights");
}

/// The stand-in for the driver counts bytes as nvidia-fs does. The machine's other checks still fail here: the verdict
/// follows from the transfer alone.
#[test]
fn the_bundle_of_a_direct_transfer_has_the_proof_and_its_receipt() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(folder.path().join("data"), vec![7; 1 << 20]).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_straightway"))
        .args(["doctor", "--bundle", "out.tar.gz", "data"])
        .current_dir(folder.path())
        .env("LD_LIBRARY_PATH", library_path())
        .env("STRAIGHTWAY_STANDIN", "cufile=nvfs")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}");
    let unpacked = Command::new("tar")
        .args(["-xzf", "out.tar.gz"])
        .current_dir(folder.path())
        .status();
    assert!(unpacked.unwrap().success());
    let file = |name: &str| std::fs::read_to_string(folder.path().join("straightway-bundle").join(name)).unwrap();
    assert!(file("verdict.txt").starts_with("direct: "), "{}", file("verdict.txt"));
    let diagnosis: serde_json::Value = serde_json::from_str(&file("diagnosis.json")).unwrap();
    let receipt = &diagnosis["measured"]["gpu"]["receipt"];
    assert_eq!(receipt["bytes"], 1 << 20, "{receipt}");
    assert_eq!(receipt["routes"][0]["reason"], "proven_nvidia_fs", "{receipt}");
    assert!(file("environment.txt").contains("STRAIGHTWAY_STANDIN=cufile=nvfs"));
}

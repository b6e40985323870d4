//! `copy - TARGET` and `copy SOURCE -`: standard input and output.

use std::{
    fs,
    io::{Read, Write},
    process::{Child, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use straightway_lab::S3Server;

use crate::test_dir::{TestDir, noise};

/// Starts the binary with pipes for all three streams.
fn start(dir: &TestDir, weed: Option<&S3Server>, args: &[&str]) -> Child {
    let mut command = dir.command(args);
    if let Some(weed) = weed {
        command
            .env("AWS_ENDPOINT_URL_S3", weed.url())
            .env("AWS_ACCESS_KEY_ID", S3Server::ACCESS_KEY_ID)
            .env("AWS_SECRET_ACCESS_KEY", S3Server::SECRET_ACCESS_KEY);
    }
    command.stdin(Stdio::piped()).spawn().unwrap()
}

/// Runs the binary with this input. Returns the exit code and both outputs.
fn run(dir: &TestDir, weed: Option<&S3Server>, args: &[&str], input: &[u8]) -> (Option<i32>, Vec<u8>, String) {
    let mut child = start(dir, weed, args);
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // In pieces of odd sizes, as a program would write them.
    let writer = std::thread::spawn(move || {
        for piece in input.chunks(65_537) {
            if stdin.write_all(piece).is_err() {
                return;
            }
        }
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    (
        output.status.code(),
        output.stdout,
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn standard_input_becomes_a_file_of_any_length() {
    let dir = TestDir::new();
    for bytes in [0, 1, 4096, (1 << 20) - 1, 1 << 20, 3_000_001] {
        let input = noise(bytes, bytes as u64);
        let (code, out, err) = run(&dir, None, &["copy", "--json", "-", "new"], &input);
        assert_eq!(code, Some(0), "{err}");
        let receipt: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(receipt["bytes"], bytes as u64);
        assert!(fs::read(dir.path("new")).unwrap() == input, "{bytes}");
    }
    assert_eq!(dir.names(), ["new"]);
}

#[test]
fn a_file_goes_to_standard_output_and_the_receipt_to_stderr() {
    let dir = TestDir::new();
    for bytes in [0, 1, 4097, (64 << 20) + 4097] {
        let source = noise(bytes, 1);
        fs::write(dir.path("source"), &source).unwrap();
        let (code, out, err) = run(&dir, None, &["copy", "source", "-"], b"");
        assert_eq!(code, Some(0), "{err}");
        assert!(out == source, "{bytes}: {} bytes", out.len());
        let said = match bytes {
            0 => "nothing to move",
            1 | 4097 => "too small for a rate",
            _ => "bound by",
        };
        assert!(err.contains(" in ") && err.contains(said), "{err}");
    }
    let (code, _, err) = run(&dir, None, &["copy", "-q", "source", "-"], b"");
    assert_eq!((code, &*err), (Some(0), ""));
    assert_eq!(dir.names(), ["source"], "no file is called `-`");
}

#[test]
fn a_closed_output_ends_the_copy_without_a_message() {
    let dir = TestDir::new();
    dir.file("source", 8 << 20, 1);
    let mut child = start(&dir, None, &["copy", "source", "-"]);
    let mut first = [0; 100];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(141));
    assert_eq!(output.stderr, b"");
    assert!(first[..] == noise(8 << 20, 1)[..100]);
}

#[test]
fn an_interrupted_input_leaves_nothing() {
    let dir = TestDir::new();
    let weed = S3Server::shared();
    let buckets = weed.map(|weed| (Some(weed), "s3://lab/stopped/input"));
    for (weed, target) in [(None, "new")].into_iter().chain(buckets) {
        let mut child = start(&dir, weed, &["copy", "-", target]);
        let mut stdin = child.stdin.take().unwrap();
        // More than one part, and the pipe stays open.
        stdin.write_all(&noise(40 << 20, 1)).unwrap();
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{target}: {err}");
        assert!(err.contains("standard input: it was interrupted"), "{err}");
        drop(stdin);
        if weed.is_some() {
            let (code, ..) = run(&dir, weed, &["ls", target], b"");
            assert_eq!(code, Some(2), "there is no object");
            let (_, aborted, _) = run(
                &dir,
                weed,
                &["rm", "--uploads", "--older-than", "0s", "s3://lab/stopped"],
                b"",
            );
            assert_eq!(aborted, b"", "the upload was aborted");
        }
    }
    assert_eq!(dir.names(), [""; 0]);
}

#[test]
fn standard_input_becomes_an_object_of_any_length() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    let dir = TestDir::new();
    // Empty, short, one part, a byte more, and two windows with a part that is not full.
    let part = 8 << 20;
    for bytes in [0, 5, part, part + 1, 9 * part + 4097] {
        let input = noise(bytes, bytes as u64);
        let target = format!("s3://lab/streams/{bytes}");
        let (code, out, err) = run(
            &dir,
            Some(weed),
            &["copy", "--json", "--expected-size", "100MB", "-", &target],
            &input,
        );
        assert_eq!(code, Some(0), "{bytes}: {err}");
        let receipt: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(receipt["bytes"], bytes as u64);
        let (code, back, err) = run(&dir, Some(weed), &["copy", "-q", &target, "-"], b"");
        assert_eq!(code, Some(0), "{err}");
        assert!(back == input, "{bytes}: {} bytes came back", back.len());
    }
    // Parts of 32 MiB, as without an expected size.
    let input = noise((33 << 20) + 1, 3);
    let (code, _, err) = run(&dir, Some(weed), &["copy", "-", "s3://lab/streams/usual"], &input);
    assert_eq!(code, Some(0), "{err}");
    let (_, back, _) = run(&dir, Some(weed), &["copy", "-q", "s3://lab/streams/usual", "-"], b"");
    assert!(back == input);
    let args = ["copy", "--expected-size", "9MB", "-", "s3://lab/streams/long"];
    let (code, _, err) = run(&dir, Some(weed), &args, &noise(20_000_000, 1));
    assert!(
        code == Some(2) && err.contains("longer than") && err.contains("--expected-size"),
        "{err}"
    );
    let (code, ..) = run(&dir, Some(weed), &["ls", "s3://lab/streams/long"], b"");
    assert_eq!(code, Some(2), "there is no object");
    assert_eq!(dir.names(), [""; 0]);
}

#[test]
fn streams_that_make_no_sense_are_refused() {
    let dir = TestDir::new();
    dir.folder("folder");
    dir.file("file", 10, 1);
    for (args, words) in [
        (&["copy", "-", "file", "folder"][..], "only source"),
        (&["copy", "-", "-"], "a file or an object"),
        (&["copy", "-", "host:"], "a file or an object"),
        (&["copy", "-", "folder"], "has no name"),
        (&["copy", "-", "s3://bucket/"], "has no name"),
        (&["copy", "--verify", "-", "new"], "read again"),
        (&["copy", "--limit", "1MB/s", "-", "new"], "page cache"),
        (&["copy", "file", "file", "-"], "one file"),
        (&["copy", "folder", "-"], "it is a folder"),
        (&["copy", "missing", "-"], "missing"),
    ] {
        let (code, out, err) = run(&dir, None, args, b"input");
        assert_eq!(code, Some(2), "{args:?}: {err}");
        assert!(err.contains(words) && out.is_empty(), "{args:?}: {err}");
    }
    let (_, out, _) = run(&dir, None, &["copy", "--dry-run", "-", "new"], b"input");
    assert_eq!(out, b"would copy standard input to new\n");
    assert_eq!(dir.names(), ["file", "folder"]);
    // A file of that name.
    fs::write(dir.path("-"), "dash").unwrap();
    dir.receipt(&["./-", "copied"]);
    assert_eq!(fs::read(dir.path("copied")).unwrap(), b"dash");
}

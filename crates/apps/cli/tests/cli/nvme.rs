//! Every command can use a folder that `target` serves like a path, and invalid input is a clear error without delay.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    os::unix::fs::symlink,
    process::{Child, ChildStderr},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::test_dir::{Ran, TestDir, noise, routed};

const NQN: &str = "nqn.2026-11.org.example:cli";

/// A target that runs until this is dropped.
struct Serving {
    child: Child,
    /// Kept open, so that the target can write to it.
    _stderr: BufReader<ChildStderr>,
    /// Its address.
    address: String,
}

impl Serving {
    fn start(dir: &TestDir, line: &str) -> Self {
        let fixed = ["target", "--listen", "127.0.0.1:0", "--nqn", NQN];
        let mut command = dir.command(fixed.into_iter().chain(line.split(' ')));
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        stderr.read_line(&mut said).unwrap();
        let address = said.trim().rsplit(' ').next().unwrap_or_default();
        assert!(address.starts_with("127.0.0.1:"), "{said}");
        Self {
            address: address.to_owned(),
            child,
            _stderr: stderr,
        }
    }

    /// The URI of a name that it serves.
    fn uri(&self, name: &str) -> String {
        format!("nvme-tcp://{}/{NQN}/{name}", self.address)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A safetensors file whose tensors have odd lengths, and begin at odd offsets.
fn odd_file(seed: u64) -> Vec<u8> {
    let lengths = [1_000_003, 7, 1, 512, 65_537];
    let (mut at, mut header) = (0, serde_json::Map::new());
    for (number, length) in lengths.into_iter().enumerate() {
        let entry = serde_json::json!({
            "dtype": "U8", "shape": [length], "data_offsets": [at, at + length],
        });
        header.insert(format!("layers.{seed}.{number}"), entry);
        at += length;
    }
    let header = serde_json::to_string(&header).unwrap();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&noise(at, seed));
    bytes
}

/// A folder with two such files, one of them in a subfolder, and other files.
fn model(dir: &TestDir) {
    fs::create_dir_all(dir.path("model/deep")).unwrap();
    fs::write(dir.path("model/1.safetensors"), odd_file(1)).unwrap();
    fs::write(dir.path("model/2.safetensors"), odd_file(2)).unwrap();
    fs::write(dir.path("model/deep/config.json"), b"{}").unwrap();
    fs::write(dir.path("model/empty"), b"").unwrap();
}

fn succeeds(dir: &TestDir, args: &[&str]) -> String {
    let ran = dir.run(args);
    assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.err);
    ran.out
}

fn json(dir: &TestDir, args: &[&str]) -> Value {
    serde_json::from_str(&succeeds(dir, args)).unwrap()
}

/// Runs a command that has to fail in bounded time with these words, a hint, and the name of the object.
fn fails(dir: &TestDir, args: &[&str], words: &[&str], seconds_max: u64) {
    let start = Instant::now();
    let Ran { code, err, .. } = dir.run(args);
    let took = start.elapsed();
    assert_eq!(code, Some(2), "{args:?}: {err}");
    for word in words.iter().chain(&["hint: "]) {
        assert!(err.contains(word), "{args:?}: no {word:?} in {err}");
    }
    assert!(took < Duration::from_secs(seconds_max), "{args:?}: {took:?}");
}

#[test]
fn a_served_model_is_used_like_a_path_with_every_block_size() {
    let dir = TestDir::new();
    model(&dir);
    let payload = 2 * (1_000_003 + 7 + 1 + 512 + 65_537);
    for block in ["512", "4096"] {
        let target = Serving::start(&dir, &format!("model --block {block}"));
        let uri = target.uri("model");
        let listed = succeeds(&dir, &["ls", &format!("nvme-tcp://{}/", target.address)]);
        assert!(listed.contains(&format!("{NQN}/")), "{listed}");
        let listed = succeeds(&dir, &["ls", "-r", &uri]);
        for name in ["1.safetensors", "2.safetensors", "deep/config.json", "empty"] {
            assert!(listed.contains(name), "{listed}");
        }
        let listed = succeeds(&dir, &["ls", &target.uri("model/deep/config.json")]);
        assert!(listed.contains("2 B"), "{listed}");
        let inspected = json(&dir, &["inspect", "--json", &uri]);
        assert_eq!(inspected["tensors"].as_array().unwrap().len(), 10);
        let receipt = json(&dir, &["load", "--json", "--verify", &uri]);
        assert_eq!(receipt["bytes"], payload);
        assert_eq!(routed(&receipt, "read", Some("socket")), payload);
        assert_eq!(receipt["routes"][0]["reason"], "tcp");
        let one = ["load", "--json", "--filter", "layers.2.3", &uri];
        assert_eq!(json(&dir, &one)["bytes"], 512);
        for digests in ["none", "both"] {
            let back = format!("back-{block}-{digests}");
            let options = ["--nvme-digests", digests, "--verify"];
            let copied = [&["copy", "--json", &uri, &back][..], &options].concat();
            let receipt = json(&dir, &copied);
            assert!(receipt["sockets"]["connections"].as_u64() > Some(0), "{receipt}");
            for name in ["1.safetensors", "2.safetensors", "deep/config.json", "empty"] {
                let read = |folder: &str| fs::read(dir.path(folder).join(name)).unwrap();
                assert!(read("model") == read(&back), "{name}");
            }
        }
    }
}

/// Changes a file of a served folder.
fn change(dir: &TestDir, name: &str, how: &str, seed: u64) {
    let path = dir.path("served").join(name);
    match how {
        "longer" => fs::write(path, noise(900_001, seed)).unwrap(),
        "shorter" => fs::write(path, noise(4097, seed)).unwrap(),
        "empty" => fs::write(path, b"").unwrap(),
        "replaced" => {
            fs::write(dir.path("other"), noise(300_003, seed)).unwrap();
            fs::rename(dir.path("other"), path).unwrap();
        }
        _ => fs::remove_file(path).unwrap(),
    }
}

#[test]
fn a_copy_has_the_current_content_although_the_target_has_not_scanned_since() {
    let dir = TestDir::new();
    fs::create_dir(dir.path("served")).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(dir.path("served").join(name), noise(100_000, 1)).unwrap();
    }
    let target = Serving::start(&dir, "served --rescan 0s");
    // Each state follows each other one. A removed file is created again.
    let states = "longer shorter empty longer empty shorter longer replaced empty replaced shorter replaced longer \
                  removed longer removed replaced";
    for (seed, how) in (2..).zip(states.split_whitespace()) {
        change(&dir, "b", how, seed);
        let verify: &[&str] = if seed % 2 == 0 { &["--verify"] } else { &[] };
        let copied = |from: &str, to: &str| dir.run([&["copy", &target.uri(from), to], verify].concat());
        let one = copied("served/b", "one");
        assert_eq!(
            one.code,
            Some(if how == "removed" { 2 } else { 0 }),
            "{how}: {}",
            one.err
        );
        let all = format!("all-{seed}");
        let ran = copied("served", &all);
        assert_eq!(ran.code, Some(0), "{how}: {}", ran.err);
        let read = |path: String| fs::read(dir.path(&path)).ok();
        let expected = read("served/b".to_owned());
        assert!(read(format!("{all}/b")) == expected, "{how}, {seed}");
        assert!(how == "removed" || read("one".to_owned()) == expected, "{how}, {seed}");
        assert!(read(format!("{all}/a")) == read("served/a".to_owned()));
    }
}

#[test]
fn the_doctor_and_the_bench_read_a_namespace() {
    let dir = TestDir::new();
    fs::create_dir(dir.path("served")).unwrap();
    dir.file("served/large", 5_000_001, 3);
    let target = Serving::start(&dir, "served");
    let told = succeeds(&dir, &["doctor", &target.uri("served")]);
    for words in [
        "ready: ",
        "pass  access",
        "pass  latency",
        "pass  throughput",
        "connections",
        "RTT",
        "retransmits",
        "stalls",
        "lo:",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let told = json(&dir, &["doctor", "--json", &target.uri("served/large")]);
    assert_eq!(told["checks"].as_array().unwrap().len(), 4, "{told}");
    let ran = dir.run(["doctor", &target.uri("served/none")]);
    assert_eq!(ran.code, Some(1), "{}", ran.out);
    assert!(ran.out.contains("fail  access "), "{}", ran.out);
    let uri = target.uri("served/large");
    let point = ["--block", "1MiB", "--depth", "4", "--runs", "1", "--json"];
    let told = json(&dir, &[&["bench", &uri][..], &point].concat());
    assert_eq!(told["bytes"], 5_000_001);
    assert_eq!(told["points"][0]["receipt"]["bytes"], 5_000_001);
    let told = succeeds(&dir, &["copy", &uri, "host:"]);
    assert!(told.contains("connection") && told.contains("RTT"), "{told}");
}

#[test]
fn files_are_copied_into_namespaces_that_are_large_enough() {
    let dir = TestDir::new();
    dir.file("odd", 1_000_003, 1);
    dir.file("large", (1 << 20) + 1, 2);
    dir.file("kept", 4096, 3);
    let target = Serving::start(&dir, "--memory scratch=1MiB --writable");
    let uri = target.uri("scratch");
    let receipt = dir.receipt(&["odd", &uri]);
    assert_eq!(routed(&receipt, "write", Some("socket")), 1_000_003);
    dir.receipt(&[&uri, "back"]);
    let back = fs::read(dir.path("back")).unwrap();
    assert_eq!(back.len(), 1 << 20);
    assert!(back[..1_000_003] == noise(1_000_003, 1)[..]);
    // By its number it is the same namespace.
    dir.receipt(&[&target.uri("1"), "again"]);
    assert!(fs::read(dir.path("again")).unwrap() == back);
    let large = ["copy", "large", &uri];
    fails(
        &dir,
        &large,
        &[&uri, "1048576 bytes, and 1048577 are to be written"],
        10,
    );
    let missing = target.uri("none");
    fails(&dir, &["copy", "odd", &missing], &["does not support it", &missing], 10);
    let target = Serving::start(&dir, "kept");
    let uri = target.uri("kept");
    fails(&dir, &["copy", "odd", &uri], &[&uri], 10);
    fails(&dir, &["copy", "kept", &uri], &[&uri, "write protected"], 10);
    assert!(fs::read(dir.path("kept")).unwrap() == noise(4096, 3));
}

#[test]
fn a_path_that_cannot_be_served_is_an_error_with_a_hint() {
    let dir = TestDir::new();
    dir.file("file", 4096, 1);
    for (path, why) in [
        ("missing", "No such file or directory"),
        ("missing/file", "No such file or directory"),
        ("file/below", "Not a directory"),
        ("/dev/null", "it is neither a file nor a block device"),
    ] {
        let target = ["target", "--listen", "127.0.0.1:0", path];
        let words = format!("error: cannot serve {path}: {why}");
        fails(&dir, &target, &[&words], 10);
    }
}

#[test]
fn refused_hosts_get_the_reason() {
    let dir = TestDir::new();
    dir.file("file", 4096, 1);
    let (right, wrong) = (
        "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
        "DHHC-1:00:WlpaWlpaWlpaWlpaWlpaWlpaWlpaWlpaWlpaWlpaWloj0TmR:",
    );
    fs::write(dir.path("right"), right).unwrap();
    fs::write(dir.path("wrong"), wrong).unwrap();
    let host = "nqn.2026-11.org.example:host";
    let hosts = format!("[[host]]\nnqn = \"{host}\"\nsecret = \"{right}\"\n");
    fs::write(dir.path("hosts"), hosts).unwrap();
    let target = Serving::start(&dir, "file --allow nqn.2026-11.org.example:other");
    let uri = target.uri("file");
    let words: [&str; 3] = [&target.address, "does not allow the host", "--nvme-hostnqn"];
    fails(&dir, &["copy", &uri, "host:"], &words, 10);
    let target = Serving::start(&dir, "file");
    let none = "nqn.2026-11.org.example:none";
    let uri = format!("nvme-tcp://{}/{none}/1", target.address);
    let words: [&str; 3] = [&target.address, "no subsystem", none];
    fails(&dir, &["copy", &uri, "host:"], &words, 10);
    let target = Serving::start(&dir, "file --hosts hosts");
    let uri = target.uri("file");
    let copy = ["copy", &uri, "host:", "--nvme-hostnqn", host];
    fails(&dir, &copy, &[&target.address, "authenticat"], 10);
    let with = |file| [&copy[..], &["--nvme-secret-file", file]].concat();
    fails(&dir, &with("wrong"), &[&target.address, "authenticat"], 10);
    succeeds(&dir, &with("right"));
}

#[test]
fn addresses_without_a_target_are_an_error_in_bounded_time() {
    let dir = TestDir::new();
    let load = |address: &str, words: &[&str], seconds_max| {
        let uri = format!("nvme-tcp://{address}/{NQN}/model");
        fails(&dir, &["load", &uri], words, seconds_max);
        fails(&dir, &["ls", &format!("nvme-tcp://{address}/")], words, seconds_max);
    };
    load("no-such-host.invalid", &["no-such-host.invalid"], 25);
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    load(&address, &[&address, "nobody listens"], 10);
    // Ports that speak another protocol, and one that says nothing.
    for hello in ["SSH-2.0-OpenSSH_9.2\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n", ""] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let mut open = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.write_all(hello.as_bytes());
                open.push(stream);
            }
        });
        let words = if hello.is_empty() {
            "no answer in time"
        } else {
            "does not speak NVMe/TCP"
        };
        // The silent port has 10 s to answer.
        load(&address, &[&address, words], 15);
    }
}

#[test]
fn links_out_of_a_served_folder_can_be_forbidden() {
    let dir = TestDir::new();
    dir.folder("m");
    dir.file("m/file", 4096, 1);
    dir.file("secret", 4096, 2);
    symlink("../secret", dir.path("m/outside")).unwrap();
    symlink("file", dir.path("m/inside")).unwrap();
    for (links, names) in [("any", 3), ("inside", 2), ("none", 1)] {
        let target = Serving::start(&dir, &format!("m --links {links}"));
        let listed = succeeds(&dir, &["ls", &target.uri("m")]);
        // The last line is the total.
        assert_eq!(listed.lines().count(), names + 1, "{links}: {listed}");
        assert_eq!(listed.contains("outside"), links == "any", "{links}: {listed}");
    }
}

//! Commands on a real S3 server.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};

use straightway_lab::{FaultProxy, ProxyFault, ProxyFaults, S3Server};

/// Runs the command against the server of the tests.
fn run(weed: &S3Server, args: &[&str]) -> Output {
    run_at(&weed.url(), args)
}

/// Runs the command against this service, which has the bucket of the server of the tests.
fn run_at(url: &str, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_straightway"))
        .args(args)
        .env_clear()
        .env("HOME", "/nonexistent")
        .env("AWS_ENDPOINT_URL_S3", url)
        .env("AWS_ACCESS_KEY_ID", S3Server::ACCESS_KEY_ID)
        .env("AWS_SECRET_ACCESS_KEY", S3Server::SECRET_ACCESS_KEY)
        .output()
        .expect("the command runs")
}

/// The output, after a check for secrets.
#[track_caller]
fn told(output: &Output) -> String {
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        !text.contains(S3Server::SECRET_ACCESS_KEY) && !text.contains(S3Server::ACCESS_KEY_ID),
        "{text}"
    );
    text
}

/// The output of a command that must succeed.
#[track_caller]
fn succeeds(weed: &S3Server, args: &[&str]) -> String {
    let output = run(weed, args);
    let text = told(&output);
    assert!(output.status.success(), "{args:?}: {text}");
    text
}

fn content(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| ((at * 31 + seed * 7 + at / 256) % 251) as u8)
        .collect()
}

/// A safetensors file with one tensor of bytes.
fn safetensors(name: &str, tensor: &[u8]) -> Vec<u8> {
    let bytes = tensor.len();
    let json = format!(r#"{{"{name}":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[0,{bytes}]}}}}"#);
    let mut file = (json.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(json.as_bytes());
    file.extend_from_slice(tensor);
    file
}

#[test]
fn a_prefix_is_listed_and_copied_byte_for_byte() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    let names = ["a", "b c", "sub/d", "sub/e/f", "zero"];
    for (seed, name) in names.iter().enumerate() {
        let bytes = if *name == "zero" {
            0
        } else {
            300_000 * (seed + 1) + seed
        };
        weed.put(&format!("tree/{}", name.replace(' ', "%20")), content(seed, bytes));
    }
    let text = succeeds(weed, &["ls", "s3://lab/tree"]);
    assert!(
        text.contains("b c") && text.contains("sub/") && !text.contains("sub/d"),
        "{text}"
    );
    let text = succeeds(weed, &["ls", "-r", "--json", "s3://lab/tree/"]);
    assert_eq!(text.lines().count(), names.len(), "{text}");
    assert!(text.contains(r#""name":"sub/e/f""#), "{text}");

    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("copy");
    fs::create_dir(&target).unwrap();
    let text = succeeds(weed, &["copy", "s3://lab/tree", target.to_str().unwrap()]);
    assert!(text.contains("socket"), "{text}");
    for (seed, name) in names.iter().enumerate() {
        let bytes = if *name == "zero" {
            0
        } else {
            300_000 * (seed + 1) + seed
        };
        assert!(
            fs::read(target.join("tree").join(name)).unwrap() == content(seed, bytes),
            "{name}"
        );
    }
    let one = folder.path().join("one");
    succeeds(
        weed,
        &["copy", "--verify", "s3://lab/tree/sub/d", one.to_str().unwrap()],
    );
    assert!(fs::read(Path::new(&one)).unwrap() == content(2, 900_002));
    let text = succeeds(weed, &["copy", "s3://lab/tree/a", "s3://lab/tree/b c", "host:"]);
    assert!(text.contains("socket"), "{text}");
}

/// Copies the objects below a prefix through a proxy with these faults, and compares every byte of `sizes`.
#[track_caller]
fn copies_through(weed: &S3Server, faults: ProxyFaults, prefix: &str, sizes: &[(String, usize)]) {
    let upstream = weed.url().replace("http://", "");
    let proxy = FaultProxy::start(&upstream, faults).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (format!("s3://lab/{prefix}"), folder.path());
    let output = run_at(&proxy.url(), &["copy", "--json", &from, to.to_str().unwrap()]);
    assert!(output.status.success(), "{}", told(&output));
    let receipt: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(receipt["waiting_s"], 0.0, "its batches are one transfer");
    assert_ne!(receipt["bound_by"], "other_jobs");
    let copied = to.join(prefix);
    assert_eq!(fs::read_dir(&copied).unwrap().count(), sizes.len());
    for (seed, (name, bytes)) in sizes.iter().enumerate() {
        let copy = fs::read(copied.join(name)).unwrap();
        assert!(copy == content(seed, *bytes), "{name}");
    }
}

#[test]
fn many_objects_are_copied_byte_for_byte_through_faults_and_no_batch_waits_for_another() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    // Three batches; the response for the first object of each is delayed.
    let sizes: Vec<_> = (0..180_usize)
        .map(|number| {
            let is_slow = number % 64 == 0;
            let name = format!("{number:03}{}", if is_slow { "-slow" } else { "" });
            let bytes = [0, 1, 4095, 65_537, 200_001, number * 113][number % 6];
            (name, if is_slow { 70_001 } else { bytes })
        })
        .collect();
    for (seed, (name, bytes)) in sizes.iter().enumerate() {
        weed.put(&format!("batches/{name}"), content(seed, *bytes));
    }
    let shares = [
        ProxyFault::CutBody,
        ProxyFault::CutInHead,
        ProxyFault::Reset,
        ProxyFault::Twice,
        ProxyFault::Status(503),
    ];
    let faults = ProxyFaults {
        seed: 5,
        shares: shares.map(|fault| (fault, 150)).to_vec(),
        ..ProxyFaults::default()
    };
    copies_through(weed, faults, "batches", &sizes);
    let late = Duration::from_secs(6);
    let faults = ProxyFaults {
        shares: vec![(ProxyFault::Stall(late), 10_000)],
        only: Some("slow".to_owned()),
        ..ProxyFaults::default()
    };
    let start = Instant::now();
    copies_through(weed, faults, "batches", &sizes);
    let took = start.elapsed();
    assert!(took >= late && took < 5 * late / 2, "{took:?}");
}

#[test]
fn a_model_in_shards_is_inspected_and_loaded() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    for number in 0..5 {
        let file = safetensors(&format!("layer.{number}"), &content(number, 1_000_000 + number));
        weed.put(&format!("model/model-{number}.safetensors"), file);
    }
    let text = succeeds(weed, &["inspect", "s3://lab/model"]);
    assert!(text.contains("layer.4"), "{text}");
    let text = succeeds(weed, &["-vvv", "load", "--verify", "s3://lab/model"]);
    assert!(
        text.contains("5 of 5 tensors in 5 files") && text.contains("socket"),
        "{text}"
    );
    let text = succeeds(weed, &["load", "--json", "--filter", "layer.3", "s3://lab/model"]);
    assert!(text.contains("\"bytes\": 1000003"), "{text}");
}

#[test]
fn the_doctor_reports_on_a_bucket() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    weed.put("doctor/object", content(1, 5_000_000));
    let text = succeeds(weed, &["doctor", "s3://lab/doctor/object"]);
    for check in [
        "endpoint",
        "credentials",
        "access",
        "latency",
        "clock",
        "checksum",
        "throughput",
        "bottleneck",
    ] {
        assert!(text.contains(&format!("  {check} ")), "{check}: {text}");
    }
    let point = ["--block", "1MiB", "--depth", "4", "--runs", "1", "--json"];
    let text = succeeds(weed, &[&["bench", "s3://lab/doctor/object"][..], &point].concat());
    assert!(
        text.contains("\"bytes\": 5000000") && text.contains("\"request_bytes\": 1048576"),
        "{text}"
    );
    let output = run(weed, &["doctor", "s3://no-such-bucket/x"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(told(&output).contains("no bucket no-such-bucket"), "{}", told(&output));
}

#[test]
fn what_is_wrong_is_told_in_one_line_with_a_hint() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    for (args, words) in [
        (&["load", "s3://lab/none.safetensors"][..], "there is no such object"),
        (
            &["ls", "s3://lab/none"],
            "there is no such object, and there are no objects below it",
        ),
        (&["ls", "--anonymous", "s3://lab/"], "hint: "),
        (&["copy", "s3://lab/none", "host:"], "hint: "),
        (
            &["copy", "/proc/self/exe", "https://127.0.0.1/x"],
            "does not support it",
        ),
        (
            &["load", "--endpoint", "host:9000", "s3://lab/x.safetensors"],
            "http://HOST[:PORT]",
        ),
    ] {
        let output = run(weed, args);
        let text = told(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(words), "{args:?}: {text}");
    }
}

#[test]
fn files_go_to_a_bucket_inside_it_and_back_and_are_removed() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let big = content(3, (17 << 20) + 5);
    fs::create_dir_all(home.path().join("tree/deep")).unwrap();
    fs::write(home.path().join("tree/big"), &big).unwrap();
    fs::write(home.path().join("tree/deep/small"), b"small").unwrap();
    fs::write(home.path().join("tree/empty"), b"").unwrap();
    // A folder, one file into a prefix, and one file under a name of its own.
    succeeds(weed, &["copy", &at("tree"), "s3://lab/moved/tree"]);
    succeeds(weed, &["copy", "--verify", &at("tree/big"), "s3://lab/moved/into/"]);
    succeeds(weed, &["copy", &at("tree/deep/small"), "s3://lab/moved/renamed"]);
    let inside = succeeds(weed, &["copy", "s3://lab/moved/tree", "s3://lab/moved/twin"]);
    assert!(inside.contains("copied inside the service"), "{inside}");
    succeeds(weed, &["copy", "s3://lab/moved/twin", &at("back")]);
    assert!(fs::read(home.path().join("back/big")).unwrap() == big);
    assert_eq!(fs::read(home.path().join("back/deep/small")).unwrap(), b"small");
    assert_eq!(fs::read(home.path().join("back/empty")).unwrap(), b"");
    let listed = succeeds(weed, &["ls", "-r", "s3://lab/moved"]);
    for name in ["into/big", "renamed", "tree/deep/small", "twin/big"] {
        assert!(listed.contains(name), "{listed}");
    }
    let dry = succeeds(weed, &["rm", "-r", "--dry-run", "s3://lab/moved/twin"]);
    assert!(dry.contains("would remove s3://lab/moved/twin/big"), "{dry}");
    succeeds(weed, &["copy", "s3://lab/moved/twin/big", "host:"]);
    succeeds(weed, &["rm", "-r", "s3://lab/moved/twin"]);
    succeeds(weed, &["rm", "s3://lab/moved/renamed"]);
    let listed = succeeds(weed, &["ls", "-r", "s3://lab/moved"]);
    assert!(!listed.contains("twin") && !listed.contains("renamed"), "{listed}");
    for (args, words) in [
        (&["rm", "s3://lab/moved/tree"][..], "--recursive"),
        (&["rm", "-r", "s3://lab"], "everything in the bucket"),
        (&["rm", &at("tree/big")], "use `rm`"),
        (&["rm", "-r", "s3://lab/moved/none"], "nothing is below it"),
    ] {
        let output = run(weed, args);
        let text = told(&output);
        assert!(!output.status.success() && text.contains(words), "{args:?}: {text}");
    }
    let ended = succeeds(weed, &["rm", "--uploads", "--older-than", "1h", "s3://lab/moved"]);
    assert!(ended.is_empty(), "{ended}");
}

#[test]
fn a_snapshot_of_a_model_hub_goes_to_a_bucket_as_objects() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let (blobs, snapshot) = (home.path().join("blobs"), home.path().join("snapshots/abc"));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    let names = ["config.json", "model.safetensors", "tokenizer.json"];
    for (seed, name) in names.iter().enumerate() {
        fs::write(blobs.join(seed.to_string()), content(seed, 1_000_003 * seed + 5)).unwrap();
        std::os::unix::fs::symlink(format!("../../blobs/{seed}"), snapshot.join(name)).unwrap();
    }
    // A link that stays inside cannot be kept in a bucket.
    std::os::unix::fs::symlink("config.json", snapshot.join("alias.json")).unwrap();
    let snapshot = snapshot.to_str().unwrap();
    let dry = succeeds(weed, &["copy", "--dry-run", snapshot, "s3://lab/hub/model"]);
    assert!(
        dry.contains("4 files") && dry.contains("to s3://lab/hub/model/alias.json"),
        "{dry}"
    );
    assert!(
        !run(weed, &["ls", "s3://lab/hub"]).status.success(),
        "nothing was written"
    );
    let said = succeeds(weed, &["cp", "-r", "--verify", snapshot, "s3://lab/hub/model"]);
    assert!(said.contains("verified: ") && said.contains("in 4 objects"), "{said}");
    // All of it, and by patterns.
    for (source, expected) in [
        (
            "s3://lab/hub/model/*",
            &["alias.json", "config.json", "model.safetensors", "tokenizer.json"][..],
        ),
        ("s3://lab/hub/m*/[a-c]*.json", &["alias.json", "config.json"]),
        ("s3://lab/h?b/model/model.safetensors", &["model.safetensors"]),
    ] {
        let target = tempfile::tempdir().unwrap();
        succeeds(weed, &["copy", source, target.path().to_str().unwrap()]);
        let mut found: Vec<_> = fs::read_dir(target.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        found.sort();
        assert_eq!(found, expected, "{source}");
        for name in expected {
            let seed = names.iter().position(|own| own == name).unwrap_or(0);
            let bytes = fs::read(target.path().join(name)).unwrap();
            assert!(bytes == content(seed, 1_000_003 * seed + 5), "{source}: {name}");
        }
    }
    let output = run(
        weed,
        &["copy", "s3://lab/hub/model/*.txt", home.path().to_str().unwrap()],
    );
    assert_eq!(output.status.code(), Some(2));
    assert!(told(&output).contains("matches nothing"), "{}", told(&output));
}

#[test]
fn names_with_the_characters_of_patterns_are_found_as_they_are_written() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    for (seed, name) in ["literal/a%2A", "literal/ab", "literal/%5Bx%5D/y"].iter().enumerate() {
        weed.put(name, content(seed, 1000));
    }
    let home = tempfile::tempdir().unwrap();
    let target = home.path().join("new");
    let target = target.to_str().unwrap();
    succeeds(weed, &["copy", "s3://lab/literal/a*", target]);
    assert!(fs::read(target).unwrap() == content(0, 1000));
    succeeds(weed, &["copy", "s3://lab/literal/[x]", home.path().to_str().unwrap()]);
    assert!(fs::read(home.path().join("[x]/y")).unwrap() == content(2, 1000));
}

#[test]
fn the_doctor_finds_an_object_below_the_first_level() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    weed.put("levels/a/small", content(1, 100));
    weed.put("levels/b/c/large", content(1, 5_000_000));
    for name in ["s3://lab/levels", "s3://lab/levels/", "s3://lab/levels/b/"] {
        let text = succeeds(weed, &["doctor", name]);
        assert!(
            text.contains("levels/b/c/large can be opened") && text.contains("  throughput "),
            "{text}"
        );
    }
    let text = succeeds(weed, &["doctor", "s3://lab"]);
    assert!(text.contains("can be opened"), "{text}");
}

#[test]
fn models_are_rewritten_to_a_bucket() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let source = home.path().join("model.safetensors");
    let tensor = content(4, (9 << 20) + 7);
    fs::write(&source, safetensors("weight", &tensor)).unwrap();
    let source = source.to_str().unwrap();
    succeeds(weed, &["rewrite", source, "s3://lab/rewritten/model.safetensors"]);
    let target = home.path().join("again.safetensors");
    let target = target.to_str().unwrap();
    succeeds(weed, &["copy", "s3://lab/rewritten/model.safetensors", target]);
    let bytes = fs::read(target).unwrap();
    assert!(bytes.ends_with(&tensor), "{} bytes", bytes.len());
}

#[test]
fn rewrite_and_checkpoint_take_the_options_of_object_stores() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let tensor = content(5, 300_007);
    weed.put("options/model.safetensors", safetensors("weight", &tensor));
    let cache = home.path().join("cache");
    let (url, cache) = (weed.url(), cache.to_str().unwrap());
    // Nothing listens at the service of the environment.
    let run = |args: &[&str]| {
        let options = ["--endpoint", url.as_str()];
        let output = run_at("http://127.0.0.1:9", &[args, &options].concat());
        let text = told(&output);
        assert!(output.status.success(), "{args:?}: {text}");
        text
    };
    let names = [
        "s3://lab/options/model.safetensors",
        "s3://lab/options/rewritten.safetensors",
    ];
    // The target is written although its store is read through a cache.
    for _ in 0..2 {
        run(&["rewrite", names[0], names[1], "--cache", cache]);
    }
    let target = home.path().join("model.safetensors");
    run(&["copy", names[1], target.to_str().unwrap()]);
    assert!(fs::read(&target).unwrap().ends_with(&tensor));
    let text = run(&["checkpoint", "ls", "--json", "s3://lab/no-steps"]);
    assert!(text.contains("\"steps\": []"), "{text}");
}

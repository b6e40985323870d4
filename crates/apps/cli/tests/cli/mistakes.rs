//! Mistakes that new users make, and what the command answers: each message names the object and the remedy.

use std::{fmt::Write as _, fs, path::Path};

use straightway_lab::S3Server;

use crate::{examples::furnished, test_dir::TestDir};

/// The answers to lines that are refused, for a snapshot.
fn answers(dir: &TestDir, lines: &[&str]) -> String {
    let mut said = String::new();
    for line in lines {
        let ran = dir.run(line.split(' '));
        assert_eq!(ran.code, Some(2), "{line}: {ran:?}");
        assert_eq!(ran.out, "", "{line}: stdout is for data");
        writeln!(said, "$ {line}\n{}", dir.redact(&ran.err).trim_end()).unwrap();
    }
    said
}

/// Runs lines that must succeed.
fn accepted(dir: &TestDir, lines: &[&str]) {
    for line in lines {
        let ran = dir.run(line.split(' '));
        assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
    }
}

#[test]
fn names_that_are_not_models() {
    let dir = furnished();
    for (name, start) in [
        ("model.gguf", &b"GGUF\x03\0\0\0\x01\0\0\0"[..]),
        ("pytorch_model.pt", b"PK\x03\x04\x14\0\0\0\0\0\0\0"),
        ("old.pt", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P"),
        ("lfs.safetensors", b"version https://git-lfs.github.com/spec/v1\n"),
        ("noise.safetensors", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
    ] {
        fs::write(dir.path(name), start).unwrap();
    }
    dir.folder("pickles");
    fs::write(dir.path("pickles/pytorch_model.bin"), b"PK").unwrap();
    dir.folder("empty");
    insta::assert_snapshot!(answers(
        &dir,
        &[
            "load modle",
            "inspect modle/config.json",
            "rewrite modle new",
            "doctor modle",
            "bench dta.bin",
            "load model/config.json",
            "load model.gguf",
            "load pytorch_model.pt",
            "load old.pt",
            "load lfs.safetensors",
            "load noise.safetensors",
            "load runs/llama",
            "load pickles",
            "load empty",
            "load meta-llama/Llama-3-8B",
            "load hf://meta-llama/Llama-3-8B",
            "load s3:/models/llama",
            "load s4://models/llama",
            "load file://host/model",
        ],
    ));
    let uri = format!("load file://{}/model", dir.root().display());
    accepted(&dir, &[uri.as_str(), "load file://localhost/proc/self/cwd/model"]);
}

#[test]
fn sizes_rates_and_counts() {
    let dir = furnished();
    insta::assert_snapshot!(answers(
        &dir,
        &[
            "load model --chunk 4MB",
            "load model --chunk 4mb",
            "load model --chunk 6000",
            "load model --chunk big",
            "load model --limit 100mb/s",
            "load model --limit fast",
            "load model --depth many",
            "load model --depth 1.5",
            "load model --depth 5000",
            "load model --lanes 0",
            "load model --rank 8/8",
            "load model --rank 0/0",
            "load model --rank 3",
            "load model --slice 0:5..2",
            "load model --slice 0:8/8",
            "load model --slice 0:0/7",
            "checkpoint prune runs/llama --keep 0",
            "checkpoint verify runs/llama --step latest",
            "bench --runs 0",
        ],
    ));
    let too_much = dir.run(["load", "model", "--staging", "100T"]);
    assert_eq!(too_much.code, Some(2), "{too_much:?}");
    for part in [
        "cannot run with staging memory of 100 TiB: this process can have ",
        "hint: leave out --staging, or name less",
    ] {
        assert!(too_much.err.contains(part), "{}", too_much.err);
    }
    accepted(
        &dir,
        &[
            "load model --chunk 4mib",
            "load model --chunk 64K",
            "load model --limit 100M",
            "load model --limit 1.5g",
            "load model --limit 1Gbit/s",
            "load model --limit 100MB/s",
            "plan checkpoint --scenario llama3-405b --sweep storage.rate=200GB/s..2TB/s:5:log",
        ],
    );
}

#[test]
fn options_scenarios_and_their_fields() {
    let dir = furnished();
    fs::write(dir.path("mine.toml"), "[checkpoint.storag]\nrate = \"200GB/s\"\n").unwrap();
    insta::assert_snapshot!(answers(
        &dir,
        &[
            "load model --devise host",
            "load model --frobnicate",
            "chekpoint ls runs/llama",
            "plan checkpoint --set gpus=2048",
            "plan checkpoint --set storage.rat=1TB/s",
            "plan checkpoint --set colour=red",
            "plan checkpoint --scenario lama3-405b",
            "plan checkpoint --scenario mine.toml",
            "plan list lama3-405b",
            "sim pcie --scenario dgx-h10",
            "target model --listen 127.0.0.1:22222222",
            "target model --listen :80a",
            "target model --nqn foo",
        ],
    ));
    // A suggestion that is far from the typed option is worse than none.
    let ran = dir.run(["load", "model", "--overwrite"]);
    assert!(!ran.err.contains("tip:"), "{}", ran.err);
    accepted(&dir, &["target model --listen :0 --for 0s"]);
}

#[test]
fn checkpoints_by_the_wrong_name() {
    let dir = furnished();
    insta::assert_snapshot!(answers(
        &dir,
        &[
            "checkpoint verify runs/llama/step-200",
            "checkpoint ls runs/llama/step-200",
            "checkpoint verify model",
            "checkpoint verify runs/lama",
            "checkpoint verify runs/llama --step 250",
        ],
    ));
    let ran = dir.run(["checkpoint", "ls", "model"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "no checkpoint is in model\n"));
}

#[test]
fn a_damaged_step_is_refused_without_names_of_the_library() {
    let dir = furnished();
    let shard = dir.names().into_iter().find(|name| {
        let is_shard = name.starts_with("runs/llama/step-300/") && !name.contains(".json");
        is_shard && fs::metadata(dir.path(name)).is_ok_and(|meta| meta.len() >= 64 << 10)
    });
    let shard = dir.path(shard.expect("a file with the tensor"));
    let mut bytes = fs::read(&shard).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&shard, bytes).unwrap();
    let ran = dir.run(["checkpoint", "restore", "runs/llama"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(
        ran.err
            .contains("hint: restore an earlier step; a step that was saved with parity"),
        "{}",
        ran.err
    );
}

#[test]
fn a_benchmark_without_a_home_that_can_be_written_succeeds_with_a_warning() {
    let dir = TestDir::new();
    let line = "bench --work read --route buffered --size 1MiB --block 64KiB --depth 1 --runs 1";
    let ran = dir.run_with(&[("XDG_STATE_HOME", "/proc/no-such-folder")], line.split(' '));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.err.contains("warning: the profile was not stored: cannot "),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("hint: set XDG_STATE_HOME"), "{}", ran.err);
    assert!(ran.out.contains("buffered"), "{}", ran.out);
}

#[test]
fn nothing_below_a_prefix_and_a_private_bucket_are_named() {
    let Some(server) = S3Server::shared() else {
        return;
    };
    server.put("mistakes/one", b"1".to_vec());
    let dir = TestDir::new();
    let variables = [
        ("AWS_ENDPOINT_URL_S3", server.url()),
        ("AWS_ACCESS_KEY_ID", S3Server::ACCESS_KEY_ID.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", S3Server::SECRET_ACCESS_KEY.to_owned()),
    ];
    let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
    let refused = |line: &str| {
        let ran = dir.run_with(&variables, line.split(' '));
        assert_eq!(ran.code, Some(2), "{line}: {ran:?}");
        ran.err
    };
    let said = refused("load s3://lab/no-such-model");
    assert!(said.contains("there is nothing below this name"), "{said}");
    let said = refused("ls s3://lab/mistakes --anonymous");
    assert!(said.contains("leave out --anonymous"), "{said}");
    let said = refused("ls s3://lab/mistakes --aws-profile no-such-profile");
    assert!(
        said.contains("no-such-profile") || said.contains("--aws-profile"),
        "{said}"
    );
}

/// The texts of hints in the sources below a folder.
fn hints(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            hints(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            for call in text.split("with_hint(").skip(1) {
                let call = call.split(");").next().unwrap_or_default();
                found.extend(call.split('"').skip(1).step_by(2).map(str::to_owned));
            }
        }
    }
}

#[test]
fn no_hint_names_a_type_of_the_library() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    for wing in ["data", "base", "planner", "apps/cli"] {
        hints(&crates.join(wing), &mut found);
    }
    assert!(found.len() > 150, "{}", found.len());
    found.retain(|hint| {
        let parts: Vec<_> = hint.split("::").collect();
        parts
            .windows(2)
            .any(|pair| pair[0].ends_with(char::is_alphanumeric) && pair[1].starts_with(char::is_alphabetic))
    });
    assert!(found.is_empty(), "{found:?}");
}

//! The examples of all help pages, run on real files as a shell runs them.

use std::{collections::BTreeSet, fs, sync::Arc};

use rustix::process::Signal;
use straightway_checkpoint::{CheckpointSaver, Rank, SaveSource, SaverOptions, Steps, fresh_run};
use straightway_cli::examples::{self, Example, Trial};
use straightway_io::{Executor, Settings};
use straightway_lab::S3Server;
use straightway_weights::{Dtype, Shape};

use crate::test_dir::{Ran, TestDir, noise};

/// The bucket of the examples, and where the server of the tests has it.
const BUCKET: (&str, &str) = ("s3://models", "s3://lab/examples");

/// A safetensors file of a layer with two tensors of 16 rows.
fn weights(layer: usize) -> Vec<u8> {
    const BYTES: usize = 16 * 4096 * 4;
    let tensor = |number: usize| {
        serde_json::json!({
            "dtype": "F32",
            "shape": [16, 4096],
            "data_offsets": [number * BYTES, (number + 1) * BYTES],
        })
    };
    let mut header = serde_json::Map::new();
    for (number, name) in ["q_proj", "o_proj"].into_iter().enumerate() {
        header.insert(format!("model.layers.{layer}.{name}.weight"), tensor(number));
    }
    let header = serde_json::to_string(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&noise(2 * BYTES, layer as u64));
    file
}

/// The files that the examples name, in a folder that is also the home.
pub(crate) fn furnished() -> TestDir {
    let dir = TestDir::new();
    dir.folder("model");
    fs::write(
        dir.path("model/config.json"),
        r#"{"architectures": ["LlamaForCausalLM"]}"#,
    )
    .unwrap();
    for layer in 0..2 {
        let name = format!("model/model-0000{}-of-00002.safetensors", layer + 1);
        fs::write(dir.path(name), weights(layer)).unwrap();
    }
    fs::write(dir.path("model.safetensors"), weights(0)).unwrap();
    dir.file("data.bin", 3 << 20, 7);
    for cache in ["kv-cache", "old-cache"] {
        straightway_kv::Tier::create(&dir.path(cache), 4096, 1 << 20).unwrap();
    }
    for folder in [
        ".local/share/bash-completion/completions",
        ".zfunc",
        ".config/fish/completions",
        "runs",
    ] {
        dir.folder(folder);
    }
    let store = Steps::create(&dir.path("runs/llama")).unwrap();
    let executor = Arc::new(Executor::new(Settings::default()).unwrap());
    let alone = Rank { rank: 0, world: 1 };
    let options = SaverOptions::default();
    let mut saver = CheckpointSaver::new(store, alone, &fresh_run(), executor, options).unwrap();
    for step in [100, 200, 300] {
        let weight = noise(64 << 10, step);
        let shape = Shape::from(&[64_u64, 1024][..]);
        let state = [SaveSource::whole("weight", Dtype::U8, shape, &weight)];
        saver.save(step, &state, "{}").unwrap();
        saver.wait().unwrap();
    }
    dir
}

/// The examples of the pages, each line once.
fn examples(is_of: impl Fn(&str) -> bool) -> Vec<Example> {
    let mut seen = BTreeSet::new();
    let pages = examples::pages().filter(|(page, _)| is_of(page.split(' ').next().unwrap_or_default()));
    let mut found: Vec<_> = pages.flat_map(|(_, examples)| examples).collect();
    found.retain(|example| seen.insert(example.line));
    found
}

fn needs_bucket(example: &Example) -> bool {
    example.line.contains("s3://")
}

/// Whether the exit code is one that the command ends with if nothing went wrong.
fn is_fine(line: &str, ran: &Ran) -> bool {
    let may_say_no = line.starts_with("straightway doctor") || line.starts_with("straightway checkpoint diff");
    ran.code == Some(0) || may_say_no && ran.code == Some(1)
}

/// Runs the examples that do not need a bucket.
fn run_local(examples: &[Example]) {
    let dir = furnished();
    let home = dir.root().to_str().unwrap().to_owned();
    for example in examples.iter().filter(|example| !needs_bucket(example)) {
        let line = example.line;
        let ran = match example.trial {
            Trial::NotRun(why) => {
                eprintln!("left out: {line}: {why}");
                continue;
            }
            Trial::Run => dir.shell(&[("HOME", &home)], line),
            Trial::Interrupted => {
                let words = line.split(' ').skip(1).chain(["--listen", "127.0.0.1:0"]);
                let mut running = dir.start(words);
                assert!(running.wait_until_caught(Signal::INT), "{line}");
                running.signal(Signal::INT);
                running.wait()
            }
        };
        assert!(is_fine(line, &ran), "{line}: {ran:?}");
    }
}

#[test]
fn examples_of_transfers_run() {
    run_local(&examples(|command| !matches!(command, "plan" | "sim")));
}

#[test]
fn examples_of_the_planner_run() {
    run_local(&examples(|command| matches!(command, "plan" | "sim")));
}

#[test]
fn examples_with_a_bucket_run() {
    let Some(server) = S3Server::shared() else {
        return;
    };
    let dir = furnished();
    for layer in 0..2 {
        let name = format!("examples/llama/model-0000{}-of-00002.safetensors", layer + 1);
        server.put(&name, weights(layer));
    }
    server.put("examples/old.safetensors", weights(3));
    let (url, home) = (server.url(), dir.root().to_str().unwrap().to_owned());
    let variables = [
        ("HOME", home.as_str()),
        ("AWS_ENDPOINT_URL_S3", &url),
        ("AWS_ACCESS_KEY_ID", S3Server::ACCESS_KEY_ID),
        ("AWS_SECRET_ACCESS_KEY", S3Server::SECRET_ACCESS_KEY),
    ];
    let run = |line: &str| {
        let ran = dir.shell(&variables, &line.replace(BUCKET.0, BUCKET.1));
        assert!(is_fine(line, &ran), "{line}: {ran:?}");
    };
    run("straightway copy runs/llama s3://models/runs/llama");
    let lines = examples(|_| true);
    for example in lines.iter().filter(|example| needs_bucket(example)) {
        assert_eq!(example.trial, Trial::Run, "{}", example.line);
        run(example.line);
    }
}

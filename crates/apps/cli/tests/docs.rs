//! Every command in the README and the guides is run by a shell, and must print the output shown below it.
//!
//! In a fence marked `console`, a line that starts with `$ ` is a command, `? N` its exit code (default 0), and the
//! rest its output, in which a line of `...` or `…` matches any number of lines. A fence marked `sh` has only commands.
//! A fence whose info string contains `no-run:` is left out; the reason after it is printed, and the fence is counted.
//! One with `needs-s3` runs against the S3 server of the tests, which has a bucket `models`. The examples of a page share
//! a folder.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use straightway_lab::S3Server;

/// A command and its expected result.
#[derive(Debug, Default)]
struct Example {
    page: String,
    line: usize,
    command: String,
    code: i32,
    output: Vec<String>,
    /// Whether it needs the S3 server.
    needs_s3: bool,
    /// Why it is not run.
    left_out: Option<String>,
}

#[test]
fn every_command_in_the_guides_runs_and_prints_what_they_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let examples: Vec<Example> = pages(&root).iter().flat_map(|page| read(page)).collect();
    let (left_out, run): (Vec<_>, Vec<_>) = examples.iter().partition(|e| e.left_out.is_some());
    assert!(run.len() >= 60, "only {} commands were found", run.len());
    // Pages do not depend on each other.
    let wrong: Vec<String> = thread::scope(|scope| {
        let pages = run.chunk_by(|a, b| a.page == b.page);
        let pages: Vec<_> = pages.map(|page| scope.spawn(|| check_page(page))).collect();
        pages
            .into_iter()
            .flat_map(|page| page.join().expect("no panic"))
            .collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    for example in &left_out {
        let why = example.left_out.as_deref().unwrap_or_default();
        eprintln!("left out: {} ({why})", example.command);
    }
    eprintln!("{} commands run, {} left out", run.len(), left_out.len());
}

fn pages(root: &Path) -> Vec<PathBuf> {
    let docs = fs::read_dir(root.join("docs")).expect("the guides");
    let docs = docs.map(|entry| entry.expect("a readable folder").path());
    let mut pages: Vec<PathBuf> = docs
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .collect();
    pages.push(root.join("README.md"));
    pages.sort();
    pages
}

/// Runs the examples of a page, in a folder of their own. Returns what is wrong with them.
fn check_page(examples: &[&Example]) -> Vec<String> {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder for the files");
    furnish(place.path());
    examples.iter().filter_map(|e| check(e, place.path())).collect()
}

/// The files that the examples copy and load.
fn furnish(place: &Path) {
    fs::write(place.join("model.bin"), vec![7; 3 << 20]).expect("room for a file");
    for folder in ["ckpt", "data", "backup"] {
        fs::create_dir(place.join(folder)).expect("a new folder");
    }
    fs::write(place.join("ckpt/shard-0"), vec![8; 100_001]).expect("room for a file");
    fs::create_dir(place.join("model")).expect("a new folder");
    fs::write(place.join("model/model.safetensors"), weights()).expect("room for a file");
}

/// A safetensors file with two square tensors.
fn weights() -> Vec<u8> {
    const SIDE: usize = 256;
    const BYTES: usize = 4 * SIDE * SIDE;
    let tensor = |number: usize| {
        serde_json::json!({
            "dtype": "F32",
            "shape": [SIDE, SIDE],
            "data_offsets": [number * BYTES, (number + 1) * BYTES],
        })
    };
    let header = serde_json::json!({
        "model.layers.0.o_proj.weight": tensor(0),
        "model.layers.1.o_proj.weight": tensor(1),
    });
    let header = header.to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.resize(file.len() + 2 * BYTES, 7);
    file
}

/// The examples of a page.
fn read(page: &Path) -> Vec<Example> {
    let text = fs::read_to_string(page).expect("a readable page");
    let mut examples: Vec<Example> = Vec::new();
    let mut fence: Option<String> = None;
    for (line, text) in (1..).zip(text.lines()) {
        if let Some(info) = text.strip_prefix("```") {
            fence = fence.is_none().then(|| info.to_owned());
            continue;
        }
        let Some(info) = &fence else { continue };
        let language = info.split(' ').next().unwrap_or_default();
        let command = match language {
            "console" => text.strip_prefix("$ "),
            "sh" => Some(text).filter(|text| !text.is_empty() && !text.starts_with('#')),
            _ => continue,
        };
        if let Some(command) = command {
            examples.push(Example {
                page: page.file_name().unwrap_or_default().to_string_lossy().into(),
                line,
                command: command.split(" #").next().unwrap_or_default().trim().to_owned(),
                needs_s3: info.contains("needs-s3"),
                left_out: info.split_once("no-run:").map(|(_, why)| why.trim().to_owned()),
                ..Example::default()
            });
        } else if let Some(example) = examples.last_mut().filter(|_| language == "console") {
            match text.strip_prefix("? ") {
                Some(code) => example.code = code.parse().expect("an exit code"),
                None => example.output.push(text.to_owned()),
            }
        }
    }
    examples
}

/// Runs an example. Returns what is wrong with it.
fn check(example: &Example, place: &Path) -> Option<String> {
    let at = format!("{}:{}: {}", example.page, example.line, example.command);
    let program = Path::new(env!("CARGO_BIN_EXE_straightway"));
    let folders = program.parent().into_iter().map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(folders.chain(std::env::split_paths(&path))).expect("folders without colons");
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &example.command])
        .current_dir(place)
        .env("PATH", path)
        .env("NO_COLOR", "1")
        // Uses no profile of this machine, and leaves none behind.
        .env("XDG_STATE_HOME", place.join("state"));
    if example.needs_s3 {
        // Without the server, the reason is printed.
        let server = S3Server::shared()?;
        server.make_bucket("models", &[]);
        shell
            .env("AWS_ENDPOINT_URL_S3", server.url())
            .env("AWS_ACCESS_KEY_ID", S3Server::ACCESS_KEY_ID)
            .env("AWS_SECRET_ACCESS_KEY", S3Server::SECRET_ACCESS_KEY);
    }
    let ran = shell.output().expect("a shell");
    let [out, talk] = [&ran.stdout, &ran.stderr].map(|text| String::from_utf8_lossy(text));
    if ran.status.code() != Some(example.code) {
        return Some(format!(
            "{at}\nexit {:?}, not {}: {talk}",
            ran.status.code(),
            example.code
        ));
    }
    // An error prints nothing to stdout.
    let printed = if example.code == 2 { &talk } else { &out };
    let printed: Vec<&str> = printed.lines().map(str::trim_end).collect();
    let missed = first_missed(&example.output, &printed)?;
    Some(format!("{at}\ndoes not print\n{missed}\nbut\n{}", printed.join("\n")))
}

/// The first block of expected lines that was not printed in order. Lines of dots match any others.
fn first_missed(told: &[String], printed: &[&str]) -> Option<String> {
    let told: Vec<&str> = told.iter().map(|line| line.trim_end()).collect();
    let is_gap = |line: &&str| matches!(*line, "..." | "…");
    if told.iter().all(|line| line.is_empty()) {
        return None;
    }
    let (mut from, mut free) = (0, false);
    for (number, run) in told.split(is_gap).enumerate() {
        let rest = &printed[from..];
        free |= number > 0;
        if run.is_empty() {
            continue;
        }
        let places = rest.windows(run.len());
        let place = places.into_iter().position(|lines| lines == run);
        match place.filter(|place| free || *place == 0) {
            Some(place) => from += place + run.len(),
            None => return Some(run.join("\n")),
        }
        free = false;
    }
    let ends_open = told.last().is_some_and(is_gap);
    let rest = printed[from..].iter().any(|line| !line.is_empty());
    (rest && !ends_open).then(|| "nothing more".to_owned())
}

#[test]
fn the_command_reference_is_that_of_this_program() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let written = Command::new(root.join("tools/command-reference"))
        .arg(env!("CARGO_BIN_EXE_straightway"))
        .output()
        .expect("python3");
    let talk = String::from_utf8_lossy(&written.stderr);
    assert!(written.status.success(), "{talk}");
    let page = fs::read(root.join("docs/commands.md")).expect("a readable page");
    assert!(
        written.stdout == page,
        "docs/commands.md is out of date: run `make docs`"
    );
}

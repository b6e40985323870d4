//! The time from the start of a process to its first megabyte in GPU memory.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    sync::Arc,
    time::Instant,
};

use straightway_core::{Choice, Error, Result};
use straightway_io::{Executor, File, Region};
use straightway_sys::cuda::Driver;

use crate::{Args, Bench, disk, row::Row};

/// The task of a child process before it prints a line.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Child {
    /// Initialise CUDA and make a context.
    Init,
    /// Load the megabyte.
    Load,
}

/// The file that is loaded.
const FILE: &str = "straightway-bench-1m";

/// Runs as a child process.
pub(crate) fn run_child(child: Child, args: &Args) -> Result<()> {
    let context = Driver::load()?.device(args.gpu)?.context()?;
    if matches!(child, Child::Load) {
        let file = Arc::new(File::open(&args.disk.join(FILE))?);
        let region = Arc::new(Region::device(&context, file.bytes())?);
        let executor = Executor::new(args.settings())?;
        disk::read(&executor, &file, disk::whole(&file), &region, Choice::Auto)?;
        println!("there");
        // The exit is not measured: the line is printed.
        return Ok(());
    }
    println!("ready");
    Ok(())
}

/// Measures both, alternating.
pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let path = bench.args.disk.join(FILE);
    std::fs::write(&path, vec![7; 1 << 20]).map_err(|e| Error::os("write", path.display(), e))?;
    let (mut init, mut load) = (Vec::new(), Vec::new());
    for _ in 0..bench.args.rounds {
        init.push(until_line(bench, "init")?);
        load.push(until_line(bench, "load")?);
    }
    let _ = std::fs::remove_file(path);
    let init = Row::new("process start → CUDA initialised", init, "s");
    let most = init.median() + 0.1;
    Ok(vec![
        init,
        Row::new("process start → 1 MiB in GPU memory", load, "s").at_most(most),
    ])
}

/// The seconds from starting a child process to its first line.
fn until_line(bench: &Bench, what: &str) -> Result<f64> {
    let failed = |e| Error::os("start", "a process of our own", e);
    let start = Instant::now();
    let mut child = Command::new(std::env::current_exe().map_err(failed)?)
        .args(["--child", what, "--gpu", &bench.args.gpu.to_string()])
        .arg("--disk")
        .arg(&bench.args.disk)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let out = child.stdout.take().expect("piped above");
    let mut line = String::new();
    let read = BufReader::new(out).read_line(&mut line);
    let seconds = start.elapsed().as_secs_f64();
    let status = child.wait().map_err(failed)?;
    read.map_err(failed)?;
    if status.success() && !line.is_empty() {
        return Ok(seconds);
    }
    Err(failed(std::io::Error::other(format!("it ended with {status}"))))
}

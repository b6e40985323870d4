//! Runs one transfer with the lessons about the machine and prints its receipt as JSON. `bench/learning.py` and
//! `bench/tmpfs.py` measure it, without the rest of the command.
//!
//! `transfer read FILE [--route direct]` reads a file into new host memory; `transfer copy FROM TO` copies a file.

use std::{path::Path, sync::Arc};

use straightway_core::{Choice, Error, ErrorKind, Extent, Move, Receipt, Result, Route};
use straightway_io::{Executor, File, FileDraft, Region, Settings};
use straightway_probe::learned::Learned;

fn read(executor: &Executor, path: &Path, choice: Choice) -> Result<Receipt> {
    let file = Arc::new(File::open(path)?);
    let bytes = file.bytes();
    let region = Arc::new(Region::host(bytes)?);
    let extent = Extent::new(0, bytes);
    let moves = vec![Move::from(extent)];
    executor.read(vec![file], moves, &region, choice)?.wait()
}

fn copy(executor: &Executor, from: &Path, to: &Path) -> Result<Receipt> {
    let file = Arc::new(File::open(from)?);
    let draft = FileDraft::new(to, file.bytes())?;
    let extents = vec![(0, Extent::new(0, file.bytes()))];
    let twins = vec![Arc::clone(draft.file())];
    let job = executor.relay(vec![file], twins, extents, Choice::Auto)?;
    let receipt = job.wait()?;
    draft.commit()?;
    Ok(receipt)
}

fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let executor = |path: &str| {
        let executor = Executor::new(Settings::default())?;
        Ok::<_, Error>(executor.learning(Learned::of(Path::new(path))))
    };
    let receipt = match words[..] {
        ["read", path] => read(&executor(path)?, Path::new(path), Choice::Auto),
        ["read", path, "--route", "direct"] => {
            let choice = Choice::Only(Route::Direct);
            read(&executor(path)?, Path::new(path), choice)
        }
        ["copy", from, to] => copy(&executor(from)?, Path::new(from), Path::new(to)),
        _ => {
            let usage = "transfer read FILE [--route direct], or transfer copy FROM TO";
            Err(Error::new(ErrorKind::Invalid, "run", "transfer", usage))
        }
    }?;
    let text = serde_json::to_string(&receipt).expect("a receipt is plain data");
    #[expect(clippy::print_stdout, reason = "it is a program")]
    {
        println!("{text}");
    }
    Ok(())
}

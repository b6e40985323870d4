//! `straightway profile`: shows and clears what this machine knows about its drives.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
    time::SystemTime,
};

use clap::Subcommand;
use serde_json::{Value, json};
use straightway_core::{Bytes, Error, Rate, Seconds};
use straightway_probe::{
    learned::Learned,
    machine::Machine,
    profile::{DriveProfile, Profile},
};
use straightway_report::{Block, Cell, Column, Page, Table, Unit};

use super::output::{Output, print, print_json};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the profile of `straightway bench` and what transfers have learned: file, age and values
    Show(ShowArgs),
    /// Remove the profile and what transfers have learned; later transfers use the defaults
    Clear(ClearArgs),
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, clap::Args)]
struct ClearArgs {
    /// Remove only one of the two files.
    #[arg(long, value_enum, value_name = "FILE")]
    only: Option<Kept>,

    /// Write the names of the removed files as JSON.
    #[arg(long)]
    json: bool,
}

/// The files with facts about drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kept {
    /// The results of `straightway bench`
    Profile,
    /// What transfers have learned
    Learned,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Show(args) => show(args),
        Command::Clear(args) => clear(args),
    }
}

impl Kept {
    /// Its path; `None` without a home or state directory.
    fn path(self) -> Option<PathBuf> {
        match self {
            Self::Profile => Profile::place(),
            Self::Learned => Learned::place(),
        }
    }
}

fn clear(args: &ClearArgs) -> anyhow::Result<ExitCode> {
    let mut removed = Vec::new();
    for kept in [Kept::Profile, Kept::Learned] {
        let Some(path) = kept.path().filter(|_| args.only.is_none_or(|only| only == kept)) else {
            continue;
        };
        match fs::remove_file(&path) {
            Ok(()) => removed.push(path),
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(Error::os("remove", path.display(), error).into()),
        }
    }
    let names: Vec<String> = removed.iter().map(|path| path.display().to_string()).collect();
    if args.json {
        print_json(&json!({ "removed": names }))?;
    } else if names.is_empty() {
        print("nothing was kept\n")?;
    } else {
        let lines = names.iter().map(|name| format!("removed {name}\n"));
        print(&lines.collect::<String>())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn show(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let mut page = Page::new("What this machine knows about its drives");
    let mut json = json!({ "profile": null, "learned": null });
    if let Some(path) = Kept::Profile.path() {
        let profile = Profile::read(&path)?;
        let is_here = profile.machine.is_like(&Machine::here());
        let mut blocks = vec![Block::from(state_text(&path))];
        if !profile.drives.is_empty() {
            if !is_here {
                blocks.push("It is of another machine, and is not used.".into());
            }
            blocks.push(profile_table(&profile).into());
        }
        json["profile"] = state_json(&path);
        json["profile"]["is_used"] = (is_here && !profile.drives.is_empty()).into();
        json["profile"]["drives"] = serde_json::to_value(&profile.drives)?;
        page = page.section("Profile, measured by `straightway bench`", blocks);
    }
    if let Some(path) = Kept::Learned.path() {
        let learned = Learned::read(&path);
        let mut blocks = vec![Block::from(state_text(&path))];
        if !learned.drives.is_empty() {
            blocks.push(learned_table(&learned).into());
        }
        json["learned"] = state_json(&path);
        json["learned"]["drives"] = serde_json::to_value(&learned.drives)?;
        page = page.section("Learned by transfers", blocks);
    }
    if Kept::Profile.path().is_none() {
        let text = "Neither HOME nor XDG_STATE_HOME is set: nothing is kept.";
        page = page.section("", [text.into()]);
    }
    args.output.write(&page, &json)?;
    Ok(ExitCode::SUCCESS)
}

/// The seconds since a file was written; `None` if there is none.
fn age_s(path: &Path) -> Option<f64> {
    let written = fs::metadata(path).ok()?.modified().ok()?;
    Some(
        SystemTime::now()
            .duration_since(written)
            .unwrap_or_default()
            .as_secs_f64(),
    )
}

fn state_text(path: &Path) -> String {
    match age_s(path) {
        Some(age) => format!("{}, written {} ago.", path.display(), Seconds(age.round())),
        None => format!("{}: there is no such file.", path.display()),
    }
}

fn state_json(path: &Path) -> Value {
    json!({ "file": path.display().to_string(), "age_s": age_s(path) })
}

fn profile_table(profile: &Profile) -> Table {
    let columns = [
        Column::text("drives"),
        Column::new("chunk", Unit::Bytes),
        Column::new("depth", Unit::Count),
        Column::text("reads into host memory"),
        Column::new("rate", Unit::Rate),
        Column::new("first byte", Unit::Seconds),
        Column::new("curves", Unit::Count),
    ];
    let mut table = Table::new("", columns);
    for (name, drive) in &profile.drives {
        let DriveProfile { tuning, knees, .. } = drive;
        let method = |ring_first: bool| if ring_first { "through the ring" } else { "direct" };
        table.push([
            Cell::from(name.as_str()),
            tuning.map(|tuning| Bytes(tuning.chunk_bytes)).into(),
            tuning.map(|tuning| tuning.depth).into(),
            tuning.map(|tuning| method(tuning.ring_first)).into(),
            tuning
                .and_then(|tuning| tuning.rate_bytes_per_s)
                .map(|rate| Rate(rate as f64))
                .into(),
            drive.read_latency_s.map(Seconds).into(),
            knees.len().into(),
        ]);
    }
    table
}

fn learned_table(learned: &Learned) -> Table {
    let mut table = Table::new(
        "",
        [Column::text("drives"), Column::text("work"), Column::text("faster by")],
    );
    for (name, lessons) in &learned.drives {
        for (work, method) in lessons {
            table.push([Cell::from(name.as_str()), work.as_str().into(), method.as_str().into()]);
        }
    }
    table
}

//! `straightway checkpoint bench`: measures saves and restores on this machine.

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use serde_json::json;
use straightway_checkpoint::{Codec, SaverOptions};
use straightway_core::{Bytes, Place, Rate, Seconds, text::counted};
use straightway_io::store::Location;
use straightway_report::{Cell, Column, Page, Table, Tone, Unit};
use straightway_stores::Session;

use super::trial::{Round, Trial};
use crate::command::{
    output::Output,
    tuning::Tuning,
    watch::Watch,
    words::{Word, one_of, whole},
};

/// How chunks are compressed.
const CODECS: [Word<Codec>; 3] = [
    ("raw", Codec::Raw, "Not at all"),
    ("zstd", Codec::Zstd, "By Zstandard"),
    ("lz4", Codec::Lz4, "By LZ4"),
];

/// Save and restore a state of a given size, round by round, as MLPerf Storage does.
///
/// Ranks are threads, each with a saver and lanes of its own. Saves are synced; before each cold restore the files are
/// evicted from the page cache. The times are those of the slowest rank.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A folder on the file system to test; everything created in it is removed again.
    #[arg(value_name = "FOLDER", default_value = ".")]
    folder: PathBuf,

    /// The size of the state of all ranks together.
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    size: Bytes,

    /// The number of ranks.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = whole(1..=4096_u32))]
    ranks: u32,

    /// The number of rounds.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = whole(1..=u32::MAX))]
    rounds: u32,

    /// The memory of the state: `host` or `cuda:0`.
    #[arg(long, value_name = "DEVICE", default_value = "host")]
    device: Place,

    /// How chunks are compressed.
    #[arg(long, value_parser = one_of(&CODECS), default_value = "raw")]
    codec: Codec,

    /// The number of parity files.
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = whole(0..=255_usize))]
    parity: usize,

    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    tuning: Tuning,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let folder = Location::from(&args.folder);
    let executor = args.tuning.write_executor(&Session::new(), &[&folder])?;
    let trial = Trial {
        ranks: args.ranks,
        bytes: args.size.0,
        rounds: args.rounds,
        place: args.device,
        options: SaverOptions {
            codec: args.codec,
            parity: args.parity,
            ..SaverOptions::default()
        },
        settings: *executor.settings(),
        progress: Arc::default(),
    };
    let watch = Watch::begin(&trial.progress, trial.moved_bytes(), Some(&folder));
    let rounds = trial.run(&args.folder)?;
    drop(watch);
    let json = json!({
        "bytes": args.size.0,
        "ranks": args.ranks,
        "device": args.device.to_string(),
        "rounds": rounds,
    });
    args.output.write(&page(args, &rounds), &json)?;
    Ok(ExitCode::SUCCESS)
}

fn page(args: &Args, rounds: &[Round]) -> Page {
    let columns = [
        Column::new("round", Unit::Count),
        Column::new("stopped", Unit::Seconds),
        Column::new("durable", Unit::Seconds),
        Column::new("write", Unit::Rate),
        Column::new("restore cold", Unit::Rate),
        Column::new("restore warm", Unit::Rate),
    ];
    let mut table = Table::new("", columns);
    let rate = |seconds: f64| Rate(args.size.0 as f64 / seconds.max(1e-9));
    for (number, round) in (1_u32..).zip(rounds) {
        table.push([
            Cell::from(number),
            Seconds(round.stop_s).into(),
            Seconds(round.durable_s).into(),
            rate(round.durable_s).into(),
            rate(round.restore_cold_s).into(),
            rate(round.restore_warm_s).into(),
        ]);
    }
    let title = format!(
        "Checkpoints of {} from {} in {}",
        args.size,
        counted(u64::from(args.ranks), "rank"),
        args.device.in_words()
    );
    let page = Page::new(title).section("", [table.into(), "The times are those of the slowest rank.".into()]);
    match median(rounds, |round| round.durable_s) {
        Some(durable_s) => {
            let cold_s = median(rounds, |round| round.restore_cold_s).unwrap_or_default();
            let verdict = format!(
                "A save is durable after {} ({}), and a cold restore takes {} ({}); medians of {}.",
                Seconds(durable_s),
                rate(durable_s),
                Seconds(cold_s),
                rate(cold_s),
                counted(rounds.len() as u64, "round")
            );
            page.verdict(Tone::Neutral, verdict)
        }
        None => page,
    }
}

/// The median of a time over all rounds.
fn median(rounds: &[Round], time: impl Fn(&Round) -> f64) -> Option<f64> {
    let mut times: Vec<f64> = rounds.iter().map(time).collect();
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

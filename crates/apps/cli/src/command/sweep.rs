//! `--sweep`: evaluates many values of any parameters in parallel.
//!
//! `plan` and both simulators share this: the values are parsed here, each command computes one point, and the grid has
//! the same page, chart and JSON.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use straightway_core::{Error, ErrorKind};
use straightway_scenario::{
    check::Refusals,
    setting::ParameterSetting,
    sweep::{self, ParameterSweep},
};

use straightway_report::Page;
use straightway_view::sweep::{Grid, chosen, figures};

use super::bar::Bar;

/// Parameters to sweep over and figures to show
#[derive(Debug, clap::Args)]
pub(crate) struct SweepArgs {
    /// Answer for many values: PATH=a,b,c or PATH=from..to:steps[:log] (repeatable: a grid)
    #[arg(long, value_name = "PATH=VALUES")]
    sweep: Vec<String>,

    /// Figures to show, as paths into the JSON answer (repeatable); without --sweep, only these
    #[arg(long, value_name = "PATH")]
    show: Vec<String>,
}

impl SweepArgs {
    /// Whether a sweep was requested.
    pub(crate) fn is_asked(&self) -> bool {
        !self.sweep.is_empty()
    }

    /// The figures of one answer that --show selects without --sweep, as a page and as JSON; `None` if none was asked.
    pub(crate) fn shown(&self, title: &str, answer: &Value) -> Result<Option<(Page, Value)>, Refusals> {
        if self.show.is_empty() {
            return Ok(None);
        }
        figures(title, answer, &self.show).map(Some)
    }

    /// Calls `ask` for every point, at most `points_max`. `ask` gets the bar, which breaks on Ctrl-C. `usual` are the
    /// default figures. `is_count` tells which parameters take only whole numbers.
    pub(crate) fn answer(
        &self,
        title: &str,
        usual: &[(&str, &str)],
        points_max: usize,
        is_count: impl Fn(&str) -> bool,
        ask: impl Fn(&[ParameterSetting], &Bar) -> anyhow::Result<Result<Value, Refusals>> + Sync,
    ) -> anyhow::Result<Grid> {
        let read = |text: &String| {
            let sweep = ParameterSweep::parse(text)?;
            let counts = is_count(&sweep.path);
            Ok::<_, Refusals>(if counts { sweep.in_whole_steps() } else { sweep })
        };
        let sweeps = self.sweep.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let total = sweep::points(&sweeps, points_max)?;
        let bar = Bar::begin();
        let answered = AtomicUsize::new(0);
        let points = sweep::run(&sweeps, points_max, |settings| {
            let done = answered.load(Ordering::Relaxed);
            let doing = format!("{done} of {total} points");
            if bar.show(done as f64 / total as f64, &doing).is_break() {
                let stopped = Error::new(ErrorKind::Cancelled, "sweep", title, "it was interrupted");
                return Err(anyhow::Error::new(stopped));
            }
            let answer = ask(settings, &bar)?;
            answered.fetch_add(1, Ordering::Relaxed);
            Ok(answer)
        })?;
        Ok(Grid::new(title, sweeps, points, chosen(usual, &self.show))?)
    }
}

//! `--sweep`: one question over many values of any parameters, answered in parallel.
//!
//! `plan` and both simulators sweep alike: the values are read here, each command says how one
//! point is answered, and the grid is shown by the same page, chart and JSON.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use straightway_core::{Error, Kind};
use straightway_scenario::{
    check::Refusals,
    setting::Setting,
    sweep::{self, Sweep},
};

use straightway_view::sweep::{Grid, chosen};

use super::bar::Bar;

/// Parameters to sweep over and figures to show
#[derive(Debug, clap::Args)]
pub(crate) struct Sweeping {
    /// Answer for many values: PATH=a,b,c or PATH=from..to:steps[:log] (repeatable: a grid)
    #[arg(long, value_name = "PATH=VALUES")]
    sweep: Vec<String>,

    /// Figures a sweep shows, as paths into the JSON answer (repeatable)
    #[arg(long, value_name = "PATH", requires = "sweep")]
    show: Vec<String>,
}

impl Sweeping {
    /// Whether there is anything to sweep over.
    pub(crate) fn is_asked(&self) -> bool {
        !self.sweep.is_empty()
    }

    /// Has `ask` answer every point, at most `points_max`; it is lent the bar, which tells it
    /// when the user has had enough. `usual` are the figures shown where none are asked for, and
    /// `is_count` tells which parameters only whole numbers make sense of.
    pub(crate) fn answer(
        &self,
        title: &str,
        usual: &[(&str, &str)],
        points_max: usize,
        is_count: impl Fn(&str) -> bool,
        ask: impl Fn(&[Setting], &Bar) -> anyhow::Result<Result<Value, Refusals>> + Sync,
    ) -> anyhow::Result<Grid> {
        let read = |text: &String| {
            let sweep = Sweep::parse(text)?;
            let counts = is_count(&sweep.path);
            Ok::<_, Refusals>(if counts {
                sweep.in_whole_steps()
            } else {
                sweep
            })
        };
        let sweeps = self.sweep.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let total = sweep::points(&sweeps, points_max)?;
        let bar = Bar::begin();
        let answered = AtomicUsize::new(0);
        let points = sweep::run(&sweeps, points_max, |settings| {
            let done = answered.load(Ordering::Relaxed);
            let doing = format!("{done} of {total} points");
            if bar.show(done as f64 / total as f64, &doing).is_break() {
                let stopped = Error::new(Kind::Cancelled, "sweep", title, "it was broken off");
                return Err(anyhow::Error::new(stopped));
            }
            let answer = ask(settings, &bar)?;
            answered.fetch_add(1, Ordering::Relaxed);
            Ok(answer)
        })?;
        Ok(Grid::new(title, sweeps, points, chosen(usual, &self.show))?)
    }
}

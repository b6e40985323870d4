//! One row of the results.

use std::{fmt::Write, path::Path};

use serde_json::{Value, json};
use straightway_core::{Bytes, Error, Receipt, Result};

use crate::Bench;

/// The result of one benchmark.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) work: String,
    /// The measured values, one per round.
    pub(crate) samples: Vec<f64>,
    pub(crate) unit: &'static str,
    /// The requirement on the result, if there is one.
    pub(crate) bar: Option<Bar>,
    /// The receipt of the last round.
    pub(crate) receipt: Option<Receipt>,
}

/// A requirement on a result.
#[derive(Clone, Debug)]
pub(crate) enum Bar {
    /// At least the share `least` of the named limit.
    Share { limit: f64, of: String, least: f64 },
    /// At most this value.
    AtMost(f64),
}

impl Row {
    /// A rate in GB/s, from bytes and the seconds of each round.
    pub(crate) fn rate(work: &str, bytes: u64, seconds: &[f64]) -> Self {
        let samples = seconds.iter().map(|s| bytes as f64 / s / 1e9).collect();
        Self::new(work, samples, "GB/s")
    }

    pub(crate) fn new(work: &str, samples: Vec<f64>, unit: &'static str) -> Self {
        let row = Self {
            work: work.to_owned(),
            samples,
            unit,
            bar: None,
            receipt: None,
        };
        eprintln!("{work}: {:.2} {unit} of {:.2?}", row.median(), row.samples);
        row
    }

    /// Requires a share of a limit.
    pub(crate) fn against(mut self, limit: &Row, least: f64) -> Self {
        self.bar = Some(Bar::Share {
            limit: limit.median(),
            of: limit.work.clone(),
            least,
        });
        self
    }

    pub(crate) fn at_most(mut self, most: f64) -> Self {
        self.bar = Some(Bar::AtMost(most));
        self
    }

    pub(crate) fn with(mut self, receipt: Receipt) -> Self {
        self.receipt = Some(receipt);
        self
    }

    pub(crate) fn median(&self) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
    }

    fn is_met(&self) -> Option<bool> {
        Some(match self.bar.as_ref()? {
            Bar::Share { limit, least, .. } => self.median() >= least * limit,
            Bar::AtMost(most) => self.median() <= *most,
        })
    }

    fn json(&self) -> Value {
        let bar = match &self.bar {
            None => Value::Null,
            Some(Bar::Share { limit, of, least }) => {
                json!({ "limit": limit, "of": of, "least": least, "share": self.median() / limit })
            }
            Some(Bar::AtMost(most)) => json!({ "at_most": most }),
        };
        json!({
            "work": self.work, "median": self.median(), "unit": self.unit,
            "samples": self.samples, "bar": bar, "met": self.is_met(), "receipt": self.receipt,
        })
    }
}

/// All rows as a text table.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<44}{:>9} {:<5}{:>7}{:>7}  {:<4} {}\n",
        "work", "median", "", "share", "least", "met", "of"
    );
    for row in rows {
        let (share, least, of) = match &row.bar {
            None => (String::new(), String::new(), ""),
            Some(Bar::Share { limit, of, least }) => (
                format!("{:.3}", row.median() / limit),
                format!("{least:.2}"),
                of.as_str(),
            ),
            Some(Bar::AtMost(most)) => (String::new(), format!("≤{most:.2}"), ""),
        };
        let met = row.is_met().map_or("", |met| if met { "yes" } else { "NO" });
        let (work, unit, median) = (&row.work, row.unit, row.median());
        writeln!(
            text,
            "{work:<44}{median:>9.3} {unit:<5}{share:>7}{least:>7}  {met:<4} {of}"
        )
        .expect("writing to a string cannot fail");
    }
    text
}

/// Writes all rows as JSON.
pub(crate) fn save(path: &Path, bench: &Bench, rows: &[Row]) -> Result<()> {
    let settings = bench.executor.settings();
    let all = json!({
        "gpu": bench.context.device().name()?,
        "bytes": bench.args.size.0,
        "cores": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        "settings": {
            "gpu_lanes": settings.gpu_lanes,
            "gpu_chunk": Bytes(settings.gpu_chunk_bytes).to_string(),
            "pinned": Bytes(settings.pinned_bytes).to_string(),
            "drive_lanes": settings.drive_lanes,
            "drive_chunk": Bytes(settings.chunk_bytes).to_string(),
            "depth": settings.depth,
        },
        "rows": rows.iter().map(Row::json).collect::<Vec<_>>(),
    });
    std::fs::write(path, format!("{all:#}\n")).map_err(|e| Error::os("write", path.display(), e))
}

//! Every figure of the four articles that describe such a system, with a verdict.
//!
//! A figure that a model speaks of is computed: by a claim of a scenario, by a figure of a scenario's answer, or by
//! the PCIe and incast arithmetic of the simulators. Others are decided by a source or not at all. The verdict is kept
//! beside each figure in `articles.toml`; a test computes it again and fails where one changed.

use serde::{Deserialize, Serialize};
use straightway_fabric::headroom::incast_corrections;
use straightway_pcie::{article::corrections, scenario::Article};
use straightway_scenario::{
    check::{self, Checked, Checker, Refusals},
    claim::{Claim, Compare, Figure},
    provenance::Correction,
};

use crate::{library, scenario::Scenario};

/// The articles, by their number less one.
pub const ARTICLES: [&str; 4] = [
    "The IO wall in a nutshell",
    "Storage infrastructure for AI",
    "GPUDirect Storage: the peer-to-peer data path",
    "GPU-direct storage pipeline",
];

/// What becomes of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It follows.
    Follows,
    /// It contradicts the article's own numbers, or what was measured.
    DoesNotFollow,
    /// What it depends on is not known, or was fitted to it.
    Undecided,
}

/// One figure of an article.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    article: usize,
    says: String,
    verdict: Verdict,
    by: Option<By>,
    #[serde(default)]
    why: String,
}

/// How a figure is judged.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum By {
    /// By a claim of a scenario.
    Claim { scenario: String, says: String },
    /// By a figure of a scenario's answer.
    Answer {
        scenario: String,
        figure: String,
        value: Figure,
        compare: Compare,
        tolerance: f64,
    },
    /// By a claim about PCIe.
    Pcie(String),
    /// By a claim about incast.
    Incast(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    figure: Vec<Row>,
}

impl Checked for File {
    fn check(&self, c: &mut Checker) {
        for (i, row) in self.figure.iter().enumerate() {
            c.within(&format!("figure[{i}]"), |c| {
                c.count("article", row.article as u64, 1..=ARTICLES.len() as u64);
                if row.by.is_none() && row.why.is_empty() {
                    c.refuse("why", "nothing", "a reason, where no model judges it");
                }
            });
        }
    }
}

/// A figure and what becomes of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// The article's number.
    pub article: usize,
    /// What it says.
    pub says: String,
    /// What becomes of it.
    pub verdict: Verdict,
    /// What the model says, where one does.
    pub model_says: Option<String>,
    /// Why.
    pub why: String,
    /// The verdict that the file keeps: the same, unless a model changed.
    pub kept: Verdict,
}

/// Judges every figure.
pub fn judge() -> Result<Vec<Judged>, Refusals> {
    let file: File = check::read(include_str!("../articles.toml"))?;
    file.figure.iter().map(judged).collect()
}

fn judged(row: &Row) -> Result<Judged, Refusals> {
    let correction = row
        .by
        .as_ref()
        .map(|by| corrected(by, &row.says))
        .transpose()?;
    let verdict = correction.as_ref().map_or(row.verdict, |found| {
        // A figure that computes as published but is measured to be otherwise is decided by the row.
        match (found.holds, found.fitted) {
            (true, true) => Verdict::Undecided,
            (true, false) if row.verdict == Verdict::DoesNotFollow && is_counter(row) => {
                Verdict::DoesNotFollow
            }
            (true, false) => Verdict::Follows,
            (false, _) => Verdict::DoesNotFollow,
        }
    });
    let why = match (&correction, row.why.as_str()) {
        (Some(found), "") => found.why.clone(),
        (_, why) => why.to_owned(),
    };
    Ok(Judged {
        article: row.article,
        says: row.says.clone(),
        verdict,
        model_says: correction.map(|found| found.model_says),
        why,
        kept: row.verdict,
    })
}

/// Whether the row holds a measured counter-example against the article: the model reproduces that, and the article's
/// figure does not follow.
fn is_counter(row: &Row) -> bool {
    matches!(
        &row.by,
        Some(By::Answer {
            compare: Compare::Near,
            ..
        })
    )
}

fn corrected(by: &By, says: &str) -> Result<Correction, Refusals> {
    let missing = |what: &str| Refusals::one("by", what, "a claim or a figure that is there");
    let named = |all: Vec<Correction>, claim: &str| {
        let mut all = all.into_iter();
        all.find(|c| c.claim.starts_with(claim))
            .ok_or_else(|| missing(claim))
    };
    match by {
        By::Claim { scenario, says } => {
            let scenario = read(scenario)?;
            let claim = scenario.claims.iter().find(|claim| claim.says == *says);
            let claim = claim.ok_or_else(|| missing(says))?;
            let answer = scenario.answer()?.to_json();
            claim.judge(&answer).ok_or_else(|| missing(says))
        }
        By::Answer {
            scenario,
            figure,
            value,
            compare,
            tolerance,
        } => {
            let claim = Claim {
                says: says.to_owned(),
                answer: Some(figure.clone()),
                value: Some(value.clone()),
                instead: None,
                compare: *compare,
                tolerance: *tolerance,
                holds: true,
                why: String::new(),
                fitted: false,
                source: "article".to_owned(),
            };
            let answer = read(scenario)?.answer()?.to_json();
            claim.judge(&answer).ok_or_else(|| missing(figure))
        }
        By::Pcie(claim) => {
            let both = [Article::Contention, Article::Flit];
            named(both.into_iter().flat_map(corrections).collect(), claim)
        }
        By::Incast(claim) => named(incast_corrections(), claim),
    }
}

fn read(name: &str) -> Result<Scenario, Refusals> {
    let entry = library::find(name)
        .ok_or_else(|| Refusals::one("scenario", name, "one that comes along"))?;
    Scenario::read(entry.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_the_verdict_that_is_kept() {
        let judged = judge().unwrap();
        let changed: Vec<_> = judged.iter().filter(|j| j.verdict != j.kept).collect();
        assert!(changed.is_empty(), "{changed:#?}");
    }

    #[test]
    fn all_articles_and_all_verdicts_are_there_and_each_has_a_reason() {
        let judged = judge().unwrap();
        for article in 1..=ARTICLES.len() {
            assert!(judged.iter().any(|j| j.article == article), "{article}");
        }
        for verdict in [Verdict::Follows, Verdict::DoesNotFollow, Verdict::Undecided] {
            assert!(judged.iter().filter(|j| j.verdict == verdict).count() >= 10);
        }
        let silent: Vec<_> = judged
            .iter()
            .filter(|j| {
                j.why.is_empty() && (j.verdict != Verdict::Follows || j.model_says.is_none())
            })
            .collect();
        assert!(silent.is_empty(), "{silent:#?}");
        assert!(judged.len() >= 90, "{}", judged.len());
    }
}

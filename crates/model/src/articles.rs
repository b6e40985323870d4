//! Every figure of the four articles that describe such a system, with a verdict.
//!
//! Every verdict is computed ([`by`]): by a scenario's answer, a simulation, arithmetic, or a comparison with a published
//! figure. What none of them decides cannot be decided, and says why. The verdict is also kept beside each figure in
//! `articles.toml`; a test computes it again and fails where one changed.

mod by;

use serde::{Deserialize, Serialize};
use straightway_scenario::{
    check::{self, Checked, Checker, Refusals},
    claim::{Compare, Figure},
};

use self::by::{By, Said};

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
    /// The figure itself, where `by` gives one to set beside it.
    value: Option<Figure>,
    #[serde(default)]
    compare: Compare,
    #[serde(default)]
    tolerance: f64,
    #[serde(default)]
    why: String,
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
                    c.refuse("why", "nothing", "a reason, where nothing judges it");
                }
                if row.by.is_none() && row.verdict != Verdict::Undecided {
                    c.refuse("verdict", "typed in", "undecided, where nothing judges it");
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
    /// What decided it: a scenario, a simulation, arithmetic, or a published figure; none where nothing does.
    pub by: Option<&'static str>,
    /// What was computed or published instead.
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
    let said = Said {
        says: &row.says,
        value: row.value.as_ref(),
        compare: row.compare,
        tolerance: row.tolerance,
    };
    let found = row.by.as_ref().map(|by| by.judge(&said)).transpose()?;
    let verdict = match &found {
        None => Verdict::Undecided,
        // An input was fitted to the figure: it follows by construction.
        Some(found) if found.holds && found.fitted => Verdict::Undecided,
        Some(found) if found.holds => Verdict::Follows,
        Some(_) => Verdict::DoesNotFollow,
    };
    let why = match &found {
        Some(found) if row.why.is_empty() => found.why.clone(),
        _ => row.why.clone(),
    };
    Ok(Judged {
        article: row.article,
        says: row.says.clone(),
        verdict,
        by: row.by.as_ref().map(By::name),
        model_says: found.map(|found| found.model_says),
        why,
        kept: row.verdict,
    })
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
    }

    #[test]
    fn so_many_figures_follow_do_not_and_cannot_be_decided() {
        let judged = judge().unwrap();
        let count = |verdict| judged.iter().filter(|j| j.verdict == verdict).count();
        let counts = [Verdict::Follows, Verdict::DoesNotFollow, Verdict::Undecided].map(count);
        assert_eq!(counts, [34, 35, 29]);
    }

    #[test]
    fn a_verdict_that_nothing_computes_is_refused() {
        let typed = "[[figure]]\narticle = 1\nsays = \"it\"\nverdict = \"follows\"\nwhy = \"so\"";
        let refused = check::read::<File>(typed).unwrap_err().to_string();
        assert!(refused.contains("figure[0].verdict"), "{refused}");
    }
}

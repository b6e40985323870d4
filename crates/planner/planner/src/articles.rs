//! Every figure of the four articles that describe such a system, with a verdict.
//!
//! Every verdict is computed from [`evidence`]: a scenario's answer, a simulation, arithmetic, or a published figure. A
//! figure without evidence is undecided, with the reason. `articles.toml` also records each verdict; a test computes
//! them again and fails if one changed.

mod evidence;

use serde::{Deserialize, Serialize};
use straightway_scenario::{
    check::{self, Checkable, Checker, Refusals},
    claim::{Compare, Figure},
};

use self::evidence::{ArticleFigure, Evidence};

/// The titles of the articles, by article number minus one.
pub const ARTICLES: [&str; 4] = [
    "The IO Wall: Why Storage is the New Bottleneck",
    "Storage Infrastructure for AI: Bypassing the CPU Tax with GPUDirect & NVMe-oF",
    "GPUDirect Storage: Engineering the Peer-to-Peer Data Path",
    "GPU-Direct Storage Pipeline",
];

/// The verdict on a figure of an article.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FigureVerdict {
    /// The figure follows from the article's own numbers or from measurements.
    Follows,
    /// The figure contradicts the article's own numbers, or measurements.
    DoesNotFollow,
    /// The figure depends on values that are unknown, or that were fitted to it.
    Undecided,
}

/// One figure of an article.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FigureRow {
    article: usize,
    says: String,
    verdict: FigureVerdict,
    by: Option<Evidence>,
    /// The figure itself, if `by` computes a number to compare it with.
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
    figure: Vec<FigureRow>,
}

impl Checkable for File {
    fn check(&self, c: &mut Checker) {
        for (i, row) in self.figure.iter().enumerate() {
            c.within(&format!("figure[{i}]"), |c| {
                c.count("article", row.article as u64, 1..=ARTICLES.len() as u64);
                if row.by.is_none() && row.why.is_empty() {
                    c.refuse("why", "nothing", "a reason, because there is no evidence");
                }
                if row.by.is_none() && row.verdict != FigureVerdict::Undecided {
                    c.refuse("verdict", "typed in", "undecided, because there is no evidence");
                }
            });
        }
    }
}

/// A figure with its verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// The article's number.
    pub article: usize,
    /// The claim.
    pub says: String,
    /// The verdict.
    pub verdict: FigureVerdict,
    /// The kind of evidence: a scenario, a simulation, arithmetic, or a published figure; `None` if there is none.
    pub by: Option<&'static str>,
    /// The computed or published figure.
    pub model_says: Option<String>,
    /// The reason.
    pub why: String,
    /// The verdict recorded in the file. It differs only if a model changed.
    pub kept: FigureVerdict,
}

/// Judges every figure.
pub fn judge() -> Result<Vec<Judged>, Refusals> {
    let file: File = check::read(include_str!("../articles.toml"))?;
    file.figure.iter().map(judged).collect()
}

fn judged(row: &FigureRow) -> Result<Judged, Refusals> {
    let said = ArticleFigure {
        says: &row.says,
        value: row.value.as_ref(),
        compare: row.compare,
        tolerance: row.tolerance,
    };
    let found = row.by.as_ref().map(|by| by.judge(&said)).transpose()?;
    let verdict = match &found {
        None => FigureVerdict::Undecided,
        // An input was fitted to the figure, so it follows by construction.
        Some(found) if found.holds && found.fitted => FigureVerdict::Undecided,
        Some(found) if found.holds => FigureVerdict::Follows,
        Some(_) => FigureVerdict::DoesNotFollow,
    };
    let why = match &found {
        Some(found) if row.why.is_empty() => found.why.clone(),
        _ => row.why.clone(),
    };
    Ok(Judged {
        article: row.article,
        says: row.says.clone(),
        verdict,
        by: row.by.as_ref().map(Evidence::name),
        model_says: found.map(|found| found.model_says),
        why,
        kept: row.verdict,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_the_recorded_verdict() {
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
        for verdict in [
            FigureVerdict::Follows,
            FigureVerdict::DoesNotFollow,
            FigureVerdict::Undecided,
        ] {
            assert!(judged.iter().filter(|j| j.verdict == verdict).count() >= 10);
        }
        let silent: Vec<_> = judged
            .iter()
            .filter(|j| j.why.is_empty() && (j.verdict != FigureVerdict::Follows || j.model_says.is_none()))
            .collect();
        assert!(silent.is_empty(), "{silent:#?}");
    }

    #[test]
    fn the_number_of_figures_per_verdict_is_unchanged() {
        let judged = judge().unwrap();
        let count = |verdict| judged.iter().filter(|j| j.verdict == verdict).count();
        let counts = [
            FigureVerdict::Follows,
            FigureVerdict::DoesNotFollow,
            FigureVerdict::Undecided,
        ]
        .map(count);
        assert_eq!(counts, [36, 36, 33]);
    }

    #[test]
    fn a_verdict_that_nothing_computes_is_refused() {
        let typed = "[[figure]]\narticle = 1\nsays = \"it\"\nverdict = \"follows\"\nwhy = \"so\"";
        let refused = check::read::<File>(typed).unwrap_err().to_string();
        assert!(refused.contains("figure[0].verdict"), "{refused}");
    }
}

//! What decides a figure of an article.

use std::ops::ControlFlow;

use serde::Deserialize;
use straightway_fabric as fabric;
use straightway_pcie::{
    article::corrections,
    link::{Generation, Width},
    scenario::Article,
};
use straightway_scenario::{
    check::{self, Refusals},
    claim::{Claim, Compare, Figure},
    provenance::Correction,
    setting::{self, Setting},
};

use crate::{library, scenario::Scenario};

/// How a figure is judged.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum By {
    /// By a claim of a scenario.
    Claim { scenario: String, says: String },
    /// By a figure of a scenario's answer.
    Answer { scenario: String, figure: String },
    /// By whether a scenario with these settings is refused at this field.
    Refused {
        scenario: String,
        set: Vec<String>,
        field: String,
    },
    /// By a figure of a simulated fabric.
    Fabric {
        scenario: String,
        set: Vec<String>,
        figure: String,
    },
    /// By what a PCIe link carries.
    Link {
        #[serde(rename = "gen")]
        generation: Generation,
        lanes: u8,
        /// Of payload in TLPs of this size; absent for the raw rate.
        mps: Option<u32>,
    },
    /// By a claim about PCIe.
    Pcie(String),
    /// By a claim about incast.
    Incast(String),
    /// By a product.
    Product(Vec<Figure>),
    /// By a published figure.
    Published { figure: Figure, source: String },
}

/// What the article says, and how it compares where it follows.
#[derive(Clone, Debug)]
pub(super) struct Said<'a> {
    pub(super) says: &'a str,
    pub(super) value: Option<&'a Figure>,
    pub(super) compare: Compare,
    pub(super) tolerance: f64,
}

/// A transfer long enough that its last TLP does not matter.
const LONG_BYTES: u64 = 1 << 20;

impl By {
    /// What kind of evidence it is.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Claim { .. } | Self::Answer { .. } | Self::Refused { .. } => "scenario",
            Self::Fabric { .. } => "simulation",
            Self::Link { .. } => "link model",
            Self::Pcie(_) | Self::Incast(_) | Self::Product(_) => "arithmetic",
            Self::Published { .. } => "published figure",
        }
    }

    /// Computes the verdict.
    pub(super) fn judge(&self, said: &Said<'_>) -> Result<Correction, Refusals> {
        match self {
            Self::Claim { scenario, says } => {
                let scenario = read(scenario)?;
                let claim = scenario.claims.iter().find(|c| c.says == *says);
                let claim = claim.ok_or_else(|| missing(says))?;
                if claim.instead.is_some() {
                    return Err(Refusals::one("by", says, "a claim with a figure"));
                }
                let answer = scenario.answer()?.to_json();
                claim.judge(&answer).ok_or_else(|| missing(says))
            }
            Self::Answer { scenario, figure } => {
                said.beside(figure, &read(scenario)?.answer()?.to_json())
            }
            Self::Refused {
                scenario,
                set,
                field,
            } => refused(&read(scenario)?, &settings(set)?, field, said.says),
            Self::Fabric {
                scenario,
                set,
                figure,
            } => said.beside(figure, &simulated(scenario, &settings(set)?)?),
            Self::Link {
                generation,
                lanes,
                mps,
            } => {
                let link = Width {
                    generation: *generation,
                    lanes: *lanes,
                };
                said.beside_value(match mps {
                    Some(mps) => link.write_bytes_per_s(LONG_BYTES, *mps),
                    None => link.raw_bytes_per_s(),
                })
            }
            Self::Pcie(claim) => {
                let both = [Article::Contention, Article::Flit];
                named(both.into_iter().flat_map(corrections).collect(), claim)
            }
            Self::Incast(claim) => named(fabric::headroom::incast_corrections(), claim),
            Self::Product(factors) => {
                said.beside_value(factors.iter().map(|factor| factor.value).product())
            }
            Self::Published { figure, source } => Ok(Correction {
                why: source.clone(),
                ..said.beside_value(figure.value)?
            }),
        }
    }
}

impl Said<'_> {
    fn beside_value(&self, value: f64) -> Result<Correction, Refusals> {
        self.beside("value", &serde_json::json!({ "value": value }))
    }

    fn beside(&self, figure: &str, answer: &serde_json::Value) -> Result<Correction, Refusals> {
        let claim = Claim {
            says: self.says.to_owned(),
            answer: Some(figure.to_owned()),
            value: self.value.cloned(),
            instead: None,
            compare: self.compare,
            tolerance: self.tolerance,
            holds: true,
            why: String::new(),
            fitted: false,
            source: "article".to_owned(),
        };
        claim.judge(answer).ok_or_else(|| missing(figure))
    }
}

/// Whether the scenario so set is refused, and at this field.
fn refused(
    scenario: &Scenario,
    settings: &[Setting],
    field: &str,
    says: &str,
) -> Result<Correction, Refusals> {
    let correction = |model_says: String, holds| Correction {
        claim: says.to_owned(),
        article_says: "it does not fit".to_owned(),
        model_says,
        holds,
        fitted: false,
        why: String::new(),
    };
    match scenario.set(settings) {
        Ok(_) => Ok(correction("it fits".to_owned(), false)),
        Err(refusals) => {
            let found = refusals.0.iter().find(|r| r.field.ends_with(field));
            let found = found.ok_or_else(|| refusals.clone())?;
            Ok(correction(
                format!("refused: needs {}", found.allowed),
                true,
            ))
        }
    }
}

/// The outcome of a fabric that comes along, with these settings.
fn simulated(name: &str, settings: &[Setting]) -> Result<serde_json::Value, Refusals> {
    let case = fabric::cases::case(name).ok_or_else(|| missing(name))?;
    let scenario: fabric::Scenario = check::read(case.text)?;
    let scenario = setting::set(scenario, settings)?;
    let outcome = fabric::simulate(&scenario, |_| ControlFlow::Continue(()));
    let outcome = outcome.map_err(|e| Refusals::one("by", e.to_string(), "a fabric that runs"))?;
    Ok(serde_json::to_value(outcome).expect("an outcome is plain data"))
}

fn settings(texts: &[String]) -> Result<Vec<Setting>, Refusals> {
    texts.iter().map(|text| Setting::parse(text)).collect()
}

fn named(all: Vec<Correction>, claim: &str) -> Result<Correction, Refusals> {
    let mut all = all.into_iter();
    let found = all.find(|c| c.claim.starts_with(claim));
    found.ok_or_else(|| missing(claim))
}

fn read(name: &str) -> Result<Scenario, Refusals> {
    let entry = library::find(name)
        .ok_or_else(|| Refusals::one("scenario", name, "one that comes along"))?;
    Scenario::read(entry.text)
}

fn missing(what: &str) -> Refusals {
    Refusals::one("by", what, "a claim or a figure that is there")
}

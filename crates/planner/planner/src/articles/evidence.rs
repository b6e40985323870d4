//! The evidence that decides a figure of an article.

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
    setting::{self, ParameterSetting},
};

use crate::{library, scenario::Scenario};

/// The evidence for or against a figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Evidence {
    /// A claim of a scenario.
    Claim { scenario: String, says: String },
    /// A figure of a scenario's answer.
    Answer { scenario: String, figure: String },
    /// Whether a scenario with these settings is refused at this field.
    Refused {
        scenario: String,
        set: Vec<String>,
        field: String,
    },
    /// A figure of a simulated fabric.
    Fabric {
        scenario: String,
        set: Vec<String>,
        figure: String,
    },
    /// The rate of a PCIe link.
    Link {
        #[serde(rename = "gen")]
        generation: Generation,
        lanes: u8,
        /// The TLP payload size, for the payload rate; absent for the raw rate.
        mps: Option<u32>,
    },
    /// A claim about PCIe.
    Pcie(String),
    /// A claim about incast.
    Incast(String),
    /// A product of figures.
    Product(Vec<Figure>),
    /// A published figure.
    Published { figure: Figure, source: String },
}

/// The article's figure, and the comparison that must hold for it to follow.
#[derive(Clone, Debug)]
pub(super) struct ArticleFigure<'a> {
    pub(super) says: &'a str,
    pub(super) value: Option<&'a Figure>,
    pub(super) compare: Compare,
    pub(super) tolerance: f64,
}

/// A transfer so long that its last, partial TLP does not matter.
const LONG_BYTES: u64 = 1 << 20;

impl Evidence {
    /// The kind of evidence, as printed.
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
    pub(super) fn judge(&self, said: &ArticleFigure<'_>) -> Result<Correction, Refusals> {
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
            Self::Answer { scenario, figure } => said.judge_answer(figure, &read(scenario)?.answer()?.to_json()),
            Self::Refused { scenario, set, field } => refused(&read(scenario)?, &settings(set)?, field, said.says),
            Self::Fabric { scenario, set, figure } => said.judge_answer(figure, &simulated(scenario, &settings(set)?)?),
            Self::Link { generation, lanes, mps } => {
                let link = Width {
                    generation: *generation,
                    lanes: *lanes,
                };
                said.judge_value(match mps {
                    Some(mps) => link.write_bytes_per_s(LONG_BYTES, *mps),
                    None => link.raw_bytes_per_s(),
                })
            }
            Self::Pcie(claim) => {
                let both = [Article::Contention, Article::Flit];
                named(both.into_iter().flat_map(corrections).collect(), claim)
            }
            Self::Incast(claim) => named(fabric::headroom::incast_corrections(), claim),
            Self::Product(factors) => said.judge_value(factors.iter().map(|factor| factor.value).product()),
            Self::Published { figure, source } => Ok(Correction {
                why: source.clone(),
                ..said.judge_value(figure.value)?
            }),
        }
    }
}

impl ArticleFigure<'_> {
    fn judge_value(&self, value: f64) -> Result<Correction, Refusals> {
        self.judge_answer("value", &serde_json::json!({ "value": value }))
    }

    fn judge_answer(&self, figure: &str, answer: &serde_json::Value) -> Result<Correction, Refusals> {
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

/// Judges whether the scenario with these settings is refused at `field`.
fn refused(
    scenario: &Scenario,
    settings: &[ParameterSetting],
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
            Ok(correction(format!("refused: needs {}", found.allowed), true))
        }
    }
}

/// Simulates a built-in fabric scenario with these settings.
fn simulated(name: &str, settings: &[ParameterSetting]) -> Result<serde_json::Value, Refusals> {
    let case = fabric::cases::case(name).ok_or_else(|| missing(name))?;
    let scenario: fabric::FabricScenario = check::read(case.text)?;
    let scenario = setting::set(scenario, settings)?;
    let outcome = fabric::simulate(&scenario, |_| ControlFlow::Continue(()));
    let outcome =
        outcome.map_err(|e| Refusals::one("by", e.to_string(), "a fabric scenario that simulates without error"))?;
    Ok(serde_json::to_value(outcome).expect("an outcome is plain data"))
}

fn settings(texts: &[String]) -> Result<Vec<ParameterSetting>, Refusals> {
    texts.iter().map(|text| ParameterSetting::parse(text)).collect()
}

fn named(all: Vec<Correction>, claim: &str) -> Result<Correction, Refusals> {
    let mut all = all.into_iter();
    let found = all.find(|c| c.claim.starts_with(claim));
    found.ok_or_else(|| missing(claim))
}

fn read(name: &str) -> Result<Scenario, Refusals> {
    let entry =
        library::find(name).ok_or_else(|| Refusals::one("scenario", name, "the name of a built-in scenario"))?;
    Scenario::read(entry.text)
}

fn missing(what: &str) -> Refusals {
    Refusals::one("by", what, "a claim or a figure that exists")
}

//! A scenario: one question in a file, with what others published about it.
//!
//! The file holds a title, one table named after the topic (`[checkpoint]`, `[qos]`, …) whose every
//! parameter has a default, and the [claims](crate::claim) made about that case. Any parameter can
//! be [set](crate::setting) or [swept](crate::sweep) by its path afterwards.

pub mod library;

use serde::{Deserialize, Serialize};

use crate::{
    architecture::{self, Architecture},
    check::{Checked, Checker, Refusals},
    checkpoint::{self, Checkpoint},
    claim::Claim,
    dpu::{self, Dpu},
    headroom::{Headroom, Port},
    ingest::{self, Ingest},
    provenance::{Basis, Correction},
    qos::{self, Qos},
    rail::{self, Rails},
    reduction::{self, Reduction},
    registration::{self, Registration},
    s3::{self, S3},
    transport::{self, Transport},
};

/// One question and what was published about it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// What it is about, in a line.
    pub title: String,
    /// What to know about it.
    pub about: String,
    /// How a checkpoint is saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// What registering memory costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registration: Option<Registration>,
    /// What a transport carries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    /// What an architecture gives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<Architecture>,
    /// Whether GPUs wait for samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingest: Option<Ingest>,
    /// How many requests hide a latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3>,
    /// What many ports give together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rail: Option<Rails>,
    /// Deduplication against compression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reduction: Option<Reduction>,
    /// Reservation, limit and weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos: Option<Qos>,
    /// What a DPU takes over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dpu: Option<Dpu>,
    /// The buffer a lossless port needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headroom: Option<Port>,
    /// What was published about it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<Claim>,
}

/// What a scenario asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Topic {
    /// How a checkpoint is saved.
    Checkpoint,
    /// What registering memory costs.
    Registration,
    /// What a transport carries.
    Transport,
    /// What an architecture gives.
    Architecture,
    /// Whether GPUs wait for samples.
    Ingest,
    /// How many requests hide a latency.
    S3,
    /// What many ports give together.
    Rail,
    /// Deduplication against compression.
    Reduction,
    /// Reservation, limit and weight.
    Qos,
    /// What a DPU takes over.
    Dpu,
    /// The buffer a lossless port needs.
    Headroom,
}

/// The answer to a scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[expect(clippy::large_enum_variant, reason = "one answer lives at a time")]
pub enum Answer {
    /// How a checkpoint is saved.
    Checkpoint(checkpoint::Answer),
    /// What registering memory costs.
    Registration(registration::Answer),
    /// What a transport carries.
    Transport(transport::Answer),
    /// What an architecture gives.
    Architecture(architecture::Answer),
    /// Whether GPUs wait for samples.
    Ingest(ingest::Answer),
    /// How many requests hide a latency.
    S3(s3::Answer),
    /// What many ports give together.
    Rail(rail::Answer),
    /// Deduplication against compression.
    Reduction(reduction::Answer),
    /// Reservation, limit and weight.
    Qos(qos::Answer),
    /// What a DPU takes over.
    Dpu(dpu::Answer),
    /// The buffer a lossless port needs.
    Headroom(Headroom),
}

impl Topic {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Checkpoint,
        Self::Registration,
        Self::Transport,
        Self::Architecture,
        Self::Ingest,
        Self::S3,
        Self::Rail,
        Self::Reduction,
        Self::Qos,
        Self::Dpu,
        Self::Headroom,
    ];

    /// The name of its table and its command.
    pub fn name(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::Registration => "registration",
            Self::Transport => "transport",
            Self::Architecture => "architecture",
            Self::Ingest => "ingest",
            Self::S3 => "s3",
            Self::Rail => "rail",
            Self::Reduction => "reduction",
            Self::Qos => "qos",
            Self::Dpu => "dpu",
            Self::Headroom => "headroom",
        }
    }
}

impl Scenario {
    /// The question on a topic with nothing but defaults.
    pub fn default_of(topic: Topic) -> Self {
        let mut scenario = Self::default();
        match topic {
            Topic::Checkpoint => scenario.checkpoint = Some(Checkpoint::default()),
            Topic::Registration => scenario.registration = Some(Registration::default()),
            Topic::Transport => scenario.transport = Some(Transport::default()),
            Topic::Architecture => scenario.architecture = Some(Architecture::default()),
            Topic::Ingest => scenario.ingest = Some(Ingest::default()),
            Topic::S3 => scenario.s3 = Some(S3::default()),
            Topic::Rail => scenario.rail = Some(Rails::default()),
            Topic::Reduction => scenario.reduction = Some(Reduction::default()),
            Topic::Qos => scenario.qos = Some(Qos::default()),
            Topic::Dpu => scenario.dpu = Some(Dpu::default()),
            Topic::Headroom => scenario.headroom = Some(Port::default()),
        }
        scenario
    }

    /// The topics that have a table.
    fn topics(&self) -> Vec<Topic> {
        let present = [
            self.checkpoint.is_some(),
            self.registration.is_some(),
            self.transport.is_some(),
            self.architecture.is_some(),
            self.ingest.is_some(),
            self.s3.is_some(),
            self.rail.is_some(),
            self.reduction.is_some(),
            self.qos.is_some(),
            self.dpu.is_some(),
            self.headroom.is_some(),
        ];
        let all = Topic::ALL.into_iter().zip(present);
        all.filter_map(|(topic, present)| present.then_some(topic))
            .collect()
    }

    /// What it asks about.
    ///
    /// # Panics
    ///
    /// Where the scenario was not checked and has no topic.
    pub fn topic(&self) -> Topic {
        *self
            .topics()
            .first()
            .expect("a checked scenario has one topic")
    }

    /// Answers, with every claim judged.
    pub fn answer(&self) -> Result<Answer, Refusals> {
        let mut answer = self.compute()?;
        answer.basis_mut().corrections = self.judge(&answer);
        Ok(answer)
    }

    fn compute(&self) -> Result<Answer, Refusals> {
        let of = |asked: Option<Answer>| asked.expect("the topic is the table that is there");
        let topic = self.topic();
        Ok(match topic {
            Topic::Checkpoint => {
                let asked = self.checkpoint.as_ref().map(Checkpoint::answer).transpose();
                of(asked
                    .map_err(|r| r.below(topic.name()))?
                    .map(Answer::Checkpoint))
            }
            Topic::Qos => {
                let asked = self.qos.as_ref().map(Qos::answer).transpose();
                of(asked.map_err(|r| r.below(topic.name()))?.map(Answer::Qos))
            }
            Topic::Registration => of(self
                .registration
                .as_ref()
                .map(|q| Answer::Registration(q.answer()))),
            Topic::Transport => of(self
                .transport
                .as_ref()
                .map(|q| Answer::Transport(q.answer()))),
            Topic::Architecture => of(self
                .architecture
                .as_ref()
                .map(|q| Answer::Architecture(q.answer()))),
            Topic::Ingest => of(self.ingest.as_ref().map(|q| Answer::Ingest(q.answer()))),
            Topic::S3 => of(self.s3.as_ref().map(|q| Answer::S3(q.answer()))),
            Topic::Rail => of(self.rail.as_ref().map(|q| Answer::Rail(q.answer()))),
            Topic::Reduction => of(self
                .reduction
                .as_ref()
                .map(|q| Answer::Reduction(q.answer()))),
            Topic::Dpu => of(self.dpu.as_ref().map(|q| Answer::Dpu(q.answer()))),
            Topic::Headroom => of(self
                .headroom
                .as_ref()
                .map(|port| Answer::Headroom(port.headroom()))),
        })
    }

    fn judge(&self, answer: &Answer) -> Vec<Correction> {
        if self.claims.is_empty() {
            return Vec::new();
        }
        let answer = answer.to_json();
        self.claims
            .iter()
            .filter_map(|claim| claim.judge(&answer))
            .collect()
    }
}

impl Answer {
    /// The answer as JSON, in base units under names that end in the unit.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("an answer is plain data with string keys")
    }

    /// What it rests on.
    pub fn basis(&self) -> &Basis {
        match self {
            Self::Checkpoint(answer) => &answer.basis,
            Self::Registration(answer) => &answer.basis,
            Self::Transport(answer) => &answer.basis,
            Self::Architecture(answer) => &answer.basis,
            Self::Ingest(answer) => &answer.basis,
            Self::S3(answer) => &answer.basis,
            Self::Rail(answer) => &answer.basis,
            Self::Reduction(answer) => &answer.basis,
            Self::Qos(answer) => &answer.basis,
            Self::Dpu(answer) => &answer.basis,
            Self::Headroom(answer) => &answer.basis,
        }
    }

    fn basis_mut(&mut self) -> &mut Basis {
        match self {
            Self::Checkpoint(answer) => &mut answer.basis,
            Self::Registration(answer) => &mut answer.basis,
            Self::Transport(answer) => &mut answer.basis,
            Self::Architecture(answer) => &mut answer.basis,
            Self::Ingest(answer) => &mut answer.basis,
            Self::S3(answer) => &mut answer.basis,
            Self::Rail(answer) => &mut answer.basis,
            Self::Reduction(answer) => &mut answer.basis,
            Self::Qos(answer) => &mut answer.basis,
            Self::Dpu(answer) => &mut answer.basis,
            Self::Headroom(answer) => &mut answer.basis,
        }
    }
}

/// Checks the table that is there.
fn nested<T: Checked>(c: &mut Checker, topic: Topic, question: Option<&T>) {
    if let Some(question) = question {
        c.nested(topic.name(), question);
    }
}

impl Checked for Scenario {
    fn check(&self, c: &mut Checker) {
        let names = || Topic::ALL.map(Topic::name).join(", ");
        match self.topics().as_slice() {
            [_] => {}
            [] => c.refuse(
                "(text)",
                "no topic",
                format!("one table out of {}", names()),
            ),
            [_, second, ..] => {
                c.refuse(second.name(), "a second topic", "one topic in a file");
            }
        }
        nested(c, Topic::Checkpoint, self.checkpoint.as_ref());
        nested(c, Topic::Registration, self.registration.as_ref());
        nested(c, Topic::Transport, self.transport.as_ref());
        nested(c, Topic::Architecture, self.architecture.as_ref());
        nested(c, Topic::Ingest, self.ingest.as_ref());
        nested(c, Topic::S3, self.s3.as_ref());
        nested(c, Topic::Rail, self.rail.as_ref());
        nested(c, Topic::Reduction, self.reduction.as_ref());
        nested(c, Topic::Qos, self.qos.as_ref());
        nested(c, Topic::Dpu, self.dpu.as_ref());
        nested(c, Topic::Headroom, self.headroom.as_ref());
        c.each("claims", &self.claims, 0..=100);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;

    #[test]
    fn every_topic_answers_with_nothing_but_defaults() {
        for topic in Topic::ALL {
            let scenario = Scenario::default_of(topic);
            check::checked(&scenario).unwrap();
            assert_eq!(scenario.topic(), topic);
            let answer = scenario.answer().unwrap();
            assert!(
                !answer.basis().formulas.is_empty(),
                "{topic:?} names no formula"
            );
            let empty = format!("[{}]", topic.name());
            assert_eq!(check::read::<Scenario>(&empty).unwrap(), scenario);
        }
    }

    #[test]
    fn a_file_has_one_topic() {
        let none = check::read::<Scenario>("title = \"x\"").unwrap_err();
        assert!(
            none.to_string().contains("one table out of checkpoint,"),
            "{none}"
        );
        let two = check::read::<Scenario>("[s3]\n[dpu]").unwrap_err();
        assert_eq!(
            two.to_string(),
            "line 2: dpu = a second topic: allowed is one topic in a file"
        );
    }

    #[test]
    fn no_answer_holds_a_number_that_json_cannot() {
        for topic in Topic::ALL {
            let answer = Scenario::default_of(topic).answer().unwrap();
            let text = format!("{answer:?}");
            assert!(
                !text.contains(": inf") && !text.contains(": NaN"),
                "{topic:?}: {text}"
            );
        }
    }
}

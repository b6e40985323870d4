//! A scenario: one question in a file, with the figures published about it.
//!
//! The file holds a title, one table named after the topic (`[checkpoint]`, `[qos]`, …), and the
//! [claims](straightway_scenario::claim) made about that case. Every parameter has a default. Any parameter can be
//! [set](straightway_scenario::setting) or swept by its path afterwards.

use serde::{Deserialize, Serialize};
use straightway_scenario::{
    check::{self, Checkable, Checker, PathStep, Refusals, steps},
    claim::Claim,
    origin::Origins,
    provenance::{Basis, Correction},
    setting::{self, ParameterSetting},
};

use crate::{question::Question, topics};

/// Expands the table of topics into the scenario's tables, the enum of topics and the enum of answers.
macro_rules! define {
    ($($(#[$doc:meta])* $Topic:ident $table:ident: $Question:ty,)*) => {
        /// One question and the figures published about it.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct Scenario {
            /// The title, one line.
            pub title: String,
            /// A description of the case.
            pub about: String,
            $(
                $(#[$doc])*
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $table: Option<$Question>,
            )*
            /// The published figures.
            #[serde(skip_serializing_if = "Vec::is_empty")]
            pub claims: Vec<Claim>,
            /// The origin of each parameter: default, file or user.
            #[serde(skip)]
            pub origins: Origins,
        }

        /// The topic of a scenario.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Topic {
            $($(#[$doc])* $Topic,)*
        }

        /// The answer to a scenario.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(untagged)]
        #[expect(clippy::large_enum_variant, reason = "one answer exists at a time")]
        pub enum ScenarioAnswer {
            $($(#[$doc])* $Topic(<$Question as Question>::Answer),)*
        }

        impl Topic {
            /// All topics.
            pub const ALL: &[Self] = &[$(Self::$Topic,)*];

            /// The name of the topic's table and of its command.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$Topic => <$Question as Question>::NAME,)*
                }
            }
        }

        impl Scenario {
            /// The question of a topic with all parameters at their defaults.
            pub fn default_of(topic: Topic) -> Self {
                let mut scenario = Self::default();
                match topic {
                    $(Topic::$Topic => scenario.$table = Some(Default::default()),)*
                }
                scenario
            }

            /// The topics whose table is present.
            fn topics(&self) -> Vec<Topic> {
                let mut found = Vec::new();
                $(if self.$table.is_some() {
                    found.push(Topic::$Topic);
                })*
                found
            }

            /// Computes the answer without judging claims.
            pub(crate) fn compute(&self) -> Result<ScenarioAnswer, Refusals> {
                $(if let Some(question) = &self.$table {
                    let refused = |r: Refusals| r.below(<$Question as Question>::NAME);
                    return question.answer().map(ScenarioAnswer::$Topic).map_err(refused);
                })*
                unreachable!("a checked scenario has one topic")
            }

            fn check_tables(&self, c: &mut Checker) {
                $(if let Some(question) = &self.$table {
                    c.nested(<$Question as Question>::NAME, question);
                })*
            }
        }

        impl ScenarioAnswer {
            /// The formulas and constants behind it.
            pub fn basis(&self) -> &Basis {
                match self {
                    $(Self::$Topic(answer) => &answer.basis,)*
                }
            }

            /// Its decision in a few words.
            pub fn verdict(&self) -> String {
                match self {
                    $(Self::$Topic(answer) => <$Question as Question>::verdict(answer),)*
                }
            }

            /// Keeps the figures only: drops the lists that only a page shows, and the basis.
            pub(crate) fn into_figures(mut self) -> Self {
                match &mut self {
                    $(Self::$Topic(answer) => {
                        <$Question as Question>::drop_lists(answer);
                        answer.basis = Basis::default();
                    })*
                }
                self
            }

            fn basis_mut(&mut self) -> &mut Basis {
                match self {
                    $(Self::$Topic(answer) => &mut answer.basis,)*
                }
            }
        }
    };
}

topics!(define);

impl Topic {
    /// What the topic is about, as a title.
    pub fn title(self) -> &'static str {
        match self {
            Self::Checkpoint => "Checkpoints",
            Self::Registration => "Registration of memory",
            Self::Transport => "Storage transports",
            Self::Architecture => "Storage architectures",
            Self::Ingest => "Ingest of samples",
            Self::S3 => "Object storage",
            Self::Rail => "Network ports of a node",
            Self::Reduction => "Data reduction",
            Self::Qos => "Tenants of one store",
            Self::Dpu => "Work of a DPU",
            Self::Headroom => "Headroom of a lossless port",
        }
    }
}

impl Scenario {
    /// The topic.
    ///
    /// # Panics
    ///
    /// Panics if the scenario was not checked and has no topic.
    pub fn topic(&self) -> Topic {
        *self.topics().first().expect("a checked scenario has one topic")
    }

    /// Reads a scenario from TOML and records which parameters the text sets.
    pub fn read(text: &str) -> Result<Self, Refusals> {
        let mut scenario: Self = check::read(text)?;
        scenario.origins = Origins::of_text(text, Some(scenario.topic().name()));
        Ok(scenario)
    }

    /// Computes the answer, judges every claim and records the origin of every parameter.
    pub fn answer(&self) -> Result<ScenarioAnswer, Refusals> {
        let mut answer = self.compute()?;
        let corrections = self.judge(&answer);
        let basis = answer.basis_mut();
        basis.corrections = corrections;
        basis.attribute(|path| self.origins.of(path));
        Ok(answer)
    }

    /// Returns the scenario with all `settings` applied. Claims are dropped: they are about the case as published.
    pub fn set(&self, settings: &[ParameterSetting]) -> Result<Self, Refusals> {
        if settings.is_empty() {
            return Ok(self.clone());
        }
        let mut changed = self.clone();
        changed.claims.clear();
        let full: Vec<ParameterSetting> = settings.iter().map(|s| self.rooted(s)).collect();
        let set = setting::set(changed, &full);
        let mut changed = set.map_err(|refused| self.unrooted(settings, refused))?;
        // `setting::set` serialises and parses the scenario, which loses the origins.
        changed.origins = self.origins.clone();
        let root = format!("{}.", self.topic().name());
        for setting in &full {
            changed
                .origins
                .set(setting.path.strip_prefix(&root).unwrap_or(&setting.path));
        }
        Ok(changed)
    }

    /// The title with the user's changes: a changed case is no longer the one in the file.
    pub fn shown_title(&self, settings: &[ParameterSetting]) -> String {
        let title = match self.title.as_str() {
            "" => format!("{} with the default parameters", self.topic().title()),
            title => title.to_owned(),
        };
        if settings.is_empty() {
            return title;
        }
        let set: Vec<String> = settings.iter().map(|s| format!("{} = {}", s.path, s.value)).collect();
        format!("{title}, but {}", set.join(", "))
    }

    /// Whether the parameter at `path` is a count, which takes whole numbers only.
    pub fn is_count(&self, path: &str) -> bool {
        setting::is_count(self, &self.full_path(path))
    }

    /// `path` with the topic's name in front, which users may leave out.
    pub fn full_path(&self, path: &str) -> String {
        let topic = self.topic().name();
        match steps(path).next() {
            Some(PathStep::Key(key)) if key == topic => path.to_owned(),
            _ => format!("{topic}.{path}"),
        }
    }

    fn rooted(&self, setting: &ParameterSetting) -> ParameterSetting {
        ParameterSetting {
            path: self.full_path(&setting.path),
            value: setting.value.clone(),
        }
    }

    /// Restores the path in each refusal to the form the user typed.
    fn unrooted(&self, settings: &[ParameterSetting], mut refused: Refusals) -> Refusals {
        let root = format!("{}.", self.topic().name());
        for refusal in &mut refused.0 {
            let meant = refusal.meant.take();
            refusal.meant = meant.map(|name| name.strip_prefix(&root).map_or(name.clone(), str::to_owned));
            let typed = |s: &&ParameterSetting| self.full_path(&s.path) == refusal.field;
            if let Some(setting) = settings.iter().find(typed) {
                refusal.field.clone_from(&setting.path);
            }
        }
        refused
    }

    fn judge(&self, answer: &ScenarioAnswer) -> Vec<Correction> {
        if self.claims.is_empty() {
            return Vec::new();
        }
        let answer = answer.to_json();
        self.claims.iter().filter_map(|claim| claim.judge(&answer)).collect()
    }
}

impl ScenarioAnswer {
    /// The answer as JSON, in base units under names that end in the unit.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("an answer is plain data with string keys")
    }
}

impl Checkable for Scenario {
    fn check(&self, c: &mut Checker) {
        let names = || Topic::ALL.iter().map(|topic| topic.name()).collect::<Vec<_>>();
        match self.topics().as_slice() {
            [_] => {}
            [] => c.refuse("(text)", "no topic", format!("one table out of {}", names().join(", "))),
            [_, second, ..] => {
                c.refuse(second.name(), "a second topic", "one topic in a file");
            }
        }
        self.check_tables(c);
        c.each("claims", &self.claims, 0..=100);
    }
}

#[cfg(test)]
mod tests {
    use straightway_scenario::check;

    use super::*;

    #[test]
    fn every_topic_answers_with_its_defaults() {
        for &topic in Topic::ALL {
            let scenario = Scenario::default_of(topic);
            check::checked(&scenario).unwrap();
            assert_eq!(scenario.topic(), topic);
            let answer = scenario.answer().unwrap();
            assert!(!answer.basis().formulas.is_empty(), "{topic:?} names no formula");
            let empty = format!("[{}]", topic.name());
            assert_eq!(check::read::<Scenario>(&empty).unwrap(), scenario);
        }
    }

    #[test]
    fn a_file_has_one_topic() {
        let none = check::read::<Scenario>("title = \"x\"").unwrap_err();
        assert!(none.to_string().contains("one table out of checkpoint,"), "{none}");
        let two = check::read::<Scenario>("[s3]\n[dpu]").unwrap_err();
        assert_eq!(
            two.to_string(),
            "line 2: dpu = a second topic: allowed is one topic in a file"
        );
    }

    #[test]
    fn no_answer_holds_a_number_that_json_cannot() {
        for &topic in Topic::ALL {
            let answer = Scenario::default_of(topic).answer().unwrap();
            let text = format!("{answer:?}");
            assert!(!text.contains(": inf") && !text.contains(": NaN"), "{topic:?}: {text}");
        }
    }

    fn changed(topic: Topic, texts: &[&str]) -> Result<Scenario, Refusals> {
        let settings: Result<Vec<_>, _> = texts.iter().map(|text| ParameterSetting::parse(text)).collect();
        Scenario::default_of(topic).set(&settings?)
    }

    #[test]
    fn any_parameter_is_set_by_its_path() {
        let scenario = changed(Topic::Checkpoint, &["cluster.gpus=2048", "node.hop.rate=200Gb/s"]);
        let checkpoint = scenario.unwrap().checkpoint.unwrap();
        assert_eq!(checkpoint.cluster.gpus, 2048);
        assert!((checkpoint.node.hop.unwrap().rate.unwrap().as_gbit() - 200.0).abs() < 1e-9);
        let scenario = changed(Topic::Qos, &["tenants[2].weight=5", "qos.seed=9"]).unwrap();
        let qos = scenario.qos.unwrap();
        assert!((qos.tenants[2].weight - 5.0).abs() < 1e-9);
        assert_eq!(qos.seed.0, 9);
    }

    #[test]
    fn a_parameter_that_is_absent_by_default_can_be_set() {
        let scenario = changed(Topic::Checkpoint, &["schedule.interval=2h"]).unwrap();
        let interval = scenario.checkpoint.unwrap().schedule.interval.unwrap();
        assert!((interval.0 - 7200.0).abs() < 1e-9);
    }

    #[test]
    fn an_invalid_setting_is_refused_by_name() {
        for (text, says) in [
            ("cluster.gpus=0", "cluster.gpus = 0: allowed is a whole number from 1"),
            ("cluster.gpus=zzz", "cluster.gpus = zzz: allowed is a whole number"),
            ("cluster.gpu=1", "there is no `cluster.gpu`; did you mean cluster.gpus?"),
            ("cluster=1", "cluster = 1: allowed is a table"),
            (
                "cluster.gpus.x=1",
                "there is no `cluster.gpus.x`; did you mean cluster.gpus?",
            ),
            ("node.io=nan", "node.io = nan"),
            ("cluster", "setting = cluster: allowed is path=value"),
            ("node.media.rate=-5", "node.media.rate = -5"),
        ] {
            let refused = changed(Topic::Checkpoint, &[text]).unwrap_err().to_string();
            assert!(refused.starts_with(says), "{refused}");
        }
        let refused = changed(Topic::Qos, &["tenants[7].weight=1"]).unwrap_err().to_string();
        assert_eq!(refused, "tenants[7].weight = 1: allowed is an index from 0 to 2");
    }

    #[test]
    fn a_count_is_a_whole_number_however_it_is_written() {
        let gpus = |text: &str| {
            let setting = format!("cluster.gpus={text}");
            changed(Topic::Checkpoint, &[&setting]).map(|s| s.checkpoint.unwrap().cluster.gpus)
        };
        assert_eq!(gpus("1e3").unwrap(), 1000);
        assert_eq!(gpus("640.0").unwrap(), 640);
        assert_eq!(
            gpus("1.4").unwrap_err().to_string(),
            "cluster.gpus = 1.4: allowed is a whole number from 1 to 10000000"
        );
        let refused = changed(Topic::Qos, &["seed=1e308"]).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "seed = 1e308: allowed is a whole number from 0 to 9223372036854775807"
        );
        // A share is not a count, and neither is a parameter that does not exist.
        let scenario = Scenario::default_of(Topic::Checkpoint);
        assert!(scenario.is_count("cluster.gpus"));
        assert!(!scenario.is_count("schedule.overlap"));
        assert!(!scenario.is_count("nowhere"));
    }
}

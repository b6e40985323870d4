//! A question to the planner: the one interface of every topic.

use serde::{Serialize, de::DeserializeOwned};
use straightway_scenario::check::{Checked, Refusals};

/// A topic's input: every parameter has a default, and the whole knows its ranges.
pub trait Question: Checked + Clone + Default + PartialEq + Serialize + DeserializeOwned {
    /// The name of its table in a scenario, and of its command.
    const NAME: &'static str;
    /// What it is answered with: plain data with a `basis`.
    type Answer: Clone + PartialEq + Serialize;

    /// Answers it; refuses what only the computation can find wrong.
    fn answer(&self) -> Result<Self::Answer, Refusals>;

    /// What the answer decides, in a few words: two answers with the same words have the same verdict. Empty
    /// where the topic decides nothing.
    fn verdict(answer: &Self::Answer) -> String {
        let _ = answer;
        String::new()
    }

    /// Drops lists that only a page shows, so that the figures are written out quickly.
    fn drop_lists(answer: &mut Self::Answer) {
        let _ = answer;
    }
}

//! A question to the cluster planner: the interface of every topic.

use serde::{Serialize, de::DeserializeOwned};
use straightway_scenario::check::{Checkable, Refusals};

/// A topic's input. Every parameter has a default, and the input checks its own ranges.
pub trait Question: Checkable + Clone + Default + PartialEq + Serialize + DeserializeOwned {
    /// The name of its table in a scenario, and of its command.
    const NAME: &'static str;
    /// The answer type: plain data with a `basis`.
    type Answer: Clone + PartialEq + Serialize;

    /// Computes the answer; refuses input that only the computation can find wrong.
    fn answer(&self) -> Result<Self::Answer, Refusals>;

    /// The answer's decision in a few words. Two answers with the same text have the same verdict. Empty if the
    /// topic decides nothing.
    fn verdict(answer: &Self::Answer) -> String {
        let _ = answer;
        String::new()
    }

    /// Drops the lists that only a page shows, so that the figures serialise quickly.
    fn drop_lists(answer: &mut Self::Answer) {
        let _ = answer;
    }
}

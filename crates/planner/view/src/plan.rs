//! The pages of the cluster planner's answers: one [`Shown`] per topic.

mod architecture;
mod checkpoint;
mod ingest;
mod registration;
mod stores;
mod transport;
mod uncertainty;

use serde_json::Value;
use straightway_planner::{
    parameter_list::TopicParameter,
    question::Question,
    scenario::{Scenario, ScenarioAnswer, Topic},
    topics,
    uncertainty::Uncertainty,
};
use straightway_report::{Cell, Column, Page, Table};
use straightway_scenario::claim::lookup;

use crate::{basis::with_basis, cells::paragraphs};

/// A topic's answer that can be shown on a page.
pub(crate) trait Shown {
    /// The figures that a sweep shows by default: path in the JSON answer, and label. `{}` in a label stands for the
    /// name of the list member that the path leads to.
    const USUAL: &'static [(&'static str, &'static str)];

    /// Adds the verdict, the figures and the tables.
    fn fill(&self, page: Page) -> Page;
}

/// Expands the table of topics into functions that dispatch by topic.
macro_rules! shown {
    ($($(#[$doc:meta])* $Topic:ident $table:ident: $Question:ty,)*) => {
        fn fill(page: Page, answer: &ScenarioAnswer) -> Page {
            match answer {
                $(ScenarioAnswer::$Topic(answer) => answer.fill(page),)*
            }
        }

        fn patterns(topic: Topic) -> &'static [(&'static str, &'static str)] {
            match topic {
                $(Topic::$Topic => <<$Question as Question>::Answer as Shown>::USUAL,)*
            }
        }
    };
}

topics!(shown);

/// The figures that a sweep of `topic` shows by default: path in the JSON answer, and label with the names from
/// `answer`.
pub fn usual(topic: Topic, answer: &Value) -> Vec<(&'static str, String)> {
    let named = |(path, label): &(&'static str, &'static str)| {
        let member = path.split_once(']').map_or(*path, |(list, _)| list);
        let name = lookup(answer, &format!("{member}].name")).and_then(Value::as_str);
        (*path, label.replace("{}", name.unwrap_or(path)))
    };
    patterns(topic).iter().map(named).collect()
}

/// The page of an answer and its uncertainty; `in_full` adds every formula and constant.
pub fn page(
    title: String,
    scenario: &Scenario,
    answer: &ScenarioAnswer,
    uncertainty: &Uncertainty,
    in_full: bool,
) -> Page {
    let mut page = Page::new(title);
    let about = paragraphs(&scenario.about);
    if !about.is_empty() {
        page = page.section("", [about.into()]);
    }
    let page = uncertainty::fill(fill(page, answer), uncertainty);
    with_basis(page, answer.basis(), in_full)
}

/// The page of a topic's parameters.
pub fn parameters(topic: Topic, list: &[TopicParameter]) -> Page {
    let columns = [
        Column::text("parameter"),
        Column::text("default"),
        Column::text("allowed"),
        Column::text("meaning"),
    ];
    let mut table = Table::new("", columns);
    for TopicParameter { parameter, text } in list {
        table.push([
            Cell::from(parameter.path.as_str()),
            parameter.shown_default().into(),
            parameter.range.as_str().into(),
            (*text).into(),
        ]);
    }
    let hint = format!(
        "Set one with `straightway plan {} --set PARAMETER=VALUE`. `[0]` is the first entry of a list.",
        topic.name()
    );
    Page::new(format!("Parameters of plan {}", topic.name())).section("", [table.into(), hint.into()])
}

//! Answers as pages: the verdict, the figures, and beside them what was published and what it rests on.

mod architecture;
mod basis;
mod checkpoint;
mod ingest;
mod registration;
mod shared;
mod stores;
mod transport;

use straightway_model::scenario::{Answer, Scenario};
use straightway_report::Page;

/// The page of an answer; `in_full` adds every formula and constant.
pub(super) fn page(scenario: &Scenario, answer: &Answer, in_full: bool) -> Page {
    let title = if scenario.title.is_empty() {
        format!("{}, with its defaults", scenario.topic().name())
    } else {
        scenario.title.clone()
    };
    let mut page = Page::new(title);
    if !scenario.about.trim().is_empty() {
        page = page.section("", [scenario.about.trim().into()]);
    }
    let page = match answer {
        Answer::Checkpoint(answer) => checkpoint::fill(page, answer),
        Answer::Registration(answer) => registration::fill(page, answer),
        Answer::Transport(answer) => transport::fill(page, answer),
        Answer::Architecture(answer) => architecture::fill(page, answer),
        Answer::Ingest(answer) => ingest::fill(page, answer),
        Answer::S3(answer) => stores::s3(page, answer),
        Answer::Rail(answer) => transport::rails(page, answer),
        Answer::Reduction(answer) => stores::reduction(page, answer),
        Answer::Qos(answer) => stores::qos(page, answer),
        Answer::Dpu(answer) => transport::dpu(page, answer),
    };
    basis::fill(page, answer.basis(), in_full)
}

//! Answers as pages: the verdict, the figures, and beside them what was published and what it rests on.

mod architecture;
mod basis;
mod checkpoint;
mod ingest;
mod registration;
mod shared;
mod stores;
mod transport;

use straightway_model::{
    provenance::Basis,
    scenario::{Answer, Scenario},
};
use straightway_report::Page;

/// Text as written in a file, its lines joined and its paragraphs kept.
pub(crate) fn paragraphs(text: &str) -> String {
    let joined = text
        .split("\n\n")
        .map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    joined
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("\n\n")
}

/// The page of an answer; `in_full` adds every formula and constant.
pub(super) fn page(scenario: &Scenario, answer: &Answer, in_full: bool) -> Page {
    let title = if scenario.title.is_empty() {
        format!("{}, with its defaults", scenario.topic().name())
    } else {
        scenario.title.clone()
    };
    let mut page = Page::new(title);
    let about = paragraphs(&scenario.about);
    if !about.is_empty() {
        page = page.section("", [about.into()]);
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
        Answer::Headroom(answer) => transport::headroom(page, answer),
    };
    with_basis(page, answer.basis(), in_full)
}

/// Adds what an answer rests on; `in_full`, every formula and constant.
pub(crate) fn with_basis(page: Page, basis: &Basis, in_full: bool) -> Page {
    basis::fill(page, basis, in_full)
}

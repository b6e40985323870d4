//! The page of the four articles' figures and their verdicts.

use straightway_planner::articles::{ARTICLES, FigureVerdict, Judged};
use straightway_report::{Cell, Column, Page, Table, Tone};

/// The page of all figures.
pub fn page(judged: &[Judged]) -> Page {
    let count = |verdict: FigureVerdict| judged.iter().filter(|j| j.verdict == verdict).count();
    let says = format!(
        "Of {} figures in four articles {} follow, {} do not follow, and {} cannot be decided.",
        judged.len(),
        count(FigureVerdict::Follows),
        count(FigureVerdict::DoesNotFollow),
        count(FigureVerdict::Undecided)
    );
    let mut page = Page::new("Figures of the articles").verdict(Tone::Neutral, says);
    for (i, name) in ARTICLES.iter().enumerate() {
        let rows = judged.iter().filter(|row| row.article == i + 1);
        page = page.section(format!("Article {}: {name}", i + 1), [table(rows).into()]);
    }
    page
}

fn table<'a>(judged: impl Iterator<Item = &'a Judged>) -> Table {
    let columns = [
        Column::text("says"),
        Column::text("verdict"),
        Column::text("decided by"),
        Column::text("why"),
    ];
    let mut table = Table::new("", columns);
    for row in judged {
        let decided = match (row.by, &row.model_says) {
            (Some(by), Some(says)) => format!("{by}: {says}").into(),
            _ => Cell::Missing,
        };
        table.push([
            row.says.as_str().into(),
            word(row.verdict).into(),
            decided,
            row.why.as_str().into(),
        ]);
    }
    table
}

fn word(verdict: FigureVerdict) -> &'static str {
    match verdict {
        FigureVerdict::Follows => "follows",
        FigureVerdict::DoesNotFollow => "does not follow",
        FigureVerdict::Undecided => "cannot be decided",
    }
}

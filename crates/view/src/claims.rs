//! The figures of the four articles with their verdicts, as a page.

use straightway_model::articles::{ARTICLES, Judged, Verdict};
use straightway_report::{Cell, Column, Page, Table, Tone};

/// The page of all figures.
pub fn page(judged: &[Judged]) -> Page {
    let count = |verdict: Verdict| judged.iter().filter(|j| j.verdict == verdict).count();
    let says = format!(
        "Of {} figures in four articles {} follow, {} do not follow, and {} cannot be decided.",
        judged.len(),
        count(Verdict::Follows),
        count(Verdict::DoesNotFollow),
        count(Verdict::Undecided)
    );
    let mut page = Page::new("What the articles say").verdict(Tone::Neutral, says);
    page = page.section("", [table(judged).into()]);
    for (i, name) in ARTICLES.iter().enumerate() {
        page = page.fact(format!("article {}", i + 1), *name);
    }
    page
}

fn table(judged: &[Judged]) -> Table {
    let columns = [
        Column::text("article"),
        Column::text("says"),
        Column::text("verdict"),
        Column::text("model"),
        Column::text("why"),
    ];
    let mut table = Table::new("", columns);
    for row in judged {
        table.push([
            row.article.to_string().into(),
            row.says.as_str().into(),
            word(row.verdict).into(),
            row.model_says.as_deref().map_or(Cell::Missing, Cell::from),
            row.why.as_str().into(),
        ]);
    }
    table
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Follows => "follows",
        Verdict::DoesNotFollow => "does not follow",
        Verdict::Undecided => "cannot be decided",
    }
}

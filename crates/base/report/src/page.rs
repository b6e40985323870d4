//! A result on one page: the verdict, the figures, and the assumptions.
//!
//! A page is plain data. [`Page::to_html`] renders it as one self-contained file, without scripts, fonts or external
//! images, so that it can be mailed and opened years later. [`Page::to_text`] renders the same for a terminal. The
//! order is: the verdict in one sentence; the key figures; the sections; the assumptions with their sources; the
//! machine and the run.

mod html;
mod text;

use serde::{Deserialize, Serialize};

use crate::{Cell, Chart, Surface, Table};

/// A result as a page.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Page {
    /// The title.
    pub title: String,
    /// The result in one sentence.
    pub verdict: Option<Verdict>,
    /// The key figures.
    #[serde(default)]
    pub figures: Vec<PageFigure>,
    /// The sections.
    pub sections: Vec<Section>,
    /// Every assumed number, with its source.
    #[serde(default)]
    pub assumptions: Vec<PageAssumption>,
    /// Facts needed to repeat the run: the machine, the version, the date.
    #[serde(default)]
    pub facts: Vec<Fact>,
}

/// The result in one sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The tone.
    pub tone: Tone,
    /// The sentence.
    pub text: String,
}

/// The tone of a verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tone {
    /// The requirement is met.
    Good,
    /// Not judged.
    #[default]
    Neutral,
    /// The requirement is met narrowly or under conditions.
    Caution,
    /// The requirement is not met.
    Bad,
}

/// A key figure of a page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PageFigure {
    /// The label.
    pub label: String,
    /// The value.
    pub value: Cell,
    /// A note, such as a value to compare with; may be empty.
    pub note: String,
}

/// A section of a page.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// The content.
    pub blocks: Vec<Block>,
}

/// A block of content in a section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Block {
    /// Text. An empty line separates paragraphs.
    Prose(String),
    /// A table.
    Table(Table),
    /// Curves.
    Chart(Chart),
    /// Values over a grid.
    Surface(Surface),
}

/// An assumed number of a page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PageAssumption {
    /// The description.
    pub what: String,
    /// The assumed value.
    pub value: Cell,
    /// The formula it was computed by; may be empty.
    pub formula: String,
    /// The source.
    pub source: String,
    /// The confidence in it.
    pub confidence: PageConfidence,
}

/// The confidence in an assumed number, from highest to lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageConfidence {
    /// Measured on this machine.
    Measured,
    /// Read in the cited source.
    Read,
    /// Computed from other numbers.
    Computed,
    /// Quoted from the cited source without looking it up again.
    Quoted,
    /// Given by the user.
    Given,
    /// Fitted to the figure that it reproduces, which confirms nothing.
    Fitted,
    /// A guess that should be replaced.
    Guessed,
}

/// A fact about the machine or the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// The name.
    pub name: String,
    /// The value.
    pub value: String,
}

impl Page {
    /// A page with only a title.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            ..Self::default()
        }
    }

    /// Sets the verdict.
    #[must_use]
    pub fn verdict(mut self, tone: Tone, text: impl Into<String>) -> Self {
        self.verdict = Some(Verdict {
            tone,
            text: text.into(),
        });
        self
    }

    /// Adds a key figure.
    #[must_use]
    pub fn figure(mut self, label: impl Into<String>, value: impl Into<Cell>, note: impl Into<String>) -> Self {
        self.figures.push(PageFigure {
            label: label.into(),
            value: value.into(),
            note: note.into(),
        });
        self
    }

    /// Adds a section.
    #[must_use]
    pub fn section(mut self, title: impl Into<String>, blocks: impl IntoIterator<Item = Block>) -> Self {
        let blocks = blocks.into_iter().collect();
        self.sections.push(Section {
            title: title.into(),
            blocks,
        });
        self
    }

    /// Adds an assumed number.
    #[must_use]
    pub fn assume(mut self, assumption: PageAssumption) -> Self {
        self.assumptions.push(assumption);
        self
    }

    /// Adds a fact about the machine or the run.
    #[must_use]
    pub fn fact(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.facts.push(Fact {
            name: name.into(),
            value: value.into(),
        });
        self
    }
}

impl PageConfidence {
    /// The printed word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Read => "read",
            Self::Computed => "computed",
            Self::Quoted => "quoted",
            Self::Given => "given",
            Self::Fitted => "fitted",
            Self::Guessed => "guessed",
        }
    }
}

impl From<&str> for Block {
    fn from(prose: &str) -> Self {
        Self::Prose(prose.to_owned())
    }
}

impl From<String> for Block {
    fn from(prose: String) -> Self {
        Self::Prose(prose)
    }
}

impl From<Table> for Block {
    fn from(table: Table) -> Self {
        Self::Table(table)
    }
}

impl From<Chart> for Block {
    fn from(chart: Chart) -> Self {
        Self::Chart(chart)
    }
}

impl From<Surface> for Block {
    fn from(surface: Surface) -> Self {
        Self::Surface(surface)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, Column, Terminal, Unit, chart, surface, table};
    use straightway_core::text::is_unsafe;

    fn sample() -> Page {
        Page::new("One drive")
            .verdict(Tone::Good, "It is fast enough.")
            .figure("throughput", Cell::number(6.6e9, Unit::Rate), "of 6.9 GB/s")
            .section("Reads", ["As measured.".into(), table::tests::sample().into()])
            .assume(PageAssumption {
                what: "drive limit".into(),
                value: Cell::number(6.9e9, Unit::Rate),
                formula: "min(link, media)".into(),
                source: "data sheet".into(),
                confidence: PageConfidence::Read,
            })
            .fact("machine", "a small one")
    }

    #[test]
    fn bullets_are_a_list_and_charts_that_follow_each_other_share_a_row() {
        let chart = || Block::from(chart::tests::sample());
        let text = "It changes:\n• at 5 <GB/s>: slower\n• at 9: faster\n\nThe end.";
        let html = Page::new("").section("", [text.into(), chart(), chart()]).to_html();
        let list =
            "<p>It changes:</p>\n<ul><li>at 5 &lt;GB/s&gt;: slower</li><li>at 9: faster</li></ul>\n<p>The end.</p>";
        assert!(html.contains(list), "{html}");
        let rows: Vec<&str> = html.split("<div class=\"charts\">").collect();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[1].matches("<figure class=\"chart\">").count(), 2);
    }

    #[test]
    fn the_note_of_a_figure_goes_below_it_in_a_narrow_terminal() {
        let page = Page::new("t").figure("rate for the target", Cell::count(5.0), "with training stopped");
        let narrow = page.to_text(Terminal::plain(40));
        assert!(
            narrow.contains("  rate for the target  5\n    with training stopped\n"),
            "{narrow}"
        );
        assert!(page.to_text(Terminal::plain(80)).contains("5  with training stopped\n"));
    }

    /// A page with `text` in every text field.
    fn page_of(text: &str) -> Page {
        let axis = || Axis::linear(text, Unit::named(text));
        let series = chart::tests::sample().series.remove(1);
        let mut chart = Chart::new(text, axis(), axis()).limit(1.0, text);
        chart.series = vec![crate::Series {
            name: text.into(),
            ..series
        }];
        chart.series[0].marks[0].label = text.into();
        let mut surface = surface::tests::sample();
        surface.title = text.into();
        (surface.x, surface.y, surface.z) = (axis(), axis(), axis());
        surface
            .sheets
            .iter_mut()
            .for_each(|sheet| text.clone_into(&mut sheet.name));
        let unit = Unit::named(text);
        let mut table = Table::new(text, [Column::text(text), Column::new(text, unit.clone())]);
        table.push([text.into(), Cell::number(1.0, unit.clone())]);
        Page::new(text)
            .verdict(Tone::Bad, text)
            .figure(text, text, text)
            .section(text, [text.into(), table.into(), chart.into(), surface.into()])
            .assume(PageAssumption {
                what: text.into(),
                value: Cell::number(1.0, unit),
                formula: text.into(),
                source: text.into(),
                confidence: PageConfidence::Guessed,
            })
            .fact(text, text)
    }

    #[test]
    fn a_script_in_any_field_stays_text() {
        let attack = "</title></style><script>alert(1)</script><img src=x onerror=\"alert('2')\">";
        let html = page_of(attack).to_html();
        for tag in ["<script", "<img", "onerror=\"", "</title></style>"] {
            assert!(!html.contains(tag), "{tag}");
        }
        assert!(html.matches("&lt;script&gt;").count() > 20);
    }

    #[test]
    fn control_characters_never_reach_a_terminal() {
        let page = page_of("a\x1b]0;owned\x07\x1b[31m\u{9b}2J\u{202e}z\u{200b}");
        let text = page.to_text(Terminal::plain(80));
        let is_bad = |c: char| c != '\n' && is_unsafe(c);
        assert!(!text.contains(is_bad), "{text:?}");
        assert!(!page.to_html().contains(is_bad));
        // In colour, the only sequences are those that the same page has with a harmless name.
        let colour = Terminal {
            columns: 80,
            colour: true,
        };
        let sequences = |page: &Page| {
            let text = page.to_text(colour);
            assert!(!text.contains(|c| c != '\x1b' && is_bad(c)), "{text:?}");
            let parts = text
                .split('\x1b')
                .skip(1)
                .map(|part| part.split('m').next().unwrap().to_owned());
            parts.collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(sequences(&page), sequences(&page_of("plain")));
    }

    #[test]
    fn a_page_needs_nothing_from_outside() {
        let html = page_of("plain").to_html();
        // The only URL is the SVG namespace, which is not fetched.
        let html = html.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for word in ["http:", "https:", "//", "<script", "<link", "@import", "url("] {
            assert!(!html.contains(word), "{word}");
        }
    }

    #[test]
    fn a_page_in_the_terminal() {
        insta::assert_snapshot!(sample().to_text(Terminal::plain(80)));
    }

    #[test]
    fn a_page_as_html() {
        let html = sample().to_html();
        insta::assert_snapshot!(html[html.find("<body>").unwrap()..].replace("<tr>", "\n<tr>"));
    }

    #[test]
    fn an_empty_page_is_still_a_page() {
        assert!(Page::default().to_html().ends_with("</html>\n"));
        assert_eq!(Page::default().to_text(Terminal::plain(0)), "\n");
    }

    #[test]
    fn a_page_survives_json_and_back() {
        let mut page = page_of("text");
        page.sections[0].blocks.push(Block::Chart(Chart::default()));
        let text = serde_json::to_string(&page).unwrap();
        assert_eq!(serde_json::from_str::<Page>(&text).unwrap(), page);
    }
}

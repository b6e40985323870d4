//! A whole result on one page: the verdict, the figures, what they rest on.
//!
//! A page is plain data like all else here. [`Page::to_html`] makes one file of it that needs
//! nothing else: no script, no font, no picture from anywhere, so that it can be mailed on and
//! opened in ten years. [`Page::to_text`] says the same in a terminal. The order is that in which
//! people read: what came out, in one sentence; the key figures; the sections; then every number
//! that was assumed, with its source; then the machine it ran on.

mod html;
mod text;

use serde::{Deserialize, Serialize};

use crate::{Cell, Chart, Surface, Table};

/// A result as it is passed on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Page {
    /// What this is about.
    pub title: String,
    /// What came out, in one sentence.
    pub verdict: Option<Verdict>,
    /// The few numbers to remember.
    #[serde(default)]
    pub figures: Vec<Figure>,
    /// The result, part by part.
    pub sections: Vec<Section>,
    /// Every number that was put in, and where it came from.
    #[serde(default)]
    pub assumptions: Vec<Assumption>,
    /// The machine, the version and the date: what it takes to do it again.
    #[serde(default)]
    pub facts: Vec<Fact>,
}

/// What came out, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether it is good news.
    pub tone: Tone,
    /// The sentence.
    pub text: String,
}

/// Whether something is good news.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tone {
    /// It does what is asked.
    Good,
    /// Neither, or not judged.
    #[default]
    Neutral,
    /// It does, with little to spare or under conditions.
    Caution,
    /// It does not.
    Bad,
}

/// A number to remember.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What it is.
    pub label: String,
    /// The number.
    pub value: Cell,
    /// What to compare it with; may be empty.
    pub note: String,
}

/// A part of the result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// Its heading.
    pub title: String,
    /// What stands under it.
    pub blocks: Vec<Block>,
}

/// What stands in a section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Block {
    /// Sentences; an empty line parts paragraphs.
    Prose(String),
    /// A table.
    Table(Table),
    /// Curves.
    Chart(Chart),
    /// Values over a grid.
    Surface(Surface),
}

/// A number that was put in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assumption {
    /// What it is.
    pub what: String,
    /// What it was taken to be.
    pub value: Cell,
    /// How it was computed; may be empty.
    pub formula: String,
    /// Where it came from.
    pub source: String,
    /// How far it can be relied on.
    pub confidence: Confidence,
}

/// How far a number can be relied on, from most to least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// Measured on this machine.
    Measured,
    /// Read in the source named.
    Read,
    /// Computed from other numbers.
    Computed,
    /// Quoted from the source named, not looked up again.
    Quoted,
    /// Given by the user.
    Given,
    /// Taken from the figure that it then reproduces: it confirms nothing.
    Fitted,
    /// A guess that someone should replace.
    Guessed,
}

/// Something about the machine or the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// What it is.
    pub name: String,
    /// What it is here.
    pub value: String,
}

impl Page {
    /// A page with nothing on it but its title.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            ..Self::default()
        }
    }

    /// Says what came out.
    #[must_use]
    pub fn verdict(mut self, tone: Tone, text: impl Into<String>) -> Self {
        self.verdict = Some(Verdict {
            tone,
            text: text.into(),
        });
        self
    }

    /// Adds a number to remember.
    #[must_use]
    pub fn figure(
        mut self,
        label: impl Into<String>,
        value: impl Into<Cell>,
        note: impl Into<String>,
    ) -> Self {
        self.figures.push(Figure {
            label: label.into(),
            value: value.into(),
            note: note.into(),
        });
        self
    }

    /// Adds a section.
    #[must_use]
    pub fn section(
        mut self,
        title: impl Into<String>,
        blocks: impl IntoIterator<Item = Block>,
    ) -> Self {
        let blocks = blocks.into_iter().collect();
        self.sections.push(Section {
            title: title.into(),
            blocks,
        });
        self
    }

    /// Adds a number that was put in.
    #[must_use]
    pub fn assume(mut self, assumption: Assumption) -> Self {
        self.assumptions.push(assumption);
        self
    }

    /// Adds something about the machine or the run.
    #[must_use]
    pub fn fact(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.facts.push(Fact {
            name: name.into(),
            value: value.into(),
        });
        self
    }
}

impl Confidence {
    /// The word for it.
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
            .section(
                "Reads",
                ["As measured.".into(), table::tests::sample().into()],
            )
            .assume(Assumption {
                what: "drive limit".into(),
                value: Cell::number(6.9e9, Unit::Rate),
                formula: "min(link, media)".into(),
                source: "data sheet".into(),
                confidence: Confidence::Read,
            })
            .fact("machine", "a small one")
    }

    /// A page with `text` in every field that holds any.
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
            .section(
                text,
                [text.into(), table.into(), chart.into(), surface.into()],
            )
            .assume(Assumption {
                what: text.into(),
                value: Cell::number(1.0, unit),
                formula: text.into(),
                source: text.into(),
                confidence: Confidence::Guessed,
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
    fn a_terminal_is_told_nothing_it_would_obey() {
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
        // The one address is the name of the SVG language, which nobody fetches.
        let html = html.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for word in [
            "http:", "https:", "//", "<script", "<link", "@import", "url(",
        ] {
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

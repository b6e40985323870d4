//! A page as one HTML file.

use std::fmt::Write;

use super::{Block, Page, PageConfidence, Tone};
use crate::{markup::escape, picture::STYLE, unit::MISSING};

const CSS: &str = include_str!("page.css");

impl Page {
    /// Renders the page as one self-contained HTML file, without scripts, fonts or network access.
    pub fn to_html(&self) -> String {
        let title = escape(&self.title);
        // A second line of defence: the policy forbids scripts and external resources.
        let mut html = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" \
             content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<style>\n{CSS}{STYLE}</style>\n</head>\n<body>\n<main>\n\
             <h1>{title}</h1>\n"
        );
        self.summary(&mut html);
        for section in &self.sections {
            html += "<section>\n";
            if !section.title.is_empty() {
                let _ = writeln!(html, "<h2>{}</h2>", escape(&section.title));
            }
            html += &blocks_html(&section.blocks);
            html += "</section>\n";
        }
        self.assumptions_html(&mut html);
        html += "</main>\n";
        self.footer(&mut html);
        html += "</body>\n</html>\n";
        html
    }

    /// The verdict and the key figures.
    fn summary(&self, html: &mut String) {
        if let Some(verdict) = &self.verdict {
            let class = match verdict.tone {
                Tone::Good => "good",
                Tone::Neutral => "neutral",
                Tone::Caution => "caution",
                Tone::Bad => "bad",
            };
            let text = escape(&verdict.text);
            let _ = writeln!(html, "<p class=\"verdict {class}\">{text}</p>");
        }
        if self.figures.is_empty() {
            return;
        }
        *html += "<dl class=\"figures\">\n";
        for figure in &self.figures {
            let (label, value) = (escape(&figure.label), escape(&figure.value.show()));
            let _ = write!(html, "<div><dt>{label}</dt><dd class=\"value\">{value}</dd>");
            if !figure.note.is_empty() {
                let _ = write!(html, "<dd class=\"note\">{}</dd>", escape(&figure.note));
            }
            *html += "</div>\n";
        }
        *html += "</dl>\n";
    }

    fn assumptions_html(&self, html: &mut String) {
        if self.assumptions.is_empty() {
            return;
        }
        *html += "<section>\n<h2>Assumptions and sources</h2>\n\
             <figure class=\"table assumptions\"><div class=\"scroll\"><table><thead><tr>\
             <th scope=\"col\">what</th><th scope=\"col\" class=\"number\">value</th>\
             <th scope=\"col\">source</th><th scope=\"col\">confidence</th></tr></thead><tbody>\n";
        for assumption in &self.assumptions {
            let formula = match assumption.formula.as_str() {
                "" => String::new(),
                formula => format!("<span class=\"formula\">{}</span>", escape(formula)),
            };
            let source = if assumption.source.is_empty() {
                MISSING
            } else {
                &assumption.source
            };
            let tone = match assumption.confidence {
                PageConfidence::Measured | PageConfidence::Read => "good",
                PageConfidence::Computed | PageConfidence::Given => "neutral",
                PageConfidence::Quoted | PageConfidence::Fitted => "caution",
                PageConfidence::Guessed => "bad",
            };
            let _ = writeln!(
                html,
                "<tr><td>{}{formula}</td><td class=\"number\">{}</td><td>{}</td>\
                 <td><span class=\"badge {tone}\">{}</span></td></tr>",
                escape(&assumption.what),
                escape(&assumption.value.show()),
                escape(source),
                assumption.confidence.word()
            );
        }
        *html += "</tbody></table></div></figure>\n</section>\n";
    }

    fn footer(&self, html: &mut String) {
        if self.facts.is_empty() {
            return;
        }
        *html += "<footer><dl>\n";
        for fact in &self.facts {
            let (name, value) = (escape(&fact.name), escape(&fact.value));
            let _ = writeln!(html, "<dt>{name}</dt><dd>{value}</dd>");
        }
        *html += "</dl></footer>\n";
    }
}

/// The blocks of a section. Charts that follow each other share the width of the screen.
fn blocks_html(blocks: &[Block]) -> String {
    let is_picture = |block: &Block| matches!(block, Block::Chart(_) | Block::Surface(_));
    let groups = blocks.chunk_by(|a, b| is_picture(a) && is_picture(b));
    let group = |group: &[Block]| {
        let html: String = group.iter().map(block_html).collect();
        if group.len() > 1 {
            format!("<div class=\"charts\">{html}</div>\n")
        } else {
            html
        }
    };
    groups.map(group).collect()
}

fn block_html(block: &Block) -> String {
    match block {
        Block::Prose(prose) => {
            let paragraphs = prose.split("\n\n").map(str::trim).filter(|text| !text.is_empty());
            paragraphs.map(paragraph_html).collect()
        }
        Block::Table(table) => table.to_html(),
        Block::Chart(chart) => picture(&chart.to_svg_inline()),
        Block::Surface(surface) => picture(&surface.to_svg_inline()),
    }
}

/// A paragraph. Its lines that begin with a bullet or a sign become a list.
fn paragraph_html(text: &str) -> String {
    const BULLET: &str = "• ";
    let is_item = |line: &str| ["• ", "✓ ", "✗ "].iter().any(|sign| line.starts_with(sign));
    let mut html = String::new();
    let lines: Vec<&str> = text.lines().collect();
    for lines in lines.chunk_by(|a, b| is_item(a) == is_item(b)) {
        if is_item(lines[0]) {
            let class = if lines[0].starts_with(BULLET) {
                ""
            } else {
                " class=\"signs\""
            };
            let _ = write!(html, "<ul{class}>");
            for line in lines {
                let _ = write!(html, "<li>{}</li>", escape(line.trim_start_matches(BULLET)));
            }
            html += "</ul>\n";
        } else {
            let _ = writeln!(html, "<p>{}</p>", escape(&lines.join("\n")));
        }
    }
    html
}

fn picture(svg: &str) -> String {
    format!("<figure class=\"chart\">{svg}</figure>\n")
}

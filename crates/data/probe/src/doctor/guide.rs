//! The guide to all checks, as Markdown: `docs/doctor.md` is this text.

use std::fmt::Write;

use super::{catalogue::all, check::Layer, cufile_path::CufilePath};

const PREFACE: &str = "\
# The doctor's checks

`straightway doctor [PATH]` reports whether bytes of PATH can be transferred directly into GPU memory
and, if not, what prevents it and how to fix it. Two paths are direct: **nvidia-fs** (NVIDIA's kernel
module) and **P2PDMA** (the kernel's own). One is enough. In **compat mode** cuFile copies through host
memory, which is not direct. A failed check closes the paths listed with it; one that closes none costs
speed. No check proves that transfers are direct: only the live transfer at the end does.

Exit status: 0 if the direct path is proven, 1 if not, 2 on an error. `--json` prints the diagnosis as
JSON, `--verbose` also shows the checks that passed, `--root DIR` examines a captured machine: a folder
with its /sys, /proc, /run, /etc and /dev.

This page is the output of `straightway doctor --checks`.
";

/// The guide.
pub fn guide() -> String {
    let mut out = PREFACE.to_owned();
    for layer in Layer::ALL {
        let mut title = layer.title().to_owned();
        title[..1].make_ascii_uppercase();
        write!(out, "\n## {title}\n").expect(INFALLIBLE);
        for check in all().filter(|check| check.layer == layer) {
            write!(
                out,
                "\n### `{}`: {}\n\n{}\n\n- Closes: {}\n- Fix: {}\n",
                check.id,
                check.title,
                sentence(check.why),
                closes(check.ways),
                check.mend,
            )
            .expect(INFALLIBLE);
        }
    }
    out
}

const INFALLIBLE: &str = "writes to a string cannot fail";

fn closes(ways: &[CufilePath]) -> String {
    let titles: Vec<&str> = ways.iter().map(|way| way.title()).collect();
    if titles.is_empty() {
        "nothing; it costs speed".to_owned()
    } else {
        titles.join(", ")
    }
}

fn sentence(text: &str) -> String {
    let mut sentence = format!("{text}.");
    let is_name = ["cuFile", "nvidia-fs", "p2pdma_"]
        .iter()
        .any(|name| text.starts_with(name));
    if text.is_char_boundary(1) && !is_name {
        sentence[..1].make_ascii_uppercase();
    }
    sentence
}

//! The doctor: whether bytes can go straight between a path and GPU memory, and if not, why not.
//!
//! GPUDirect Storage falls back to host memory without a word, and NVIDIA's own check reports
//! success with every drive unsupported. The doctor looks at each thing that has ever been in the
//! way, from the driver to the drive, and says what it saw, why it matters and what mends it. Two
//! ways lead straight to a GPU, nvidia-fs and P2PDMA, and one is enough: what closes only a way that
//! is not needed is no trouble and is not reported as such.
//!
//! No finding proves that direct works. Only a transfer does, whose bytes were counted
//! ([`LiveProbe`]); without one the verdict is never "direct".
//!
//! Everything is read through a [`Root`], so that a capture of another machine is examined as this
//! one would be. What only the live machine can tell comes in as a value, [`Measured`].

mod catalogue;
mod check;
mod cufile;
mod device;
mod driver;
mod fabric;
mod facts;
mod guide;
mod host_read;
mod kernel;
mod library;
mod live;
mod live_probe;
mod measured;
mod nvidia_fs;
mod peer;
mod platform;
mod sample;
mod storage;
mod text;
mod way;

use std::{collections::BTreeMap, path::Path};

use serde::Serialize;
use straightway_sys::root::Root;

pub use catalogue::all as checks;
use check::list;
pub use check::{Check, Finding, Layer, State};
use facts::Facts;
pub use guide::guide;
pub use host_read::HostRead;
pub use live_probe::LiveProbe;
pub use measured::{Measured, PauseCount};
pub use text::Style;
use way::DIRECT;
pub use way::Way;

/// What to examine.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The machine, or a capture of one.
    pub root: &'a Root,
    /// The file or folder whose bytes are to reach the GPU.
    pub path: &'a Path,
    /// The environment of the process that would move them.
    pub environment: &'a BTreeMap<String, String>,
    /// What was measured on the machine; empty for a capture.
    pub measured: &'a Measured,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// Whether bytes go straight into GPU memory.
    pub verdict: Verdict,
    /// The verdict in one line.
    pub summary: String,
    /// How bytes go where they do not go straight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instead: Option<String>,
    /// The path examined.
    pub path: String,
    /// Which ways stand open.
    pub ways: Vec<WayState>,
    /// Every check and what it saw, the worst first.
    pub checks: Vec<Finding>,
    /// What was measured.
    pub measured: Measured,
}

/// Whether bytes go straight into GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// A transfer did, and its bytes were counted.
    Direct,
    /// Nothing is in the way, but no transfer has shown it.
    NotProven,
    /// They do not.
    NotDirect,
}

/// Whether a way stands open, as far as the checks can see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WayState {
    /// The way.
    pub way: Way,
    /// Whether nothing was found in it.
    pub is_open: bool,
    /// The checks that close it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub closed_by: Vec<&'static str>,
}

/// Examines the machine.
pub fn diagnose(request: &Request<'_>) -> Diagnosis {
    let Request {
        root,
        path,
        environment,
        measured,
    } = *request;
    let facts = Facts::read(root, path, environment, measured);
    let mut findings: Vec<Finding> = checks().map(|check| check.find(&facts)).collect();
    let ways = [Way::NvidiaFs, Way::P2pDma, Way::Compat].map(|way| state_of(way, &findings));
    excuse(&mut findings, &ways, measured);
    findings.sort_by_key(|finding| (finding.state, finding.layer));
    let path = match facts.backing() {
        Some(backing) => backing.path.display().to_string(),
        None => path.display().to_string(),
    };
    Diagnosis {
        verdict: judge(measured, &ways),
        summary: summarize(&path, &facts, &findings, &ways),
        instead: instead(&facts),
        path,
        ways: ways.to_vec(),
        checks: findings,
        measured: measured.clone(),
    }
}

fn judge(measured: &Measured, ways: &[WayState]) -> Verdict {
    let is_open = |state: &WayState| state.is_open && DIRECT.contains(&state.way);
    match &measured.gpu {
        Some(probe) if probe.proof().is_some() => Verdict::Direct,
        None if ways.iter().any(is_open) => Verdict::NotProven,
        _ => Verdict::NotDirect,
    }
}

fn state_of(way: Way, findings: &[Finding]) -> WayState {
    // A transfer that did not go straight shows that something is wrong, not what: it closes no way.
    let closing =
        |finding: &&Finding| finding.closes.contains(&way) && finding.layer != Layer::Live;
    let closed_by: Vec<_> = findings
        .iter()
        .filter(closing)
        .map(|finding| finding.id)
        .collect();
    WayState {
        way,
        is_open: closed_by.is_empty(),
        closed_by,
    }
}

/// What is wrong only with ways that are not needed, because a direct one is open, is no trouble.
fn excuse(findings: &mut [Finding], ways: &[WayState], measured: &Measured) {
    let proven = measured.gpu.as_ref().and_then(LiveProbe::proof);
    let open = ways.iter().find(|state| match proven {
        Some(way) => state.way == way,
        None => state.is_open && DIRECT.contains(&state.way),
    });
    let Some(open) = open else {
        return;
    };
    for finding in findings {
        let is_trouble = finding.state <= State::Warn;
        let is_about_others = !finding.ways.is_empty() && !finding.ways.contains(&open.way);
        if is_trouble && is_about_others {
            finding.state = State::NotApplicable;
            finding.seen = format!("{} (no matter for {})", finding.seen, open.way.title());
            finding.mend = None;
            finding.closes = Vec::new();
        }
    }
}

fn summarize(path: &str, facts: &Facts<'_>, findings: &[Finding], ways: &[WayState]) -> String {
    if let Some(probe) = &facts.measured.gpu {
        let seen = findings.iter().find(|finding| finding.id == "live.gpu");
        let seen = seen.map_or("", |finding| finding.seen.as_str());
        return if probe.proof().is_some() {
            format!("direct: {path} to GPU memory: {seen}")
        } else {
            format!("not direct: {path} to GPU memory: {seen}")
        };
    }
    let open: Vec<&str> = ways
        .iter()
        .filter(|state| state.is_open && DIRECT.contains(&state.way))
        .map(|state| state.way.title())
        .collect();
    if !open.is_empty() {
        let open = open.join(" and ");
        return format!(
            "not proven: nothing stands in the way of {open} for {path}, but no transfer has shown it"
        );
    }
    format!("not direct: {}", reasons(findings))
}

/// The gravest obstacle in full and the others by title. What closes both direct ways comes first,
/// and of that a missing GPU, then the drive: they are hardest to change and say most about the
/// machine.
fn reasons(findings: &[Finding]) -> String {
    let closes = |finding: &&Finding, way| finding.closes.contains(way);
    let in_the_way = findings
        .iter()
        .filter(|finding| DIRECT.iter().any(|way| closes(finding, way)));
    let (mut both, mut one): (Vec<_>, Vec<_>) =
        in_the_way.partition(|finding| DIRECT.iter().all(|way| closes(finding, way)));
    both.reverse();
    both.sort_by_key(|finding| finding.id != "gpu.present");
    one.sort_by_key(|finding| !closes(finding, &Way::NvidiaFs));
    let mut obstacles = both.into_iter().chain(one);
    let gravest = obstacles.next().map_or("", |finding| finding.seen.as_str());
    let others: Vec<String> = obstacles.map(|finding| finding.title.to_owned()).collect();
    if others.is_empty() {
        gravest.to_owned()
    } else {
        format!("{gravest}; also: {}", list(others.into_iter()))
    }
}

/// How bytes go when not straight into a GPU.
fn instead(facts: &Facts<'_>) -> Option<String> {
    if facts.measured.gpu.is_some() {
        return None;
    }
    let target = if facts.gpus.is_empty() {
        "into host memory"
    } else {
        "into the pinned ring, then to the GPU"
    };
    let read = facts.measured.host.as_ref()?;
    Some(match &read.error {
        _ if facts.is_memory() => format!("a copy from memory {target}"),
        Some(_) if read.is_refused => format!("through the page cache {target}"),
        Some(_) => return None,
        None if read.bytes > 0 => format!("O_DIRECT {target}; read here at {}", read.rate()),
        None => format!("O_DIRECT {target}"),
    })
}

#[cfg(test)]
mod tests;

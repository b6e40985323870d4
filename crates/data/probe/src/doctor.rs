//! The doctor: checks whether bytes can be transferred directly between a path and GPU memory, and if not, why not.
//!
//! GPUDirect Storage falls back to host memory silently, and NVIDIA's own check reports success with every drive
//! unsupported. The doctor checks every known obstacle, from the driver to the drive, and reports what it saw, why it
//! matters and how to fix it. Two cuFile paths are direct, nvidia-fs and P2PDMA, and one is enough: an obstacle on a
//! path that is not needed is not reported as a problem.
//!
//! No finding proves that transfers are direct. Only a transfer whose bytes were counted does ([`LiveProbe`]);
//! without one the verdict is never "direct".
//!
//! All files are read through a [`Root`], so that a capture of another machine is examined in the same way. Data that
//! only the live machine can provide is passed in as [`Measurements`].

mod bundle;
mod catalogue;
mod check;
mod cufile;
mod cufile_path;
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
mod mask;
mod measurements;
mod nvidia_fs;
mod peer;
mod platform;
mod sample;
mod storage;
mod text;

use std::{collections::BTreeMap, path::Path};

use serde::Serialize;
use straightway_sys::root::Root;

pub use bundle::{Bundle, BundleRequest, BundledFile, SENDING, counters};
pub use catalogue::all as checks;
use check::list;
pub use check::{Check, Finding, Layer, State};
pub use cufile_path::CufilePath;
use cufile_path::DIRECT;
use facts::Facts;
pub use guide::guide;
pub use host_read::HostRead;
pub use live_probe::LiveProbe;
pub use measurements::{Measurements, PauseCount};
pub use text::{CheckRow, Style, checks_text};

/// A request to the doctor.
#[derive(Clone, Copy, Debug)]
pub struct DoctorRequest<'a> {
    /// The machine, or a capture of one.
    pub root: &'a Root,
    /// The file or folder whose bytes are to reach the GPU.
    pub path: &'a Path,
    /// The environment of the process that would transfer them.
    pub environment: &'a BTreeMap<String, String>,
    /// The measurements on the machine; empty for a capture.
    pub measured: &'a Measurements,
}

/// The result of an examination.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// Whether bytes are transferred directly into GPU memory.
    pub verdict: DoctorVerdict,
    /// The verdict in one line.
    pub summary: String,
    /// The route of the bytes if they are not transferred directly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instead: Option<String>,
    /// The path examined.
    pub path: String,
    /// The cuFile paths, and whether they are open.
    pub ways: Vec<CufilePathState>,
    /// All findings, worst first.
    pub checks: Vec<Finding>,
    /// The measurements.
    pub measured: Measurements,
}

/// Whether bytes are transferred directly into GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DoctorVerdict {
    /// Yes: a transfer whose bytes were counted proves it.
    Direct,
    /// No obstacle was found, but no transfer has proven it.
    NotProven,
    /// No.
    NotDirect,
}

/// Whether a cuFile path is open, as far as the checks can tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CufilePathState {
    /// The path.
    pub way: CufilePath,
    /// Whether no obstacle was found.
    pub is_open: bool,
    /// The checks that close it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub closed_by: Vec<&'static str>,
}

/// Examines the machine.
pub fn diagnose(request: &DoctorRequest<'_>) -> Diagnosis {
    let DoctorRequest {
        root,
        path,
        environment,
        measured,
    } = *request;
    let facts = Facts::read(root, path, environment, measured);
    let mut findings: Vec<Finding> = checks().map(|check| check.find(&facts)).collect();
    let ways = [CufilePath::NvidiaFs, CufilePath::P2pDma, CufilePath::Compat].map(|way| state_of(way, &findings));
    dismiss_unneeded(&mut findings, &ways, measured);
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

fn judge(measured: &Measurements, ways: &[CufilePathState]) -> DoctorVerdict {
    let is_open = |state: &CufilePathState| state.is_open && DIRECT.contains(&state.way);
    match &measured.gpu {
        Some(probe) if probe.proof().is_some() => DoctorVerdict::Direct,
        None if ways.iter().any(is_open) => DoctorVerdict::NotProven,
        _ => DoctorVerdict::NotDirect,
    }
}

fn state_of(way: CufilePath, findings: &[Finding]) -> CufilePathState {
    // A transfer that was not direct shows that something is wrong, but not what: it closes no path.
    let closing = |finding: &&Finding| finding.closes.contains(&way) && finding.layer != Layer::Live;
    let closed_by: Vec<_> = findings.iter().filter(closing).map(|finding| finding.id).collect();
    CufilePathState {
        way,
        is_open: closed_by.is_empty(),
        closed_by,
    }
}

/// Turns problems of unneeded paths into not applicable ones if a direct path is open.
fn dismiss_unneeded(findings: &mut [Finding], ways: &[CufilePathState], measured: &Measurements) {
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
            finding.seen = format!("{} (irrelevant to {})", finding.seen, open.way.title());
            finding.mend = None;
            finding.closes = Vec::new();
        }
    }
}

fn summarize(path: &str, facts: &Facts<'_>, findings: &[Finding], ways: &[CufilePathState]) -> String {
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
        return format!("not proven: no obstacle to {open} was found for {path}, but no transfer has proven it");
    }
    format!("not direct: {}", reasons(findings))
}

/// The worst obstacle in full and the others by title. Obstacles that close both direct paths come first, and among
/// those a missing GPU, then the drive: these are the hardest to change.
fn reasons(findings: &[Finding]) -> String {
    let closes = |finding: &&Finding, way| finding.closes.contains(way);
    let in_the_way = findings
        .iter()
        .filter(|finding| DIRECT.iter().any(|way| closes(finding, way)));
    let (mut both, mut one): (Vec<_>, Vec<_>) =
        in_the_way.partition(|finding| DIRECT.iter().all(|way| closes(finding, way)));
    both.reverse();
    both.sort_by_key(|finding| finding.id != "gpu.present");
    one.sort_by_key(|finding| !closes(finding, &CufilePath::NvidiaFs));
    let mut obstacles = both.into_iter().chain(one);
    let gravest = obstacles.next().map_or("", |finding| finding.seen.as_str());
    let others: Vec<String> = obstacles.map(|finding| finding.title.to_owned()).collect();
    if others.is_empty() {
        gravest.to_owned()
    } else {
        format!("{gravest}; also: {}", list(others.into_iter()))
    }
}

/// The route of the bytes if they are not transferred directly into a GPU.
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

//! `copy --dry-run`: lists what would be copied, and writes nothing.

use serde_json::json;
use straightway_copy::{CopyJob, Pair};
use straightway_core::{Bytes, text::shown};
use straightway_io::store::Location;

use super::Work;
use crate::command::output::{print, print_json};

/// Prints what a copy would do.
pub(crate) fn print_work(work: &Work, sources: &[Location], as_json: bool) -> anyhow::Result<()> {
    match work {
        Work::Copy(job) if as_json => print_json(&job_json(job)),
        Work::Copy(job) => print_job(job),
        Work::Read(place) if as_json => {
            let sources: Vec<_> = sources.iter().map(Location::describe).collect();
            print_json(&json!({ "dry_run": true, "sources": sources, "memory": place.to_string() }))
        }
        Work::Receive(target) if as_json => {
            print_json(&json!({ "dry_run": true, "sources": ["-"], "target": target.describe() }))
        }
        Work::Receive(target) => print(&format!("would copy standard input to {}\n", shown(&target.describe()))),
        Work::Send if as_json => {
            print_json(&json!({ "dry_run": true, "sources": [sources[0].describe()], "target": "-" }))
        }
        Work::Send => {
            let source = sources[0].describe();
            print(&format!("would copy {} to standard output\n", shown(&source)))
        }
        Work::Read(place) => sources
            .iter()
            .try_for_each(|source| print(&format!("would read {} into {place}\n", shown(&source.describe())))),
    }
}

fn print_job(job: &CopyJob) -> anyhow::Result<()> {
    for folder in job.folders.iter().filter(|folder| !folder.target.exists()) {
        let name = folder.target.display().to_string();
        print(&format!("would make {}/\n", shown(&name)))?;
    }
    for pair in &job.pairs {
        let (source, target) = ends(job, pair);
        let (source, target) = (shown(&source), shown(&target));
        print(&format!("would copy {source} to {target} ({})\n", Bytes(pair.bytes)))?;
    }
    for link in &job.links {
        let (name, to) = (link.target.display().to_string(), link.points_to.display().to_string());
        print(&format!("would keep the link {} -> {}\n", shown(&name), shown(&to)))?;
    }
    let (files, links) = (counted(job.pairs.len(), "file"), counted(job.links.len(), "link"));
    print(&format!(
        "{files} ({}) and {links}; nothing was written\n",
        Bytes(job.bytes())
    ))
}

fn job_json(job: &CopyJob) -> serde_json::Value {
    let file = |pair: &Pair| {
        let (source, target) = ends(job, pair);
        json!({ "source": source, "target": target, "bytes": pair.bytes })
    };
    let folders = job.folders.iter().filter(|folder| !folder.target.exists());
    let folders: Vec<_> = folders.map(|folder| folder.target.display().to_string()).collect();
    let links = job.links.iter().map(|link| {
        let (target, points_to) = (link.target.display().to_string(), link.points_to.display().to_string());
        json!({ "target": target, "points_to": points_to })
    });
    json!({
        "dry_run": true,
        "bytes": job.bytes(),
        "files": job.pairs.iter().map(file).collect::<Vec<_>>(),
        "links": links.collect::<Vec<_>>(),
        "folders": folders,
    })
}

/// The names of an object and of its copy.
fn ends(job: &CopyJob, pair: &Pair) -> (String, String) {
    (pair.source.describe(), job.target(pair).describe())
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

//! Names the commit in `--version`.
//!
//! `VERSION_WITH_COMMIT` is the version of the package, with the commit and its date if this is a checkout of the
//! project. In a source package there is no checkout, and if it lies inside another one, that has another top folder.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let version = env!("CARGO_PKG_VERSION");
    let version = match commit() {
        Some(commit) => format!("{version} ({commit})"),
        None => version.to_owned(),
    };
    println!("cargo::rustc-env=VERSION_WITH_COMMIT={version}");
}

/// The commit and its date, as in `9f6f1f1f 2026-11-18`.
fn commit() -> Option<String> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../..")
        .canonicalize()
        .ok()?;
    let top = PathBuf::from(git(&project, &["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != project {
        return None;
    }
    // Every commit and every checkout adds a line to this file, so that nothing else makes cargo build again. A file
    // that does not exist would make it build every time.
    for name in ["logs/HEAD", "HEAD"] {
        let file = project.join(git(&project, &["rev-parse", "--git-path", name])?);
        if file.exists() {
            println!("cargo::rerun-if-changed={}", file.display());
        }
    }
    git(
        &project,
        &["log", "-1", "--abbrev=9", "--date=short", "--format=%h %cd"],
    )
}

/// The output of git; `None` if it is missing or fails.
fn git(folder: &Path, args: &[&str]) -> Option<String> {
    let ran = Command::new("git").arg("-C").arg(folder).args(args).output().ok()?;
    let text = String::from_utf8(ran.stdout).ok()?;
    ran.status.success().then(|| text.trim().to_owned())
}

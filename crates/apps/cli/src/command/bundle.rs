//! `straightway doctor --bundle`: one archive with what the doctor saw, to send to the project.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use straightway_core::{Bytes, Error, ErrorKind};
use straightway_io::ReportFile;
use straightway_probe::doctor::{Bundle, SENDING};
use straightway_sys::plain_file::open_plain;

/// The longest receipt that is taken.
const RECEIPT_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct BundleArgs {
    /// Also write an archive (tar.gz) to send to the project: verdict, live transfer, versions, cuFile's counters,
    /// configuration and log. Keys, tokens, passwords, and names of hosts and users are masked.
    #[arg(long, value_name = "FILE", conflicts_with = "write")]
    pub(super) bundle: Option<PathBuf>,

    /// Add a receipt (the output of --json of a transfer) to the bundle; can be repeated.
    #[arg(long, value_name = "FILE", requires = "bundle")]
    receipt: Vec<PathBuf>,

    /// Keep the names of hosts and users, and addresses, in the bundle. Secrets are masked in any case.
    #[arg(long, requires = "bundle")]
    pub(super) keep_names: bool,
}

/// A bundle that will be written. Its place is checked before the examination.
#[derive(Debug)]
pub(super) struct BundleFile {
    path: PathBuf,
    file: ReportFile,
    /// The receipts that were given, as JSON.
    pub(super) receipts: Vec<String>,
}

impl BundleArgs {
    /// Begins the bundle, if one is asked for.
    pub(super) fn begin(&self) -> anyhow::Result<Option<BundleFile>> {
        let Some(path) = &self.bundle else {
            return Ok(None);
        };
        Ok(Some(BundleFile {
            path: path.clone(),
            receipts: self
                .receipt
                .iter()
                .map(|path| read_receipt(path))
                .collect::<Result<_, _>>()?,
            file: ReportFile::begin(path, Bundle::mark())?,
        }))
    }
}

impl BundleFile {
    /// Writes the bundle under its name. Returns a text about it for the user.
    pub(super) fn finish(self, bundle: &Bundle) -> anyhow::Result<String> {
        let archive = bundle.archive()?;
        let names: Vec<_> = bundle.files().iter().map(|file| file.name.as_str()).collect();
        let size = Bytes(archive.len() as u64);
        self.file.finish_bytes(&archive)?;
        let path = self.path.display();
        Ok(format!("\nbundle {path} ({size}): {}\n{SENDING}", names.join(", ")))
    }
}

/// Reads a receipt, and checks that it is one.
fn read_receipt(path: &Path) -> Result<String, Error> {
    let failed = |e| Error::os("read", path.display(), e);
    let mut text = String::new();
    let file = open_plain(path).map_err(failed)?;
    file.take(RECEIPT_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    let value: Option<serde_json::Value> = serde_json::from_str(&text).ok();
    let schema = value.as_ref().and_then(|value| value.get("schema")?.as_str());
    if schema.is_some_and(|schema| schema.starts_with("straightway.receipt/")) {
        return Ok(text);
    }
    let message = "it is not a receipt";
    Err(Error::new(ErrorKind::Invalid, "bundle", path.display(), message)
        .with_hint("a receipt is the output of `straightway copy --json …` or `load --json …`"))
}

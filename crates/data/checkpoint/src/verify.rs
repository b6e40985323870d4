//! Verifies a checkpoint: every chunk of every shard and of the parity files.

use straightway_core::{Object, Receipt, Result};
use straightway_io::Books;

use super::{manifest::Manifest, opened::Checkpoint, parity, restorer::Restorer, scatter::Scatter};

/// The result of a verification.
#[derive(Clone, Debug)]
pub struct VerifyReport {
    /// The receipt of the read.
    pub receipt: Receipt,
    /// The number of chunks whose checksum matched.
    pub chunks: u64,
    /// A description of each damage, one line each.
    pub damage: Vec<String>,
    /// Whether parity can repair all of it.
    pub is_mendable: bool,
}

impl Restorer {
    /// Reads all of a checkpoint and checks it.
    pub fn verify(&self, checkpoint: &Checkpoint) -> Result<VerifyReport> {
        let manifest = checkpoint.manifest();
        let scatter = Scatter::everything(manifest);
        let mut books = Books::default();
        let (chunks, bad) = self.read(checkpoint, &scatter, true, &mut books)?;
        let mut report = VerifyReport {
            receipt: books.close(),
            chunks,
            damage: Vec::new(),
            is_mendable: true,
        };
        for (number, error) in bad {
            let task = &scatter.tasks[number];
            report.damage.push(error.to_string());
            report.is_mendable &= parity::rebuild(checkpoint, task.shard, task.chunk).is_ok();
        }
        report.damage.extend(wrong_lengths(checkpoint, manifest));
        for (number, parity) in manifest.parity.iter().enumerate() {
            for row in 0..parity.chunks.len() {
                if let Err(error) = parity::recovery_chunk(checkpoint, number, row) {
                    report.damage.push(error.to_string());
                }
            }
        }
        Ok(report)
    }
}

/// Files that are longer than their chunks. No checksum covers the extra bytes.
fn wrong_lengths(checkpoint: &Checkpoint, manifest: &Manifest) -> Vec<String> {
    let parity_bytes = |rows: usize| rows as u64 * manifest.chunk_bytes;
    let shards = manifest
        .shards
        .iter()
        .map(|shard| (&shard.file, shard.file_bytes(manifest.step)));
    let parity = manifest
        .parity
        .iter()
        .map(|parity| (&parity.file, parity_bytes(parity.chunks.len())));
    let mut wrong = Vec::new();
    for (file, wanted) in shards.chain(parity) {
        // A file that cannot be opened is reported with its chunks.
        let Ok(handle) = checkpoint.handle(manifest.step, file) else {
            continue;
        };
        let Object { name, bytes } = handle.object();
        if bytes > wanted {
            wrong.push(format!("{name} has {bytes} bytes, expected {wanted}"));
        }
    }
    wrong
}

//! Whether a checkpoint is what it was: every chunk of every shard, and of the parity files.

use straightway_core::{Object, Receipt, Result};
use straightway_io::Books;

use super::{manifest::Manifest, opened::Checkpoint, parity, restorer::Restorer, scatter::Scatter};

/// What a verification found.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Which way the bytes went that were read.
    pub receipt: Receipt,
    /// Chunks that were read, and are what they were.
    pub chunks: u64,
    /// What is wrong, in words, a line each.
    pub damage: Vec<String>,
    /// Whether parity makes all of it good.
    pub is_mendable: bool,
}

impl Restorer {
    /// Reads all of a checkpoint and checks it.
    pub fn verify(&self, checkpoint: &Checkpoint) -> Result<Verdict> {
        let manifest = checkpoint.manifest();
        let scatter = Scatter::everything(manifest);
        let mut books = Books::default();
        let (chunks, bad) = self.read(checkpoint, &scatter, true, &mut books)?;
        let mut verdict = Verdict {
            receipt: books.close(),
            chunks,
            damage: Vec::new(),
            is_mendable: true,
        };
        for (number, error) in bad {
            let task = &scatter.tasks[number];
            verdict.damage.push(error.to_string());
            verdict.is_mendable &= parity::rebuild(checkpoint, task.shard, task.chunk).is_ok();
        }
        verdict.damage.extend(wrong_lengths(checkpoint, manifest));
        for (number, parity) in manifest.parity.iter().enumerate() {
            for row in 0..parity.chunks.len() {
                if let Err(error) = parity::recovery_chunk(checkpoint, number, row) {
                    verdict.damage.push(error.to_string());
                }
            }
        }
        Ok(verdict)
    }
}

/// Files that are longer than what their chunks need: no chunk covers what is too much.
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
        // One that cannot be opened is damage of its chunks.
        let Ok(handle) = checkpoint.handle(manifest.step, file) else {
            continue;
        };
        let Object { name, bytes } = handle.object();
        if bytes > wanted {
            wrong.push(format!("{name} has {bytes} bytes, and {wanted} are meant"));
        }
    }
    wrong
}

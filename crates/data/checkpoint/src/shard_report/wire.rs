//! The JSON of shard reports, and its conversion into checked types.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use straightway_core::{Error, ErrorKind, Result};

use super::ShardReport;
use crate::{
    manifest::{ShardRecord, TensorWire, VERSION},
    name::{Attempt, is_nonce},
};

pub(super) const SCHEMA: &str = "straightway.checkpoint.part";

/// The JSON of a shard report, as in a `part-….json` file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ShardReportWire {
    schema: String,
    version: u32,
    step: u64,
    run: String,
    sequence: u64,
    rank: u32,
    world: u32,
    chunk_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<u64>,
    writer: String,
    tensors: Vec<TensorWire>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    identities: BTreeMap<String, String>,
    shard: ShardRecord,
}

impl ShardReportWire {
    pub(super) fn of(report: &ShardReport) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            version: VERSION,
            step: report.attempt.step,
            run: report.attempt.run.clone(),
            sequence: report.attempt.sequence,
            rank: report.shard.rank,
            world: report.world,
            chunk_bytes: report.chunk_bytes,
            parent: report.parent,
            writer: report.writer.clone(),
            tensors: report.tensors.iter().map(TensorWire::of).collect(),
            identities: report.identities.clone(),
            shard: report.shard.clone(),
        }
    }

    /// Converts it into a report. Each tensor is checked by itself.
    pub(super) fn checked(self, name: &str) -> Result<ShardReport> {
        let corrupt = |why: &str| Err(Error::new(ErrorKind::Corrupt, "read", name, why));
        let tensors = self.tensors.into_iter().map(|t| t.checked(name));
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        let mut parts = tensors.iter().flat_map(|tensor| &tensor.parts);
        if parts.any(|part| part.shard != 0) {
            return corrupt("it names shards of other ranks");
        }
        if !is_nonce(&self.writer) {
            return corrupt("the name of its writer is not 16 hexadecimal digits");
        }
        Ok(ShardReport {
            attempt: Attempt {
                step: self.step,
                run: self.run,
                sequence: self.sequence,
            },
            world: self.world,
            chunk_bytes: self.chunk_bytes,
            parent: self.parent,
            writer: self.writer,
            tensors,
            identities: self.identities,
            shard: self.shard,
        })
    }
}

//! Describes a model and the load of it: its files, its tensors, and the routes of its bytes. No tensor data is read.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;
use straightway_core::{Alignment, Leg, Move, Place, Result, receipt::RouteBytes};

use super::{Loader, Model, Selection, model::Shard};

/// A description of a model.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// The path or name that it was opened with.
    pub path: String,
    /// Bytes of the selected tensors.
    pub bytes: u64,
    /// Bytes of the region that a load would need.
    pub region_bytes: u64,
    /// All files of the model.
    pub files: Vec<FileFacts>,
    /// The selected tensors, in file order.
    pub tensors: Vec<TensorFacts>,
    /// The expected routes of the bytes, and why. Whether GPUDirect Storage works is only known after a load, so it is
    /// not predicted.
    pub routes: Vec<RouteBytes>,
}

/// A file of a model.
#[derive(Clone, Debug, Serialize)]
pub struct FileFacts {
    /// Its path.
    pub path: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// The offset of its tensor data.
    pub data_offset: u64,
    /// Whether that offset is page-aligned, so that tensors can be read by direct I/O.
    pub is_aligned: bool,
    /// The number of its tensors.
    pub tensors: u64,
    /// The metadata of its header.
    pub metadata: BTreeMap<String, String>,
}

/// A tensor of a model.
#[derive(Clone, Debug, Serialize)]
pub struct TensorFacts {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub dtype: &'static str,
    /// Its length along each dimension.
    pub shape: Vec<u64>,
    /// The number of its file.
    pub file: u32,
    /// Its offset in that file.
    pub offset: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// The number of selected bytes.
    pub selected_bytes: u64,
    /// The largest power of two, up to a page, that divides its offset.
    pub align_bytes: u64,
}

impl Loader {
    /// Describes the selected tensors of a model, and plans how they would be loaded.
    pub fn inspect(&self, model: &Model, selection: &Selection, place: Place) -> Result<Inspection> {
        let layout = self.layout(model, selection, place);
        let mut routes = BTreeMap::new();
        for moves in layout.moves.chunk_by(|a, b| a.object == b.object) {
            let shard = &model.shards[moves[0].object as usize];
            let object = Shard::open_all(std::slice::from_ref(shard))?;
            let moves = moves.iter().map(|m| Move { object: 0, ..*m }).collect();
            let to = (place, layout.bytes);
            let plan = self.executor.plan_read(&object, moves, to, self.choice)?;
            for (key, bytes) in plan.bytes_by_route() {
                *routes.entry(key).or_default() += bytes;
            }
        }
        let row = |((route, reason), bytes)| RouteBytes {
            leg: Leg::Read,
            route,
            reason,
            bytes,
        };
        Ok(Inspection {
            path: model.path.display().to_string(),
            bytes: selection.bytes(),
            region_bytes: layout.bytes,
            files: files(model),
            tensors: tensors(model, selection),
            routes: routes.into_iter().map(row).collect(),
        })
    }
}

fn files(model: &Model) -> Vec<FileFacts> {
    let mut counts = vec![0; model.shards.len()];
    for tensor in &model.tensors {
        counts[tensor.file as usize] += 1;
    }
    let facts = |(shard, tensors): (&Arc<super::Shard>, u64)| FileFacts {
        path: shard.path.display().to_string(),
        bytes: shard.bytes,
        data_offset: shard.data_offset,
        is_aligned: shard.data_offset.is_multiple_of(Alignment::PAGE_BYTES),
        tensors,
        metadata: shard.metadata.clone(),
    };
    model.shards.iter().zip(counts).map(facts).collect()
}

fn tensors(model: &Model, selection: &Selection) -> Vec<TensorFacts> {
    let facts = |pick: &super::Pick| {
        let tensor = pick.of(model);
        let offset = tensor.extent.offset;
        TensorFacts {
            name: tensor.name.to_string(),
            dtype: tensor.dtype.name(),
            shape: tensor.shape.to_vec(),
            file: tensor.file,
            offset,
            bytes: tensor.extent.bytes,
            selected_bytes: pick.bytes(tensor),
            align_bytes: 1 << offset.trailing_zeros().min(Alignment::PAGE_BYTES.ilog2()),
        }
    };
    selection.picks().iter().map(facts).collect()
}

//! What a model is, and what loading it would do: its files, its tensors, and by which route the
//! bytes would come, without a byte of them read.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;
use straightway_core::{Alignment, Leg, Move, Place, Result, receipt::RouteBytes};

use super::{Loader, Model, Selection, model::Shard};

/// What is known of a model.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// What it was opened by.
    pub path: String,
    /// Bytes of the selected tensors.
    pub bytes: u64,
    /// Bytes of the region that they would be loaded into.
    pub region_bytes: u64,
    /// The files that the selected tensors are in, and the others of the model.
    pub files: Vec<FileFacts>,
    /// The selected tensors, in the order in which they lie in the files.
    pub tensors: Vec<TensorFacts>,
    /// By which route the bytes would come, and why. Whether a GPU could have them by GPUDirect
    /// Storage is proven by a load, and not foreseen.
    pub routes: Vec<RouteBytes>,
}

/// A file of a model.
#[derive(Clone, Debug, Serialize)]
pub struct FileFacts {
    /// Where it is.
    pub path: String,
    /// How long it is.
    pub bytes: u64,
    /// Where the bytes of its tensors begin.
    pub data_offset: u64,
    /// Whether that is on a page, so that tensors can be read straight from the drive.
    pub is_aligned: bool,
    /// How many tensors it has.
    pub tensors: u64,
    /// What its writer wrote down.
    pub metadata: BTreeMap<String, String>,
}

/// A tensor of a model.
#[derive(Clone, Debug, Serialize)]
pub struct TensorFacts {
    /// What it is called.
    pub name: String,
    /// What its elements are.
    pub dtype: &'static str,
    /// How long it is along each dimension.
    pub shape: Vec<u64>,
    /// Which of the files it is in.
    pub file: u32,
    /// Where in that file it begins.
    pub offset: u64,
    /// How many bytes it has.
    pub bytes: u64,
    /// How many of them are selected.
    pub selected_bytes: u64,
    /// The largest power of two, up to a page, that its place in the file is a multiple of.
    pub align_bytes: u64,
}

impl Loader {
    /// Looks at what is selected of a model, and foresees how it would be loaded.
    pub fn inspect(
        &self,
        model: &Model,
        selection: &Selection,
        place: Place,
    ) -> Result<Inspection> {
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

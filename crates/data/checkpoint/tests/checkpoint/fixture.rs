//! States that are cut into parts for any number of ranks, saved and restored.

use std::{path::Path, sync::Arc};

use straightway_checkpoint::{
    Checkpoint, CheckpointSaver, Committed, Rank, Restorer, Retention, SaveSource, SaverOptions, Steps, Wanted,
    fresh_run,
};
use straightway_core::{Result, random::Seed};
use straightway_io::{Executor, Region, Settings};
use straightway_weights::{Dtype, Holding, Rectangle, Shape};

/// A whole tensor of a state.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Shape,
    pub(crate) bytes: Vec<u8>,
}

/// The state of a job, over all ranks.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) tensors: Vec<Tensor>,
}

/// The rule that keeps the last steps.
pub(crate) fn keep_last(last: usize) -> Retention {
    Retention {
        last,
        ..Retention::default()
    }
}

/// Pseudo-random bytes from a seed.
pub(crate) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    Seed(seed).bytes(bytes)
}

impl State {
    pub(crate) fn of(seed: u64, shapes: &[(&str, Dtype, &[u64])]) -> Self {
        let tensor = |(name, dtype, shape): &(&str, Dtype, &[u64])| {
            let shape = Shape::from(*shape);
            let bytes = (shape.elements().unwrap() * dtype.bits() / 8) as usize;
            let seed = seed + name.bytes().map(u64::from).sum::<u64>();
            Tensor {
                name: (*name).to_owned(),
                dtype: *dtype,
                shape,
                bytes: noise(seed, bytes),
            }
        };
        Self {
            tensors: shapes.iter().map(tensor).collect(),
        }
    }

    /// A state of a few tensors with odd shapes and dtypes.
    pub(crate) fn small(seed: u64) -> Self {
        Self::of(
            seed,
            &[
                ("w", Dtype::F32, &[24, 50]),
                ("bias", Dtype::Bf16, &[37]),
                ("scale", Dtype::F64, &[]),
                ("deep", Dtype::U8, &[3, 5, 7, 11]),
                ("empty", Dtype::F16, &[0, 4]),
            ],
        )
    }

    /// The part of each tensor that `rank` has when its dimension `dim` is cut among `world`.
    pub(crate) fn cut(&self, dim: usize, rank: u64, world: u64) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for tensor in &self.tensors {
            let whole = Rectangle::whole(&tensor.shape);
            let rectangle = match tensor.shape.get(dim) {
                Some(&length) => {
                    let share = length.div_ceil(world);
                    let start = (rank * share).min(length);
                    let stop = (start + share).min(length);
                    whole.cut(&tensor.name, dim, start, stop - start).unwrap()
                }
                // A tensor that is not cut is the same on all ranks.
                None => whole,
            };
            let bytes = tensor.part(&rectangle);
            pieces.push(Piece {
                name: tensor.name.clone(),
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                rectangle,
                bytes,
            });
        }
        pieces
    }
}

impl Tensor {
    /// The bytes of a part.
    pub(crate) fn part(&self, rectangle: &Rectangle) -> Vec<u8> {
        let width = (self.dtype.bits() / 8) as usize;
        let mut bytes = Vec::new();
        for (start, elements) in rectangle.runs(&self.shape) {
            let start = start as usize * width;
            bytes.extend_from_slice(&self.bytes[start..start + elements as usize * width]);
        }
        bytes
    }
}

/// Part of a tensor, with its bytes.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Shape,
    pub(crate) rectangle: Rectangle,
    pub(crate) bytes: Vec<u8>,
}

impl Piece {
    pub(crate) fn source(&self) -> SaveSource<'_> {
        SaveSource {
            name: &self.name,
            identity: None,
            dtype: self.dtype,
            shape: self.shape.clone(),
            rectangle: self.rectangle.clone(),
            opaque: false,
            memory: Holding::Host(&self.bytes),
        }
    }
}

pub(crate) fn sources(pieces: &[Piece]) -> Vec<SaveSource<'_>> {
    pieces.iter().map(Piece::source).collect()
}

/// Settings for a cheap start, because tests make many executors.
pub(crate) fn settings() -> Settings {
    Settings {
        chunk_bytes: 64 << 10,
        cached_chunk_bytes: 64 << 10,
        depth: 4,
        write_depth: 4,
        staging_bytes: 1 << 20,
        cached_lanes: 2,
        ..Settings::default()
    }
}

pub(crate) fn executor() -> Arc<Executor> {
    Arc::new(Executor::new(settings()).unwrap())
}

/// Options with the smallest chunks, so that a small state has many.
pub(crate) fn options() -> SaverOptions {
    SaverOptions {
        chunk_bytes: 4096,
        timeout: std::time::Duration::from_secs(20),
        ..SaverOptions::default()
    }
}

/// A saver for the only rank of a new run.
pub(crate) fn saver(folder: &Path, options: SaverOptions) -> Result<CheckpointSaver> {
    let store = Steps::create(folder)?;
    let alone = Rank { rank: 0, world: 1 };
    CheckpointSaver::new(store, alone, &fresh_run(), executor(), options)
}

/// Saves a state from one rank and waits.
pub(crate) fn save(saver: &mut CheckpointSaver, step: u64, state: &State) -> Result<Committed> {
    let pieces = state.cut(0, 0, 1);
    saver.save(step, &sources(&pieces), "{\"lr\":0.1}")?;
    Ok(saver.wait()?.expect("a save was under way"))
}

/// Saves a state from one rank per list of pieces, each on its own thread.
pub(crate) fn save_ranks(
    folder: &Path,
    step: u64,
    ranks: &[Vec<Piece>],
    options: &SaverOptions,
) -> Vec<Result<Committed>> {
    let store = Steps::create(folder).unwrap();
    let (run, world) = (fresh_run(), ranks.len() as u32);
    let one = |rank: u32, pieces: &Vec<Piece>| {
        let rank = Rank { rank, world };
        let mut saver = CheckpointSaver::new(store.clone(), rank, &run, executor(), options.clone())?;
        saver.save(step, &sources(pieces), "null")?;
        Ok(saver.wait()?.expect("a save was under way"))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(ranks)
            .map(|(rank, pieces)| scope.spawn(move || one(rank, pieces)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Restores pieces into one region, and returns the bytes of each.
pub(crate) fn restore(checkpoint: &Checkpoint, pieces: &[Piece]) -> Result<Vec<Vec<u8>>> {
    let restorer = Restorer::new(settings())?;
    let room: u64 = pieces.iter().map(|p| p.bytes.len() as u64).sum();
    let mut region = Arc::new(Region::host(room.max(1))?);
    let mut at = 0;
    let want = |piece: &Piece| {
        let start = at;
        at += piece.bytes.len() as u64;
        Wanted {
            name: piece.name.clone(),
            rectangle: piece.rectangle.clone(),
            region: Arc::clone(&region),
            at: start,
        }
    };
    let wanted: Vec<_> = pieces.iter().map(want).collect();
    restorer.restore(checkpoint, &wanted)?;
    let places: Vec<_> = wanted.iter().map(|w| w.at as usize).collect();
    drop(wanted);
    let bytes = Arc::get_mut(&mut region).unwrap().as_slice();
    let cut = |(piece, at): (&Piece, &usize)| bytes[*at..at + piece.bytes.len()].to_vec();
    Ok(pieces.iter().zip(&places).map(cut).collect())
}

/// Asserts that a step holds exactly a state.
pub(crate) fn assert_holds(folder: &Path, step: u64, state: &State) {
    let checkpoint = Steps::open(folder).unwrap().checkpoint(step).unwrap();
    let pieces = state.cut(0, 0, 1);
    let seen = restore(&checkpoint, &pieces).unwrap();
    for (piece, seen) in pieces.iter().zip(seen) {
        assert!(seen == piece.bytes, "tensor {} of step {step}", piece.name);
    }
}

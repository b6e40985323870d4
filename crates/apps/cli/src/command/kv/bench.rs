//! `straightway kv bench`: measures a KV cache in a folder.

use std::{
    ops::Range,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Instant,
};

use serde::Serialize;
use straightway_core::{Bytes, Error, ErrorKind, Place, Rate, Result, Seconds, random::Seed};
use straightway_io::{Executor, Region};
use straightway_kv::{ChunkAt, Done, Key, KeyFile, KvNamespace, KvReceipt, NamespaceParts, Part, Tier, TierOptions};
use straightway_stores::{Session, StoreOptions};
use straightway_sys::nonce::nonce;

use crate::command::{
    output::{print, print_json},
    tuning::Tuning,
};

mod beside;

/// The most memory for the chunks of one batch. A longer run has several.
const BATCH_BYTES: u64 = 1 << 30;

/// Lookups that are measured.
const LOOKUPS: usize = 100_000;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A folder on the drive to measure. The KV cache is made in a new folder inside it.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    /// The bytes to store and to load.
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    size: Bytes,

    /// The length of a chunk of the KV cache.
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    kv_chunk: Bytes,

    /// Load into this memory: `host:`, or a GPU such as `cuda:0`.
    #[arg(long, value_name = "PLACE", default_value = "host:")]
    device: Place,

    /// Load into pages of this length, in random order [default: whole chunks, in order].
    #[arg(long, value_name = "SIZE")]
    page: Option<Bytes>,

    /// Also load this many bytes 200 times, alternating alone and beside 8 stores.
    #[arg(long, value_name = "SIZE")]
    beside: Option<Bytes>,

    /// Encrypt the chunks, with a random key.
    #[arg(long)]
    encrypt: bool,

    /// Write the result as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    tuning: Tuning,
}

/// What was measured.
#[derive(Debug, Serialize)]
struct Measured {
    schema: &'static str,
    chunk_bytes: u64,
    chunks: u64,
    encrypted: bool,
    put_bytes_per_s: f64,
    get_bytes_per_s: f64,
    lookup_s: f64,
    restart_s: f64,
    index_bytes_per_chunk: f64,
    /// The seconds of each load alone and beside stores.
    #[serde(skip_serializing_if = "Option::is_none")]
    beside: Option<beside::Beside>,
    put: Vec<KvReceipt>,
    get: Vec<KvReceipt>,
}

/// A folder that is removed at the end.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let session = Session::new();
    let at = session.stores(&StoreOptions::default()).locate(&args.folder)?;
    let executor = args.tuning.executor(&session, &[&at])?;
    let scratch = Scratch(args.folder.join(format!(".straightway-kv-{:016x}", nonce())));
    std::fs::create_dir(&scratch.0).map_err(|e| Error::os("create", scratch.0.display(), e))?;
    let measured = measure(args, &scratch.0, &executor)?;
    drop(scratch);
    if args.json {
        print_json(&measured)?;
    } else {
        print(&text(&measured))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(args: &Args, folder: &Path, executor: &Executor) -> Result<Measured> {
    let trial = Trial::new(args)?;
    let options = trial.options();
    let tier = Tier::open_or_create(
        folder,
        (trial.chunk_bytes, trial.bytes_max()),
        executor,
        options.clone(),
    )?;
    let memory = trial.filled()?;
    let (put, put_s) = trial.put(&tier, &memory)?;
    drop(tier);
    let begun = Instant::now();
    let tier = Tier::open(folder, executor, options)?;
    tier.lookup(trial.namespace, &key(0)).map_err(|_| lost(1))?;
    let restart_s = begun.elapsed().as_secs_f64();
    let (get, get_s) = trial.get(&tier)?;
    let lookup_s = trial.look_up(&tier)?;
    let beside = |bytes: Bytes| {
        let chunks = bytes.0.div_ceil(trial.chunk_bytes).min(trial.per_batch);
        beside::measure(&tier, trial.namespace, chunks, &memory)
    };
    let beside = args.beside.map(beside).transpose()?;
    let (known, index_bytes) = tier.index_size();
    let moved = (trial.chunks * trial.chunk_bytes) as f64;
    Ok(Measured {
        schema: "straightway.kv-bench/1",
        chunk_bytes: trial.chunk_bytes,
        chunks: trial.chunks,
        encrypted: args.encrypt,
        put_bytes_per_s: moved / put_s,
        get_bytes_per_s: moved / get_s,
        lookup_s,
        restart_s,
        index_bytes_per_chunk: index_bytes as f64 / known.max(1) as f64,
        beside,
        put,
        get,
    })
}

/// The chunks of a measurement: they are stored and loaded in batches that fit into memory.
struct Trial<'a> {
    args: &'a Args,
    chunk_bytes: u64,
    chunks: u64,
    per_batch: u64,
    namespace: KvNamespace,
}

impl<'a> Trial<'a> {
    fn new(args: &'a Args) -> Result<Self> {
        let chunk_bytes = args.kv_chunk.0;
        let chunks = args.size.0.checked_div(chunk_bytes).filter(|chunks| *chunks > 0);
        let chunks = chunks.ok_or_else(|| {
            let why = format!("{} are less than a chunk of {}", args.size, args.kv_chunk);
            Error::new(ErrorKind::Invalid, "measure", "a KV cache", why)
                .with_hint("give a larger --size, or a smaller --kv-chunk")
        })?;
        Ok(Self {
            args,
            chunk_bytes,
            chunks,
            per_batch: (BATCH_BYTES / chunk_bytes).clamp(1, chunks),
            namespace: KvNamespace::new(NamespaceParts::default())?,
        })
    }

    fn options(&self) -> TierOptions {
        let mut secret = [0; 32];
        for part in secret.as_chunks_mut::<8>().0 {
            *part = nonce().to_le_bytes();
        }
        TierOptions {
            key: self.args.encrypt.then(|| KeyFile::new(secret)),
            ..TierOptions::default()
        }
    }

    /// Each chunk in whole pages, with its record; and the headers of all segments.
    fn bytes_max(&self) -> u64 {
        let slot_bytes = self.chunk_bytes.next_multiple_of(4096) + 128;
        self.chunks.saturating_mul(slot_bytes) + (1 << 20)
    }

    /// Memory with the bytes of one batch.
    fn filled(&self) -> Result<Arc<Region>> {
        let mut memory = Region::host(self.per_batch * self.chunk_bytes)?;
        for (number, place) in (0_u64..).zip(memory.as_mut_slice().as_chunks_mut::<8>().0) {
            *place = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        }
        Ok(Arc::new(memory))
    }

    /// The numbers of the chunks of each batch.
    fn batches(&self) -> impl Iterator<Item = Range<u64>> {
        let firsts = (0..self.chunks).step_by(usize::try_from(self.per_batch).expect("it is in memory"));
        firsts.map(|first| first..self.chunks.min(first + self.per_batch))
    }

    /// Stores all chunks, and returns the seconds that it took.
    fn put(&self, tier: &Tier, memory: &Arc<Region>) -> Result<(Vec<KvReceipt>, f64)> {
        let batch = |numbers: Range<u64>| -> Vec<ChunkAt> {
            let first = numbers.start;
            let at = |number: u64| (number - first) * self.chunk_bytes;
            let chunk = |number| ChunkAt::whole(key(number), memory, at(number), self.chunk_bytes);
            numbers.map(chunk).collect()
        };
        let begun = Instant::now();
        let put = receipts(
            self.batches()
                .map(|numbers| tier.store(self.namespace, &batch(numbers))?.wait()),
        )?;
        Ok((put, begun.elapsed().as_secs_f64()))
    }

    /// Loads all chunks into the memory that was asked for, and returns the seconds that it took.
    fn get(&self, tier: &Tier) -> Result<(Vec<KvReceipt>, f64)> {
        let target = Arc::new(Region::at(self.args.device, self.per_batch * self.chunk_bytes)?);
        target.populate();
        let page_bytes = self.args.page.map_or(self.chunk_bytes, |page| page.0);
        let is_random = self.args.page.is_some();
        let pages = Pages::new(page_bytes, self.chunk_bytes, self.per_batch, is_random)?;
        let wanted: Vec<_> = self.batches().map(|numbers| pages.chunks(&target, numbers)).collect();
        let begun = Instant::now();
        let get = receipts(
            wanted
                .iter()
                .map(|wanted| tier.load(self.namespace, wanted, None)?.wait()),
        )?;
        let get_s = begun.elapsed().as_secs_f64();
        match get.iter().map(|receipt| receipt.misses.all()).sum() {
            0 => Ok((get, get_s)),
            missing => Err(lost(missing)),
        }
    }

    /// The seconds of a lookup.
    fn look_up(&self, tier: &Tier) -> Result<f64> {
        let keys: Vec<_> = (0..LOOKUPS as u64)
            .map(|number| key(number * 7919 % self.chunks))
            .collect();
        let begun = Instant::now();
        let found = keys
            .iter()
            .filter(|key| tier.lookup(self.namespace, key).is_ok())
            .count();
        let lookup_s = begun.elapsed().as_secs_f64() / LOOKUPS as f64;
        match LOOKUPS - found {
            0 => Ok(lookup_s),
            missing => Err(lost(missing as u64)),
        }
    }
}

/// The places of chunks in memory, page by page.
struct Pages {
    page_bytes: u64,
    per_chunk: u64,
    chunk_bytes: u64,
    /// The place of each page.
    order: Vec<u64>,
}

impl Pages {
    /// Pages for that many chunks, in order or in random order.
    fn new(page_bytes: u64, chunk_bytes: u64, chunks: u64, is_random: bool) -> Result<Self> {
        if page_bytes == 0 || !chunk_bytes.is_multiple_of(page_bytes) {
            let why = format!("a chunk of {} is not a whole number of them", Bytes(chunk_bytes));
            let target = format!("pages of {}", Bytes(page_bytes));
            return Err(Error::new(ErrorKind::Invalid, "use", target, why).with_hint("give another --page"));
        }
        let per_chunk = chunk_bytes / page_bytes;
        let mut order: Vec<u64> = (0..chunks * per_chunk).collect();
        let mut rng = Seed(1).rng();
        for last in (1..order.len()).rev().filter(|_| is_random) {
            order.swap(last, rng.index(last + 1));
        }
        Ok(Self {
            page_bytes,
            per_chunk,
            chunk_bytes,
            order,
        })
    }

    /// The chunks of a batch with these numbers.
    fn chunks(&self, region: &Arc<Region>, numbers: Range<u64>) -> Vec<ChunkAt> {
        let pages = self
            .order
            .chunks(usize::try_from(self.per_chunk).expect("it is in memory"));
        let part = |place: &u64| Part {
            region: Arc::clone(region),
            at: place * self.page_bytes,
            bytes: self.page_bytes,
        };
        let chunk = |(number, places): (u64, &[u64])| ChunkAt {
            key: key(number),
            parts: places.iter().map(part).collect(),
        };
        debug_assert_eq!(self.page_bytes * self.per_chunk, self.chunk_bytes);
        numbers.zip(pages).map(chunk).collect()
    }
}

fn key(number: u64) -> Key {
    Key::of(&number.to_le_bytes())
}

/// The receipts of batches that stored or loaded all of their chunks.
fn receipts(batches: impl Iterator<Item = Result<Done>>) -> Result<Vec<KvReceipt>> {
    batches
        .map(|done| {
            let done = done?;
            match done.error {
                Some(error) => Err(error),
                None if done.receipt.not_stored > 0 => Err(lost(done.receipt.not_stored)),
                None => Ok(done.receipt),
            }
        })
        .collect()
}

fn lost(chunks: u64) -> Error {
    let why = format!("{chunks} chunks were not stored, or not found again");
    Error::new(ErrorKind::Corrupt, "measure", "a KV cache", why)
}

fn text(measured: &Measured) -> String {
    let Measured { chunks, encrypted, .. } = measured;
    let encrypted = if *encrypted { ", encrypted" } else { "" };
    format!(
        "{chunks} chunks of {}{encrypted}\n  store    {}\n  load     {}\n  \
         lookup   {}\n  restart  {}\n  memory   {:.0} bytes a chunk\n",
        Bytes(measured.chunk_bytes),
        Rate(measured.put_bytes_per_s),
        Rate(measured.get_bytes_per_s),
        Seconds(measured.lookup_s),
        Seconds(measured.restart_s),
        measured.index_bytes_per_chunk,
    )
}

//! The side that runs in the guest: random transfers with BAR memory, each compared and each between two marks.

use std::{
    env,
    path::{Path, PathBuf},
    sync::Arc,
};

use straightway_core::{
    Choice, Extent, Leg, Move, PciAddress, Place, Receipt,
    extent::up,
    random::{Rng, Seed},
};
use straightway_io::{
    Executor, ExecutorParts, File, Objects, Peers, Region, Settings,
    wrapper::traced::{Trace, TraceEvent},
};
use straightway_lab::guest::pattern;
use straightway_sys::{Buf, Io, IoPath, Op, Slot, blocking};

use super::case::{Case, WORD, direct};

const MIXES: u64 = 100;
/// The first mark of the mixes; lower ones are used by the script.
pub(crate) const FIRST_MARK: u64 = 100;
const PAGE: u64 = 4096;
const SECTOR: u64 = 512;
/// The maximum size of the region and file of a mix.
const BYTES_MAX: u64 = 400 << 10;

struct Fixture {
    provider: PciAddress,
    source: PathBuf,
    marks: Arc<File>,
    folder: PathBuf,
    peers: Peers,
    content: Vec<u8>,
}

fn variable(name: &str) -> String {
    env::var(name).unwrap()
}

impl Fixture {
    fn mark(&self, number: u64) {
        let slot = Slot::ring(1, PAGE as usize).unwrap().pop().unwrap();
        let done = blocking::run(Io {
            op: Op::Read,
            object: Arc::clone(&self.marks),
            by: IoPath::Direct,
            offset: number * PAGE,
            buf: Buf::Slot(slot),
            start: 0,
            bytes: PAGE as usize,
            tag: 0,
        });
        assert_eq!(done.result.unwrap(), PAGE as usize);
    }

    fn executor(&self, rng: &mut Rng, through: bool) -> (Executor, Trace) {
        let trace = Trace::default();
        let depth = 1 + u32::try_from(rng.below(32)).unwrap();
        let settings = Settings {
            depth,
            write_depth: depth,
            chunk_bytes: PAGE << rng.below(8),
            staging_bytes: 8 << 20,
            through: through.then_some(self.provider),
            ..Settings::default()
        };
        let parts = ExecutorParts {
            peers: self.peers.clone(),
            trace: Some(trace.clone()),
            ..ExecutorParts::default()
        };
        (Executor::with_parts(settings, parts).unwrap(), trace)
    }

    /// Creates a file with holes on the drive. Returns its path and content.
    fn sparse_file(&self, rng: &mut Rng, name: &str) -> (PathBuf, Vec<u8>) {
        use std::os::unix::fs::FileExt;
        let bytes = 1 + rng.below(BYTES_MAX);
        let mut content = vec![0; bytes as usize];
        let path = self.folder.join(name);
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(bytes).unwrap();
        let mut at = rng.below(3) * PAGE * rng.below(4);
        while at < bytes {
            let end = (at + PAGE * (1 + rng.below(30))).min(bytes);
            let part = at as usize..end as usize;
            content[part.clone()].copy_from_slice(&self.content[part.clone()]);
            file.write_all_at(&content[part], at).unwrap();
            at = end + PAGE * rng.below(12);
        }
        file.sync_all().unwrap();
        (path, content)
    }

    /// Extents that overlap neither in the object nor in the region, aligned or not, and the region's length.
    fn moves(rng: &mut Rng, object_bytes: u64) -> (Vec<Move>, u64) {
        let (mut moves, mut offset, mut at) = (Vec::new(), 0, 0);
        loop {
            let ragged = rng.below(2) == 1;
            let skip = |rng: &mut Rng| rng.below(3) * if ragged { 1 + rng.below(5000) } else { PAGE };
            offset += skip(rng);
            at += skip(rng);
            let bytes = (1 + rng.below(40)) * if ragged { 1 + rng.below(9000) } else { PAGE };
            let bytes = bytes.min(object_bytes.saturating_sub(offset));
            if bytes == 0 || at + bytes > BYTES_MAX {
                break;
            }
            // In half of the cases memory has the file's alignment to sectors, as in a loader.
            if rng.below(2) == 1 {
                at = up(at, PAGE) + offset % SECTOR + SECTOR * rng.below(PAGE / SECTOR);
            }
            moves.push(Move {
                object: 0,
                extent: Extent::new(offset, bytes),
                at,
            });
            offset += bytes;
            at += bytes;
        }
        (moves, at.max(1))
    }
}

/// The bytes of these I/Os that drives moved: holes and bytes beyond the last block are not read.
fn dma_bytes(events: &[TraceEvent], op: Op, data: &[Extent]) -> u64 {
    let in_data = |event: &TraceEvent| -> u64 {
        let (start, end) = (event.offset, event.offset + event.bytes as u64);
        let parts = data.iter().map(|d| {
            let last = up(d.end(), PAGE);
            last.min(end).saturating_sub(d.offset.max(start))
        });
        parts.sum()
    };
    let of_op = events.iter().filter(|e| e.op == op && e.by == IoPath::Direct);
    match op {
        Op::Read => of_op.map(in_data).sum(),
        Op::Write => of_op.map(|e| e.bytes as u64).sum(),
    }
}

/// When a file is truncated inside its last block, ext4 reads that block into host memory and writes it back.
fn tail_bytes(length: u64, is_written: bool) -> u64 {
    if is_written && !length.is_multiple_of(PAGE) {
        2 * PAGE
    } else {
        0
    }
}

/// The result of a mix.
struct Mixed {
    receipt: Receipt,
    is_equal: bool,
    bar_bytes: u64,
    all_bytes: u64,
    files: Vec<String>,
}

impl Fixture {
    /// Reads unaligned extents of a drive or of a file with holes into BAR memory.
    fn read(&self, rng: &mut Rng, number: u64, marks: bool) -> Mixed {
        let name = format!("in-{number}");
        let (path, content) = match rng.below(2) {
            0 => (self.source.clone(), self.content.clone()),
            _ => self.sparse_file(rng, &name),
        };
        let file = Arc::new(File::open(&path).unwrap());
        let data = file.data_extents().unwrap();
        let (moves, bytes) = Self::moves(rng, (content.len() as u64).min(BYTES_MAX));
        let region = Arc::new(Region::at(Place::P2p(self.provider), bytes).unwrap());
        let (executor, trace) = self.executor(rng, false);
        let receipt = self.between(marks.then_some(number), || {
            let objects: Objects = vec![Arc::clone(&file)].into();
            let ticket = executor.read(objects, moves.clone(), &region, Choice::Auto);
            ticket.unwrap().wait().unwrap()
        });
        drop(executor);
        let mut region = Arc::into_inner(region).unwrap();
        let is_equal = moves.iter().all(|m| {
            let mut seen = vec![0; m.extent.bytes as usize];
            region.read_at(m.at, &mut seen).unwrap();
            seen == content[m.extent.offset as usize..m.extent.end() as usize]
        });
        Mixed {
            bar_bytes: direct(&receipt, Leg::Read),
            all_bytes: dma_bytes(&trace.take(), Op::Read, &data),
            files: if path == self.source { vec![] } else { vec![name] },
            receipt,
            is_equal,
        }
    }

    /// Writes unaligned parts of BAR memory to a new file.
    fn write(&self, rng: &mut Rng, number: u64, marks: bool) -> Mixed {
        let name = format!("out-{number}");
        let (moves, bytes) = Self::moves(rng, BYTES_MAX);
        let mut region = Region::at(Place::P2p(self.provider), bytes).unwrap();
        region.write_at(0, &self.content[..bytes as usize]).unwrap();
        let region = Arc::new(region);
        let length = moves.iter().map(|m| m.extent.end()).max().unwrap_or(0);
        let path = self.folder.join(&name);
        let file = Arc::new(File::create(&path, length).unwrap());
        let (executor, trace) = self.executor(rng, false);
        let receipt = self.between(marks.then_some(number), || {
            let objects: Objects = vec![Arc::clone(&file)].into();
            let ticket = executor.write(&region, objects, moves.clone(), Choice::Auto);
            ticket.unwrap().wait().unwrap()
        });
        let mut expected = vec![0; length as usize];
        for m in &moves {
            let part = m.at as usize..(m.at + m.extent.bytes) as usize;
            expected[m.extent.offset as usize..m.extent.end() as usize].copy_from_slice(&self.content[part]);
        }
        Mixed {
            bar_bytes: direct(&receipt, Leg::Write),
            all_bytes: dma_bytes(&trace.take(), Op::Write, &[]) + tail_bytes(length, true),
            files: vec![name],
            is_equal: std::fs::read(&path).unwrap() == expected,
            receipt,
        }
    }

    /// Copies the data of a file with holes to another, through a ring in BAR memory.
    fn copy(&self, rng: &mut Rng, number: u64, marks: bool) -> Mixed {
        let names = [format!("from-{number}"), format!("to-{number}")];
        let (path, content) = self.sparse_file(rng, &names[0]);
        let source = Arc::new(File::open(&path).unwrap());
        let data = source.data_extents().unwrap();
        let target = self.folder.join(&names[1]);
        let twin = Arc::new(File::create(&target, content.len() as u64).unwrap());
        let (executor, trace) = self.executor(rng, true);
        let extents = data.iter().map(|extent| (0, *extent)).collect();
        let receipt = self.between(marks.then_some(number), || {
            let (from, to): (Objects, Objects) = (vec![source].into(), vec![twin].into());
            let ticket = executor.relay(from, to, extents, Choice::Auto);
            ticket.unwrap().wait().unwrap()
        });
        let events = trace.take();
        let all_bytes = dma_bytes(&events, Op::Read, &data) + dma_bytes(&events, Op::Write, &[]);
        // Every byte of the payload must be direct on both legs.
        let is_all = [Leg::Read, Leg::Write].map(|leg| direct(&receipt, leg)) == [receipt.bytes; 2];
        let ends = data.last().is_some_and(|last| last.end() == content.len() as u64);
        Mixed {
            bar_bytes: if is_all { all_bytes } else { 0 },
            all_bytes: all_bytes + tail_bytes(content.len() as u64, ends),
            files: names.to_vec(),
            is_equal: std::fs::read(&target).unwrap() == content,
            receipt,
        }
    }

    fn between<T>(&self, number: Option<u64>, work: impl FnOnce() -> T) -> T {
        if let Some(number) = number {
            self.mark(FIRST_MARK + 2 * number);
        }
        let done = work();
        if let Some(number) = number {
            self.mark(FIRST_MARK + 2 * number + 1);
        }
        done
    }
}

#[test]
#[ignore = "it runs in the guest"]
fn mixes() {
    let source = PathBuf::from(variable("A"));
    let fixture = Fixture {
        provider: variable("P").parse().unwrap(),
        content: pattern(BYTES_MAX + (1 << 20)),
        marks: Arc::new(File::open(Path::new(&variable("M"))).unwrap()),
        folder: "/mnt/ext4".into(),
        peers: Peers::default(),
        source,
    };
    let kinds = [Fixture::read, Fixture::write, Fixture::copy];
    // Every drive and direction is proven first, so that the counted transfers include no proof.
    for (kind, seed) in kinds.iter().zip([3, 7, 11]).chain(kinds.iter().zip([4, 8, 12])) {
        kind(&fixture, &mut Seed(seed).rng(), 1000 + seed, false);
    }
    for number in 0..MIXES {
        let mut rng = Seed(number).rng();
        let kind = number as usize % kinds.len();
        let mixed = kinds[kind](&fixture, &mut rng, number, true);
        let case = Case {
            name: format!("mix {number}: {}", ["read", "write", "copy"][kind]),
            mark: FIRST_MARK + 2 * number,
            is_equal: mixed.is_equal,
            routes: mixed.receipt.routes.clone(),
            bar_bytes: mixed.bar_bytes,
            host_bytes: mixed.all_bytes.saturating_sub(mixed.bar_bytes),
            files: mixed.files,
        };
        // The test harness does not end its line.
        println!("\n{WORD}{}", serde_json::to_string(&case).unwrap());
    }
}

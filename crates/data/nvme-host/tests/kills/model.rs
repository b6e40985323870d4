//! The content of a block by its generation, and the contents that a log allows a file to have.

use std::fmt::Write as _;

/// The size of a block, the number of blocks of the namespace, and the maximum number of blocks of one write.
pub(crate) const BLOCK: usize = 4096;
pub(crate) const BLOCKS: usize = 4096;
pub(crate) const BLOCKS_MAX: u64 = 48;

/// A block of a generation; generation 0 is zeros.
pub(crate) fn block(number: usize, generation: u64) -> Vec<u8> {
    if generation == 0 {
        return vec![0; BLOCK];
    }
    let seed = (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ generation;
    let words = (0..BLOCK as u64 / 8 - 1).map(|at| seed.rotate_left(at as u32).wrapping_add(at));
    let words = std::iter::once(generation).chain(words);
    words.flat_map(u64::to_le_bytes).collect()
}

/// A write that was begun.
struct Write {
    generation: u64,
    from: usize,
    to: usize,
}

/// The state recorded in the log of all hosts.
#[derive(Default)]
pub(crate) struct Model {
    writes: Vec<Write>,
    /// The first generation of each host, and the last one that it flushed.
    flushed: Vec<(u64, u64)>,
    read: usize,
    first: u64,
    pub(crate) written: u64,
    pub(crate) flushes: u64,
}

impl Model {
    /// Reads new lines of the log: `w GENERATION FROM TO` before a write, `f GENERATION` after a flush of everything up
    /// to it, and any other line at the end of a host. Returns the latter.
    pub(crate) fn read(&mut self, log: &str) -> Option<String> {
        let mut said = None;
        for line in log[self.read..].lines() {
            let words: Vec<_> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            match words[0] {
                "w" => {
                    self.written += 1;
                    let (from, to) = (number(2) as usize, number(3) as usize);
                    let generation = number(1);
                    self.writes.push(Write { generation, from, to });
                }
                "f" => {
                    self.flushes += 1;
                    self.flushed.retain(|(first, _)| *first != self.first);
                    self.flushed.push((self.first, number(1)));
                }
                _ => said = Some(line.to_owned()),
            }
        }
        self.read = log.len();
        said
    }

    /// The first generation of the next host.
    pub(crate) fn next(&mut self) -> u64 {
        self.first = self.writes.last().map_or(0, |write| write.generation) + 1;
        self.first
    }

    fn is_flushed(&self, generation: u64) -> bool {
        let mut flushed = self.flushed.iter();
        flushed.any(|(first, last)| (*first..=*last).contains(&generation))
    }

    /// Checks a file. Each block must be of the last flushed write or of a later one.
    pub(crate) fn check(&self, data: &[u8]) -> Result<(), String> {
        let mut allowed: Vec<Vec<u64>> = vec![vec![0]; BLOCKS];
        for write in &self.writes {
            let is_flushed = self.is_flushed(write.generation);
            for generations in &mut allowed[write.from..write.to] {
                if is_flushed {
                    generations.clear();
                }
                generations.push(write.generation);
            }
        }
        let mut wrong = String::new();
        for (number, (bytes, allowed)) in data.chunks(BLOCK).zip(&allowed).enumerate() {
            let is_right = |generation: &u64| bytes == block(number, *generation);
            if !allowed.iter().any(is_right) {
                let found = u64::from_le_bytes(*bytes.first_chunk().unwrap());
                let _ = write!(wrong, "block {number} has {found}, allowed are {allowed:?}; ");
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }
}

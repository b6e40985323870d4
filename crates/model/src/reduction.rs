//! Storing less: deduplication against compression.
//!
//! Deduplication pays with a table: an entry for every block that differs, looked up on every *write*. A read
//! follows the block pointer and asks the table nothing, whatever is said. Compression pays with
//! cores, on both ways. Which wins is a matter of what repeats: shuffled training data hardly does,
//! and weights are nearly noise to any compressor.

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

use straightway_scenario::check::Refusals;
use straightway_scenario::{
    check::{BYTES_ANY, Checked, Checker, RATE_ANY, TIME_ANY},
    provenance::{Basis, Formula, Source},
};

use crate::question::Question;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reduction {
    /// What is stored, before reduction.
    pub data: Bytes,
    /// What is written and read, in bytes a second.
    pub rate: Rate,
    /// Cores that may compress.
    pub cores: u64,
    /// Deduplication.
    pub dedup: Dedup,
    /// The compressors compared.
    pub codecs: Vec<Codec>,
}

/// Deduplication by blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Dedup {
    /// The block.
    pub block: Bytes,
    /// The table's entry for a block.
    pub entry: Bytes,
    /// How many times the data shrinks.
    pub ratio: f64,
    /// Memory for the table.
    pub memory: Bytes,
    /// A lookup in memory.
    pub lookup: Seconds,
    /// A lookup that goes to flash.
    pub lookup_flash: Seconds,
    /// Hashing, for one core.
    pub hash_rate: Rate,
}

/// A compressor, for one core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Codec {
    /// Its name.
    pub name: String,
    /// What one core compresses.
    pub compress: Rate,
    /// What one core decompresses.
    pub decompress: Rate,
    /// How many times the data shrinks.
    pub ratio: f64,
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// Blocks in the store, each of which differs from all others.
    pub blocks: f64,
    /// The whole table.
    pub table_bytes: f64,
    /// Share of the table that memory holds.
    pub table_in_memory: f64,
    /// Lookups a second when writing at the rate asked.
    pub lookups_per_s_write: f64,
    /// Lookups a second when reading.
    pub lookups_per_s_read: f64,
    /// Mean time of a lookup.
    pub lookup_s: f64,
    /// Lookups that must be in flight to write at the rate asked.
    pub lookups_in_flight: f64,
    /// Cores to hash what is written.
    pub hash_cores: f64,
    /// What is stored after deduplication, the table included.
    pub dedup_stored_bytes: f64,
    /// Shrinking that the table itself eats: below this ratio deduplication loses space.
    pub dedup_ratio_to_break_even: f64,
    /// Each compressor.
    pub codecs: Vec<Row>,
    /// What all this rests on.
    pub basis: Basis,
}

/// One compressor at work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// What is stored.
    pub stored_bytes: f64,
    /// Cores to compress at the rate asked.
    pub cores_write: f64,
    /// Cores to decompress at it.
    pub cores_read: f64,
    /// What the cores given can write.
    pub write_bytes_per_s: f64,
    /// What they can read.
    pub read_bytes_per_s: f64,
}

const OPENZFS: Source = Source::read("OpenZFS", "320 bytes of table for a block");
const SILESIA: Source = Source::read(
    "lzbench and zstd's own table, Silesia",
    "one core; weights compress far less",
);

const FORMULAS: [Formula; 3] = [
    Formula {
        gives: "deduplication table",
        text: "data / (block · ratio) · entry: one entry for blocks that are the same",
        source: OPENZFS,
    },
    Formula {
        gives: "lookups",
        text: "rate / block on write; none on read, which follows the block pointer",
        source: OPENZFS,
    },
    Formula {
        gives: "cores to compress",
        text: "rate / rate of a core",
        source: SILESIA,
    },
];

impl Default for Reduction {
    fn default() -> Self {
        Self {
            data: Bytes(1_000_000_000_000_000),
            rate: Rate(200e9),
            cores: 512,
            dedup: Dedup::default(),
            codecs: codecs(),
        }
    }
}

impl Default for Dedup {
    fn default() -> Self {
        Self {
            block: Bytes::kib(128),
            entry: Bytes(320),
            ratio: 1.02,
            memory: Bytes(1_000_000_000_000),
            lookup: Seconds(0.3e-6),
            lookup_flash: Seconds(100e-6),
            hash_rate: Rate(2e9),
        }
    }
}

/// LZ4 and zstd level 1 on the Silesia corpus, one core.
fn codecs() -> Vec<Codec> {
    let codec = |name: &str, compress, decompress, ratio| Codec {
        name: name.to_owned(),
        compress: Rate(compress),
        decompress: Rate(decompress),
        ratio,
    };
    vec![
        codec("lz4", 780e6, 4970e6, 2.10),
        codec("zstd-1", 510e6, 1580e6, 2.89),
    ]
}

impl Checked for Reduction {
    fn check(&self, c: &mut Checker) {
        c.bytes("data", self.data, BYTES_ANY);
        c.rate("rate", self.rate, RATE_ANY);
        c.count("cores", self.cores, 1..=10_000_000);
        c.within("dedup", |c| {
            let dedup = &self.dedup;
            c.bytes("block", dedup.block, Bytes(512)..=Bytes::gib(1));
            c.bytes("entry", dedup.entry, Bytes(1)..=Bytes::mib(1));
            c.range("ratio", dedup.ratio, 1.0..=1e6, "");
            c.bytes("memory", dedup.memory, BYTES_ANY);
            c.seconds("lookup", dedup.lookup, TIME_ANY);
            c.seconds("lookup_flash", dedup.lookup_flash, TIME_ANY);
            c.rate("hash_rate", dedup.hash_rate, RATE_ANY);
        });
        c.each("codecs", &self.codecs, 0..=64);
    }
}

impl Checked for Codec {
    fn check(&self, c: &mut Checker) {
        c.rate("compress", self.compress, RATE_ANY);
        c.rate("decompress", self.decompress, RATE_ANY);
        c.range("ratio", self.ratio, 0.5..=1e6, "");
    }
}

impl Reduction {
    /// Compares them.
    fn compute(&self) -> Answer {
        let dedup = &self.dedup;
        let (data, block) = (self.data.0 as f64, dedup.block.0 as f64);
        // Blocks that are the same share one entry.
        let blocks = (data / block / dedup.ratio).ceil();
        let table = blocks * dedup.entry.0 as f64;
        let in_memory = (dedup.memory.0 as f64 / table).min(1.0);
        let each_s = in_memory * dedup.lookup.0 + (1.0 - in_memory) * dedup.lookup_flash.0;
        let lookups = self.rate.0 / block;
        Answer {
            blocks,
            table_bytes: table,
            table_in_memory: in_memory,
            lookups_per_s_write: lookups,
            lookups_per_s_read: 0.0,
            lookup_s: each_s,
            lookups_in_flight: lookups * each_s,
            hash_cores: self.rate.0 / dedup.hash_rate.0,
            dedup_stored_bytes: data / dedup.ratio + table,
            // data/r · (1 + entry/block) = data
            dedup_ratio_to_break_even: 1.0 + dedup.entry.0 as f64 / block,
            codecs: self.codecs.iter().map(|codec| self.row(codec)).collect(),
            basis: self.basis(),
        }
    }

    fn row(&self, codec: &Codec) -> Row {
        let cores = self.cores as f64;
        Row {
            name: codec.name.clone(),
            stored_bytes: self.data.0 as f64 / codec.ratio,
            cores_write: self.rate.0 / codec.compress.0,
            cores_read: self.rate.0 / codec.decompress.0,
            write_bytes_per_s: cores * codec.compress.0,
            read_bytes_per_s: cores * codec.decompress.0,
        }
    }

    fn basis(&self) -> Basis {
        let mut basis = Basis::of(&FORMULAS);
        let entry = self.dedup.entry.0 as f64;
        basis.parameter(
            "dedup.entry",
            "table entry for a block",
            entry,
            "B",
            OPENZFS,
        );
        basis
            .parameter(
                "dedup.ratio",
                "deduplication ratio",
                self.dedup.ratio,
                "×",
                Source::ASSUMED,
            )
            .between(1.0, 3.0, Source::ASSUMED);
        let known = codecs();
        for (i, codec) in self.codecs.iter().enumerate() {
            let source = if known.contains(codec) {
                SILESIA
            } else {
                Source::SCENARIO
            };
            let (path, what) = (
                format!("codecs[{i}].ratio"),
                format!("{}: ratio", codec.name),
            );
            let ratio = basis.parameter(path, what, codec.ratio, "×", source);
            if known.contains(codec) {
                // Weights compress far less than Silesia's texts.
                ratio.between(1.05, codec.ratio, WEIGHTS);
            }
        }
        basis
    }
}

const WEIGHTS: Source = Source::quoted("compressed model weights", "16-bit weights: 1.05 to 1.5");

impl Question for Reduction {
    const NAME: &'static str = "reduction";
    type Answer = Answer;

    fn answer(&self) -> Result<Answer, Refusals> {
        Ok(self.compute())
    }

    fn verdict(answer: &Answer) -> String {
        let codecs = answer.codecs.iter().map(|row| row.stored_bytes);
        let least = codecs.fold(f64::MAX, f64::min);
        let wins = answer.dedup_stored_bytes < least;
        if wins {
            "deduplication stores less"
        } else {
            "compression stores less"
        }
        .to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use straightway_scenario::near::near;

    #[test]
    fn a_petabyte_in_128_kib_blocks_has_a_table_of_2_44_tb() {
        // models.md (g): 320 B a block (OpenZFS).
        let table = |ratio| {
            let mut asked = Reduction::default();
            asked.dedup.ratio = ratio;
            asked.compute().table_bytes
        };
        near(table(1.0), 2.44e12, 0.001);
        // One entry for ten blocks that are the same.
        near(table(10.0), 0.244e12, 0.001);
    }

    #[test]
    fn reads_ask_the_table_nothing() {
        let answer = Reduction::default().compute();
        assert!(answer.lookups_per_s_read.abs() < f64::EPSILON);
        near(answer.lookups_per_s_write, 200e9 / 131_072.0, 1e-9);
    }

    #[test]
    fn compressing_200_gb_a_second_takes_256_cores_of_lz4() {
        let lz4 = Reduction::default().compute().codecs.remove(0);
        near(lz4.cores_write, 200e9 / 780e6, 1e-9);
        near(lz4.stored_bytes, 1e15 / 2.10, 1e-9);
    }

    #[test]
    fn below_the_break_even_ratio_deduplication_stores_more() {
        let at = |ratio| {
            let mut asked = Reduction::default();
            asked.dedup.ratio = ratio;
            asked.compute().dedup_stored_bytes
        };
        let even = Reduction::default().compute().dedup_ratio_to_break_even;
        assert!(at(even * 0.9999) > 1e15 && at(even * 1.0001) < 1e15);
    }
}

//! Data reduction: deduplication against compression.
//!
//! Deduplication costs a table: one entry per distinct block, looked up on every *write*. A read follows the block
//! pointer and does not use the table. Compression costs cores, for writes and reads. Which stores less depends on how
//! much the data repeats: shuffled training data hardly repeats, and weights are nearly noise to any compressor.

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

use straightway_scenario::check::Refusals;
use straightway_scenario::{
    check::{BYTES_ANY, Checkable, Checker, RATE_ANY, TIME_ANY},
    provenance::{Basis, Citation, Formula},
};

use crate::question::Question;

/// The input of the topic `reduction`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReductionQuestion {
    /// The size of the data before reduction.
    pub data: Bytes,
    /// The rate of writes and of reads.
    pub rate: Rate,
    /// Cores available for compression.
    pub cores: u64,
    /// Deduplication.
    pub dedup: Dedup,
    /// The compressors compared.
    pub codecs: Vec<Compressor>,
}

/// Block-level deduplication.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Dedup {
    /// The block size.
    pub block: Bytes,
    /// The size of a table entry.
    pub entry: Bytes,
    /// The reduction ratio.
    pub ratio: f64,
    /// Memory for the table.
    pub memory: Bytes,
    /// The time of a lookup in memory.
    pub lookup: Seconds,
    /// The time of a lookup on flash.
    pub lookup_flash: Seconds,
    /// The hash rate of one core.
    pub hash_rate: Rate,
}

/// A compressor, with its rates on one core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compressor {
    /// Its name.
    pub name: String,
    /// The compression rate of one core.
    pub compress: Rate,
    /// The decompression rate of one core.
    pub decompress: Rate,
    /// The reduction ratio.
    pub ratio: f64,
}

/// The answer of the topic `reduction`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReductionAnswer {
    /// The number of distinct blocks.
    pub blocks: f64,
    /// The size of the table.
    pub table_bytes: f64,
    /// The share of the table that fits in memory.
    pub table_in_memory: f64,
    /// Lookups per second when writing at the given rate.
    pub lookups_per_s_write: f64,
    /// Lookups per second when reading.
    pub lookups_per_s_read: f64,
    /// The mean time of a lookup.
    pub lookup_s: f64,
    /// Lookups in flight when writing at the given rate.
    pub lookups_in_flight: f64,
    /// Cores needed to hash the writes.
    pub hash_cores: f64,
    /// The stored size after deduplication, including the table.
    pub dedup_stored_bytes: f64,
    /// The break-even ratio: below it, the table takes more space than deduplication saves.
    pub dedup_ratio_to_break_even: f64,
    /// The result of each compressor.
    pub codecs: Vec<ReductionRow>,
    /// The formulas and constants behind the answer.
    pub basis: Basis,
}

/// The result of one compressor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReductionRow {
    /// Its name.
    pub name: String,
    /// The stored size.
    pub stored_bytes: f64,
    /// Cores needed to compress at the given rate.
    pub cores_write: f64,
    /// Cores needed to decompress at the given rate.
    pub cores_read: f64,
    /// The write rate of the available cores.
    pub write_bytes_per_s: f64,
    /// The read rate of the available cores.
    pub read_bytes_per_s: f64,
}

const OPENZFS: Citation = Citation::read("OpenZFS", "320 bytes of table for a block");
const SILESIA: Citation = Citation::read(
    "lzbench and zstd's own table, Silesia",
    "one core; weights compress far less",
);

const FORMULAS: [Formula; 3] = [
    Formula {
        gives: "deduplication table",
        text: "data / (block · ratio) · entry: one entry for equal blocks",
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

impl Default for ReductionQuestion {
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
fn codecs() -> Vec<Compressor> {
    let codec = |name: &str, compress, decompress, ratio| Compressor {
        name: name.to_owned(),
        compress: Rate(compress),
        decompress: Rate(decompress),
        ratio,
    };
    vec![codec("lz4", 780e6, 4970e6, 2.10), codec("zstd-1", 510e6, 1580e6, 2.89)]
}

impl Checkable for ReductionQuestion {
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

impl Checkable for Compressor {
    fn check(&self, c: &mut Checker) {
        c.rate("compress", self.compress, RATE_ANY);
        c.rate("decompress", self.decompress, RATE_ANY);
        c.range("ratio", self.ratio, 0.5..=1e6, "");
    }
}

impl ReductionQuestion {
    /// Computes the answer.
    fn compute(&self) -> ReductionAnswer {
        let dedup = &self.dedup;
        let (data, block) = (self.data.0 as f64, dedup.block.0 as f64);
        // Identical blocks share one entry.
        let blocks = (data / block / dedup.ratio).ceil();
        let table = blocks * dedup.entry.0 as f64;
        let in_memory = (dedup.memory.0 as f64 / table).min(1.0);
        let each_s = in_memory * dedup.lookup.0 + (1.0 - in_memory) * dedup.lookup_flash.0;
        let lookups = self.rate.0 / block;
        ReductionAnswer {
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

    fn row(&self, codec: &Compressor) -> ReductionRow {
        let cores = self.cores as f64;
        ReductionRow {
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
        basis.parameter("dedup.entry", "table entry for a block", entry, "B", OPENZFS);
        basis
            .parameter(
                "dedup.ratio",
                "deduplication ratio",
                self.dedup.ratio,
                "×",
                Citation::ASSUMED,
            )
            .between(1.0, 3.0, Citation::ASSUMED);
        let known = codecs();
        for (i, codec) in self.codecs.iter().enumerate() {
            let source = if known.contains(codec) {
                SILESIA
            } else {
                Citation::SCENARIO
            };
            let (path, what) = (format!("codecs[{i}].ratio"), format!("{}: ratio", codec.name));
            let ratio = basis.parameter(path, what, codec.ratio, "×", source);
            if known.contains(codec) {
                // Weights compress far less than Silesia's texts.
                ratio.between(1.05, codec.ratio, WEIGHTS);
            }
        }
        basis
    }
}

const WEIGHTS: Citation = Citation::quoted("compressed model weights", "16-bit weights: 1.05 to 1.5");

impl Question for ReductionQuestion {
    const NAME: &'static str = "reduction";
    type Answer = ReductionAnswer;

    fn answer(&self) -> Result<ReductionAnswer, Refusals> {
        Ok(self.compute())
    }

    fn verdict(answer: &ReductionAnswer) -> String {
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
            let mut asked = ReductionQuestion::default();
            asked.dedup.ratio = ratio;
            asked.compute().table_bytes
        };
        near(table(1.0), 2.44e12, 0.001);
        // One entry for ten identical blocks.
        near(table(10.0), 0.244e12, 0.001);
    }

    #[test]
    fn reads_need_no_lookups() {
        let answer = ReductionQuestion::default().compute();
        assert!(answer.lookups_per_s_read.abs() < f64::EPSILON);
        near(answer.lookups_per_s_write, 200e9 / 131_072.0, 1e-9);
    }

    #[test]
    fn compressing_200_gb_a_second_takes_256_cores_of_lz4() {
        let lz4 = ReductionQuestion::default().compute().codecs.remove(0);
        near(lz4.cores_write, 200e9 / 780e6, 1e-9);
        near(lz4.stored_bytes, 1e15 / 2.10, 1e-9);
    }

    #[test]
    fn below_the_break_even_ratio_deduplication_stores_more() {
        let at = |ratio| {
            let mut asked = ReductionQuestion::default();
            asked.dedup.ratio = ratio;
            asked.compute().dedup_stored_bytes
        };
        let even = ReductionQuestion::default().compute().dedup_ratio_to_break_even;
        assert!(at(even * 0.9999) > 1e15 && at(even * 1.0001) < 1e15);
    }
}

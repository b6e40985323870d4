//! The software of a client: the rate that one writer or reader reaches, however fast the links are.
//!
//! A client of a file system stripes one file over many servers, and its links limit it: 0.8 to 14 GB/s a rank were
//! published, each bound by links or storage. A client of an object store sends one object per connection, which the
//! library limits. So the kind of client has a rate per stream, and a scenario can give its own.

use serde::{Deserialize, Serialize};
use straightway_core::Rate;
use straightway_scenario::{
    check::{Checker, RATE_ANY},
    provenance::{Basis, Citation},
};

/// The kind of client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientKind {
    /// A file system: links and storage limit it.
    #[default]
    File,
    /// An object store: every rank writes and reads its object by one client library.
    S3,
}

/// The published rates of one stream: the lowest, a middle one, the highest.
#[derive(Clone, Copy, Debug)]
struct Published {
    low: f64,
    middle: f64,
    high: f64,
    source: Citation,
}

/// One object per rank. 70B on 12 servers (0.46) is not among the rows: it is compared with the prediction.
const S3_WRITER: Published = Published {
    low: 0.36e9,
    middle: 0.42e9,
    high: 0.47e9,
    source: Citation::fitted(
        "MLPerf Storage v3.0, AIStore: 8B on 3, 6 and 12 servers, 70B on 3 and 6 servers",
        "0.405, 0.456, 0.429, 0.372 and 0.445 GB/s written by each rank; one run varies by 4 %",
    ),
};

/// Ranges of one object per rank, several connections each.
const S3_READER: Published = Published {
    low: 1.05e9,
    middle: 1.2e9,
    high: 1.35e9,
    source: Citation::fitted(
        "MLPerf Storage v3.0, AIStore: 8B and 70B checkpoints on 12 servers",
        "1.09 and 1.27 GB/s read by each rank; one run varies by 15 %",
    ),
};

/// The limits of the clients of a storage system.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Clients {
    /// The kind of client.
    pub kind: ClientKind,
    /// The rate of one writer; absent for that of the kind.
    pub writer_rate: Option<Rate>,
    /// The rate of one reader; absent for that of the kind.
    pub reader_rate: Option<Rate>,
    /// The rate of all streams of one node; absent for no limit but its ports.
    pub node_rate: Option<Rate>,
}

impl Clients {
    /// Checks the rates.
    pub(crate) fn check(&self, c: &mut Checker) {
        for (field, rate) in [
            ("writer_rate", self.writer_rate),
            ("reader_rate", self.reader_rate),
            ("node_rate", self.node_rate),
        ] {
            if let Some(rate) = rate {
                c.rate(field, rate, RATE_ANY);
            }
        }
    }

    fn published(&self) -> Option<(Published, Published)> {
        match self.kind {
            ClientKind::File => None,
            ClientKind::S3 => Some((S3_WRITER, S3_READER)),
        }
    }

    /// The rate of one writer, if the software limits it.
    pub(crate) fn writer_bytes_per_s(&self) -> Option<f64> {
        let published = || self.published().map(|(writer, _)| writer.middle);
        self.writer_rate.map(|rate| rate.0).or_else(published)
    }

    /// The rate of one reader, if the software limits it.
    pub(crate) fn reader_bytes_per_s(&self) -> Option<f64> {
        let published = || self.published().map(|(_, reader)| reader.middle);
        self.reader_rate.map(|rate| rate.0).or_else(published)
    }

    /// The rate of one node's streams, if the software limits it.
    pub(crate) fn node_bytes_per_s(&self) -> Option<f64> {
        self.node_rate.map(|rate| rate.0)
    }

    /// Adds the rates that limit to a basis. `root` is the path of this table.
    pub(crate) fn assume(&self, basis: &mut Basis, root: &str) {
        let published = self.published();
        let writer = ("writer_rate", "one writer of a client", self.writer_bytes_per_s());
        let reader = ("reader_rate", "one reader of a client", self.reader_bytes_per_s());
        let published = [published.map(|p| p.0), published.map(|p| p.1)];
        for ((field, what, rate), published) in [writer, reader].into_iter().zip(published) {
            let Some(rate) = rate else { continue };
            let source = published.map_or(Citation::SCENARIO, |p| p.source);
            let parameter = basis.parameter(format!("{root}.{field}"), what, rate, "B/s", source);
            if let Some(Published { low, high, source, .. }) = published {
                parameter.between(low.min(rate), high.max(rate), source);
            }
        }
        if let Some(rate) = self.node_rate {
            let path = format!("{root}.node_rate");
            basis.parameter(path, "all streams of one node", rate.0, "B/s", Citation::SCENARIO);
        }
    }
}

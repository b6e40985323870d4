//! Replication and erasure coding: the bytes that enter the servers and reach the drives for each byte written.
//!
//! A client that writes the copies or the code itself sends every byte of them to the servers. A client that sends the
//! data to one server leaves that to the server: it receives the data, keeps its own piece, and sends the other pieces
//! to other servers, whose ports receive them too.

use serde::{Deserialize, Serialize};
use straightway_scenario::{
    check::Checker,
    provenance::{Citation, Formula},
};

/// How data are protected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Redundancy {
    /// Whole copies of every byte.
    pub copies: u64,
    /// Data pieces of an erasure code.
    pub data: u64,
    /// Parity pieces of an erasure code; zero for none.
    pub parity: u64,
    /// Who makes copies and parity.
    pub by: Coder,
}

/// Who makes copies and parity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Coder {
    /// The client: it sends every piece to its server.
    #[default]
    Client,
    /// The server that receives the data: it sends the pieces on.
    Server,
}

/// The formula of this file.
pub(crate) const FORMULA: Formula = Formula {
    gives: "bytes that enter the servers' ports for a byte written",
    text: "coded by the client: copies · (data + parity)/data; by the server: 1 + that − the piece it keeps",
    source: Citation::computed("every piece but the receiver's own crosses a server's port", ""),
};

impl Default for Redundancy {
    fn default() -> Self {
        Self {
            copies: 1,
            data: 1,
            parity: 0,
            by: Coder::default(),
        }
    }
}

impl Redundancy {
    /// Checks the counts.
    pub(crate) fn check(&self, c: &mut Checker) {
        c.count("copies", self.copies, 1..=16);
        c.count("data", self.data, 1..=1024);
        c.count("parity", self.parity, 0..=64);
    }

    /// Bytes on the drives for each byte written.
    fn stored(&self) -> f64 {
        self.copies as f64 * (self.data + self.parity) as f64 / self.data as f64
    }

    /// Bytes that enter the servers' ports for each byte written.
    pub fn ingress(&self) -> f64 {
        match self.by {
            Coder::Client => self.stored(),
            Coder::Server => 1.0 + self.stored() - 1.0 / self.data as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use straightway_scenario::near::near;

    use super::*;

    #[test]
    fn copies_and_parity_enter_the_servers_ports() {
        let of = |copies, data, parity, by| {
            let coded = Redundancy {
                copies,
                data,
                parity,
                by,
            };
            coded.ingress()
        };
        near(of(1, 1, 0, Coder::Client), 1.0, 1e-12);
        near(of(1, 1, 0, Coder::Server), 1.0, 1e-12);
        near(of(3, 1, 0, Coder::Client), 3.0, 1e-12);
        // The server that receives the data keeps one copy and sends two.
        near(of(3, 1, 0, Coder::Server), 3.0, 1e-12);
        near(of(1, 8, 2, Coder::Client), 1.25, 1e-12);
        // It keeps one piece of eight and sends nine.
        near(of(1, 8, 2, Coder::Server), 1.0 + 9.0 / 8.0, 1e-12);
    }
}

//! The mechanisms by which a job's bytes reach device memory without the CPU, and their proof.
//!
//! There are two mechanisms with one kind of accounting: a plan says `Direct`, and the receipt says which of that is
//! proven ([`Proof`]).

use straightway_core::Leg;
use straightway_sys::cufile::Counters;

use crate::gds::{self, Proof};

/// The mechanism of a job while it runs.
#[derive(Debug)]
pub(crate) enum DirectPath {
    /// GPU memory by cuFile, whose counters are read before and after.
    CuFile(gds::CuFileLease),
    /// Memory in a BAR by O_DIRECT. The kernel uses DMA or refuses, and a comparison has shown that the bytes are
    /// right.
    Compared,
}

impl DirectPath {
    /// cuFile's current counters, if it is used and has any.
    pub(crate) fn counters(&self) -> Option<Counters> {
        match self {
            Self::CuFile(lease) => lease.session.counters(),
            Self::Compared => None,
        }
    }

    /// The proven path of all direct bytes since `counted`.
    pub(crate) fn proof_since(&self, counted: Option<Counters>, leg: Leg) -> Proof {
        match self {
            Self::CuFile(lease) => lease.session.proof_since(counted, leg),
            Self::Compared => Proof::Compared,
        }
    }
}

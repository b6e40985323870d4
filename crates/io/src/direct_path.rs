//! How a job's bytes reach the memory of a device without the CPU, and what proves that they did.
//!
//! There are two mechanisms, and one way to book what they moved: a plan says `Direct`, and the receipt says what is
//! proven of that ([`Proof`]).

use straightway_core::Leg;
use straightway_sys::cufile::Counters;

use crate::{
    books::Books,
    gds::{self, Proof},
};

/// What a job has of a mechanism for the time that it runs.
#[derive(Debug)]
pub(crate) enum Pass {
    /// GPU memory by cuFile, whose counters are asked before and after.
    CuFile(gds::Pass),
    /// Memory in a BAR by O_DIRECT. The kernel moves it by DMA or refuses, and a comparison has shown that it moves it
    /// rightly.
    Compared,
}

impl Pass {
    /// cuFile's counters now, where it is used and has any.
    pub(crate) fn counters(&self) -> Option<Counters> {
        match self {
            Self::CuFile(pass) => pass.session.counters(),
            Self::Compared => None,
        }
    }

    /// What is proven of all that went direct since `counted`.
    pub(crate) fn proof_since(&self, counted: Option<Counters>, leg: Leg) -> Proof {
        match self {
            Self::CuFile(pass) => pass.session.proof_since(counted, leg),
            Self::Compared => Proof::Compared,
        }
    }

    /// Enters in the books what it took.
    pub(crate) fn enter(&self, books: &mut Books) {
        if let Self::CuFile(pass) = self {
            books.register(pass.registration_s);
            books.name("cuFile");
        }
    }
}

//! The identity of namespaces: names, versions, and the proof that each controller has the namespace that was opened.
//!
//! This layer stands on [`session`](crate::session), which connects, and below the store and the engine, which transfer.
//! Whether a namespace is the one that was opened is decided in `verify`.
//!
//! | file | content |
//! |---|---|
//! | `catalog` | the name index of a subsystem: names and versions of files on Straightway targets |
//! | `opened` | an opened namespace: its identifiers, its size and its index entry |
//! | `history` | the addresses that confirmed one opening, and the machine that has its writes |
//! | `verdicts` | the verification results of one opening |
//! | `verify` | checks that a namespace is the same one on a controller |
//! | `reach` | the choice of controllers for a namespace; single commands on side queues |
//! | `unchanged` | the check after a transfer that no namespace changed |

pub(crate) mod catalog;
mod history;
pub(crate) mod opened;
pub(crate) mod reach;
pub(crate) mod unchanged;
pub(crate) mod verdicts;
pub(crate) mod verify;

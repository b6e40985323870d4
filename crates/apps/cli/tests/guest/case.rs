//! The report of the guest about a case, one line of JSON each.

use serde::{Deserialize, Serialize};
use straightway_core::{Leg, Reason, Receipt, Route, receipt::RouteBytes};

/// The prefix of a line about a case.
pub(crate) const WORD: &str = "case: ";

/// A case that ran in the guest.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Case {
    /// The name of the case.
    pub(crate) name: String,
    /// The mark before it; the one after it is the next number.
    pub(crate) mark: u64,
    /// Whether the received bytes equal the sent ones.
    pub(crate) is_equal: bool,
    /// The routes of each leg in the receipt.
    pub(crate) routes: Vec<RouteBytes>,
    /// The bytes that drives must have moved to or from the BAR, computed from the receipt and the list of I/Os.
    pub(crate) bar_bytes: u64,
    /// The same for host memory.
    pub(crate) host_bytes: u64,
    /// Its files on drive D: all other transfers there are metadata.
    pub(crate) files: Vec<String>,
}

/// The bytes of a leg that a receipt lists as direct by P2PDMA.
pub(crate) fn direct(receipt: &Receipt, leg: Leg) -> u64 {
    let wanted = (leg, Route::Direct, Reason::ComparedP2pdma);
    let is_wanted = |row: &&RouteBytes| (row.leg, row.route, row.reason) == wanted;
    let rows = receipt.routes.iter().filter(is_wanted);
    rows.map(|row| row.bytes).sum()
}

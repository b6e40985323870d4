//! The end of a connection: its causes, and the longest transfer time of a PDU.

use std::{io, time::Duration};

use straightway_nvme::Fault;

/// The minimum rate of a PDU: that of each of 256 queues that share 1 MiB/s. A peer that transfers single bytes cannot
/// keep a connection in use for longer.
const RATE_MIN_BYTES_PER_S: u64 = 4 << 10;

/// The maximum time to transfer `bytes` in one direction.
pub(crate) fn transfer_time_max(bytes: usize, stall_timeout: Duration) -> Duration {
    stall_timeout + Duration::from_millis(bytes as u64 * 1000 / RATE_MIN_BYTES_PER_S)
}

/// The cause of the end of a connection.
#[derive(Debug)]
pub(crate) enum End {
    /// The host closed it, or the target is stopping.
    Closed,
    /// The host violated the protocol.
    Fault(Fault),
    /// A timeout inside a PDU or while sending.
    Silent,
    /// The login or the authentication took too long.
    Deadline,
    /// The keep-alive timeout expired.
    KeepAlive,
    /// It was refused, and the refusal was sent.
    Refused,
    /// A file was truncated after its data was announced.
    Backing,
    /// The socket failed.
    Socket(io::Error),
}

impl From<Fault> for End {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

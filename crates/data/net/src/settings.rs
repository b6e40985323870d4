//! The settings of connections.

use std::time::Duration;

use crate::{proxy::Proxies, roots::Roots};

/// The settings of connections. The caller reads the environment.
#[derive(Clone, Debug)]
pub struct NetworkSettings {
    /// Trusted certificates.
    pub roots: Roots,
    /// Proxies.
    pub proxies: Proxies,
    /// The longest time without progress before a request counts as failed.
    pub stall_max: Duration,
    /// The fewest bytes of a body within `stall_max` that count as progress, unless fewer are missing.
    pub progress_bytes_min: usize,
    /// The timeout of a connection and its TLS handshake.
    pub connect_max: Duration,
    /// The most connections of one lane.
    pub connections_max: u32,
    /// Attempts without progress before an error is final.
    pub attempts_max: u32,
    /// How long a request without progress is retried. Waits that the server asked for do not count.
    pub failing_max: Duration,
    /// Whether slow requests are sent a second time, on another connection.
    pub hedges: bool,
}

impl Default for NetworkSettings {
    fn default() -> Self {
        Self {
            roots: Roots::default(),
            proxies: Proxies::default(),
            stall_max: Duration::from_secs(20),
            // A request of 8 MiB takes at most 43 minutes then. 64 connections need 1.7 Mbit/s together.
            progress_bytes_min: 64 << 10,
            connect_max: Duration::from_secs(10),
            connections_max: 64,
            attempts_max: 10,
            failing_max: Duration::from_mins(1),
            hedges: true,
        }
    }
}

impl NetworkSettings {
    /// The longest wait for the response to a part. It is longer than that for other responses: a busy service has
    /// received the part quickly, but responds only after its drives have written it.
    pub(crate) fn stored_max(&self) -> Duration {
        3 * self.stall_max
    }
}

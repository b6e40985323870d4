//! The structure of a storage system, and the four systems of the article.

use serde::{Deserialize, Serialize};
use straightway_core::Rate;
use straightway_scenario::check::{Checkable, Checker, RATE_ANY};

/// The structure of one system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct System {
    /// Its name.
    pub name: String,
    /// The number of targets of one file; absent for all targets.
    #[serde(default)]
    pub stripe: Option<u64>,
    /// The number of metadata servers; absent for all servers.
    #[serde(default)]
    pub metadata_servers: Option<u64>,
    /// The number of servers for one directory; absent for all metadata servers.
    #[serde(default)]
    pub directory_servers: Option<u64>,
    /// Whether any metadata server answers any request, from one shared queue. Otherwise each server has its own part
    /// of the names and its own queue.
    #[serde(default)]
    pub metadata_shared: bool,
    /// The share of written bytes that is data and not parity.
    pub write_share: f64,
    /// Whether the server that receives a write makes the parity and sends the pieces on, through the ports of the
    /// others. Otherwise the client sends every piece itself.
    #[serde(default)]
    pub forwards: bool,
    /// The rate limit of one client's protocol, if lower than its port.
    #[serde(default)]
    pub client_limit: Option<Rate>,
    /// The rate of one stream: a writer of one file, or one of a client's readers; absent for no limit.
    #[serde(default)]
    pub stream_rate: Option<Rate>,
}

/// The four architectures of the article, by their structure.
pub(super) fn systems() -> Vec<System> {
    let system = |name: &str, write_share| System {
        name: name.to_owned(),
        stripe: None,
        metadata_servers: None,
        directory_servers: None,
        metadata_shared: false,
        write_share,
        client_limit: None,
        forwards: false,
        stream_rate: None,
    };
    vec![
        // One stripe, two metadata servers, a directory on one of them, RAID 8+2.
        System {
            stripe: Some(1),
            metadata_servers: Some(2),
            directory_servers: Some(1),
            ..system("lustre", 0.8)
        },
        // Data and metadata in shards over every node, a directory too; 16+2.
        system("weka", 16.0 / 18.0),
        // Every server reaches every drive and answers for every name; wide codes of 146+4.
        System {
            metadata_shared: true,
            ..system("vast", 146.0 / 150.0)
        },
        // Blades behind NFS: a client is limited by its connections, here 16 at 10 Gb/s.
        System {
            client_limit: Some(Rate::gbit(160.0)),
            ..system("flashblade", 13.0 / 15.0)
        },
    ]
}

impl Checkable for System {
    fn check(&self, c: &mut Checker) {
        if self.name.is_empty() || self.name.len() > 60 {
            c.refuse("name", format!("`{}`", self.name), "a name of 1 to 60 bytes");
        }
        for (field, value) in [
            ("stripe", self.stripe),
            ("metadata_servers", self.metadata_servers),
            ("directory_servers", self.directory_servers),
        ] {
            if let Some(count) = value {
                c.count(field, count, 1..=1_000_000);
            }
        }
        c.range("write_share", self.write_share, 0.01..=1.0, "");
        for (field, rate) in [("client_limit", self.client_limit), ("stream_rate", self.stream_rate)] {
            if let Some(rate) = rate {
                c.rate(field, rate, RATE_ANY);
            }
        }
    }
}

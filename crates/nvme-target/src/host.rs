//! Hosts: access rules, secrets, shares and counters.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use serde::{Deserialize, Serialize};
use straightway_core::{Error, ErrorKind, Result, quantity::Rate, share::Share};
use straightway_nvme::{
    Nqn,
    auth::{AuthKeys, Secret},
};

use crate::gate::{Gate, Pass};

/// The maximum number of hosts with their own receipt. Further hosts share one.
const HOSTS_MAX: usize = 4096;

/// The configuration of one host.
#[derive(Clone, Debug)]
pub struct HostRule {
    /// Its NQN.
    pub nqn: Nqn,
    /// The secrets for DH-HMAC-CHAP, if it has to authenticate.
    pub keys: Option<AuthKeys>,
    /// Its share of the target's throughput.
    pub share: Option<Share>,
}

/// The hosts that may connect.
#[derive(Clone, Debug, Default)]
pub struct HostPolicy {
    /// The configured hosts.
    pub rules: Vec<HostRule>,
    /// Whether hosts without a rule are refused.
    pub is_closed: bool,
}

/// The TOML file of hosts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostsFile {
    #[serde(default)]
    host: Vec<HostTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostTable {
    nqn: String,
    secret: Option<String>,
    controller_secret: Option<String>,
    limit: Option<Rate>,
    reservation: Option<Rate>,
    weight: Option<f64>,
}

impl HostPolicy {
    /// Reads a hosts file. Only the hosts in it may connect.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(|e| Error::os("read", path.display(), e))?;
        let refuse = |why: String| Error::new(ErrorKind::Invalid, "read", path.display(), why);
        // The parser's message would show the line, which may contain a secret.
        let file: HostsFile =
            toml::from_str(&text).map_err(|error| refuse(error.message().to_owned()))?;
        let mut policy = Self {
            rules: Vec::new(),
            is_closed: true,
        };
        for table in file.host {
            let rule = table.rule().map_err(|error| refuse(error.to_string()))?;
            policy.add(rule)?;
        }
        Ok(policy)
    }

    /// Adds a host. A second rule for the same host is an error.
    pub fn add(&mut self, rule: HostRule) -> Result<()> {
        if self.rules.iter().any(|known| known.nqn == rule.nqn) {
            let why = "it is listed twice";
            return Err(Error::new(ErrorKind::Invalid, "let in", &rule.nqn, why));
        }
        self.rules.push(rule);
        Ok(())
    }
}

impl HostTable {
    fn rule(self) -> Result<HostRule> {
        let refuse = |why: &str| Error::new(ErrorKind::Invalid, "read", &self.nqn, why);
        let nqn = Nqn::new(&self.nqn).map_err(|error| refuse(error.0))?;
        let secret = |text: &Option<String>| text.as_deref().map(str::parse::<Secret>).transpose();
        let (host, controller) = (secret(&self.secret)?, secret(&self.controller_secret)?);
        let keys = match (host, controller) {
            (Some(host), controller) => Some(AuthKeys {
                controller,
                ..AuthKeys::of_host(host)
            }),
            (None, None) => None,
            (None, Some(_)) => {
                let why = "a controller_secret requires a secret of the host";
                return Err(refuse(why));
            }
        };
        let is_shared = self.limit.is_some() || self.reservation.is_some() || self.weight.is_some();
        let share = is_shared.then(|| Share {
            reservation: self.reservation,
            limit: self.limit,
            weight: self.weight.unwrap_or(1.0),
        });
        if let Some(share) = &share {
            share.check()?;
        }
        Ok(HostRule { nqn, keys, share })
    }
}

/// The counters of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostReceipt {
    /// Its NQN.
    pub host: String,
    /// Connections that became queues.
    pub queues: u64,
    /// Completed reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Completed writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes, discards and Write Zeroes.
    pub other_commands: u64,
    /// I/O commands that failed.
    pub errors: u64,
    /// Connections that were refused or failed authentication.
    pub refused: u64,
    /// Connections that ended because of a protocol violation or a timeout inside a PDU.
    pub faults: u64,
}

/// The atomic counters of a receipt.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) queues: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) other_commands: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) faults: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// A host that has connected.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) nqn: Nqn,
    pub(crate) keys: Option<AuthKeys>,
    pub(crate) counters: Counters,
    number: usize,
    share: Share,
    gate: Option<Arc<Gate>>,
}

impl Host {
    /// Waits for its turn to transfer `bytes`.
    pub(crate) fn turn(&self, bytes: u64) -> Option<Pass<'_>> {
        let gate = self.gate.as_ref()?;
        Some(gate.enter(self.number, &self.share, bytes))
    }

    fn receipt(&self) -> HostReceipt {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let c = &self.counters;
        HostReceipt {
            host: self.nqn.as_str().to_owned(),
            queues: get(&c.queues),
            reads: get(&c.reads),
            read_bytes: get(&c.read_bytes),
            writes: get(&c.writes),
            written_bytes: get(&c.written_bytes),
            other_commands: get(&c.other_commands),
            errors: get(&c.errors),
            refused: get(&c.refused),
            faults: get(&c.faults),
        }
    }
}

/// All hosts: the configured ones and those that have connected.
#[derive(Debug)]
pub(crate) struct Hosts {
    policy: HostPolicy,
    gate: Option<Arc<Gate>>,
    known: Mutex<BTreeMap<Nqn, Arc<Host>>>,
}

impl Hosts {
    pub(crate) fn new(policy: HostPolicy) -> Self {
        let has_shares = policy.rules.iter().any(|rule| rule.share.is_some());
        // One slot per processor: more commands would only wait for each other.
        let slots = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            policy,
            gate: has_shares.then(|| Arc::new(Gate::new(slots))),
            known: Mutex::default(),
        }
    }

    /// Finds a host by name, and whether it may connect.
    pub(crate) fn find(&self, nqn: &Nqn) -> (Arc<Host>, bool) {
        let rule = self.policy.rules.iter().find(|rule| rule.nqn == *nqn);
        let is_allowed = rule.is_some() || !self.policy.is_closed;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let number = known.len();
        // Unknown hosts could fill the list with names. Beyond the limit they share one entry.
        let nqn = if known.len() < HOSTS_MAX || known.contains_key(nqn) {
            nqn.clone()
        } else {
            Nqn::new("others").expect("it is a valid NQN")
        };
        let host = known.entry(nqn.clone()).or_insert_with(|| {
            Arc::new(Host {
                nqn,
                keys: rule.and_then(|rule| rule.keys.clone()),
                counters: Counters::default(),
                number,
                share: rule.and_then(|rule| rule.share).unwrap_or_default(),
                gate: self.gate.clone(),
            })
        });
        (host.clone(), is_allowed)
    }

    /// The receipts of all hosts, sorted by name.
    pub(crate) fn receipts(&self) -> Vec<HostReceipt> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.values().map(|host| host.receipt()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    fn read(text: &str) -> Result<HostPolicy> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), text).expect("small");
        HostPolicy::read(file.path())
    }

    #[test]
    fn a_hosts_file_is_read() {
        let text = format!(
            "[[host]]\nnqn = \"nqn.a\"\nsecret = \"{SECRET}\"\nlimit = \"1GB/s\"\n[[host]]\nnqn = \"nqn.b\"\n"
        );
        let policy = read(&text).expect("it is valid");
        assert!(policy.is_closed && policy.rules.len() == 2);
        assert!(policy.rules[0].keys.is_some());
        assert_eq!(
            policy.rules[0].share.and_then(|share| share.limit),
            Some(Rate(1e9))
        );
        let hosts = Hosts::new(policy);
        let nqn = |text| Nqn::new(text).expect("a name");
        assert!(hosts.find(&nqn("nqn.a")).1);
        assert!(!hosts.find(&nqn("nqn.c")).1);
    }

    #[test]
    fn invalid_files_are_refused_and_secrets_are_not_shown() {
        for text in [
            "[[host]]\nnqn = \"a b\"\n".to_owned(),
            "[[host]]\n".to_owned(),
            format!("[[host]]\nnqn = \"nqn.a\"\nsecret = \"{SECRET}x\"\n"),
            format!("[[host]]\nnqn = \"nqn.a\"\ncontroller_secret = \"{SECRET}\"\n"),
            format!("[[host]]\nnqn = \"nqn.a\"\nsecrets = \"{SECRET}\"\n"),
            format!("[[host]]\nnqn = \"nqn.a\"\nsecret = \"{SECRET}\" x\n"),
            "[[host]]\nnqn = \"nqn.a\"\n[[host]]\nnqn = \"nqn.a\"\n".to_owned(),
            "[[host]]\nnqn = \"nqn.a\"\nlimit = 0\n".to_owned(),
        ] {
            let error = read(&text).expect_err(&text).to_string();
            assert!(!error.contains("AAECAw"), "{error}");
        }
    }
}

//! Hosts: access rules, secrets, shares and counters.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Error, ErrorKind, Lock, Result, quantity::Rate, share::Share};
use straightway_nvme::{
    Nqn,
    auth::{AuthKeys, Secret},
};

use crate::gate::{Gate, Pass};

/// The maximum number of hosts without a rule that have their own entry. Further ones share one.
const GUESTS_MAX: usize = 4096;

/// Names in receipts. NQNs have no spaces, so that no host has such a name.
const FURTHER_HOSTS: &str = "further hosts";
const REFUSED_HOSTS: &str = "refused hosts";

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
        let file: HostsFile = toml::from_str(&text).map_err(|error| refuse(error.message().to_owned()))?;
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
    /// Its NQN; `further hosts` for hosts beyond the first 4096 without a rule, `refused hosts` for those that are not
    /// listed.
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

/// The name and the identifier of a host, as it gave them when it connected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostIdentity {
    pub(crate) nqn: Nqn,
    pub(crate) id: [u8; 16],
}

/// A host, or all hosts without an entry of their own.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) keys: Option<AuthKeys>,
    pub(crate) counters: Counters,
    /// Its name in receipts.
    name: String,
    number: usize,
    share: Share,
    gate: Option<Arc<Gate>>,
}

impl Host {
    fn new(name: &str, number: usize, rule: Option<&HostRule>, gate: Option<&Arc<Gate>>) -> Self {
        Self {
            keys: rule.and_then(|rule| rule.keys.clone()),
            counters: Counters::default(),
            name: name.to_owned(),
            number,
            share: rule.and_then(|rule| rule.share).unwrap_or_default(),
            gate: gate.cloned(),
        }
    }

    /// Waits for its turn to transfer `bytes`.
    pub(crate) fn turn(&self, bytes: u64) -> Option<Pass<'_>> {
        let gate = self.gate.as_ref()?;
        Some(gate.enter(self.number, &self.share, bytes))
    }

    /// What it has moved so far, in words.
    pub(crate) fn moved(&self) -> String {
        let bytes = |counter: &AtomicU64| Bytes(counter.load(Ordering::Relaxed));
        let (read, written) = (bytes(&self.counters.read_bytes), bytes(&self.counters.written_bytes));
        format!("it has read {read} and written {written}")
    }

    /// Its receipt; `None` if it never connected.
    fn receipt(&self) -> Option<HostReceipt> {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let c = &self.counters;
        let receipt = HostReceipt {
            host: self.name.clone(),
            queues: get(&c.queues),
            reads: get(&c.reads),
            read_bytes: get(&c.read_bytes),
            writes: get(&c.writes),
            written_bytes: get(&c.written_bytes),
            other_commands: get(&c.other_commands),
            errors: get(&c.errors),
            refused: get(&c.refused),
            faults: get(&c.faults),
        };
        (receipt.queues > 0 || receipt.refused > 0).then_some(receipt)
    }
}

/// All hosts: the configured ones and those that have connected.
#[derive(Debug)]
pub(crate) struct Hosts {
    is_closed: bool,
    gate: Option<Arc<Gate>>,
    /// The hosts with a rule. They exist from the start, so that other hosts cannot take their places.
    configured: BTreeMap<Nqn, Arc<Host>>,
    /// The hosts without a rule that have connected. A closed policy has none.
    guests: Lock<BTreeMap<Nqn, Arc<Host>>>,
    /// The hosts without a rule beyond the limit: any host could fill the memory with names.
    further: Arc<Host>,
    /// The connections of hosts without a rule to a closed policy. Their names are not kept.
    refused: AtomicU64,
}

impl Hosts {
    pub(crate) fn new(policy: &HostPolicy) -> Self {
        let has_shares = policy.rules.iter().any(|rule| rule.share.is_some());
        // One slot per processor: more commands would only wait for each other.
        let slots = std::thread::available_parallelism().map_or(2, usize::from);
        let gate = has_shares.then(|| Arc::new(Gate::new(slots)));
        let mut configured = BTreeMap::new();
        for (number, rule) in policy.rules.iter().enumerate() {
            let host = Host::new(rule.nqn.as_str(), number, Some(rule), gate.as_ref());
            configured.entry(rule.nqn.clone()).or_insert_with(|| Arc::new(host));
        }
        Self {
            is_closed: policy.is_closed,
            configured,
            guests: Lock::default(),
            further: Arc::new(Host::new(FURTHER_HOSTS, usize::MAX, None, gate.as_ref())),
            refused: AtomicU64::new(0),
            gate,
        }
    }

    /// The entry of a host that connects; `None` if it may not connect.
    pub(crate) fn admit(&self, nqn: &Nqn) -> Option<Arc<Host>> {
        if let Some(host) = self.configured.get(nqn) {
            return Some(Arc::clone(host));
        }
        if self.is_closed {
            add(&self.refused, 1);
            return None;
        }
        let mut guests = self.guests.lock();
        if let Some(host) = guests.get(nqn) {
            return Some(Arc::clone(host));
        }
        if guests.len() >= GUESTS_MAX {
            return Some(Arc::clone(&self.further));
        }
        let number = self.configured.len() + guests.len();
        let host = Arc::new(Host::new(nqn.as_str(), number, None, self.gate.as_ref()));
        guests.insert(nqn.clone(), Arc::clone(&host));
        Some(host)
    }

    /// The receipts of all hosts that have connected, sorted by name. The receipts of several hosts follow.
    pub(crate) fn receipts(&self) -> Vec<HostReceipt> {
        let guests = self.guests.lock();
        let single = self.configured.values().chain(guests.values());
        let mut receipts: Vec<_> = single.filter_map(|host| host.receipt()).collect();
        drop(guests);
        receipts.sort_by(|one, other| one.host.cmp(&other.host));
        receipts.extend(self.further.receipt());
        let refused = self.refused.load(Ordering::Relaxed);
        if refused > 0 {
            receipts.push(HostReceipt {
                host: REFUSED_HOSTS.to_owned(),
                refused,
                ..HostReceipt::default()
            });
        }
        receipts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    fn nqn(text: &str) -> Nqn {
        Nqn::new(text).expect("a name")
    }

    fn read(text: &str) -> Result<HostPolicy> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), text).expect("small");
        HostPolicy::read(file.path())
    }

    #[test]
    fn a_hosts_file_is_read() {
        let text =
            format!("[[host]]\nnqn = \"nqn.a\"\nsecret = \"{SECRET}\"\nlimit = \"1GB/s\"\n[[host]]\nnqn = \"nqn.b\"\n");
        let policy = read(&text).expect("it is valid");
        assert!(policy.is_closed && policy.rules.len() == 2);
        assert!(policy.rules[0].keys.is_some());
        assert_eq!(policy.rules[0].share.and_then(|share| share.limit), Some(Rate(1e9)));
        let hosts = Hosts::new(&policy);
        assert!(hosts.admit(&nqn("nqn.a")).is_some());
        assert!(hosts.admit(&nqn("nqn.c")).is_none());
    }

    fn keyed(name: &str) -> HostRule {
        HostRule {
            nqn: nqn(name),
            keys: Some(AuthKeys::of_host(SECRET.parse().expect("a secret"))),
            share: None,
        }
    }

    #[test]
    fn strangers_cannot_take_the_place_of_a_host_that_must_authenticate() {
        let mut policy = HostPolicy::default();
        policy.add(keyed("nqn.keyed")).expect("it is the first");
        let hosts = Hosts::new(&policy);
        for number in 0..GUESTS_MAX {
            let guest = hosts.admit(&nqn(&format!("nqn.guest.{number}")));
            assert!(guest.is_some_and(|guest| guest.keys.is_none()));
        }
        let (one, two) = (hosts.admit(&nqn("nqn.one")), hosts.admit(&nqn("nqn.two")));
        assert!(Arc::ptr_eq(
            &one.expect("the policy is open"),
            &two.expect("the policy is open")
        ));
        let host = hosts.admit(&nqn("nqn.keyed")).expect("it has a rule");
        assert!(host.keys.is_some(), "it is trusted without a secret");
    }

    #[test]
    fn refused_hosts_are_counted_and_their_names_are_not_kept() {
        let mut policy = HostPolicy {
            is_closed: true,
            ..HostPolicy::default()
        };
        policy.add(keyed("nqn.keyed")).expect("it is the first");
        let hosts = Hosts::new(&policy);
        for number in 0..3 {
            assert!(hosts.admit(&nqn(&format!("nqn.{number}"))).is_none());
        }
        assert!(hosts.guests.lock().is_empty());
        let receipts = hosts.receipts();
        assert_eq!(receipts.len(), 1, "{receipts:?}");
        assert_eq!((receipts[0].host.as_str(), receipts[0].refused), (REFUSED_HOSTS, 3));
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

//! The target of this project behind a relay, which changes what the host sees of it: its limits, its pages, its name
//! index, and with injected faults single PDUs.

mod changes;
mod faults;
mod script;

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use straightway_lab::{PduRelay, RelayMode, Upstream};
use straightway_nvme::{Digests, Nqn, Sqe, admin::Admin, fabrics, log::AnaState, nvm::Nvm};
use straightway_nvme_target::{Config, Listen, NamespaceSource};
use tempfile::TempDir;

use changes::{Changes, index_read};
pub(crate) use script::{InjectedFault, Script};

/// The NQN of most subsystems. A lost write delays later writes of the whole process to the same NQN, so tests that lose
/// writes use their own.
pub(crate) const NQN: &str = "nqn.2026-11.org.example:test";

/// The digests that tests request.
pub(crate) const BOTH: Digests = Digests {
    header: true,
    data: true,
};

/// The state shared with the relay.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) script: Mutex<Script>,
    /// The fault to inject, and the number of commands that it still affects.
    fault: Mutex<Option<(InjectedFault, u32)>>,
    pub(crate) injected: AtomicU32,
    /// The number of reads of the name index that are still to be refused, with a status that permits a retry.
    pub(crate) refusals: AtomicU32,
    is_down: AtomicBool,
}

/// A port of a target, and the relay in front of it.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) shared: Arc<Shared>,
    relay: PduRelay,
    real: Arc<straightway_nvme_target::Target>,
    /// The number of the port.
    port: usize,
    served: Arc<Served>,
}

/// The served file or folder.
#[derive(Debug)]
pub(crate) struct Served {
    _folder: TempDir,
    pub(crate) path: PathBuf,
}

impl Served {
    /// A file with this name and content.
    pub(crate) fn file(name: &str, bytes: Vec<u8>) -> Arc<Self> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        Arc::new(Self { _folder: folder, path })
    }

    /// A folder with these sparse files.
    pub(crate) fn folder(name: &str, files: impl IntoIterator<Item = String>, bytes: u64) -> Arc<Self> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        for file in files {
            fs::File::create(path.join(file)).unwrap().set_len(bytes).unwrap();
        }
        Arc::new(Self { _folder: folder, path })
    }
}

fn config(nqn: &str, served: &Path, script: &Script) -> Config {
    let address = "127.0.0.1:0".parse().unwrap();
    let sources = vec![NamespaceSource::Path(served.to_owned())];
    let mut config = Config::new(Nqn::new(nqn).unwrap(), address, sources);
    config.is_writable = script.is_writable;
    config.block_shift = script.block_shift.min(12);
    config.policy.is_closed = script.is_closed;
    config
}

impl Target {
    /// Serves a file with this content as namespace 1.
    pub(crate) fn new(bytes: Vec<u8>, script: Script) -> Self {
        Self::named(NQN, bytes, script)
    }

    /// The same with another NQN.
    pub(crate) fn named(nqn: &str, bytes: Vec<u8>, script: Script) -> Self {
        Self::serving(nqn, &Served::file("file", bytes), script)
    }

    /// Serves a file or folder.
    pub(crate) fn serving(nqn: &str, served: &Arc<Served>, script: Script) -> Self {
        let config = config(nqn, &served.path, &script);
        let real = Arc::new(straightway_nvme_target::Target::start(&config).unwrap());
        Self::relayed(&real, 0, served, script)
    }

    /// The ports of one target, with their ANA states.
    pub(crate) fn ports(bytes: Vec<u8>, states: &[AnaState], script: &Script) -> Vec<Self> {
        let served = Served::file("file", bytes);
        let mut config = config(NQN, &served.path, script);
        let port = |state: &AnaState| Listen {
            state: *state,
            ..config.ports[0].clone()
        };
        config.ports = states.iter().map(port).collect();
        let real = Arc::new(straightway_nvme_target::Target::start(&config).unwrap());
        let ports = 0..states.len();
        ports
            .map(|port| Self::relayed(&real, port, &served, script.clone()))
            .collect()
    }

    fn relayed(real: &Arc<straightway_nvme_target::Target>, port: usize, served: &Arc<Served>, script: Script) -> Self {
        let shared = Arc::new(Shared {
            script: Mutex::new(script),
            fault: Mutex::new(None),
            injected: AtomicU32::new(0),
            refusals: AtomicU32::new(0),
            is_down: AtomicBool::new(false),
        });
        let (address, own) = (real.addresses()[port], Arc::clone(&shared));
        let relay = PduRelay::with_pick(move |_| {
            let is_down = own.is_down.load(Ordering::SeqCst);
            (!is_down).then_some(Upstream {
                address,
                is_restart: false,
            })
        });
        let mut changes = Changes::new(&shared);
        relay.set_rule(move |passing, exits| changes.handle(passing, exits));
        Self {
            address: relay.address(),
            shared,
            relay,
            real: Arc::clone(real),
            port,
            served: Arc::clone(served),
        }
    }

    /// Injects a fault into the next `count` I/O commands that it applies to.
    pub(crate) fn inject(&self, fault: InjectedFault, count: u32) {
        *self.shared.fault.lock().unwrap() = Some((fault, count));
    }

    /// Closes all connections. With `is_down`, new ones are closed too.
    pub(crate) fn cut(&self, is_down: bool) {
        self.shared.is_down.store(is_down, Ordering::SeqCst);
        self.relay.cut();
    }

    pub(crate) fn up(&self) {
        self.shared.is_down.store(false, Ordering::SeqCst);
    }

    /// Stops responding.
    pub(crate) fn freeze(&self) {
        self.relay.set_mode(RelayMode::Blackhole);
    }

    /// Waits until the host has closed all connections but `count`.
    pub(crate) fn wait_until_open(&self, count: usize) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.relay.open_connections() > count {
            assert!(Instant::now() < deadline, "the host keeps its connections");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn set_state(&self, state: AnaState) {
        self.real.set_state(self.port, state);
    }

    /// The content of the served file.
    pub(crate) fn content(&self) -> Vec<u8> {
        fs::read(&self.served.path).unwrap()
    }

    /// Gives the served file another length.
    pub(crate) fn truncate(&self, bytes: u64) {
        let file = fs::OpenOptions::new().write(true).open(&self.served.path).unwrap();
        file.set_len(bytes).unwrap();
        self.real.rescan().unwrap();
    }

    /// The number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.relay.connections()
    }

    fn count(&self, is_counted: impl Fn(u16, &Sqe) -> bool) -> usize {
        let commands = self.relay.commands();
        let plain = commands.iter().filter(|(_, sqe)| sqe.opcode != fabrics::OPCODE);
        plain.filter(|(queue, sqe)| is_counted(*queue, sqe)).count()
    }

    pub(crate) fn reads(&self) -> usize {
        self.count(|queue, sqe| queue > 0 && matches!(Nvm::from_sqe(sqe), Ok(Nvm::Read(_))))
    }

    pub(crate) fn writes(&self) -> usize {
        self.count(|queue, sqe| queue > 0 && matches!(Nvm::from_sqe(sqe), Ok(Nvm::Write { .. })))
    }

    pub(crate) fn flushes(&self) -> usize {
        self.count(|queue, sqe| queue > 0 && Nvm::from_sqe(sqe) == Ok(Nvm::Flush))
    }

    pub(crate) fn keep_alives(&self) -> usize {
        self.count(|queue, sqe| queue == 0 && Admin::from_sqe(sqe) == Ok(Admin::KeepAlive))
    }

    /// The lengths of the reads of the name index.
    pub(crate) fn index_reads(&self) -> Vec<usize> {
        let commands = self.relay.commands();
        let of_index = commands.iter().filter_map(|(_, sqe)| index_read(sqe));
        of_index.map(|log| log.bytes as usize).collect()
    }
}

//! The target itself: its listeners, and a thread for each connection.

use std::{
    collections::BTreeSet,
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt,
};
use straightway_core::{Error, Result};
use straightway_nvme::log::AnaState;

use crate::{
    admin::AdminQueue,
    config::Config,
    connection::{Connection, End},
    host::{HostReceipt, add},
    io_queue::IoQueue,
    login::login,
    state::Shared,
};

/// How often listeners look whether they are to stop.
const LISTEN_TICK: Duration = Duration::from_millis(100);

/// The stack of a connection's thread. Its buffers are on the heap.
const STACK_BYTES: usize = 256 << 10;

/// A target that serves. Dropping it ends all connections.
#[derive(Debug)]
pub struct Target {
    shared: Arc<Shared>,
    listeners: Vec<JoinHandle<()>>,
}

impl Target {
    /// Opens what is to be served and listens.
    pub fn start(config: &Config) -> Result<Self> {
        config.check()?;
        let mut sockets = Vec::new();
        for listen in &config.ports {
            let fail = |error| Error::os("listen on", listen.address, error);
            let socket = TcpListener::bind(listen.address).map_err(fail)?;
            socket.set_nonblocking(true).map_err(fail)?;
            sockets.push(socket);
        }
        let addresses = sockets
            .iter()
            .map(TcpListener::local_addr)
            .collect::<io::Result<Vec<_>>>()
            .map_err(|error| Error::os("listen for", &config.nqn, error))?;
        let shared = Arc::new(Shared::new(config, &addresses)?);
        let mut target = Self {
            shared: shared.clone(),
            listeners: Vec::new(),
        };
        for (port, socket) in sockets.into_iter().enumerate() {
            let shared = shared.clone();
            let connections_max = config.connections_max;
            let listener = thread::Builder::new()
                .name(format!("nvme-port-{port}"))
                .spawn(move || accept(&shared, port, &socket, connections_max))
                .map_err(|error| Error::os("start a thread for", &config.nqn, error))?;
            target.listeners.push(listener);
        }
        Ok(target)
    }

    /// The addresses that it listens on, in the order of its ports.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.shared.ports.iter().map(|port| port.address).collect()
    }

    /// How many namespaces there are, and their bytes.
    pub fn served(&self) -> (usize, u64) {
        let table = self.shared.table();
        let bytes = table.namespaces.values().map(|n| n.backing.bytes).sum();
        (table.namespaces.len(), bytes)
    }

    /// Looks at what is served again. Answers the namespaces that were added, removed or changed; hosts are told.
    pub fn rescan(&self) -> Result<BTreeSet<u32>> {
        self.shared.rescan()
    }

    /// Changes how well namespaces are reached through a port, by its place in the configuration. Hosts are told.
    ///
    /// # Panics
    ///
    /// Where there is no such port.
    pub fn set_state(&self, port: usize, state: AnaState) {
        self.shared.set_state(port, None, state);
    }

    /// Changes how well the namespaces of one group, the number of a source from 1 on, are reached through a port.
    pub fn set_group_state(&self, port: usize, group: u32, state: AnaState) {
        self.shared.set_state(port, Some(group), state);
    }

    /// Connections at this moment.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// What each host did so far.
    pub fn receipts(&self) -> Vec<HostReceipt> {
        self.shared.hosts.receipts()
    }

    /// Ends all connections and answers what each host did.
    pub fn stop(mut self) -> Vec<HostReceipt> {
        self.end();
        self.receipts()
    }

    fn end(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        for listener in self.listeners.drain(..) {
            let _ = listener.join();
        }
        for controller in self.shared.controllers() {
            self.shared.dissolve(&controller);
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.end();
    }
}

fn accept(shared: &Arc<Shared>, port: usize, listener: &TcpListener, connections_max: usize) {
    let tick = Timespec::try_from(LISTEN_TICK).expect("a tenth of a second fits");
    while !shared.is_over.load(Ordering::Relaxed) {
        let mut fds = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
        if !matches!(poll(&mut fds, Some(&tick)), Ok(1)) {
            continue;
        }
        let socket = match listener.accept() {
            Ok((socket, _)) => socket,
            Err(error) => {
                if error.kind() != io::ErrorKind::WouldBlock {
                    // No descriptors, or no memory: both may pass.
                    tracing::warn!("cannot accept a connection: {error}");
                    thread::sleep(LISTEN_TICK);
                }
                continue;
            }
        };
        if shared.connections.load(Ordering::Relaxed) >= connections_max {
            tracing::warn!("refused a connection: there are {connections_max} already");
            let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
            continue;
        }
        shared.connections.fetch_add(1, Ordering::Relaxed);
        let own = shared.clone();
        let started = thread::Builder::new()
            .name("nvme-queue".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                serve(&own, port, socket);
                own.connections.fetch_sub(1, Ordering::Relaxed);
            });
        if let Err(error) = started {
            shared.connections.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!("cannot start a thread for a connection: {error}");
        }
    }
}

/// Serves a connection to its end.
fn serve(shared: &Shared, port: usize, socket: TcpStream) {
    // A socket that was accepted blocks, whatever its listener does.
    let begun = socket
        .set_nonblocking(false)
        .and_then(|()| Connection::new(socket, shared.patience));
    let mut connection = match begun {
        Ok(connection) => connection,
        Err(error) => return tracing::debug!("a connection failed at once: {error}"),
    };
    let login = match login(shared, port, &mut connection) {
        Ok(login) => login,
        Err(end) => {
            tracing::debug!("a connection ended before its login: {end:?}");
            return connection.end(&end);
        }
    };
    let controller = login.controller.clone();
    let queue = login.connect.queue;
    let end = if queue == 0 {
        AdminQueue::new(shared, &login, &mut connection).run(&login)
    } else {
        IoQueue::new(shared, &login, &mut connection).run(&login)
    };
    let nqn = &controller.host.nqn;
    match &end {
        End::Fault(fault) => tracing::warn!("host {nqn}, queue {queue}: {fault}"),
        End::KeepAlive => tracing::warn!("host {nqn} is silent: its keep-alive time is over"),
        End::Silent => tracing::warn!("host {nqn}, queue {queue}: it stopped inside of a message"),
        End::Backing => tracing::error!("queue {queue} of host {nqn}: a file lost bytes"),
        End::Socket(error) => tracing::debug!("host {nqn}, queue {queue}: {error}"),
        end => tracing::debug!("host {nqn}, queue {queue} ended: {end:?}"),
    }
    if matches!(end, End::Fault(_) | End::Silent) {
        add(&controller.host.counters.faults, 1);
    }
    connection.end(&end);
    controller.remove_queue(queue);
    if queue == 0 {
        shared.dissolve(&controller);
    }
}

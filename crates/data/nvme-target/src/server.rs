//! The target: its listeners, and one thread per connection.

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
    connection::Connection,
    connections::Limit,
    controller::Controller,
    end::End,
    host::{HostReceipt, add},
    io_queue::IoQueue,
    login::login,
    state::Shared,
};

/// The interval at which listeners check whether to stop.
const LISTEN_TICK: Duration = Duration::from_millis(100);

/// The stack size of a connection's thread. Its buffers are on the heap.
const STACK_BYTES: usize = 256 << 10;

/// A running target. Dropping it ends all connections.
#[derive(Debug)]
pub struct Target {
    shared: Arc<Shared>,
    listeners: Vec<JoinHandle<()>>,
}

impl Target {
    /// Opens the sources and starts to listen.
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
        let shared = Shared::new(config, &addresses)?;
        let mut target = Self {
            shared: shared.clone(),
            listeners: Vec::new(),
        };
        for (port, socket) in sockets.into_iter().enumerate() {
            let shared = shared.clone();
            let listener = thread::Builder::new()
                .name(format!("nvme-port-{port}"))
                .spawn(move || accept(&shared, port, &socket))
                .map_err(|error| Error::os("start a thread for", &config.nqn, error))?;
            target.listeners.push(listener);
        }
        Ok(target)
    }

    /// The addresses that it listens on, in the order of its ports.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.shared.ports.iter().map(|port| port.address).collect()
    }

    /// The number of namespaces and their total size in bytes.
    pub fn served(&self) -> (usize, u64) {
        let table = self.shared.table();
        let bytes = table.namespaces.values().map(|n| n.backing.bytes).sum();
        (table.namespaces.len(), bytes)
    }

    /// Scans the sources again and notifies hosts. Returns the namespaces that were added, removed or changed.
    pub fn rescan(&self) -> Result<BTreeSet<u32>> {
        self.shared.rescan()
    }

    /// Sets the ANA state of all namespaces on a port, given by its index in the configuration. Notifies hosts.
    ///
    /// # Panics
    ///
    /// Panics if there is no such port.
    pub fn set_state(&self, port: usize, state: AnaState) {
        self.shared.set_state(port, None, state);
    }

    /// Sets the ANA state of one group on a port. The groups are the sources, numbered from 1.
    pub fn set_group_state(&self, port: usize, group: u32, state: AnaState) {
        self.shared.set_state(port, Some(group), state);
    }

    /// The current number of connections.
    pub fn connections(&self) -> usize {
        self.shared.connections.count()
    }

    /// The receipts of all hosts so far.
    pub fn receipts(&self) -> Vec<HostReceipt> {
        self.shared.hosts.receipts()
    }

    /// Ends all connections and returns the receipts of all hosts.
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
            self.shared.end_controller(&controller);
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.end();
    }
}

/// The source of records about hosts that connect and leave.
pub const HOSTS: &str = "straightway_nvme_target::hosts";

fn accept(shared: &Arc<Shared>, port: usize, listener: &TcpListener) {
    let tick = Timespec::try_from(LISTEN_TICK).expect("a tenth of a second fits");
    while !shared.is_over.load(Ordering::Relaxed) {
        let mut fds = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
        if !matches!(poll(&mut fds, Some(&tick)), Ok(1)) {
            continue;
        }
        let (socket, peer) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) => {
                if error.kind() != io::ErrorKind::WouldBlock {
                    // Out of file descriptors or memory. Both may be temporary.
                    tracing::warn!("cannot accept a connection: {error}");
                    thread::sleep(LISTEN_TICK);
                }
                continue;
            }
        };
        let counted = match shared.connections.add(peer.ip()) {
            Ok(counted) => counted,
            Err(limit) => {
                let address = peer.ip();
                match limit {
                    Limit::Total(most) => tracing::warn!("refused a connection: there are {most} already"),
                    Limit::Address(most) => {
                        tracing::warn!("refused a connection from {address}, which has {most} already");
                    }
                }
                let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
                continue;
            }
        };
        let own = shared.clone();
        let started = thread::Builder::new()
            .name("nvme-queue".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                serve(&own, port, socket, peer);
                drop(counted);
            });
        if let Err(error) = started {
            tracing::warn!("cannot start a thread for a connection: {error}");
        }
    }
}

/// Serves a connection until it ends.
fn serve(shared: &Shared, port: usize, socket: TcpStream, peer: SocketAddr) {
    // The socket of a connection is blocking, whatever the mode of its listener.
    let begun = socket
        .set_nonblocking(false)
        .and_then(|()| Connection::new(socket, shared.stall_timeout));
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
    let (controller, fence) = (login.controller.clone(), login.fence.clone());
    let queue = login.connect.queue;
    // The admin queue of a host exists from its begin to its end.
    let is_host = queue == 0 && !controller.is_discovery;
    if is_host {
        tracing::info!(target: HOSTS, "host {} connected from {peer}", controller.identity.nqn);
    }
    let end = if queue == 0 {
        AdminQueue::new(shared, &login, &mut connection).run(&login)
    } else {
        IoQueue::new(shared, &login, &mut connection).run(&login)
    };
    report(&controller, queue, &end);
    if is_host {
        tracing::info!(target: HOSTS, "host {} left; {}", controller.identity.nqn, controller.host.moved());
    }
    // The association ends before its last PDU is sent, which may take a while.
    controller.remove_queue(queue, &fence);
    if queue == 0 {
        shared.end_controller(&controller);
    }
    connection.end(&end);
}

/// Logs and counts the end of a queue.
fn report(controller: &Controller, queue: u16, end: &End) {
    let (nqn, counters) = (&controller.identity.nqn, &controller.host.counters);
    match end {
        End::Fault(fault) => tracing::warn!("host {nqn}, queue {queue}: {fault}"),
        End::KeepAlive => tracing::warn!("host {nqn}: its keep-alive timeout expired"),
        End::Silent => tracing::warn!("host {nqn}, queue {queue}: timeout inside a PDU"),
        End::Deadline => tracing::warn!("host {nqn}, queue {queue}: not authenticated in time"),
        End::Backing => tracing::error!("queue {queue} of host {nqn}: a file was truncated"),
        End::Socket(error) => tracing::debug!("host {nqn}, queue {queue}: {error}"),
        end => tracing::debug!("host {nqn}, queue {queue} ended: {end:?}"),
    }
    match end {
        End::Fault(_) | End::Silent => add(&counters.faults, 1),
        End::Deadline => add(&counters.refused, 1),
        _ => {}
    }
}

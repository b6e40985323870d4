//! A relay between an NVMe/TCP host and a target that changes, delays, drops, reorders and forges PDUs.
//!
//! It decodes every PDU and asks a rule what to do with it. A rule sees the PDU with its data and, for a PDU of the
//! target, the command that it belongs to. It may send any PDUs or bytes in both directions. So a test with the real
//! host and the real target can show either of them a partner that violates the protocol.

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::net::sockopt::set_socket_linger;
use straightway_core::{Lock, Signal};
use straightway_nvme::{
    DIGEST_BYTES, Decoded, Digests, Frame, Framing, Pdu, Role, Sqe, TRANSFER_BYTES_MAX, digest,
    fabrics::{self, Fabrics},
};
use straightway_webserver::Acceptor;

/// The direction of a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the host to the target.
    ToTarget,
    /// From the target to the host.
    ToHost,
}

/// A PDU on its way.
#[derive(Clone, Debug)]
pub struct Passing {
    /// Its direction.
    pub way: Way,
    /// The number of the connection, from 0.
    pub connection: usize,
    /// The queue of the connection; 0 for the admin queue and before Connect.
    pub queue: u16,
    /// The command: the PDU's own, or the one that it answers.
    pub command: Option<Sqe>,
    /// The PDU.
    pub pdu: Pdu,
    /// Its data.
    pub data: Vec<u8>,
}

/// What a rule does with a PDU.
#[derive(Debug)]
pub struct Exits {
    framings: [Framing; 2],
    sent: Vec<(Way, Vec<u8>)>,
    delay: Duration,
    is_mute: bool,
    is_closed: bool,
}

impl Exits {
    /// Sends the PDU on.
    pub fn pass(&mut self, passing: &Passing) {
        self.send(passing.way, &passing.pdu, &passing.data);
    }

    /// Sends a PDU.
    pub fn send(&mut self, way: Way, pdu: &Pdu, data: &[u8]) {
        let bytes = self.encode(way, pdu, data);
        self.write(way, bytes);
    }

    /// Encodes a PDU as on this connection.
    pub fn encode(&self, way: Way, pdu: &Pdu, data: &[u8]) -> Vec<u8> {
        let framing = &self.framings[way as usize];
        let mut bytes = Vec::new();
        framing.encode(pdu, data.len(), &mut bytes);
        bytes.extend(data);
        let is_plain = matches!(
            pdu,
            Pdu::IcReq(_) | Pdu::IcResp(_) | Pdu::HostTerm(_) | Pdu::ControllerTerm(_)
        );
        if !data.is_empty() && framing.has_data_digest() && !is_plain {
            bytes.extend(digest(data).to_le_bytes());
        }
        bytes
    }

    /// Sends any bytes.
    pub fn write(&mut self, way: Way, bytes: Vec<u8>) {
        self.sent.push((way, bytes));
    }

    /// Waits before anything is sent. Later PDUs of this connection and direction wait too.
    pub fn delay(&mut self, time: Duration) {
        self.delay = time;
    }

    /// No PDU passes this connection any more.
    pub fn mute(&mut self) {
        self.is_mute = true;
    }

    /// Closes the connection after everything was sent.
    pub fn close(&mut self) {
        self.is_closed = true;
    }
}

/// The treatment of all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayMode {
    /// PDUs pass as the rule says.
    Pass,
    /// Existing and new connections are reset.
    Reset,
    /// No PDU passes, and no connection is closed.
    Blackhole,
}

/// The target of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Upstream {
    /// Its address.
    pub address: SocketAddr,
    /// Whether all older connections are closed, as by a restart.
    pub is_restart: bool,
}

type Rule = Box<dyn FnMut(Passing, &mut Exits) + Send>;
type Pick = Box<dyn FnMut(usize) -> Option<Upstream> + Send>;

/// A relay on loopback. It ends when it is dropped.
pub struct PduRelay {
    acceptor: Acceptor,
    shared: Arc<Shared>,
}

struct Shared {
    pick: Lock<Pick>,
    rule: Lock<Rule>,
    mode: Lock<Option<RelayMode>>,
    mode_changed: Signal,
    accepted: AtomicUsize,
    open: AtomicUsize,
    streams: Lock<Vec<Weak<TcpStream>>>,
    commands: Lock<Vec<(u16, Sqe)>>,
}

/// One relayed connection.
struct Connection {
    number: usize,
    near: Arc<TcpStream>,
    far: Arc<TcpStream>,
    /// Held while bytes are written to the target and to the host.
    writing: [Lock<()>; 2],
    state: Lock<ConnectionState>,
}

struct ConnectionState {
    framings: [Framing; 2],
    host_align: u8,
    queue: u16,
    commands: HashMap<u16, Sqe>,
    is_mute: bool,
}

impl PduRelay {
    /// Starts a relay to one target that passes everything.
    pub fn start(upstream: SocketAddr) -> Self {
        Self::with_pick(move |_| {
            Some(Upstream {
                address: upstream,
                is_restart: false,
            })
        })
    }

    /// Starts a relay that picks the target of each connection by its number. Without a target, a connection is closed.
    pub fn with_pick(pick: impl FnMut(usize) -> Option<Upstream> + Send + 'static) -> Self {
        let shared = Arc::new(Shared {
            pick: Lock::new(Box::new(pick)),
            rule: Lock::new(Box::new(|passing, exits| exits.pass(&passing))),
            mode: Lock::new(Some(RelayMode::Pass)),
            mode_changed: Signal::default(),
            accepted: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            streams: Lock::default(),
            commands: Lock::default(),
        });
        let all = Arc::clone(&shared);
        let acceptor = Acceptor::start("127.0.0.1:0", move |near| {
            all.relay(near);
            Ok(())
        });
        Self {
            acceptor: acceptor.expect("loopback has free ports"),
            shared,
        }
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.acceptor.address()
    }

    /// Asks this rule about each PDU from now on.
    pub fn set_rule(&self, rule: impl FnMut(Passing, &mut Exits) + Send + 'static) {
        *self.shared.rule.lock() = Box::new(rule);
    }

    /// Treats connections in another way from now on.
    pub fn set_mode(&self, mode: RelayMode) {
        self.shared.set_mode(Some(mode));
    }

    /// Closes all connections.
    pub fn cut(&self) {
        self.shared.cut(Shutdown::Both);
    }

    /// The number of connections so far.
    pub fn connections(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// The number of open connections.
    pub fn open_connections(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// All commands of the host so far, with their queues.
    pub fn commands(&self) -> Vec<(u16, Sqe)> {
        self.shared.commands.lock().clone()
    }
}

impl std::fmt::Debug for PduRelay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PduRelay {{ {} }}", self.address())
    }
}

impl Drop for PduRelay {
    fn drop(&mut self) {
        self.shared.set_mode(None);
    }
}

impl Shared {
    /// `None` ends the relay.
    fn set_mode(&self, mode: Option<RelayMode>) {
        *self.mode.lock() = mode;
        self.mode_changed.notify_all();
        if matches!(mode, None | Some(RelayMode::Reset)) {
            for stream in self.streams.lock().iter().filter_map(Weak::upgrade) {
                reset_on_close(&stream);
            }
            // Sends nothing. Its threads notice it and close the sockets.
            self.cut(Shutdown::Read);
        }
    }

    fn cut(&self, how: Shutdown) {
        for stream in self.streams.lock().drain(..).filter_map(|stream| stream.upgrade()) {
            let _ = stream.shutdown(how);
        }
    }

    /// Waits while no PDU may pass. Returns whether it may now.
    fn may_pass(&self) -> bool {
        let mut mode = self.mode.lock();
        while *mode == Some(RelayMode::Blackhole) {
            mode = self.mode_changed.wait(mode);
        }
        *mode == Some(RelayMode::Pass)
    }

    /// Relays a connection until its end.
    fn relay(self: &Arc<Self>, near: TcpStream) {
        if matches!(*self.mode.lock(), None | Some(RelayMode::Reset)) {
            return reset_on_close(&near);
        }
        let number = self.accepted.fetch_add(1, Ordering::SeqCst);
        let Some(upstream) = self.pick.lock()(number) else {
            return;
        };
        if upstream.is_restart {
            self.cut(Shutdown::Both);
        }
        let Ok(far) = TcpStream::connect(upstream.address) else {
            return reset_on_close(&near);
        };
        let (near, far) = (Arc::new(near), Arc::new(far));
        let _ = far.set_nodelay(true);
        for stream in [&near, &far] {
            self.streams.lock().push(Arc::downgrade(stream));
        }
        let role = |role| Framing::new(role, TRANSFER_BYTES_MAX);
        let connection = Arc::new(Connection {
            number,
            near,
            far,
            writing: [Lock::default(), Lock::default()],
            state: Lock::new(ConnectionState {
                framings: [role(Role::Controller), role(Role::Host)],
                host_align: 0,
                queue: 0,
                commands: HashMap::new(),
                is_mute: false,
            }),
        });
        self.open.fetch_add(1, Ordering::SeqCst);
        let (shared, own) = (Arc::clone(self), Arc::clone(&connection));
        let back = thread::spawn(move || own.pump(Way::ToHost, &shared));
        connection.pump(Way::ToTarget, self);
        let _ = back.join();
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Connection {
    /// Relays PDUs in one direction until a side closes the connection.
    fn pump(&self, way: Way, shared: &Shared) {
        let mut from: &TcpStream = match way {
            Way::ToTarget => &self.near,
            Way::ToHost => &self.far,
        };
        let mut received = Vec::new();
        let mut piece = vec![0; 256 << 10];
        while shared.may_pass() {
            let framing = self.state.lock().framings[way as usize];
            let frame = match framing.decode(&received) {
                Ok(Decoded::Whole(frame)) if received.len() >= frame.total_bytes() => frame,
                Ok(_) => match from.read(&mut piece) {
                    Ok(count) if count > 0 => {
                        received.extend_from_slice(&piece[..count]);
                        continue;
                    }
                    _ => break,
                },
                Err(_) => break,
            };
            let data = received[frame.head_bytes..frame.head_bytes + frame.data_bytes].to_vec();
            let sum =
                &received[frame.head_bytes + frame.data_bytes..][..if frame.has_digest { DIGEST_BYTES } else { 0 }];
            if frame.has_digest && sum != digest(&data).to_le_bytes() {
                break;
            }
            received.drain(..frame.total_bytes());
            // A PDU that arrived before the relay stopped does not pass.
            if !shared.may_pass() || !self.handle(way, &frame, data, shared) {
                break;
            }
        }
        for stream in [&self.near, &self.far] {
            let is_reset = matches!(*shared.mode.lock(), None | Some(RelayMode::Reset));
            let _ = stream.shutdown(if is_reset { Shutdown::Read } else { Shutdown::Both });
        }
    }

    /// Asks the rule about a PDU and sends what it says. Returns whether the connection stays open.
    fn handle(&self, way: Way, frame: &Frame, data: Vec<u8>, shared: &Shared) -> bool {
        let (passing, framings) = {
            let mut state = self.state.lock();
            if state.is_mute {
                return true;
            }
            let command = state.note(&frame.pdu);
            let passing = Passing {
                way,
                connection: self.number,
                queue: state.queue,
                command,
                pdu: frame.pdu,
                data,
            };
            (passing, state.framings)
        };
        if let Pdu::Command(sqe) = passing.pdu {
            shared.commands.lock().push((passing.queue, sqe));
        }
        let mut exits = Exits {
            framings,
            sent: Vec::new(),
            delay: Duration::ZERO,
            is_mute: false,
            is_closed: false,
        };
        shared.rule.lock()(passing, &mut exits);
        self.state.lock().is_mute |= exits.is_mute;
        thread::sleep(exits.delay);
        for (way, bytes) in exits.sent {
            let mut to: &TcpStream = match way {
                Way::ToTarget => &self.far,
                Way::ToHost => &self.near,
            };
            let _writing = self.writing[way as usize].lock();
            if to.write_all(&bytes).is_err() {
                return false;
            }
        }
        !exits.is_closed
    }
}

impl ConnectionState {
    /// Notes what a PDU says about the connection. Returns its command.
    fn note(&mut self, pdu: &Pdu) -> Option<Sqe> {
        let cid = match pdu {
            Pdu::IcReq(request) => {
                self.host_align = request.align;
                return None;
            }
            Pdu::IcResp(response) => {
                self.agree(response.digests, response.align);
                return None;
            }
            Pdu::Command(sqe) => {
                if sqe.opcode == fabrics::OPCODE
                    && let Ok(Fabrics::Connect(connect)) = Fabrics::from_sqe(sqe)
                {
                    self.queue = connect.queue;
                }
                self.commands.insert(sqe.cid, *sqe);
                sqe.cid
            }
            Pdu::Response(cqe) => cqe.cid,
            Pdu::HostData(data) | Pdu::ControllerData(data) => data.cid,
            Pdu::Ready(ready) => ready.cid,
            Pdu::HostTerm(_) | Pdu::ControllerTerm(_) => return None,
        };
        self.commands.get(&cid).copied()
    }

    fn agree(&mut self, digests: Digests, target_align: u8) {
        let [to_target, to_host] = self.framings;
        self.framings = [
            to_target.agreed(digests, target_align),
            to_host.agreed(digests, self.host_align),
        ];
    }
}

/// Makes the next close of a stream a reset.
fn reset_on_close(stream: &TcpStream) {
    // If it fails, the peer sees a normal end.
    let _ = set_socket_linger(stream, Some(Duration::ZERO));
}

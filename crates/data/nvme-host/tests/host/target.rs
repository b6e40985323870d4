//! A test target: correct responses from memory, with one injected fault at a time. It uses the same codec as the host.

mod inject;
mod pages;
mod script;

use std::{
    collections::VecDeque,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use straightway_nvme::{
    Cqe, Decoded, Digests, Framing, Pdu, Role, Sqe, Status,
    admin::{Admin, AsyncEvent, QueueCounts},
    digest,
    fabrics::{CSTS_READY, ConnectData, Connected, ControllerCapabilities, Fabrics, Property},
    identify::{self, NamespaceId, page},
    index::INDEX_PAGE,
    log,
    nvm::Nvm,
    pdu::{Data, HEAD_BYTES_MAX, IcResp, Ready},
};

pub(crate) use script::{InjectedFault, Script};

/// The NQN of the subsystem. Every name that begins with it is accepted: a lost write delays later writes of the whole
/// process to the same NQN, so tests that lose writes use their own.
pub(crate) const NQN: &str = "nqn.2026-11.org.example:test";

/// The state shared by all connections.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) bytes: Mutex<Vec<u8>>,
    pub(crate) script: Mutex<Script>,
    /// The fault to inject. `faults_left` is the number of commands that it still affects.
    fault: Mutex<Option<InjectedFault>>,
    faults_left: AtomicU32,
    pub(crate) injected: AtomicU32,
    pub(crate) flushes: AtomicU32,
    pub(crate) reads: AtomicU32,
    pub(crate) writes: AtomicU32,
    pub(crate) keep_alives: AtomicU32,
    /// The number of connections so far, and of those that are open.
    pub(crate) connections: AtomicUsize,
    open_connections: AtomicUsize,
    /// The number of reads of the name index that are still to be refused, with a status that permits a retry.
    pub(crate) refusals: AtomicU32,
    /// The bytes of the name index that were read, and the number of reads.
    pub(crate) index_bytes: AtomicU32,
    pub(crate) index_reads: AtomicU32,
    is_down: AtomicBool,
    /// Whether the target has stopped responding.
    pub(crate) is_frozen: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

/// A target with one namespace.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) shared: Arc<Shared>,
}

impl Target {
    pub(crate) fn new(bytes: Vec<u8>, script: Script) -> Self {
        Self::sharing(Arc::new(Shared::new(bytes, script)))
    }

    /// Another port with the same namespace.
    pub(crate) fn sharing(shared: Arc<Shared>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let all = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&all);
                if shared.is_down.load(Ordering::Relaxed) {
                    continue;
                }
                shared.connections.fetch_add(1, Ordering::SeqCst);
                shared.open_connections.fetch_add(1, Ordering::SeqCst);
                let copy = stream.try_clone().unwrap();
                shared.streams.lock().unwrap().push(copy);
                std::thread::spawn(move || {
                    Connection::new(stream, Arc::clone(&shared), address).serve();
                    shared.open_connections.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { address, shared }
    }

    /// Injects a fault into the next `count` I/O commands that it applies to.
    pub(crate) fn inject(&self, fault: InjectedFault, count: u32) {
        self.shared.faults_left.store(count, Ordering::SeqCst);
        *self.shared.fault.lock().unwrap() = Some(fault);
    }

    /// Closes all connections. With `is_down`, new ones are closed too.
    pub(crate) fn cut(&self, is_down: bool) {
        self.shared.is_down.store(is_down, Ordering::SeqCst);
        for stream in self.shared.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Waits until the host has closed all connections but `count`.
    pub(crate) fn wait_until_open(&self, count: usize) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.shared.open_connections.load(Ordering::SeqCst) > count {
            assert!(Instant::now() < deadline, "the host keeps its connections");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn up(&self) {
        self.shared.is_down.store(false, Ordering::SeqCst);
    }
}

impl Shared {
    pub(crate) fn new(bytes: Vec<u8>, script: Script) -> Self {
        Self {
            bytes: Mutex::new(bytes),
            script: Mutex::new(script),
            fault: Mutex::new(None),
            faults_left: AtomicU32::new(0),
            injected: AtomicU32::new(0),
            flushes: AtomicU32::new(0),
            reads: AtomicU32::new(0),
            writes: AtomicU32::new(0),
            keep_alives: AtomicU32::new(0),
            connections: AtomicUsize::new(0),
            open_connections: AtomicUsize::new(0),
            refusals: AtomicU32::new(0),
            index_bytes: AtomicU32::new(0),
            index_reads: AtomicU32::new(0),
            is_down: AtomicBool::new(false),
            is_frozen: AtomicBool::new(false),
            streams: Mutex::default(),
        }
    }

    /// The fault to inject into this command.
    fn fault_for(&self, command: &Nvm) -> Option<InjectedFault> {
        let fault = (*self.fault.lock().unwrap())?;
        let fits = match fault {
            InjectedFault::ReadyBeyond
            | InjectedFault::WriteWithoutData
            | InjectedFault::HalfWrite
            | InjectedFault::Protected => {
                matches!(command, Nvm::Write { .. })
            }
            InjectedFault::Term
            | InjectedFault::Close
            | InjectedFault::Silence
            | InjectedFault::Interrupted
            | InjectedFault::Garbage
            | InjectedFault::Path => true,
            _ => matches!(command, Nvm::Read(_)),
        };
        if !fits {
            return None;
        }
        let left = &self.faults_left;
        left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
            .ok()?;
        self.injected.fetch_add(1, Ordering::SeqCst);
        Some(fault)
    }
}

struct Connection {
    stream: TcpStream,
    shared: Arc<Shared>,
    script: Script,
    framing: Framing,
    address: SocketAddr,
    queue: u16,
    is_discovery: bool,
    is_ready: bool,
    /// Commands that arrived while data of another was awaited.
    later: VecDeque<(Sqe, Vec<u8>)>,
}

/// The end of the connection.
struct Over;

impl Connection {
    fn new(stream: TcpStream, shared: Arc<Shared>, address: SocketAddr) -> Self {
        let script = shared.script.lock().unwrap().clone();
        Self {
            stream,
            shared,
            script,
            framing: Framing::new(Role::Controller, 4 << 20),
            address,
            queue: 0,
            is_discovery: false,
            is_ready: false,
            later: VecDeque::new(),
        }
    }

    fn serve(&mut self) {
        let _ = self.stream.set_nodelay(true);
        let _ = self.open();
        // Another handle of the socket is kept for cutting it.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    fn open(&mut self) -> Result<(), Over> {
        let (pdu, _) = self.next()?;
        let Pdu::IcReq(hello) = pdu else {
            return Err(Over);
        };
        let digests = self.script.digests.unwrap_or(hello.digests);
        let answer = IcResp {
            digests,
            data_bytes_max: self.script.host_data_bytes_max,
            ..IcResp::default()
        };
        self.send(&Pdu::IcResp(answer), &[])?;
        self.framing = self.framing.agreed(digests, hello.align);
        loop {
            let (pdu, data) = match self.later.pop_front() {
                Some((sqe, data)) => (Pdu::Command(sqe), data),
                None => self.next()?,
            };
            while self.shared.is_frozen.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(10));
            }
            match pdu {
                Pdu::Command(sqe) => self.command(sqe, &data)?,
                _ => return Err(Over),
            }
        }
    }

    fn next(&mut self) -> Result<(Pdu, Vec<u8>), Over> {
        let mut head = [0; HEAD_BYTES_MAX];
        let mut have = 0;
        let frame = loop {
            match self.framing.decode(&head[..have]) {
                Ok(Decoded::Whole(frame)) => break frame,
                Ok(Decoded::Partial(need)) => {
                    self.stream.read_exact(&mut head[have..need]).map_err(|_| Over)?;
                    have = need;
                }
                Err(fault) => panic!("the host broke the protocol: {fault}"),
            }
        };
        let mut data = vec![0; frame.data_bytes];
        self.stream.read_exact(&mut data).map_err(|_| Over)?;
        if frame.has_digest {
            let mut sum = [0; 4];
            self.stream.read_exact(&mut sum).map_err(|_| Over)?;
            assert_eq!(u32::from_le_bytes(sum), digest(&data), "the host's data digest");
        }
        Ok((frame.pdu, data))
    }

    fn send(&mut self, pdu: &Pdu, data: &[u8]) -> Result<(), Over> {
        self.send_spoiled(pdu, data, false, false)
    }

    fn send_spoiled(&mut self, pdu: &Pdu, data: &[u8], head: bool, tail: bool) -> Result<(), Over> {
        let mut bytes = Vec::new();
        self.framing.encode(pdu, data.len(), &mut bytes);
        if head {
            bytes[24] ^= 1;
        }
        bytes.extend(data);
        let is_plain = matches!(pdu, Pdu::IcResp(_) | Pdu::ControllerTerm(_));
        if !data.is_empty() && self.framing.digests.data && !is_plain {
            bytes.extend((digest(data) ^ u32::from(tail)).to_le_bytes());
        }
        self.stream.write_all(&bytes).map_err(|_| Over)
    }

    fn answer(&mut self, cid: u16, status: Status, result: u64) -> Result<(), Over> {
        let cqe = Cqe {
            result,
            ..Cqe::new(cid, status)
        };
        self.send(&Pdu::Response(cqe), &[])
    }

    fn give(&mut self, cid: u16, bytes: &[u8]) -> Result<(), Over> {
        let mut at = 0;
        while at < bytes.len() {
            let length = (bytes.len() - at).min(self.script.data_bytes_max);
            let is_last = at + length == bytes.len();
            let data = Data {
                cid,
                tag: 0,
                offset: at as u32,
                bytes: length as u32,
                is_last,
                is_success: is_last && self.script.has_success,
            };
            self.send(&Pdu::ControllerData(data), &bytes[at..at + length])?;
            at += length;
        }
        if self.script.has_success {
            return Ok(());
        }
        self.answer(cid, Status::SUCCESS, 0)
    }

    fn command(&mut self, sqe: Sqe, data: &[u8]) -> Result<(), Over> {
        assert_eq!(sqe.flags, 0x40);
        if sqe.opcode == straightway_nvme::fabrics::OPCODE {
            return self.fabrics(sqe, data);
        }
        if self.queue > 0 {
            return self.io(sqe, data);
        }
        self.admin(sqe)
    }

    fn fabrics(&mut self, sqe: Sqe, data: &[u8]) -> Result<(), Over> {
        let cid = sqe.cid;
        match Fabrics::from_sqe(&sqe).unwrap() {
            Fabrics::Connect(connect) => {
                let data = ConnectData::decode(data).unwrap();
                self.is_discovery = data.subsystem.is_discovery();
                if !data.subsystem.as_str().starts_with(NQN) && !self.is_discovery {
                    let status = Status::CONNECT_INVALID_PARAM.dnr();
                    return self.answer(cid, status, 0x1_0100);
                }
                if self.script.cuts_queues && connect.queue > 0 {
                    return Err(Over);
                }
                if !self.script.allows {
                    return self.answer(cid, Status::CONNECT_INVALID_HOST.dnr(), 0);
                }
                let fits = connect.queue <= self.script.queues && connect.size < self.script.entries;
                assert!(fits || connect.queue == 0);
                self.queue = connect.queue;
                let connected = Connected {
                    controller: 7,
                    needs_auth: self.script.needs_auth,
                    needs_concat: false,
                };
                self.answer(cid, Status::SUCCESS, connected.to_result())
            }
            Fabrics::PropertyGet { property } => {
                let value = match property {
                    Property::CAP => ControllerCapabilities::new(self.script.entries, 15).0,
                    Property::CSTS if self.is_ready => CSTS_READY,
                    _ => 0,
                };
                self.answer(cid, Status::SUCCESS, value)
            }
            Fabrics::PropertySet { .. } => {
                self.is_ready = true;
                self.answer(cid, Status::SUCCESS, 0)
            }
            _ => self.answer(cid, Status::INVALID_OPCODE.dnr(), 0),
        }
    }

    fn admin(&mut self, sqe: Sqe) -> Result<(), Over> {
        let cid = sqe.cid;
        match Admin::from_sqe(&sqe).unwrap() {
            Admin::Identify(what) => match what.page {
                page::CONTROLLER => self.give(cid, &self.controller()),
                page::NAMESPACE if self.shared.script.lock().unwrap().hides_namespaces => Ok(()),
                page::NAMESPACE if what.nsid == 1 => {
                    let bytes = self.shared.bytes.lock().unwrap().len() as u64;
                    let shift = self.script.block_shift;
                    let mut page = identify::Namespace::new(bytes >> shift, shift);
                    page.ana_group = 1;
                    self.give(cid, &page.encode())
                }
                page::NAMESPACE => self.give(cid, &[0; 4096]),
                page::DESCRIPTORS => {
                    let id = NamespaceId {
                        uuid: Some(self.script.uuid),
                        ..NamespaceId::default()
                    };
                    self.give(cid, &id.encode())
                }
                _ => self.answer(cid, Status::INVALID_FIELD.dnr(), 0),
            },
            Admin::SetFeatures { feature: 7, .. } => {
                let value = QueueCounts::both(self.script.queues).to_value();
                self.answer(cid, Status::SUCCESS, value.into())
            }
            Admin::GetLog(log) if log.page == INDEX_PAGE => self.index(cid, log),
            Admin::GetLog(log) if log.page != page_of(self.is_discovery) => {
                self.answer(cid, Status::INVALID_LOG_PAGE.dnr(), 0)
            }
            Admin::GetLog(log) => {
                let mut bytes = if self.is_discovery {
                    self.discovery()
                } else {
                    self.ana()
                };
                let end = log.offset as usize + log.bytes as usize;
                bytes.resize(bytes.len().max(end), 0);
                let part = bytes[log.offset as usize..end].to_vec();
                self.give(cid, &part)
            }
            Admin::EventRequest if self.script.storms => {
                let event = AsyncEvent::NAMESPACES.to_result();
                self.answer(cid, Status::SUCCESS, event)
            }
            Admin::EventRequest => Ok(()),
            Admin::KeepAlive => {
                self.shared.keep_alives.fetch_add(1, Ordering::SeqCst);
                self.answer(cid, Status::SUCCESS, 0)
            }
            _ => self.answer(cid, Status::SUCCESS, 0),
        }
    }

    fn io(&mut self, sqe: Sqe, data: &[u8]) -> Result<(), Over> {
        let cid = sqe.cid;
        let command = Nvm::from_sqe(&sqe).unwrap();
        if let Some(fault) = self.shared.fault_for(&command) {
            return self.inject(fault, &sqe, &command);
        }
        let state = self.shared.script.lock().unwrap().ana;
        if state.is_some_and(|state| !state.is_usable()) {
            return self.answer(cid, Status::ANA_INACCESSIBLE, 0);
        }
        let shift = self.script.block_shift;
        match command {
            Nvm::Flush => {
                std::thread::sleep(self.script.flush_time);
                self.shared.flushes.fetch_add(1, Ordering::SeqCst);
                self.answer(cid, self.script.flush_status, 0)
            }
            Nvm::Read(range) => {
                self.shared.reads.fetch_add(1, Ordering::SeqCst);
                let (start, length) = ((range.start << shift) as usize, (range.blocks as usize) << shift);
                assert_eq!(sqe.sgl.bytes as usize, length);
                let bytes = self.shared.bytes.lock().unwrap();
                let Some(part) = bytes.get(start..start + length).map(<[u8]>::to_vec) else {
                    drop(bytes);
                    return self.answer(cid, Status::LBA_RANGE.dnr(), 0);
                };
                drop(bytes);
                self.give(cid, &part)
            }
            Nvm::Write { range, .. } => {
                self.shared.writes.fetch_add(1, Ordering::SeqCst);
                let start = (range.start << shift) as usize;
                let length = (range.blocks as usize) << shift;
                assert_eq!(sqe.sgl.bytes as usize, length);
                let data = if sqe.sgl.is_in_capsule() {
                    data.to_vec()
                } else {
                    self.ask_for(cid, length)?
                };
                let mut bytes = self.shared.bytes.lock().unwrap();
                bytes[start..start + length].copy_from_slice(&data);
                drop(bytes);
                self.answer(cid, Status::SUCCESS, 0)
            }
            _ => self.answer(cid, Status::INVALID_OPCODE.dnr(), 0),
        }
    }

    /// Requests the data of a write with two R2Ts, which is permitted.
    fn ask_for(&mut self, cid: u16, length: usize) -> Result<Vec<u8>, Over> {
        let mut all = Vec::new();
        while all.len() < length {
            let bytes = (length - all.len()).min(length / 2 + 1).next_multiple_of(4);
            let bytes = bytes.min(length - all.len());
            let ready = Ready {
                cid,
                tag: 0x77,
                offset: all.len() as u32,
                bytes: bytes as u32,
            };
            self.send(&Pdu::Ready(ready), &[])?;
            let mut got = 0;
            while got < bytes {
                let (pdu, data) = self.next()?;
                match pdu {
                    Pdu::HostData(part) => {
                        assert_eq!((part.cid, part.tag), (cid, 0x77));
                        assert_eq!(part.offset as usize, all.len());
                        assert!(data.len() <= self.script.host_data_bytes_max as usize);
                        got += data.len();
                        assert_eq!(part.is_last, got == bytes);
                        all.extend(data);
                    }
                    // Other commands may arrive meanwhile.
                    Pdu::Command(sqe) => self.later.push_back((sqe, data)),
                    _ => return Err(Over),
                }
            }
        }
        Ok(all)
    }
}

/// The log page identifier of a controller.
fn page_of(is_discovery: bool) -> u8 {
    if is_discovery {
        log::page::DISCOVERY
    } else {
        log::page::ANA
    }
}

/// The digests that tests request.
pub(crate) const BOTH: Digests = Digests {
    header: true,
    data: true,
};

//! A blocking host for tests. It can send anything, also what violates the protocol.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    time::Duration,
};

use straightway_core::random::Seed;
use straightway_nvme::{
    Cqe, DIGEST_BYTES, Decoded, Digests, Framing, Nqn, Pdu, Role, Sgl, Sqe, Status, TRANSFER_BYTES_MAX,
    admin::{Admin, GetLog, Identify, QueueCounts},
    digest,
    fabrics::{Connect, ConnectData, Connected, DYNAMIC_CONTROLLER, Fabrics, Property},
    identify,
    index::{INDEX_PAGE, IndexHeader, NameIndex},
    nvm::{LbaRange, Nvm},
    pdu::{Data, IcReq},
};
use straightway_nvme_target::{Config, NamespaceSource, Target};

pub(crate) const NQN: &str = "nqn.2026-11.test:models";

pub(crate) fn host_nqn() -> Nqn {
    Nqn::new("nqn.2026-11.test:host").unwrap()
}

/// The configuration of a target for these sources on a free loopback port.
pub(crate) fn config(sources: Vec<NamespaceSource>) -> Config {
    let address = "127.0.0.1:0".parse().unwrap();
    let mut config = Config::new(Nqn::new(NQN).unwrap(), address, sources);
    config.login_timeout = Duration::from_secs(2);
    config.stall_timeout = Duration::from_secs(2);
    config
}

pub(crate) fn memory(bytes: u64) -> Config {
    let source = NamespaceSource::Memory {
        name: "memory".to_owned(),
        bytes,
    };
    let mut config = config(vec![source]);
    config.is_writable = true;
    config
}

pub(crate) fn start(config: &Config) -> (Target, SocketAddr) {
    let target = Target::start(config).unwrap();
    let address = target.addresses()[0];
    (target, address)
}

/// Bytes that differ everywhere.
pub(crate) fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    Seed(seed).bytes(bytes)
}

pub(crate) fn file(folder: &Path, name: &str, content: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, content).unwrap();
    path
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    pub(crate) framing: Framing,
    buffer: Vec<u8>,
    next_cid: u16,
}

impl Wire {
    /// Connects without sending anything.
    pub(crate) fn silent(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self {
            stream,
            framing: Framing::new(Role::Host, TRANSFER_BYTES_MAX),
            buffer: Vec::new(),
            next_cid: 0,
        }
    }

    /// Connects and exchanges `ICReq` and `ICResp`.
    pub(crate) fn open(address: SocketAddr, digests: Digests) -> Self {
        let mut wire = Self::silent(address);
        let request = IcReq {
            digests,
            ..IcReq::default()
        };
        wire.send(&Pdu::IcReq(request), &[]);
        let (pdu, _) = wire.receive().unwrap();
        let Pdu::IcResp(response) = pdu else {
            panic!("{pdu:?}");
        };
        assert_eq!(response.digests, digests);
        wire.framing = wire.framing.agreed(digests, response.align);
        wire
    }

    pub(crate) fn encode(&self, pdu: &Pdu, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        self.framing.encode(pdu, data.len(), &mut out);
        out.extend_from_slice(data);
        let is_plain = matches!(pdu, Pdu::IcReq(_) | Pdu::HostTerm(_));
        if !data.is_empty() && self.framing.has_data_digest() && !is_plain {
            out.extend(digest(data).to_le_bytes());
        }
        out
    }

    pub(crate) fn send(&mut self, pdu: &Pdu, data: &[u8]) {
        let bytes = self.encode(pdu, data);
        self.stream.write_all(&bytes).unwrap();
    }

    /// The next PDU with its data; `None` at the end of the connection.
    pub(crate) fn receive(&mut self) -> Option<(Pdu, Vec<u8>)> {
        loop {
            let needed = match self.framing.decode(&self.buffer).unwrap() {
                Decoded::Partial(needed) => needed,
                Decoded::Whole(frame) if self.buffer.len() >= frame.total_bytes() => {
                    let end = frame.head_bytes + frame.data_bytes;
                    let data = self.buffer[frame.head_bytes..end].to_vec();
                    if frame.has_digest {
                        let sum = &self.buffer[end..end + DIGEST_BYTES];
                        assert_eq!(digest(&data).to_le_bytes(), sum, "data digest");
                    }
                    self.buffer.drain(..frame.total_bytes());
                    return Some((frame.pdu, data));
                }
                Decoded::Whole(frame) => frame.total_bytes(),
            };
            let mut piece = vec![0; (needed - self.buffer.len()).max(4096)];
            match self.stream.read(&mut piece) {
                Ok(0) => return None,
                Ok(count) => self.buffer.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Sends a command without waiting. Returns its identifier.
    pub(crate) fn begin(&mut self, sqe: Sqe, data: &[u8]) -> u16 {
        self.next_cid += 1;
        let sqe = sqe.with_cid(self.next_cid);
        self.send(&Pdu::Command(sqe), data);
        self.next_cid
    }

    /// Waits for the completion of one command. `write` is the data that R2Ts may request.
    pub(crate) fn finish(&mut self, cid: u16, write: &[u8]) -> (Cqe, Vec<u8>) {
        let mut read = Vec::new();
        loop {
            let (pdu, data) = self.receive().expect("the connection ended");
            match pdu {
                Pdu::ControllerData(part) => {
                    assert_eq!((part.cid, part.offset as usize), (cid, read.len()));
                    read.extend(data);
                    if part.is_success {
                        return (Cqe::new(cid, Status::SUCCESS), read);
                    }
                }
                Pdu::Ready(ready) => {
                    assert_eq!(ready.cid, cid);
                    let end = (ready.offset + ready.bytes) as usize;
                    // Pieces of an odd number of sectors.
                    let mut at = ready.offset as usize;
                    while at < end {
                        let piece = (end - at).min(48 << 10);
                        let data = Data {
                            cid,
                            tag: ready.tag,
                            offset: at as u32,
                            bytes: piece as u32,
                            is_last: at + piece == end,
                            is_success: false,
                        };
                        self.send(&Pdu::HostData(data), &write[at..at + piece]);
                        at += piece;
                    }
                }
                Pdu::Response(cqe) => {
                    assert_eq!(cqe.cid, cid);
                    return (cqe, read);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) fn command(&mut self, sqe: Sqe, data: &[u8]) -> (Cqe, Vec<u8>) {
        let in_capsule: &[u8] = if sqe.sgl.is_in_capsule() { data } else { &[] };
        let cid = self.begin(sqe, in_capsule);
        self.finish(cid, data)
    }

    pub(crate) fn ok(&mut self, sqe: Sqe, data: &[u8]) -> Vec<u8> {
        let (cqe, read) = self.command(sqe, data);
        assert!(cqe.status.is_success(), "{:?}", cqe.status);
        read
    }

    pub(crate) fn status(&mut self, sqe: Sqe, data: &[u8]) -> Status {
        self.command(sqe, data).0.status
    }
}

/// The parameters of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Login {
    pub(crate) digests: Digests,
    pub(crate) is_uncontrolled: bool,
    pub(crate) keep_alive_ms: u32,
    pub(crate) subsystem: Nqn,
    pub(crate) host: Nqn,
}

impl Default for Login {
    fn default() -> Self {
        Self {
            digests: Digests::default(),
            is_uncontrolled: true,
            keep_alive_ms: 0,
            subsystem: Nqn::new(NQN).unwrap(),
            host: host_nqn(),
        }
    }
}

/// An association: an admin queue and the parameters for I/O queues.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) admin: Wire,
    pub(crate) login: Login,
    pub(crate) connected: Connected,
    address: SocketAddr,
}

impl Host {
    /// Opens an admin queue up to Connect.
    pub(crate) fn connect(address: SocketAddr, login: &Login) -> Result<Self, Cqe> {
        let mut admin = Wire::open(address, login.digests);
        let cqe = connect(&mut admin, login, 0, DYNAMIC_CONTROLLER);
        if !cqe.status.is_success() {
            return Err(cqe);
        }
        Ok(Self {
            admin,
            login: login.clone(),
            connected: Connected::from_result(cqe.result),
            address,
        })
    }

    /// Connects and enables the controller.
    pub(crate) fn new(address: SocketAddr, login: &Login) -> Self {
        let mut host = Self::connect(address, login).unwrap();
        host.enable();
        host
    }

    pub(crate) fn enable(&mut self) {
        let set = Fabrics::PropertySet {
            property: Property::CC,
            value: 0x46_0001,
        };
        self.admin.ok(set.sqe(), &[]);
        let get = Fabrics::PropertyGet {
            property: Property::CSTS,
        };
        let (cqe, _) = self.admin.command(get.sqe(), &[]);
        assert_eq!(cqe.result & 1, 1);
        let queues = Admin::SetFeatures {
            feature: 7,
            is_saved: false,
            value: QueueCounts::both(8).to_value(),
            nsid: 0,
        };
        let (cqe, _) = self.admin.command(queues.sqe(), &[]);
        assert_eq!(QueueCounts::from_value(cqe.result as u32).pairs(), 8);
    }

    /// Connects an I/O queue.
    pub(crate) fn queue(&self, number: u16) -> Wire {
        let mut wire = Wire::open(self.address, self.login.digests);
        let cqe = connect(&mut wire, &self.login, number, self.connected.controller);
        assert!(cqe.status.is_success(), "{:?}", cqe.status);
        wire
    }

    pub(crate) fn identify(&mut self, page: u8, nsid: u32) -> Vec<u8> {
        let what = Identify {
            page,
            nsid,
            controller: 0,
            command_set: 0,
        };
        self.admin.ok(Admin::Identify(what).sqe(), &[])
    }

    pub(crate) fn namespace(&mut self, nsid: u32) -> identify::Namespace {
        let page = self.identify(identify::page::NAMESPACE, nsid);
        identify::Namespace::decode(&page).unwrap()
    }

    pub(crate) fn log(&mut self, page: u8, offset: u64, bytes: u32) -> (Status, Vec<u8>) {
        self.specific_log(page, 0, offset, bytes)
    }

    pub(crate) fn specific_log(&mut self, page: u8, specific: u8, offset: u64, bytes: u32) -> (Status, Vec<u8>) {
        let log = GetLog {
            page,
            specific,
            retains_event: false,
            offset,
            bytes,
            nsid: u32::MAX,
        };
        let (cqe, data) = self.admin.command(Admin::GetLog(log).sqe(), &[]);
        (cqe.status, data)
    }

    pub(crate) fn index(&mut self) -> NameIndex {
        let (status, head) = self.log(INDEX_PAGE, 0, 64);
        assert!(status.is_success());
        let header = IndexHeader::decode(&head).unwrap();
        let (_, page) = self.log(INDEX_PAGE, 0, header.bytes as u32);
        NameIndex::decode(&page).unwrap()
    }
}

pub(crate) fn connect(wire: &mut Wire, login: &Login, queue: u16, controller: u16) -> Cqe {
    let command = Fabrics::Connect(Connect {
        queue,
        size: 31,
        is_uncontrolled: login.is_uncontrolled,
        keep_alive_ms: login.keep_alive_ms,
    });
    let data = ConnectData {
        host_id: [7; 16],
        controller,
        subsystem: login.subsystem.clone(),
        host: login.host.clone(),
    };
    wire.command(command.sqe(), &data.encode()).0
}

pub(crate) fn read(nsid: u32, start: u64, blocks: u32) -> Sqe {
    let range = LbaRange::new(start, blocks);
    Nvm::Read(range).sqe(nsid).with_sgl(Sgl::transport(blocks * 512))
}

pub(crate) fn write(nsid: u32, start: u64, blocks: u32, is_in_capsule: bool) -> Sqe {
    let command = Nvm::Write {
        range: LbaRange::new(start, blocks),
        is_durable: false,
    };
    let bytes = blocks * 512;
    command.sqe(nsid).with_sgl(if is_in_capsule {
        Sgl::in_capsule(bytes)
    } else {
        Sgl::transport(bytes)
    })
}

/// All combinations of digests and flow control.
pub(crate) fn logins() -> impl Iterator<Item = Login> {
    (0..8).map(|bits| Login {
        digests: Digests {
            header: bits & 1 != 0,
            data: bits & 2 != 0,
        },
        is_uncontrolled: bits & 4 != 0,
        ..Login::default()
    })
}

//! Hosts that violate the protocol: each gets an error or is disconnected, and the target continues.

use std::{
    io::Write,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use straightway_nvme::{
    Digests, Nqn, Pdu, Status,
    admin::{Admin, GetLog},
    fabrics::{Connect, ConnectData, DYNAMIC_CONTROLLER, Fabrics},
    log::page,
    pdu::{Data, IcReq, Ready, TermReq},
};

use straightway_nvme_target::{Listen, Target};

use super::host::{Host, Login, NQN, Wire, config, file, host_nqn, memory, pattern, read, start, write};

/// The fatal error status of the termination request that ends the connection.
fn ended_with(wire: &mut Wire) -> u16 {
    loop {
        match wire.receive() {
            Some((Pdu::ControllerTerm(TermReq { status, .. }), _)) => {
                assert!(wire.receive().is_none(), "the connection continues");
                return status.0;
            }
            Some((Pdu::IcResp(_) | Pdu::Ready(_) | Pdu::Response(_), _)) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Checks that another host is still served.
fn serves(address: SocketAddr) {
    let host = Host::new(address, &Login::default());
    host.queue(1).ok(read(1, 0, 8), &[]);
}

fn queue_on(address: SocketAddr, login: &Login) -> (Host, Wire) {
    let host = Host::new(address, login);
    let queue = host.queue(1);
    (host, queue)
}

/// Begins a write of a page of this byte. Returns its identifier, and the PDU with the data that the target requests.
fn begin_write(queue: &mut Wire, byte: u8) -> (u16, Vec<u8>) {
    let cid = queue.begin(write(1, 0, 8, false), &[]);
    let (pdu, _) = queue.receive().unwrap();
    let Pdu::Ready(ready) = pdu else { panic!("{pdu:?}") };
    let part = Data {
        cid,
        tag: ready.tag,
        offset: 0,
        bytes: 4096,
        is_last: true,
        is_success: false,
    };
    (cid, queue.encode(&Pdu::HostData(part), &[byte; 4096]))
}

/// A queue with a write whose data the target has requested, and the PDU with that data.
fn requested_write(address: SocketAddr) -> (Host, Wire, Vec<u8>) {
    let (host, mut queue) = queue_on(address, &Login::default());
    let (_, data) = begin_write(&mut queue, 1);
    (host, queue, data)
}

#[test]
fn other_protocols_and_wrong_first_pdus_get_a_termination_request() {
    let (_target, address) = start(&memory(1 << 20));
    let mut http = Wire::silent(address);
    http.stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert_eq!(ended_with(&mut http), 1);
    // A command, a response, and data before ICReq.
    let mut early = Wire::silent(address);
    early.send(&Pdu::Command(read(1, 0, 1)), &[]);
    assert_eq!(ended_with(&mut early), 2);
    let mut turned = Wire::silent(address);
    let ready = Ready {
        cid: 1,
        tag: 1,
        offset: 0,
        bytes: 4,
    };
    turned.send(&Pdu::Ready(ready), &[]);
    assert_eq!(ended_with(&mut turned), 1);
    let mut old = Wire::silent(address);
    let version = IcReq {
        version: 1,
        ..IcReq::default()
    };
    old.send(&Pdu::IcReq(version), &[]);
    assert_eq!(ended_with(&mut old), 6);
    let mut data = Wire::open(address, Digests::default());
    let part = Data {
        cid: 0,
        tag: 0,
        offset: 0,
        bytes: 4,
        is_last: true,
        is_success: false,
    };
    data.send(&Pdu::HostData(part), &[0; 4]);
    assert_eq!(ended_with(&mut data), 2);
    // A command other than Connect.
    let mut hasty = Wire::open(address, Digests::default());
    let status = hasty.status(read(1, 0, 1), &[]);
    assert_eq!(status, Status::COMMAND_SEQUENCE.dnr());
    assert!(hasty.receive().is_none());
    serves(address);
}

#[test]
fn a_second_icreq_and_inconsistent_lengths_end_the_connection() {
    let (target, address) = start(&memory(1 << 20));
    let (_host, mut queue) = queue_on(address, &Login::default());
    queue.send(&Pdu::IcReq(IcReq::default()), &[]);
    assert_eq!(ended_with(&mut queue), 2);
    // PLEN of 4 GiB, of 0, below the header; inconsistent HLEN and PDO.
    for (at, bytes) in [
        (4, [0xff, 0xff, 0xff, 0xff]),
        (4, [0, 0, 0, 0]),
        (4, [71, 0, 0, 0]),
        (4, [0, 0x60, 0, 0]),
        (2, [0, 0, 0x48, 0]),
        (2, [72, 3, 0x50, 0]),
    ] {
        let (_host, mut queue) = queue_on(address, &Login::default());
        let mut command = queue.encode(&Pdu::Command(read(1, 0, 1)), &[]);
        command[at..at + 4].copy_from_slice(&bytes);
        queue.stream.write_all(&command).unwrap();
        assert_eq!(ended_with(&mut queue), 1, "{at} {bytes:?}");
    }
    serves(address);
    assert!(target.receipts()[0].faults >= 7);
}

#[test]
fn unrequested_data_ends_the_connection() {
    let (_target, address) = start(&memory(1 << 20));
    let right = Data {
        cid: 2,
        tag: 0,
        offset: 0,
        bytes: 4096,
        is_last: false,
        is_success: false,
    };
    let lies = [
        (Data { tag: 1, ..right }, 1),
        (Data { tag: 0xffff, ..right }, 1),
        (Data { cid: 3, ..right }, 1),
        (Data { offset: 512, ..right }, 4),
        (
            Data {
                offset: u32::MAX - 4096,
                ..right
            },
            4,
        ),
        (Data { is_last: true, ..right }, 1),
        (
            Data {
                bytes: 64 << 10,
                ..right
            },
            4,
        ),
    ];
    for (lie, expected) in lies {
        let (_host, mut queue) = queue_on(address, &Login::default());
        // The first command of a queue is Connect.
        let cid = queue.begin(write(1, 0, 64, false), &[]);
        assert_eq!(cid, 2);
        let (pdu, _) = queue.receive().unwrap();
        assert!(matches!(pdu, Pdu::Ready(Ready { tag: 0, cid: 2, .. })));
        let bytes = queue.encode(&Pdu::HostData(lie), &vec![1; lie.bytes as usize]);
        queue.stream.write_all(&bytes).unwrap();
        assert_eq!(ended_with(&mut queue), expected, "{lie:?}");
    }
    // The same data twice: the tag is no longer valid.
    let (_host, mut queue) = queue_on(address, &Login::default());
    queue.ok(write(1, 0, 64, false), &vec![1; 64 * 512]);
    queue.send(&Pdu::HostData(right), &[1; 4096]);
    assert_eq!(ended_with(&mut queue), 1);
    // More writes than the queue has entries.
    let (_host, mut queue) = queue_on(address, &Login::default());
    for _ in 0..33 {
        queue.begin(write(1, 0, 64, false), &[]);
    }
    assert_eq!(ended_with(&mut queue), 5);
    serves(address);
}

#[test]
fn a_wrong_header_digest_ends_the_connection_and_a_wrong_data_digest_the_command() {
    let (_target, address) = start(&memory(1 << 20));
    let login = Login {
        digests: Digests {
            header: true,
            data: true,
        },
        ..Login::default()
    };
    let (_host, mut queue) = queue_on(address, &login);
    queue.ok(write(1, 0, 8, true), &[1; 4096]);
    let mut wrong = queue.encode(&Pdu::Command(write(1, 0, 8, true).with_cid(50)), &[2; 4096]);
    let last = wrong.len() - 1;
    wrong[last] ^= 1;
    queue.stream.write_all(&wrong).unwrap();
    let (cqe, _) = queue.finish(50, &[]);
    assert_eq!(cqe.status, Status::TRANSIENT_TRANSPORT);
    // The same after an R2T.
    let (cid, mut wrong) = begin_write(&mut queue, 2);
    let last = wrong.len() - 1;
    wrong[last] ^= 1;
    queue.stream.write_all(&wrong).unwrap();
    assert_eq!(queue.finish(cid, &[]).0.status, Status::TRANSIENT_TRANSPORT);
    assert!(queue.ok(read(1, 0, 8), &[]) == [1; 4096], "wrong data was written");
    let mut wrong = queue.encode(&Pdu::Command(read(1, 0, 8)), &[]);
    wrong[20] ^= 1;
    queue.stream.write_all(&wrong).unwrap();
    assert_eq!(ended_with(&mut queue), 3);
    serves(address);
}

#[test]
fn a_silent_connection_ends_in_bounded_time() {
    let (target, address) = start(&memory(1 << 20));
    // Nothing at all; half of an ICReq; an ICReq without Connect.
    let mut nothing = Wire::silent(address);
    let mut half = Wire::silent(address);
    half.stream.write_all(&[0; 5]).unwrap();
    let mut idle = Wire::open(address, Digests::default());
    // Half a command; half of the data of a write.
    let (_one, mut command) = queue_on(address, &Login::default());
    let bytes = command.encode(&Pdu::Command(read(1, 0, 1)), &[]);
    command.stream.write_all(&bytes[..40]).unwrap();
    let (_two, mut data, bytes) = requested_write(address);
    data.stream.write_all(&bytes[..2000]).unwrap();
    let start = Instant::now();
    for wire in [&mut nothing, &mut half, &mut idle, &mut command, &mut data] {
        assert!(wire.receive().is_none());
    }
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    serves(address);
    assert!(target.receipts()[0].faults >= 2);
}

#[test]
fn a_host_that_reads_no_completions_is_disconnected_and_costs_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "data", &pattern(8 << 20, 3));
    let (target, address) = start(&config(vec![straightway_nvme_target::NamespaceSource::Path(path)]));
    let (_host, mut queue) = queue_on(address, &Login::default());
    queue.stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    // Reads of gigabytes, without receiving any of it.
    let mut command = queue.encode(&Pdu::Command(read(1, 0, 8192)), &[]);
    command = command.repeat(1000);
    let start = Instant::now();
    let _ = queue.stream.write_all(&command);
    while target.receipts()[0].faults == 0 && start.elapsed() < Duration::from_secs(15) {
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(target.receipts()[0].faults, 1);
    serves(address);
}

#[test]
fn a_host_that_reads_no_log_pages_is_disconnected() {
    let (target, address) = start(&memory(1 << 20));
    let login = Login {
        subsystem: Nqn::discovery(),
        ..Login::default()
    };
    let mut host = Host::connect(address, &login).unwrap();
    let log = GetLog {
        page: page::DISCOVERY,
        specific: 0,
        retains_event: false,
        offset: 0,
        bytes: 4 << 20,
        nsid: u32::MAX,
    };
    // The answers have 3.5 GiB. A unit test of the sender checks that they are not kept in memory.
    let command = host.admin.encode(&Pdu::Command(Admin::GetLog(log).sqe()), &[]);
    host.admin.stream.write_all(&command.repeat(900)).unwrap();
    let start = Instant::now();
    while target.receipts()[0].faults == 0 && start.elapsed() < Duration::from_secs(30) {
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(target.receipts()[0].faults, 1);
    serves(address);
}

/// Sends bytes one by one until the connection ends, and checks that it ends soon.
fn trickle(mut wire: Wire, what: &str, bytes: &[u8]) {
    let start = Instant::now();
    for byte in bytes {
        if wire.stream.write_all(&[*byte]).is_err() {
            break;
        }
        // The pace of the host that is simulated.
        thread::sleep(Duration::from_millis(150));
    }
    let took = start.elapsed();
    assert!(took < Duration::from_secs(8), "{what}: {took:?}");
}

#[test]
fn a_connection_that_sends_single_bytes_ends_in_bounded_time() {
    let (_target, address) = start(&memory(1 << 20));
    let silent = Wire::silent(address);
    let request = silent.encode(&Pdu::IcReq(IcReq::default()), &[]);
    let open = Wire::open(address, Digests::default());
    let connect = Fabrics::Connect(Connect {
        queue: 0,
        size: 31,
        is_uncontrolled: true,
        keep_alive_ms: 0,
    });
    let names = ConnectData {
        host_id: [7; 16],
        controller: DYNAMIC_CONTROLLER,
        subsystem: Nqn::new(NQN).unwrap(),
        host: host_nqn(),
    };
    let connect = open.encode(&Pdu::Command(connect.sqe()), &names.encode());
    let (_one, queue) = queue_on(address, &Login::default());
    let command = queue.encode(&Pdu::Command(read(1, 0, 1)), &[]);
    let (_two, mut writer, data) = requested_write(address);
    let (head, data) = data.split_at(24);
    writer.stream.write_all(head).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| trickle(silent, "ICReq", &request));
        scope.spawn(|| trickle(open, "Connect", &connect));
        scope.spawn(|| trickle(queue, "a command", &command));
        scope.spawn(|| trickle(writer, "data", data));
    });
    serves(address);
}

#[test]
fn a_missing_keep_alive_ends_the_controller_and_its_queues() {
    let (target, address) = start(&memory(1 << 20));
    let login = Login {
        keep_alive_ms: 1000,
        ..Login::default()
    };
    let (mut host, mut queue) = queue_on(address, &login);
    // I/O alone keeps the controller alive, for more than twice the timeout.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(2500) {
        thread::sleep(Duration::from_millis(50));
        queue.ok(read(1, 0, 1), &[]);
    }
    // Without it, both end. A receive fails after 20 s.
    assert!(host.admin.receive().is_none());
    assert!(queue.receive().is_none());
    let start = Instant::now();
    while target.connections() > 0 && start.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(target.connections(), 0);
}

/// Whether a new connection is closed before it gets a response.
fn is_refused(address: SocketAddr) -> bool {
    let mut beyond = Wire::silent(address);
    let request = beyond.encode(&Pdu::IcReq(IcReq::default()), &[]);
    // It may be closed already.
    let _ = beyond.stream.write_all(&request);
    beyond.receive().is_none()
}

#[test]
fn connections_beyond_the_limit_are_refused_and_the_others_continue() {
    let mut config = memory(1 << 20);
    config.connections_max = 4;
    let (_target, address) = start(&config);
    let (_host, mut queue) = queue_on(address, &Login::default());
    let idle: Vec<_> = (0..2).map(|_| Wire::open(address, Digests::default())).collect();
    assert!(is_refused(address));
    queue.ok(read(1, 0, 1), &[]);
    drop(idle);
}

#[test]
fn connections_beyond_the_limit_of_an_address_are_refused_and_other_addresses_are_served() {
    let mut config = memory(1 << 20);
    config.address_connections_max = 3;
    config.ports.push(Listen::new("[::1]:0".parse().unwrap()));
    let Ok(target) = Target::start(&config) else {
        eprintln!("skipped: this machine has no IPv6 loopback, whose address is another one");
        return;
    };
    let addresses = target.addresses();
    let (_host, mut queue) = queue_on(addresses[0], &Login::default());
    let idle = Wire::open(addresses[0], Digests::default());
    assert!(is_refused(addresses[0]));
    serves(addresses[1]);
    queue.ok(read(1, 0, 1), &[]);
    drop(idle);
    let start = Instant::now();
    while target.connections() > 2 && start.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(10));
    }
    // Its place is free again.
    Wire::open(addresses[0], Digests::default());
}

#[test]
fn a_host_that_reads_nothing_is_disconnected_at_the_timeout() {
    const TIMEOUT: Duration = Duration::from_secs(3);
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "data", &pattern(4 << 20, 3));
    let disconnected = |digests: Digests| {
        let mut config = config(vec![straightway_nvme_target::NamespaceSource::Path(path.clone())]);
        config.stall_timeout = TIMEOUT;
        let (target, address) = start(&config);
        let login = Login {
            digests,
            ..Login::default()
        };
        let (_host, mut queue) = queue_on(address, &login);
        let before = target.connections();
        let command = queue.encode(&Pdu::Command(read(1, 0, 8192)), &[]);
        let start = Instant::now();
        queue.stream.write_all(&command.repeat(100)).unwrap();
        while target.connections() == before {
            assert!(start.elapsed() < 4 * TIMEOUT, "it is still connected");
            thread::sleep(Duration::from_millis(20));
        }
        start.elapsed()
    };
    // With data digests the bytes are copied; without, they are sent by `sendfile`.
    let digests = [
        Digests::default(),
        Digests {
            header: true,
            data: true,
        },
    ];
    let took = thread::scope(|scope| {
        let disconnected = &disconnected;
        let runs = digests.map(|digests| scope.spawn(move || disconnected(digests)));
        runs.map(|run| run.join().unwrap())
    });
    for took in took {
        assert!(took >= TIMEOUT && took < TIMEOUT * 5 / 3, "{took:?}");
    }
}

#[test]
fn a_truncated_file_never_reads_as_zeros() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "data", &pattern(4 << 20, 3));
    let (_target, address) = start(&config(vec![straightway_nvme_target::NamespaceSource::Path(
        path.clone(),
    )]));
    for blocks in [8, 2048] {
        let (_host, mut queue) = queue_on(address, &Login::default());
        queue.ok(read(1, 4096, blocks), &[]);
        let cut = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        cut.set_len(1 << 20).unwrap();
        queue.begin(read(1, 4096, blocks), &[]);
        match queue.receive() {
            // Small reads fail with a status. Large ones end the connection.
            Some((Pdu::Response(cqe), _)) => assert_eq!(cqe.status, Status::READ_ERROR),
            None => {}
            other => panic!("{other:?}"),
        }
        std::fs::write(&path, pattern(4 << 20, 3)).unwrap();
    }
}

#[test]
fn random_bytes_leave_the_target_serving() {
    let (target, address) = start(&memory(1 << 20));
    for seed in 0..60 {
        let mut wire = if seed % 3 == 0 {
            Wire::silent(address)
        } else {
            let host = Host::new(address, &Login::default());
            let queue = host.queue(1);
            if seed % 3 == 1 { queue } else { host.admin }
        };
        let mut bytes = pattern(400, seed);
        if seed % 2 == 0 {
            // The header of a command, followed by random bytes.
            bytes[..8].copy_from_slice(&[4, 0, 72, 0, 72, 0, 0, 0]);
        }
        let _ = wire.stream.write_all(&bytes);
    }
    serves(address);
    let start = Instant::now();
    while target.connections() > 0 && start.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(target.connections(), 0);
}

//! Several hosts: their entries, their shares of the target, and their associations.

use std::{
    io::Write as _,
    thread,
    time::{Duration, Instant},
};

use straightway_core::{quantity::Rate, share::Share};
use straightway_nvme::{
    Nqn, Pdu, Status,
    fabrics::{Fabrics, Property},
};
use straightway_nvme_target::{HostRule, NamespaceSource};

use super::host::{Host, Login, Wire, config, connect, file, host_nqn, memory, pattern, read, start, write};

/// The number of hosts without a rule that have their own entry.
const GUESTS_MAX: usize = 4096;

fn named(nqn: &str) -> Login {
    Login {
        host: Nqn::new(nqn).unwrap(),
        ..Login::default()
    }
}

fn rule(share: Share) -> HostRule {
    HostRule {
        nqn: host_nqn(),
        keys: None,
        share: Some(share),
    }
}

#[test]
fn hosts_without_their_own_entry_reach_their_own_queues_and_no_others() {
    let mut config = memory(1 << 20);
    // Threads of closed connections may end late on a busy machine.
    config.connections_max = 2 * GUESTS_MAX;
    config.address_connections_max = 2 * GUESTS_MAX;
    let (target, address) = start(&config);
    for number in 0..GUESTS_MAX {
        Host::connect(address, &named(&format!("nqn.guest.{number}"))).unwrap();
    }
    let one = Host::new(address, &named("nqn.one"));
    one.queue(1).ok(read(1, 0, 1), &[]);
    let two = Host::new(address, &named("nqn.two"));
    for login in [&two.login, &named("others"), &named("nqn.guest.0")] {
        let mut wire = Wire::open(address, login.digests);
        let cqe = connect(&mut wire, login, 2, one.connected.controller);
        assert_eq!(cqe.status, Status::CONNECT_INVALID_PARAM.dnr());
    }
    let receipts = target.receipts();
    let further = receipts.last().unwrap();
    assert_eq!(
        (receipts.len(), further.host.as_str(), further.reads),
        (GUESTS_MAX + 1, "further hosts", 1)
    );
}

#[test]
fn queues_that_do_not_read_do_not_stop_other_hosts() {
    let slots = thread::available_parallelism().map_or(2, usize::from);
    if slots > 32 {
        eprintln!("skipped: each of {slots} queues needs megabytes of socket buffers");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "data", &pattern(4 << 20, 3));
    let mut config = config(vec![NamespaceSource::Path(path)]);
    config.stall_timeout = Duration::from_mins(2);
    config.policy.add(rule(Share::default())).unwrap();
    let (_target, address) = start(&config);
    let stuck = Host::new(address, &Login::default());
    let queues: Vec<_> = (1..=slots as u16 + 1)
        .map(|number| {
            let mut queue = stuck.queue(number);
            let command = queue.encode(&Pdu::Command(read(1, 0, 8192)), &[]);
            queue.stream.write_all(&command.repeat(100)).unwrap();
            queue
        })
        .collect();
    let full = wait_until_full(&queues);
    let other = Host::new(address, &named("nqn.other"));
    let mut queue = other.queue(1);
    let start = Instant::now();
    assert!(queue.ok(read(1, 0, 8192), &[]) == pattern(4 << 20, 3));
    // Long before the stall timeout, at which the others end.
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    assert_eq!(queues.iter().map(unread).collect::<Vec<_>>(), full, "they still wait");
}

/// The number of bytes that have arrived on a connection and were not read.
fn unread(wire: &Wire) -> usize {
    let mut bytes = vec![0; 64 << 20];
    let count = wire.stream.peek(&mut bytes).unwrap();
    assert!(count < bytes.len(), "more may have arrived");
    count
}

/// Waits until no more bytes arrive on any of the connections, although more were requested: their sockets are full.
/// Returns the number of bytes in each.
fn wait_until_full(wires: &[Wire]) -> Vec<usize> {
    let all = || wires.iter().map(unread).collect::<Vec<_>>();
    let deadline = Instant::now() + Duration::from_mins(1);
    let (mut before, mut since) = (all(), Instant::now());
    while since.elapsed() < Duration::from_millis(500) {
        assert!(Instant::now() < deadline, "bytes still arrive: {before:?}");
        thread::sleep(Duration::from_millis(20));
        let now = all();
        if now != before {
            (before, since) = (now, Instant::now());
        }
    }
    before
}

#[test]
fn no_write_is_applied_after_its_association_has_ended() {
    const BLOCKS: u32 = 60;
    let mut config = memory(1 << 20);
    // Ten blocks per second: most writes of the batch wait in the receive buffer.
    let share = Share {
        limit: Some(Rate(5120.0)),
        ..Share::default()
    };
    config.policy.add(rule(share)).unwrap();
    let (_target, address) = start(&config);
    let mut host = Host::new(address, &Login::default());
    let mut queue = host.queue(1);
    let batch: Vec<u8> = (0..BLOCKS)
        .flat_map(|block| {
            let sqe = write(1, u64::from(block), 1, true).with_cid(100 + block as u16);
            queue.encode(&Pdu::Command(sqe), &[1; 512])
        })
        .collect();
    queue.stream.write_all(&batch).unwrap();
    let other = Host::new(address, &named("nqn.other"));
    let mut looks = other.queue(1);
    let mut written = || {
        let content = looks.ok(read(1, 0, BLOCKS), &[]);
        content.chunks(512).filter(|block| block[0] == 1).count()
    };
    while written() == 0 {
        thread::sleep(Duration::from_millis(10));
    }
    let disable = Fabrics::PropertySet {
        property: Property::CC,
        value: 0,
    };
    host.admin.ok(disable.sqe(), &[]);
    let before = written();
    assert!(before < BLOCKS as usize);
    // Time in which ten more blocks would be written.
    thread::sleep(Duration::from_secs(1));
    assert_eq!(written(), before);
}

//! Writes, flushes, Write Zeroes and discards.

use straightway_nvme::{
    Sgl, Status,
    nvm::{LbaRange, Nvm, encode_dataset},
};
use straightway_nvme_target::NamespaceSource;

use super::host::{Host, Login, config, file, logins, memory, pattern, read, start, write};

#[test]
fn writes_with_in_capsule_and_requested_data_are_read_back() {
    let (target, address) = start(&memory(8 << 20));
    let mut written = 0;
    for (seed, login) in logins().enumerate() {
        let host = Host::new(address, &login);
        let mut queue = host.queue(1);
        let mut copy = queue.ok(read(1, 0, 8192), &[]);
        for (round, blocks) in [1, 7, 32, 33, 100, 2048, 8192].into_iter().enumerate() {
            let start = ((round * 977) as u64) % (16_384 - u64::from(blocks));
            let data = pattern(blocks as usize * 512, (seed * 100 + round) as u64);
            let is_in_capsule = blocks <= 32;
            queue.ok(write(1, start, blocks, is_in_capsule), &data);
            written += data.len() as u64;
            assert!(queue.ok(read(1, start, blocks), &[]) == data);
            let (from, to) = (start as usize * 512, copy.len());
            if from < to {
                let end = (from + data.len()).min(to);
                copy[from..end].copy_from_slice(&data[..end - from]);
            }
            queue.ok(Nvm::Flush.sqe(1), &[]);
        }
        assert!(queue.ok(read(1, 0, 8192), &[]) == copy, "{login:?}");
    }
    let receipt = target.stop().remove(0);
    assert_eq!((receipt.writes, receipt.written_bytes), (56, written));
}

#[test]
fn several_writes_wait_for_their_data_at_a_time() {
    let (_target, address) = start(&memory(8 << 20));
    let host = Host::new(address, &Login::default());
    let mut queue = host.queue(1);
    let blocks = 256;
    let cids: Vec<_> = (0..31_u64)
        .map(|i| queue.begin(write(1, i * 256, blocks, false), &[]))
        .collect();
    // Their R2Ts arrive in order. The first write is completed last.
    let mut tags = Vec::new();
    for cid in &cids {
        let (pdu, _) = queue.receive().unwrap();
        let straightway_nvme::Pdu::Ready(ready) = pdu else {
            panic!("{pdu:?}");
        };
        assert_eq!(ready.cid, *cid);
        tags.push(ready.tag);
    }
    for (i, (cid, tag)) in cids.iter().zip(tags).enumerate().rev() {
        let data = pattern(blocks as usize * 512, i as u64);
        let part = straightway_nvme::pdu::Data {
            cid: *cid,
            tag,
            offset: 0,
            bytes: blocks * 512,
            is_last: true,
            is_success: false,
        };
        queue.send(&straightway_nvme::Pdu::HostData(part), &data);
        let (pdu, _) = queue.receive().unwrap();
        let straightway_nvme::Pdu::Response(cqe) = pdu else {
            panic!("{pdu:?}");
        };
        assert!(cqe.cid == *cid && cqe.status.is_success());
    }
    for i in 0..31_u64 {
        let expected = pattern(blocks as usize * 512, i);
        assert!(queue.ok(read(1, i * 256, blocks), &[]) == expected);
    }
}

#[test]
fn files_are_read_only_unless_configured() {
    let folder = tempfile::tempdir().unwrap();
    let even = file(folder.path(), "even", &pattern(1 << 20, 1));
    file(folder.path(), "odd", &pattern(1000, 2));
    let sources = vec![
        NamespaceSource::Path(even.clone()),
        NamespaceSource::Path(folder.path().join("odd")),
    ];
    let mut config = config(sources);
    let zero = Nvm::WriteZeroes {
        range: LbaRange::new(0, 1),
        may_deallocate: false,
        is_durable: false,
    };
    {
        let (_target, address) = start(&config);
        let host = Host::new(address, &Login::default());
        let mut queue = host.queue(1);
        for is_in_capsule in [true, false] {
            let status = queue.status(write(1, 0, 1, is_in_capsule), &[1; 512]);
            assert_eq!(status, Status::WRITE_PROTECTED.dnr());
        }
        assert_eq!(queue.status(zero.sqe(1), &[]), Status::WRITE_PROTECTED.dnr());
        assert!(std::fs::read(&even).unwrap() == pattern(1 << 20, 1));
    }
    config.is_writable = true;
    let (_target, address) = start(&config);
    let mut host = Host::new(address, &Login::default());
    let index = host.index();
    let nsid = |name: &[u8]| index.find(name).unwrap().nsid;
    let mut queue = host.queue(1);
    queue.ok(write(nsid(b"even"), 0, 1, true), &[1; 512]);
    let durable = Nvm::Write {
        range: LbaRange::new(1, 1),
        is_durable: true,
    };
    queue.ok(durable.sqe(nsid(b"even")).with_sgl(Sgl::in_capsule(512)), &[2; 512]);
    assert_eq!(
        std::fs::read(&even).unwrap()[..513],
        [[1; 512].as_slice(), &[2]].concat()
    );
    // A file that is not a whole number of blocks stays unchanged.
    let status = queue.status(write(nsid(b"odd"), 0, 1, true), &[1; 512]);
    assert_eq!(status, Status::WRITE_PROTECTED.dnr());
}

#[test]
fn zeros_and_discards_affect_exactly_their_blocks() {
    let (_target, address) = start(&memory(1 << 20));
    let host = Host::new(address, &Login::default());
    let mut queue = host.queue(1);
    let data = pattern(64 * 512, 5);
    queue.ok(write(1, 0, 64, false), &data);
    for may_deallocate in [false, true] {
        let zero = Nvm::WriteZeroes {
            range: LbaRange::new(8, 3),
            may_deallocate,
            is_durable: true,
        };
        queue.ok(zero.sqe(1), &[]);
    }
    let ranges = encode_dataset(&[LbaRange::new(20, 8), LbaRange::new(40, 0)]);
    let dataset = Nvm::Dataset {
        ranges: 2,
        deallocates: true,
    };
    queue.ok(dataset.sqe(1).with_sgl(Sgl::in_capsule(32)), &ranges);
    queue.ok(dataset.sqe(1).with_sgl(Sgl::transport(32)), &ranges);
    // Linux sends a buffer for 256 ranges and uses one.
    let mut roomy = encode_dataset(&[LbaRange::new(30, 1)]);
    roomy.resize(4096, 0);
    let single = Nvm::Dataset {
        ranges: 1,
        deallocates: true,
    };
    queue.ok(single.sqe(1).with_sgl(Sgl::in_capsule(4096)), &roomy);
    let got = queue.ok(read(1, 0, 64), &[]);
    let mut expected = data;
    expected[30 * 512..31 * 512].fill(0);
    expected[8 * 512..11 * 512].fill(0);
    expected[20 * 512..28 * 512].fill(0);
    assert!(got == expected);
    let outside = encode_dataset(&[LbaRange::new(2047, 2)]);
    let one = Nvm::Dataset {
        ranges: 1,
        deallocates: true,
    };
    let status = queue.status(one.sqe(1).with_sgl(Sgl::in_capsule(16)), &outside);
    assert_eq!(status, Status::LBA_RANGE.dnr());
    queue.ok(Nvm::Flush.sqe(u32::MAX), &[]);
    assert_eq!(
        queue.status(Nvm::Compare(LbaRange::new(0, 1)).sqe(1), &[]),
        Status::INVALID_OPCODE.dnr()
    );
}

#[test]
fn access_hints_change_nothing() {
    let (_target, address) = start(&memory(1 << 20));
    let host = Host::new(address, &Login::default());
    let mut queue = host.queue(1);
    let data = pattern(64 * 512, 5);
    queue.ok(write(1, 0, 64, false), &data);
    let ranges = encode_dataset(&[LbaRange::new(0, 32)]);
    let hint = Nvm::Dataset {
        ranges: 1,
        deallocates: false,
    };
    for sgl in [Sgl::in_capsule(16), Sgl::transport(16)] {
        queue.ok(hint.sqe(1).with_sgl(sgl), &ranges);
        assert!(queue.ok(read(1, 0, 64), &[]) == data, "{sgl:?}");
    }
}

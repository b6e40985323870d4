//! The side that boots the guest and compares its reports with QEMU's trace.

use std::{collections::BTreeMap, ops::Range, path::Path, process::Command};

use straightway_core::{Leg, Reason, Receipt, Route};
use straightway_lab::guest::{Dma, Guest, GuestDrive, GuestOutput, NEWEST, Topology, TracedCommand};

use super::{
    case::{Case, WORD, direct},
    inside::FIRST_MARK,
};

/// Shell functions of the scripts: copies by the program, each between two marks, with its receipt and its error.
const COPIES: &str = r#"
through() { # NAME MARK ARGUMENTS...
    name=$1 mark=$2
    shift 2
    echo 3 >/proc/sys/vm/drop_caches
    mark $mark
    straightway copy --json --through p2p:$P "$@" >/tmp/out 2>/tmp/err
    mark $((mark + 1))
    echo "receipt: $name $(tr -d '\n' </tmp/out)"
    echo "error: $name $(tr '\n' ' ' </tmp/err)"
}
into() { # NAME ARGUMENTS...
    name=$1
    shift
    straightway copy --json "$@" p2p:$P >/tmp/out 2>/tmp/err
    echo "receipt: $name $(tr -d '\n' </tmp/out)"
    echo "error: $name $(tr '\n' ' ' </tmp/err)"
}
"#;

const PROOF: &str = r#"
through first 1 --to-device $A $C
through drive 3 --to-device $A $C
through to-file 5 $A /mnt/ext4/first
through to-file-again 7 $A /mnt/ext4/one
through file-first 9 /mnt/ext4/one /mnt/ext4/two
through file 25 /mnt/ext4/one /mnt/ext4/two
cmp $A $C && cmp $A /mnt/ext4/one && cmp $A /mnt/ext4/two && echo "equal: all"
cat /run/straightway/p2p-proofs | wc -l
cat /sys/bus/pci/devices/$P/p2pmem/available
"#;

const REFUSED: &str = r#"
through virtio 11 --to-device $V $C
modprobe brd rd_nr=1 rd_size=16384
through to-ram 13 --to-device $A /dev/ram0
losetup /dev/loop0 /mnt/ext4/one
through loop 15 --to-device /dev/loop0 $C
mdadm --create /dev/md0 --run --metadata=1.2 --level=0 --raid-devices=2 $C $E >/dev/null 2>&1
through md 23 --to-device $A /dev/md0
cmp -s -n 16777216 $A /dev/md0 && echo "equal: md"
mdadm --stop /dev/md0 >/dev/null 2>&1
mdadm --create /dev/md0 --run --assume-clean --metadata=1.2 --level=1 --raid-devices=2 $C $E >/dev/null 2>&1
dd if=$A of=/mnt/ext4/half bs=1M count=8 2>/dev/null
sync
through mirror 27 --to-device /mnt/ext4/half /dev/md0
cmp -s -n 8388608 $A /dev/md0 && echo "equal: mirror"
mdadm --stop /dev/md0 >/dev/null 2>&1
dmsetup --noudevsync create linear --table "0 32768 linear $E 0"
through dm 17 --to-device $A /dev/dm-0
dd if=/dev/zero of=/mnt/tmp/file bs=1M count=1 2>/dev/null
through tmpfs 19 /mnt/tmp/file /mnt/ext4/x
cd /sys/kernel/config/nvmet
mkdir -p subsystems/nqn.t/namespaces/1 ports/1
echo 1 >subsystems/nqn.t/attr_allow_any_host
echo -n $E >subsystems/nqn.t/namespaces/1/device_path
dmsetup --noudevsync remove linear
echo 1 >subsystems/nqn.t/namespaces/1/enable
echo tcp >ports/1/addr_trtype
echo ipv4 >ports/1/addr_adrfam
echo 127.0.0.1 >ports/1/addr_traddr
echo 4420 >ports/1/addr_trsvcid
ln -s /sys/kernel/config/nvmet/subsystems/nqn.t ports/1/subsystems/nqn.t
U=11111111-2222-3333-4444-555555555555
own=hostnqn=nqn.2014-08.org.nvmexpress:uuid:$U,hostid=$U
echo "transport=tcp,traddr=127.0.0.1,trsvcid=4420,nqn=nqn.t,$own" >/dev/nvme-fabrics
cd /
for controller in /sys/class/nvme/nvme*; do grep -q tcp $controller/transport && number=${controller##*/nvme}; done
for _ in $(seq 50); do [ -b /dev/nvme${number}n1 ] && break; sleep 0.1; done
through tcp 21 --to-device /dev/nvme${number}n1 $C
into region $A
into region-buffered --route buffered $A
into region-virtio $V
into region-virtio-direct --route direct $V
into region-tmpfs /mnt/tmp/file
httpd -p 127.0.0.1:80 -h /mnt/ext4
into region-web http://127.0.0.1/one
truncate -s 1M /mnt/ext4/hole
dd if=$A of=/mnt/ext4/hole bs=4096 count=16 conv=notrunc 2>/dev/null
sync
into region-hole /mnt/ext4/hole
straightway copy --json $A p2p:0000:00:00.0 >/tmp/out 2>/tmp/err
echo "error: no-provider $(tr '\n' ' ' </tmp/err)"
straightway doctor --json /mnt/ext4 >/tmp/out 2>/tmp/err
echo "doctor: $(tr -d '\n' </tmp/out)"
"#;

/// Programs that some cases need.
const OPTIONAL: [(&str, &str); 2] = [("dmsetup", "/usr/sbin/dmsetup"), ("mdadm", "/usr/sbin/mdadm")];

fn boot(series: &str, topology: Topology, script: &str) -> Option<GuestOutput> {
    if !Guest::is_possible(series) {
        return None;
    }
    let own = std::env::current_exe().unwrap();
    let mut programs: Vec<(&str, &Path)> = vec![
        ("straightway", Path::new(env!("CARGO_BIN_EXE_straightway"))),
        ("guest", &own),
    ];
    for (name, path) in OPTIONAL {
        if Path::new(path).exists() {
            programs.push((name, Path::new(path)));
        } else {
            eprintln!("left out: {name} in the guest: it is not installed (package {name})");
        }
    }
    let guest = Guest {
        series,
        topology,
        programs: &programs,
        modules: &[
            "brd",
            "loop",
            "dm_mod",
            "nvmet",
            "nvmet_tcp",
            "nvme_tcp",
            "raid0",
            "raid1",
        ],
        script,
    };
    let ran = guest.run().unwrap();
    // The log is shown if a test fails.
    eprintln!("{}", ran.log);
    Some(ran)
}

/// The receipts that the script printed, by name.
fn receipts(ran: &GuestOutput) -> BTreeMap<&str, Receipt> {
    let lines = ran.said("receipt: ").filter_map(|line| line.split_once(' '));
    let parsed = lines.filter_map(|(name, json)| Some((name, serde_json::from_str(json).ok()?)));
    parsed.collect()
}

fn error<'a>(ran: &'a GuestOutput, name: &str) -> &'a str {
    let mut lines = ran.said("error: ").filter_map(|line| line.split_once(' '));
    lines.find(|(n, _)| *n == name).map_or("", |(_, text)| text)
}

/// The byte ranges of a file on drive D.
fn on_drive(ran: &GuestOutput, file: &str) -> Vec<Range<u64>> {
    let out = Command::new("debugfs")
        .args(["-R", &format!("ex /{file}")])
        .arg(ran.image(GuestDrive::D))
        .output()
        .unwrap();
    // Level, entries, logical, physical, length. At the last level these are blocks of data.
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let extent = |line: &str| {
        let numbers: Vec<u64> = line
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|word| word.parse().ok())
            .collect();
        let [level, levels, _, _, _, _, first, last, ..] = numbers[..] else {
            return None;
        };
        (level == levels).then_some(first * 4096..(last + 1) * 4096)
    };
    text.lines().skip(1).filter_map(extent).collect()
}

/// The DMA of the drives between two marks. On drive D only the data of `files` counts.
fn dma(ran: &GuestOutput, mark: u64, files: &[&str]) -> Dma {
    let mut data: Vec<_> = files.iter().flat_map(|file| on_drive(ran, file)).collect();
    data.sort_unstable_by_key(|part| part.start);
    // The kernel merges adjacent extents into one command.
    data.dedup_by(|next, last| {
        let follows = next.start == last.end;
        if follows {
            last.end = next.end;
        }
        follows
    });
    let is_payload = |command: &&TracedCommand| {
        let inside = |part: &Range<u64>| part.start <= command.at.start && command.at.end <= part.end;
        match command.drive {
            GuestDrive::M => false,
            GuestDrive::D => data.iter().any(inside),
            _ => true,
        }
    };
    Dma::of(ran.trace.between(mark, mark + 1).iter().filter(is_payload))
}

/// Copies from drive to drive, to a file and from file to file, in one boot.
fn check_copies(ran: &GuestOutput) {
    let receipts = receipts(ran);
    assert!(ran.log.contains("equal: all"), "{}", ran.log);
    for (name, mark, files) in [
        ("drive", 3, &[][..]),
        ("to-file-again", 7, &["one"]),
        ("file", 25, &["one", "two"]),
    ] {
        let receipt = receipts.get(name).unwrap_or_else(|| panic!("{name}: {}", ran.log));
        assert_eq!(receipt.bytes, 16 << 20, "{name}");
        for leg in [Leg::Read, Leg::Write] {
            assert_eq!(direct(receipt, leg), receipt.bytes, "{name}: {receipt:?}");
        }
        let seen = dma(ran, mark, files);
        assert_eq!(
            seen,
            Dma {
                bar: receipt.storage_bytes,
                host: 0
            },
            "{name}"
        );
        assert_eq!(receipt.storage_bytes, 2 * receipt.bytes, "{name}");
    }
    // The first copy between two drives also compared a block of each through host memory.
    let first = dma(ran, 1, &[]);
    let proof = 2 * 4096;
    assert_eq!(
        first,
        Dma {
            bar: (32 << 20) + proof,
            host: proof
        }
    );
}

fn check_refusals(ran: &GuestOutput) {
    for (name, words) in [
        ("virtio", "the driver of vda (virtio) does not support peer-to-peer DMA"),
        (
            "to-ram",
            "the driver of ram0 (memory) does not support peer-to-peer DMA",
        ),
        ("loop", "the driver of loop0 (loop) does not support peer-to-peer DMA"),
        ("dm", "(device mapper) does not support peer-to-peer DMA"),
        ("tcp", "(NVMe over fabrics) does not support peer-to-peer DMA"),
        ("tmpfs", "its file system has no O_DIRECT"),
        ("region-virtio-direct", "does not support peer-to-peer DMA"),
        ("no-provider", "has no peer-to-peer memory (p2pmem)"),
    ] {
        if name == "dm" && !Path::new(OPTIONAL[0].1).exists() {
            continue;
        }
        let seen = error(ran, name);
        assert!(seen.contains(words), "{name}: {seen}\n{}", ran.log);
    }
    let receipts = receipts(ran);
    let rows = |name: &str| -> Vec<(Route, Reason, u64)> {
        let receipt = receipts.get(name).unwrap_or_else(|| panic!("{name}: {}", ran.log));
        receipt.routes.iter().map(|r| (r.route, r.reason, r.bytes)).collect()
    };
    let all = 16 << 20;
    if Path::new(OPTIONAL[1].1).exists() {
        // Since Linux 7.2 md passes peer-to-peer DMA on to its members.
        for (name, bytes) in [("md", all), ("mirror", 8 << 20)] {
            let is_equal = ran.said("equal: ").any(|one| one == name);
            assert!(is_equal, "{name}: {}", ran.log);
            let expected = (Route::Direct, Reason::ComparedP2pdma, bytes);
            assert_eq!(rows(name), [expected, expected], "{name}");
        }
    }
    // A receive into BAR memory succeeds too. It is a copy by the CPU.
    assert_eq!(rows("region-web"), [(Route::Socket, Reason::Tcp, all)]);
    assert_eq!(rows("region"), [(Route::Direct, Reason::ComparedP2pdma, all)]);
    assert_eq!(rows("region-buffered"), [(Route::Buffered, Reason::Demanded, all)]);
    assert_eq!(rows("region-virtio"), [(Route::Staged, Reason::NotProven, all)]);
    assert!(receipts["region-virtio"].warnings[0].contains("does not support peer-to-peer DMA"));
    assert_eq!(rows("region-tmpfs"), [(Route::Buffered, Reason::NoDirectIo, 1 << 20)]);
    let hole = [
        (Route::Direct, Reason::ComparedP2pdma, 65_536),
        (Route::Staged, Reason::Hole, (1 << 20) - 65_536),
    ];
    assert_eq!(rows("region-hole"), hole);
}

fn check_doctor(ran: &GuestOutput) {
    let line = ran.said("doctor: ").next().unwrap_or_default();
    let seen: serde_json::Value = serde_json::from_str(line).unwrap();
    let find = |id: &str| {
        let mut checks = seen["checks"].as_array().unwrap().iter();
        let check = checks.find(|check| check["id"] == id).unwrap();
        format!(
            "{} {}",
            check["state"].as_str().unwrap(),
            check["seen"].as_str().unwrap()
        )
    };
    assert!(
        find("peer.memory").starts_with("pass p2p:0000:"),
        "{}",
        find("peer.memory")
    );
    assert!(find("peer.drive").starts_with("pass nvme"), "{}", find("peer.drive"));
    assert!(
        find("peer.path").starts_with("pass below one switch with p2p:"),
        "{}",
        find("peer.path")
    );
    assert!(
        find("kernel.version").starts_with("pass 7."),
        "{}",
        find("kernel.version")
    );
}

#[test]
fn below_a_switch_copies_use_only_the_bar_and_others_are_refused_with_the_cause() {
    let script = format!("{COPIES}{PROOF}{REFUSED}");
    let Some(ran) = boot(NEWEST, Topology::Switch, &script) else {
        return;
    };
    check_copies(&ran);
    check_refusals(&ran);
    check_doctor(&ran);
}

#[test]
fn through_the_root_complex_copies_and_a_hundred_mixes_agree_with_the_trace_byte_for_byte() {
    let run = "guest --ignored --exact inside::mixes --nocapture --test-threads 1\n";
    let script = format!("{COPIES}{PROOF}{run}");
    let Some(ran) = boot(NEWEST, Topology::Root, &script) else {
        return;
    };
    check_copies(&ran);
    let cases: Vec<Case> = ran.said(WORD).map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(cases.len(), 100, "{}", ran.log);
    for case in &cases {
        assert!(case.is_equal && case.mark >= FIRST_MARK, "{case:?}");
        let files: Vec<_> = case.files.iter().map(String::as_str).collect();
        let expected = Dma {
            bar: case.bar_bytes,
            host: case.host_bytes,
        };
        assert_eq!(dma(&ran, case.mark, &files), expected, "{case:?}");
    }
    let direct: u64 = cases.iter().map(|case| case.bar_bytes).sum();
    assert!(direct > 4 << 20, "few mixes went by DMA: {direct}");
}

#[test]
fn drives_without_an_allowed_path_are_refused_and_the_error_says_so() {
    let script = format!("{COPIES}through refused 1 --to-device $A $C\ninto region $A\n");
    let Some(ran) = boot(NEWEST, Topology::Refused, &script) else {
        return;
    };
    let seen = error(&ran, "refused");
    assert!(seen.contains("allows no path between"), "{seen}");
    let receipts = receipts(&ran);
    let routes = &receipts["region"].routes;
    assert_eq!((routes[0].route, routes[0].reason), (Route::Staged, Reason::NotProven));
    assert_eq!(routes[0].bytes, 16 << 20);
}

/// Fakes the version of the kernel, so that the comparison runs although the real version would be refused.
const DISGUISE: &str = "
echo 6.17.0 >/tmp/release
mount --bind /tmp/release /proc/sys/kernel/osrelease
";

#[test]
fn linux_6_16_is_refused_by_its_version_and_its_wrong_bytes_are_seen_by_the_comparison() {
    let script = format!(
        "{COPIES}through version 1 --to-device $A $C\ninto known $A\n{DISGUISE}\
         through compared 3 --to-device $A $C\ninto disguised $A\ninto disguised-direct --route direct $A\n"
    );
    let Some(ran) = boot("6.16", Topology::Root, &script) else {
        return;
    };
    for (name, words) in [
        ("version", "gives drives wrong addresses"),
        ("compared", "bytes are wrong"),
        ("disguised-direct", "bytes are wrong"),
    ] {
        let seen = error(&ran, name);
        assert!(seen.contains(words), "{name}: {seen}\n{}", ran.log);
    }
    // With the automatic route, the bytes go through host memory, and the receipt says why.
    let receipts = receipts(&ran);
    for (name, warning) in [
        ("known", "gives drives wrong addresses"),
        ("disguised", "bytes are wrong"),
    ] {
        let receipt = &receipts[name];
        let rows: Vec<_> = receipt.routes.iter().map(|r| (r.route, r.bytes)).collect();
        assert_eq!(rows, [(Route::Staged, 16 << 20)], "{name}");
        assert!(receipt.warnings[0].contains(warning), "{receipt:?}");
    }
}

#[test]
fn linux_6_18_moves_by_the_bar_and_refuses_md_with_its_cause() {
    let md = "mdadm --create /dev/md0 --run --metadata=1.2 --level=0 --raid-devices=2 $C $E >/dev/null 2>&1\n\
              through md 27 --to-device $A /dev/md0\n";
    let Some(ran) = boot("6.18", Topology::Switch, &format!("{COPIES}{PROOF}{md}")) else {
        return;
    };
    check_copies(&ran);
    if Path::new(OPTIONAL[1].1).exists() {
        let seen = error(&ran, "md");
        assert!(seen.contains("md passes peer-to-peer DMA on since Linux 7.2"), "{seen}");
    }
}

//! NVMe/TCP with Linux's own host and target, in a guest under QEMU. One boot runs all cases, since a boot takes longer
//! than they do; each prints `case: NAME: ok` or an error.

use std::{path::Path, time::Duration};

use straightway_lab::guest::{Guest, NEWEST, NetworkGuest};

const MODULES: [&str; 8] = [
    "nvme_tcp",
    "nvmet_tcp",
    "nvme_auth",
    "brd",
    "dh_generic",
    "hmac",
    "sha256",
    "sha512",
];

/// The required cases: a script that stops early proves nothing.
const CASES: [&str; 23] = [
    "discover",
    "read, no digests",
    "read, header digest",
    "read, data digest",
    "read, both digests",
    "read, no flow control",
    "read-only",
    "added",
    "resized",
    "removed",
    "write, fio",
    "write, discard and zeros",
    "authentication",
    "allow-list",
    "killed and back",
    "failover",
    "our host reads",
    "our host reads, both digests",
    "our host writes",
    "our host, wrong name",
    "our host authenticates",
    "our host, wrong secret",
    "our host, our target",
];

#[test]
fn linux_and_our_host_and_target_interoperate() {
    let nvme = Path::new("/usr/sbin/nvme");
    let fio = Path::new("/usr/bin/fio");
    for (program, package) in [(nvme, "nvme-cli"), (fio, "fio")] {
        if !program.exists() {
            eprintln!("skipped: {package} is not installed");
            return;
        }
    }
    if !Guest::is_possible(NEWEST) {
        return;
    }
    let guest = NetworkGuest {
        programs: &[
            ("straightway", Path::new(env!("CARGO_BIN_EXE_straightway"))),
            ("nvme", nvme),
            ("fio", fio),
        ],
        modules: &MODULES,
        script: concat!(include_str!("host.sh"), include_str!("kernel_target.sh")),
        time_max: Duration::from_mins(7),
    };
    let log = guest.run().unwrap();
    let said: Vec<_> = log.lines().filter_map(|line| line.strip_prefix("case: ")).collect();
    for case in CASES {
        let expected = format!("{case}: ok");
        assert!(said.contains(&expected.as_str()), "{case}\n{log}");
    }
    let wrong: Vec<_> = said.iter().filter(|line| !line.ends_with(": ok")).collect();
    assert!(wrong.is_empty(), "{wrong:?}\n{log}");
}

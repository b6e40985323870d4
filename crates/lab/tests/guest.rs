//! The guest of the tests boots, runs what it is given, and its trace tells where the drives' DMA went.

use std::fs;

use straightway_lab::guest::{Dma, Drive, Guest, Topology};

#[test]
fn a_guest_runs_a_script_and_its_trace_tells_what_the_drives_did() {
    if !Guest::is_possible() {
        return;
    }
    let script = "
mark 1
dd if=$A of=$C bs=65536 skip=16 count=1 iflag=direct oflag=direct 2>/dev/null
mark 2
cat /sys/bus/pci/devices/$P/p2pmem/size
";
    let guest = Guest {
        topology: Topology::Switch,
        programs: &[],
        modules: &[],
        script,
    };
    let ran = guest.run().unwrap();
    assert!(ran.log.contains("67108864"), "{}", ran.log);
    let seen = ran.trace.between(1, 2);
    let of = |drive| Dma::of(seen.iter().filter(|c| c.drive == drive));
    let expected = Dma {
        bar: 0,
        host: 65_536,
    };
    assert_eq!((of(Drive::A), of(Drive::C)), (expected, expected));
    let sink = fs::read(ran.image(Drive::C)).unwrap();
    let source = fs::read(ran.image(Drive::A)).unwrap();
    assert!(sink[..65_536] == source[1 << 20..][..65_536]);
}

//! CPU affinity of lanes: they run on the CPUs of their GPU's NUMA node.
//!
//! A ring's memory is on the NUMA node of the thread that first touches it; from the other socket every byte would
//! cross the link between the two. On machines without topology information (most virtual ones), lanes stay where the
//! kernel puts them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use straightway_sys::{cpus::parse_cpus, cuda::Device, root::Root};

/// The CPUs near a GPU; none if nothing is known or all are equally near.
pub(crate) fn cpus_near(device: Device) -> Vec<usize> {
    let address = device.pci_address().ok();
    let cpus = address.and_then(|address| cpus_at(&Root::machine(), &address));
    cpus.unwrap_or_default()
}

/// The CPUs of a PCI device's NUMA node. Firmware that does not know the node reports -1.
fn cpus_at(root: &Root, address: &str) -> Option<Vec<usize>> {
    let nodes = "/sys/devices/system/node";
    let is_node = |name: &&String| name.strip_prefix("node").is_some_and(|n| n.parse::<u32>().is_ok());
    if root.list(nodes).iter().filter(is_node).count() < 2 {
        return None;
    }
    // Some NVIDIA tools write the domain with eight digits, sysfs with four.
    let (domain, rest) = address.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    let node: u32 = root.value(format!("/sys/bus/pci/devices/{domain:04x}:{rest}/numa_node"))?;
    parse_cpus(&root.text(format!("{nodes}/node{node}/cpulist"))?)
}

/// Restricts the calling thread to those of `cpus` that it may use. If there are none, or the kernel refuses, nothing
/// changes: that costs only speed.
pub(crate) fn stay_on(cpus: &[usize]) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let mut near = CpuSet::new();
    for &cpu in cpus {
        if cpu < CpuSet::MAX_CPU && allowed.is_set(cpu) {
            near.set(cpu);
        }
    }
    if near.count() == 0 {
        return;
    }
    match sched_setaffinity(None, &near) {
        Ok(()) => tracing::debug!(cpus = near.count(), "a lane sits near its GPU"),
        Err(errno) => tracing::debug!(%errno, "a lane could not be put near its GPU"),
    }
}

#[cfg(test)]
mod tests {
    use straightway_standin::expand;

    use super::*;

    #[test]
    fn lanes_of_a_gpu_run_on_the_cpus_of_its_node() {
        let machine = |manifest: &str, address: &str| {
            let folder = tempfile::tempdir().unwrap();
            expand(manifest, folder.path()).unwrap();
            cpus_at(&Root::at(folder.path()), address)
        };
        let dgx = include_str!("../../probe/fixtures/dgx-h100.txt");
        for address in ["0000:9a:00.0", "00000000:9a:00.0"] {
            let near = machine(dgx, address).unwrap();
            assert_eq!((near.len(), near[0], near[111]), (112, 56, 223));
        }
        let alone = include_str!("../../probe/fixtures/virtual-machine.txt");
        assert_eq!(machine(alone, "0000:00:01.0"), None, "there is one node only");
        assert_eq!(machine(dgx, "0000:ff:1f.7"), None, "there is no such device");
    }

    #[test]
    fn a_thread_stays_on_the_given_cpus_and_ignores_those_it_may_not_use() {
        std::thread::spawn(|| {
            let before = sched_getaffinity(None).unwrap();
            let one = (0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu)).unwrap();
            stay_on(&[CpuSet::MAX_CPU + 7]);
            assert!(sched_getaffinity(None).unwrap() == before);
            stay_on(&[one, CpuSet::MAX_CPU - 1]);
            let now = sched_getaffinity(None).unwrap();
            assert!(now.is_set(one) && now.count() == 1);
        })
        .join()
        .unwrap();
    }
}

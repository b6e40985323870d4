//! Lanes sit near the GPU they serve: on the CPUs of its NUMA node.
//!
//! A ring is faulted in by the thread that makes it, so where the thread sits decides where the
//! ring's memory is; on the far socket every byte would cross the link between the two. Machines
//! that do not say where things are (most virtual ones) leave lanes where the kernel puts them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use straightway_sys::{
    cuda::Device,
    root::Root,
    topology::{PciAddress, Topology},
};

/// The CPUs to serve a GPU from; none where nothing is known or all are equally near.
pub(crate) fn cpus_near(device: Device) -> Vec<usize> {
    let Some(address) = device
        .pci_address()
        .ok()
        .and_then(|text| text.parse::<PciAddress>().ok())
    else {
        return Vec::new();
    };
    // Reading the whole tree takes a while, and with one node there is nothing to choose.
    let root = Root::machine();
    let nodes = root.list("/sys/devices/system/node");
    if nodes.iter().filter(|name| is_node(name)).count() < 2 {
        return Vec::new();
    }
    Topology::read(&root).cpus_near(address).to_vec()
}

fn is_node(name: &str) -> bool {
    name.strip_prefix("node")
        .is_some_and(|rest| rest.parse::<u32>().is_ok())
}

/// Keeps the calling thread on those of `cpus` that it may use at all. Where there are none, or the
/// kernel refuses, it stays where it is: that costs speed and nothing else.
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
    use super::*;

    #[test]
    fn a_thread_stays_on_the_cpus_it_was_given_and_ignores_those_it_may_not_use() {
        std::thread::spawn(|| {
            let before = sched_getaffinity(None).unwrap();
            let one = (0..CpuSet::MAX_CPU)
                .find(|cpu| before.is_set(*cpu))
                .unwrap();
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

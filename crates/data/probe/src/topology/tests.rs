//! Distances on the fixture machines.

use straightway_standin::expand;

use super::*;

const DGX: &str = include_str!("../../fixtures/dgx-h100.txt");
const TWO_SOCKETS: &str = include_str!("../../fixtures/two-sockets.txt");
const VIRTUAL: &str = include_str!("../../fixtures/virtual-machine.txt");

fn topology(manifest: &str) -> MachineTopology {
    let folder = tempfile::tempdir().unwrap();
    expand(manifest, folder.path()).unwrap();
    MachineTopology::read(&Root::at(folder.path()))
}

fn addresses(topology: &MachineTopology, kind: PciKind) -> Vec<PciAddress> {
    topology.of_kind(kind).map(|device| device.address).collect()
}

fn at(text: &str) -> PciAddress {
    text.parse().unwrap()
}

/// The nearest of `candidates`.
fn nearest(topology: &MachineTopology, to: PciAddress, candidates: &[PciAddress]) -> PciAddress {
    let mut near = candidates.to_vec();
    near.sort_by_key(|at| topology.distance(to, *at));
    assert!(topology.distance(to, near[0]) < topology.distance(to, near[1]));
    near[0]
}

#[test]
fn each_gpu_of_a_dgx_has_a_drive_and_an_adapter_on_its_own_switch() {
    let dgx = topology(DGX);
    let gpus = addresses(&dgx, PciKind::Gpu);
    assert_eq!(gpus.len(), 8);
    for kind in [PciKind::Nvme, PciKind::Nic] {
        for gpu in &gpus {
            let near = nearest(&dgx, *gpu, &addresses(&dgx, kind));
            assert_eq!(dgx.distance(*gpu, near), Distance::Switch);
            let (gpu, near) = (dgx.device(*gpu), dgx.device(near));
            assert_eq!(gpu.unwrap().bridges[..2], near.unwrap().bridges[..2]);
        }
    }
}

#[test]
fn distances_on_a_dgx_grow_from_switch_to_socket() {
    let dgx = topology(DGX);
    let gpu = at("0000:18:00.0");
    assert_eq!(dgx.distance(gpu, at("0000:1a:00.0")), Distance::Switch);
    assert_eq!(dgx.distance(gpu, at("0000:3c:00.0")), Distance::Node);
    assert_eq!(dgx.distance(gpu, at("0000:9c:00.0")), Distance::Across);
    assert_eq!(dgx.distance(gpu, at("0000:ff:1f.7")), Distance::Across);
    let adapters = addresses(&dgx, PciKind::Nic);
    assert_eq!(nearest(&dgx, gpu, &adapters), at("0000:19:00.0"));
}

#[test]
fn with_drives_on_the_wrong_socket_the_near_one_is_nearest() {
    let server = topology(TWO_SOCKETS);
    let (gpus, drives) = (addresses(&server, PciKind::Gpu), addresses(&server, PciKind::Nvme));
    let near = at("0000:81:00.0");
    for gpu in &gpus {
        assert_eq!(nearest(&server, *gpu, &drives), near);
    }
}

#[test]
fn two_nodes_of_one_socket_are_nearer_than_two_sockets() {
    let server = topology(TWO_SOCKETS);
    let (gpu, near, far) = (at("0000:91:00.0"), at("0000:81:00.0"), at("0000:41:00.0"));
    assert_eq!(server.distance(gpu, near), Distance::Socket);
    assert_eq!(server.distance(gpu, far), Distance::Across);
    assert!(server.device(at("0000:21:00.0")).unwrap().link.unwrap().is_narrow());
}

#[test]
fn a_virtual_machine_without_numa_information_is_one_node() {
    let machine = topology(VIRTUAL);
    let gpus = addresses(&machine, PciKind::Gpu);
    let (disk, adapter) = (at("0000:00:01.0"), at("0000:00:03.0"));
    assert_eq!(machine.distance(gpus[0], disk), Distance::Root);
    assert_eq!(machine.device(gpus[0]).unwrap().numa_node, Some(0));
    assert_eq!(machine.device(adapter).unwrap().kind, PciKind::Nic);
}

#[test]
fn nothing_to_read_is_an_empty_topology() {
    let empty = topology("/sys/\n");
    assert_eq!(empty, MachineTopology::default());
}

#[test]
fn addresses_are_read_as_the_kernel_and_as_nvidia_writes_them() {
    assert_eq!(at("00000000:19:00.0"), at("0000:19:00.0"));
    assert_eq!(at("10000:e0:06.1").to_string(), "10000:e0:06.1");
    for wrong in [
        "",
        "0000:19:00",
        "0000:19:20.0",
        "0000:19:00.8",
        "19:00.0",
        "0000:19:0.0",
    ] {
        assert!(wrong.parse::<PciAddress>().is_err(), "{wrong}");
    }
}

//! Checks of the network between the machine and its storage: RDMA adapters, NVMe over fabrics.

use std::path::PathBuf;

use straightway_core::text::shell_word;
use straightway_sys::root::Root;

use super::{
    check::{Check, Layer, Outcome, list},
    cufile_path::ADVICE,
    facts::{Facts, major_minor},
};

/// The minimum MTU for RoCE: 4096 bytes of payload with their headers.
const ROCE_MTU_MIN: u32 = 4200;
/// Jumbo frames, which NVMe over TCP needs for its 4 KiB blocks and fewer interrupts.
const TCP_MTU_MIN: u32 = 9000;
/// More than one pause frame in a thousand frames indicates a receiver that cannot keep up.
const PAUSE_SHARE_MAX: f64 = 1e-3;
/// Counters of a port that stay 0 on a healthy network, by their sysfs path.
const LOSS_COUNTERS: [&str; 9] = [
    "counters/symbol_error",
    "counters/link_downed",
    "counters/port_rcv_errors",
    "counters/port_xmit_discards",
    "hw_counters/out_of_sequence",
    "hw_counters/packet_seq_err",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/rnr_nak_retry_err",
    "hw_counters/rx_icrc_encapsulated",
];

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "fabric.links",
        layer: Layer::Fabric,
        title: "RDMA links",
        ways: ADVICE,
        why: "the traffic of a port that is down moves to other ports or stops",
        mend: "check the cable and the switch port; see `ibstat`, `rdma link`",
        look: look_links,
    },
    Check {
        id: "fabric.rate",
        layer: Layer::Fabric,
        title: "RDMA rate",
        ways: ADVICE,
        why: "a port slower than the others slows every collective and every striped transfer",
        mend: "reseat or replace the cable; `mlxlink -d DEVICE` shows why it trained down",
        look: look_rate,
    },
    Check {
        id: "fabric.peer",
        layer: Layer::Fabric,
        title: "GPU memory over RDMA",
        ways: ADVICE,
        why: "adapters reach GPU memory through nvidia_peermem or dma-buf; without either, network \
              storage is copied through host memory",
        mend: "sudo modprobe nvidia_peermem, or use an open driver on Linux 5.12 or later for dma-buf",
        look: look_peer,
    },
    Check {
        id: "fabric.nvmeof",
        layer: Layer::Fabric,
        title: "NVMe over fabrics",
        ways: ADVICE,
        why: "a controller that is not live is reconnecting: I/O to it waits",
        mend: "nvme list-subsys, then nvme connect again or check the target",
        look: look_nvmeof,
    },
    Check {
        id: "fabric.mtu",
        layer: Layer::Fabric,
        title: "MTU",
        ways: ADVICE,
        why: "small frames cost more headers and interrupts: RoCE then sends 1 KiB payloads, and \
              NVMe over TCP splits each block",
        mend: "sudo ip link set dev INTERFACE mtu 9000, also on the switches",
        look: look_mtu,
    },
    Check {
        id: "fabric.loss",
        layer: Layer::Fabric,
        title: "loss and errors",
        ways: ADVICE,
        why: "RDMA resends everything since a lost packet: a few losses cost most of the rate",
        mend: "for symbol errors check cables, for others PFC and ECN on every hop; counters start at \
               boot, so check whether they grow",
        look: look_loss,
    },
    Check {
        id: "fabric.pause",
        layer: Layer::Fabric,
        title: "pause frames",
        ways: ADVICE,
        why: "a pause frame means that a receiver or switch could not keep up and paused the sender",
        mend: "find the slow receiver (PCIe link, NUMA node, small buffers); use ECN before PFC",
        look: look_pause,
    },
];

/// A port of an RDMA adapter.
struct Port {
    /// For example `mlx5_0/1`.
    name: String,
    folder: PathBuf,
    state: String,
    /// For example `400 Gb/sec (4X NDR)`.
    rate: String,
    is_ethernet: bool,
}

impl Port {
    fn all(root: &Root) -> Vec<Self> {
        let mut ports = Vec::new();
        for device in root.list("/sys/class/infiniband") {
            let base = PathBuf::from("/sys/class/infiniband").join(&device).join("ports");
            for port in root.list(&base) {
                let folder = base.join(&port);
                let text = |name: &str| root.text(folder.join(name)).unwrap_or_default();
                ports.push(Self {
                    name: format!("{device}/{port}"),
                    state: text("state"),
                    rate: text("rate"),
                    is_ethernet: text("link_layer") == "Ethernet",
                    folder,
                });
            }
        }
        ports
    }

    fn is_active(&self) -> bool {
        self.state.contains("ACTIVE")
    }

    fn rate_gbit(&self) -> Option<f64> {
        self.rate.split_whitespace().next()?.parse().ok()
    }
}

fn look_links(facts: &Facts<'_>) -> Outcome {
    let ports = Port::all(facts.root);
    if ports.is_empty() {
        return Outcome::skip("no RDMA adapter");
    }
    let down: Vec<String> = ports
        .iter()
        .filter(|port| !port.is_active())
        .map(|port| {
            // "1: DOWN"
            let state = port.state.split(' ').next_back().unwrap_or_default();
            format!("{} is {}", port.name, state.to_lowercase())
        })
        .collect();
    if down.is_empty() {
        Outcome::pass(format!("{} ports active", ports.len()))
    } else {
        let active = ports.len() - down.len();
        let down = list(down.into_iter());
        Outcome::warn(format!("{down}; {active} of {} ports active", ports.len()))
    }
}

fn look_rate(facts: &Facts<'_>) -> Outcome {
    let ports = Port::all(facts.root);
    let active: Vec<(&Port, f64)> = ports
        .iter()
        .filter(|port| port.is_active())
        .filter_map(|port| Some((port, port.rate_gbit()?)))
        .collect();
    let Some(best) = active.iter().map(|(_, rate)| *rate).reduce(f64::max) else {
        return Outcome::skip("no active RDMA port");
    };
    // A single lane is always a fault; a lower rate is a fault only if most ports have the higher one.
    let most = active.iter().filter(|(_, rate)| *rate >= best).count() * 2 > active.len();
    let slow: Vec<String> = active
        .iter()
        .filter(|(port, rate)| port.rate.contains("(1X") || (most && *rate < best))
        .map(|(port, _)| format!("{} runs at {}", port.name, port.rate))
        .collect();
    if slow.is_empty() {
        Outcome::pass(format!("up to {best} Gb/s"))
    } else {
        Outcome::warn(format!("{}; others at {best} Gb/s", list(slow.into_iter())))
    }
}

fn look_peer(facts: &Facts<'_>) -> Outcome {
    if facts.gpus.is_empty() || facts.root.list("/sys/class/infiniband").is_empty() {
        return Outcome::skip("only with a GPU and an RDMA adapter");
    }
    let is_open = facts.driver.as_ref().is_some_and(|driver| driver.is_open);
    let kernel = facts.kernel.release.as_deref().and_then(major_minor);
    if facts.has_module("nvidia_peermem") {
        Outcome::pass("nvidia_peermem is loaded")
    } else if is_open && kernel.is_some_and(|version| version >= (5, 12)) {
        Outcome::pass("dma-buf, by the open driver")
    } else {
        Outcome::warn("neither nvidia_peermem nor dma-buf")
    }
}

/// The NVMe over fabrics controllers: name, transport, state.
fn connections(root: &Root) -> Vec<(String, String, String)> {
    let base = PathBuf::from("/sys/class/nvme");
    root.list(&base)
        .into_iter()
        .filter_map(|name| {
            let text = |file: &str| root.text(base.join(&name).join(file));
            let transport = text("transport").filter(|transport| transport != "pcie")?;
            let state = text("state").unwrap_or_default();
            Some((name.clone(), transport, state))
        })
        .collect()
}

fn look_nvmeof(facts: &Facts<'_>) -> Outcome {
    let connections = connections(facts.root);
    if connections.is_empty() {
        return Outcome::skip("no connection");
    }
    let waiting: Vec<String> = connections
        .iter()
        .filter(|(_, _, state)| state != "live")
        .map(|(name, transport, state)| format!("{name} over {transport} is {state}"))
        .collect();
    if waiting.is_empty() {
        let (_, transport, _) = &connections[0];
        Outcome::pass(format!("{} live, over {transport}", connections.len()))
    } else {
        Outcome::warn(list(waiting.into_iter()))
    }
}

fn look_mtu(facts: &Facts<'_>) -> Outcome {
    let root = facts.root;
    let class = PathBuf::from("/sys/class/net");
    let carries_tcp = connections(root).iter().any(|(_, transport, _)| transport == "tcp");
    let mut checked = 0;
    let mut small = Vec::new();
    for name in root.list(&class) {
        let folder = class.join(&name);
        let is_physical = root.exists(folder.join("device"));
        let is_up = root.text(folder.join("operstate")).as_deref() == Some("up");
        let is_roce = !root.list(folder.join("device/infiniband")).is_empty();
        // Type 1 is Ethernet; InfiniBand negotiates its MTU with the subnet manager.
        let is_ethernet = root.value(folder.join("type")) == Some(1);
        if !is_physical || !is_up || !is_ethernet || !(is_roce || carries_tcp) {
            continue;
        }
        let Some(mtu) = root.value::<u32>(folder.join("mtu")) else {
            continue;
        };
        checked += 1;
        if mtu < if carries_tcp { TCP_MTU_MIN } else { ROCE_MTU_MIN } {
            small.push((name, mtu));
        }
    }
    match (checked, small.is_empty()) {
        (0, _) => Outcome::skip("no interface carries storage"),
        (_, true) => Outcome::pass(format!("large on {checked} interfaces")),
        (_, false) => {
            let mend = small
                .iter()
                .map(|(name, _)| format!("sudo ip link set dev {} mtu 9000", shell_word(name)))
                .collect::<Vec<_>>()
                .join("; ");
            let seen = small.iter().map(|(name, mtu)| format!("{name} has {mtu}"));
            Outcome::warn(list(seen)).mend(format!("{mend}, also on the switches"))
        }
    }
}

fn look_loss(facts: &Facts<'_>) -> Outcome {
    let ports = Port::all(facts.root);
    if ports.is_empty() {
        return Outcome::skip("no RDMA adapter");
    }
    let mut lost = Vec::new();
    for port in ports.iter().filter(|port| port.is_active()) {
        for counter in LOSS_COUNTERS {
            let count: u64 = facts.root.value(port.folder.join(counter)).unwrap_or(0);
            let name = counter.rsplit('/').next().unwrap_or(counter);
            // Every link was down before it first came up.
            if count > u64::from(name == "link_downed") {
                lost.push(format!("{} {name}={count}", port.name));
            }
        }
    }
    if lost.is_empty() {
        Outcome::pass("none counted")
    } else {
        Outcome::warn(list(lost.into_iter()))
    }
}

fn look_pause(facts: &Facts<'_>) -> Outcome {
    let counts = &facts.measured.pauses;
    // InfiniBand uses credits instead; waits for credits are counted in ticks, not frames.
    let has_roce = Port::all(facts.root).iter().any(|port| port.is_ethernet);
    if counts.is_empty() && !has_roce {
        return Outcome::skip("no Ethernet adapter counts them");
    }
    if counts.is_empty() {
        return Outcome::skip("visible only on the live machine");
    }
    let heavy: Vec<String> = counts
        .iter()
        .filter(|count| {
            let frames = if count.counter.starts_with('t') { "tx" } else { "rx" };
            let path = format!("/sys/class/net/{}/statistics/{frames}_packets", count.interface);
            let packets = facts.root.value::<u64>(path).unwrap_or(0);
            count.frames as f64 > PAUSE_SHARE_MAX * packets as f64 && count.frames > 0
        })
        .map(|count| format!("{} {}={}", count.interface, count.counter, count.frames))
        .collect();
    if heavy.is_empty() {
        Outcome::pass("fewer than one frame in a thousand")
    } else {
        Outcome::warn(list(heavy.into_iter()))
    }
}

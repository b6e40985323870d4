//! The input of a fabric simulation, as TOML: topology, switches, senders and traffic.

mod check;

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds, random::Seed};

use super::{
    topology::{FabricTopology, Network, Wire},
    traffic::Traffic,
};
use crate::{
    dcqcn::{Dcqcn, Ecn, ParameterSet},
    headroom,
};
use straightway_scenario::claim::Claim;

/// A fabric, its traffic, and the duration of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricScenario {
    /// The title, in one line.
    #[serde(default)]
    pub title: String,
    /// A description, in a sentence or two.
    #[serde(default)]
    pub about: String,
    /// The seed of random numbers.
    #[serde(default)]
    pub seed: Seed,
    /// The time at which to stop; absent to run until every flow has finished.
    pub duration: Option<Seconds>,
    /// The fabric.
    pub topology: FabricTopology,
    /// The switches, all equal.
    #[serde(default)]
    pub switch: Switch,
    /// The transport of the hosts.
    #[serde(default)]
    pub transport: FabricTransport,
    /// The traffic of the hosts.
    pub traffic: Vec<Traffic>,
    /// Receivers that cannot keep up.
    #[serde(default)]
    pub slow: Vec<SlowReceiver>,
    /// Links whose queue is recorded over time, such as `leaf0->h0`; by default the two that most flows share.
    #[serde(default)]
    pub watch: Vec<String>,
    /// Figures published with this case.
    #[serde(default)]
    pub claims: Vec<Claim>,
}

/// A switch, with a buffer that its ports share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Switch {
    /// The whole buffer.
    pub buffer: Bytes,
    /// A cell of the buffer: a packet takes whole cells. Absent for a buffer counted in bytes.
    pub cell: Option<Bytes>,
    /// The time from the last bit in to the first bit out of an idle port.
    pub latency: Seconds,
    /// Marking; by default that of the transport's parameter set.
    pub ecn: Option<Ecn>,
    /// Whether packets are marked at all.
    pub marking: bool,
    /// Priority flow control.
    pub pfc: Pfc,
    /// Without flow control: the share of the free buffer that one egress queue may take.
    pub egress_alpha: f64,
}

/// Priority flow control.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pfc {
    /// Whether a switch pauses its neighbours before it drops.
    pub enabled: bool,
    /// The buffer that each port reserves for packets that arrive after XOFF, in addition to a frame for the packet
    /// that triggers it; calculated by default.
    pub headroom: Option<Bytes>,
    /// The share of small packets that a calculated headroom allows for, where the buffer has cells.
    pub small_packet_share: f64,
    /// XOFF at this share of the free shared buffer, per ingress.
    pub alpha: f64,
    /// XON once the ingress is this far below the threshold.
    pub resume_below: Bytes,
    /// The time from a pause frame's arrival until the sender stops; by default the maximum of the standard.
    pub response: Option<Seconds>,
}

/// The transport of hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FabricTransport {
    /// The congestion control of a sender.
    pub control: Control,
    /// The published constants it starts from.
    pub parameters: ParameterSet,
    /// Custom constants, all of them, instead of the published ones.
    pub dcqcn: Option<Dcqcn>,
    /// Payload of a packet.
    pub packet: Bytes,
    /// The bytes that headers, preamble and gap add to each packet on the wire.
    pub overhead: Bytes,
    /// The latency that the adapters add to a notification.
    pub host_latency: Seconds,
    /// The retransmission timeout of a sender.
    pub retransmit_timeout: Seconds,
}

/// The congestion control of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Control {
    /// Always line rate: only flow control.
    None,
    /// DCQCN over RoCE, go-back-N on loss.
    #[default]
    Dcqcn,
    /// DCTCP: a window cut by the share of marks.
    Dctcp,
    /// A window halved on loss.
    Newreno,
}

/// A receiver that is slower than its link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowReceiver {
    /// The host.
    pub host: String,
    /// The rate at which it receives.
    pub rate: Rate,
    /// The buffer of its adapter.
    #[serde(default = "adapter_buffer")]
    pub buffer: Bytes,
}

/// The part of a switch's buffer that is reserved for one link; zero without flow control.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reserved {
    /// For packets that arrive after XOFF.
    pub(crate) headroom: u64,
    /// For the packet that triggers XOFF.
    pub(crate) frame: u64,
}

impl Reserved {
    pub(crate) fn sum(self) -> u64 {
        self.headroom + self.frame
    }
}

fn adapter_buffer() -> Bytes {
    Bytes(2_000_000)
}

impl Default for Switch {
    fn default() -> Self {
        Self {
            // The articles' switch.
            buffer: Bytes(64_000_000),
            cell: None,
            latency: Seconds(500e-9),
            ecn: None,
            marking: true,
            pfc: Pfc::default(),
            egress_alpha: 1.0,
        }
    }
}

impl Default for Pfc {
    fn default() -> Self {
        Self {
            enabled: true,
            headroom: None,
            // SONiC's default.
            small_packet_share: 0.5,
            // HPCC's switch shifts the free buffer by three.
            alpha: 0.125,
            resume_below: Bytes::kib(3),
            response: None,
        }
    }
}

impl Default for FabricTransport {
    fn default() -> Self {
        Self {
            control: Control::default(),
            parameters: ParameterSet::default(),
            dcqcn: None,
            packet: Bytes(4096),
            // Preamble 8, Ethernet 18, IPv4 20, UDP 8, BTH 12, ICRC 4, gap 12.
            overhead: Bytes(82),
            host_latency: Seconds(1e-6),
            retransmit_timeout: Seconds(1e-3),
        }
    }
}

impl FabricScenario {
    /// The fabric with its slow receivers behind adapters with slow links.
    pub(crate) fn network(&self) -> Network {
        let mut net = self.topology.network();
        for slow in &self.slow {
            let host = net.node(&slow.host).expect("a checked name");
            net.put_behind(host, adapter_name(&slow.host), slow.rate);
        }
        net
    }

    /// Bytes of a full packet on the wire.
    pub(crate) fn wire_bytes(&self) -> u64 {
        self.transport.packet.0 + self.transport.overhead.0
    }

    /// Marking on a link of `rate`.
    pub(crate) fn ecn(&self, rate: Rate) -> Ecn {
        self.switch.ecn.unwrap_or_else(|| {
            if self.transport.control == Control::Dctcp {
                // A step at 30 KB per 10 Gb/s, as HPCC's comparison has it.
                let kmin = Bytes(whole(30e3 * rate.as_gbit() / 10.0));
                Ecn {
                    kmin,
                    kmax: Bytes(kmin.0 + 1),
                    pmax: 1.0,
                }
            } else {
                self.transport.parameters.ecn(rate)
            }
        })
    }

    /// Whether switches mark packets: only for senders that react to marks.
    pub(crate) fn marks(&self) -> bool {
        let heeded = matches!(self.transport.control, Control::Dcqcn | Control::Dctcp);
        self.switch.marking && heeded
    }

    /// The sender's constants on a host link of `rate`.
    pub(crate) fn dcqcn(&self, rate: Rate) -> Dcqcn {
        let transport = &self.transport;
        transport.dcqcn.unwrap_or_else(|| transport.parameters.dcqcn(rate))
    }

    /// The buffer that the switch at the far end of a link reserves for it.
    pub(crate) fn reserved(&self, net: &Network, wire: &Wire) -> Reserved {
        let pfc = &self.switch.pfc;
        if !pfc.enabled || net.is_host(wire.to) {
            return Reserved::default();
        }
        let given = pfc.headroom.map(|bytes| bytes.0);
        Reserved {
            headroom: given.unwrap_or_else(|| self.calculated_headroom(wire)),
            frame: match self.switch.cell {
                None => self.wire_bytes(),
                Some(cell) => self.wire_bytes().next_multiple_of(cell.0),
            },
        }
    }

    /// The headroom of a port by the calculator, for the packets this scenario sends.
    pub(crate) fn calculated_headroom(&self, wire: &Wire) -> u64 {
        let frame = Bytes(self.wire_bytes());
        let default = headroom::Port::new(wire.rate, wire.cable_m);
        let default = match self.switch.cell {
            None => default,
            Some(cell) => headroom::Port {
                cell: Some(cell),
                small_packet_share: Some(self.switch.pfc.small_packet_share),
                ..default
            },
        };
        let port = headroom::Port {
            lossless_mtu: frame,
            mtu: Some(default.mtu().max(frame)),
            ..default
        };
        port.headroom().xoff.0
    }

    /// The buffer of every node: the switches' own, and that of the slow receivers' adapters.
    pub(crate) fn buffers(&self, net: &Network) -> Vec<u64> {
        let mut buffers = vec![self.switch.buffer.0; net.names.len()];
        for slow in &self.slow {
            if let Some(adapter) = net.node(&adapter_name(&slow.host)) {
                buffers[adapter as usize] = slow.buffer.0;
            }
        }
        buffers
    }
}

/// The name of the adapter of a slow receiver.
fn adapter_name(host: &str) -> String {
    format!("{host}.nic")
}

/// A positive float rounded up to a whole number, saturating.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, and the callers compare with a bound"
)]
pub(crate) fn whole(value: f64) -> u64 {
    value.ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use straightway_scenario::check::read;

    pub(crate) const SMALL: &str = r#"
duration = "1ms"
[topology.leaf_spine]
leaves = 2
spines = 2
hosts_per_leaf = 4
host_rate = "100Gb/s"
[[traffic]]
permutation = { bytes = "1MB" }
[[traffic]]
flow = { from = "h0", to = "h7" }
"#;

    fn refused(from: &str, to: &str) -> String {
        let text = SMALL.replace(from, to);
        assert_ne!(text, SMALL);
        read::<FabricScenario>(&text).unwrap_err().to_string()
    }

    #[test]
    fn a_small_scenario_is_read_with_its_defaults() {
        let scenario: FabricScenario = read(SMALL).unwrap();
        assert_eq!(scenario.switch.pfc.alpha.to_bits(), 0.125f64.to_bits());
        assert_eq!(scenario.wire_bytes(), 4178);
    }

    #[test]
    fn ten_billion_packets_are_refused_before_anything_runs() {
        let text = SMALL.replace("1MB", "5TB").replace("1ms", "100s");
        let message = read::<FabricScenario>(&text).unwrap_err().to_string();
        assert!(message.contains("traffic[0].permutation"), "{message}");
        assert!(message.contains("at most 1000000000 packets"), "{message}");
        assert!(message.starts_with("line 9:"), "{message}");
    }

    #[test]
    fn names_that_are_not_there_are_refused_with_their_line() {
        let message = refused("h7", "h8");
        assert_eq!(
            message,
            "line 11: traffic[1].flow.to = h8: allowed is a host of the topology, h0 to h7"
        );
        assert!(
            refused(
                "[[traffic]]\nflow",
                "[[slow]]\nhost = \"x\"\nrate = 1e9\n[[traffic]]\nflow"
            )
            .contains("slow[0].host")
        );
    }

    #[test]
    fn an_endless_flow_needs_a_duration() {
        let message = refused("duration = \"1ms\"", "");
        assert!(message.contains("traffic[1].flow.bytes = nothing"), "{message}");
    }

    #[test]
    fn nan_negative_and_zero_are_refused() {
        for (from, to) in [
            ("\"1ms\"", "nan"),
            ("\"1ms\"", "-1"),
            ("\"1ms\"", "0"),
            ("\"100Gb/s\"", "0"),
            ("\"1MB\"", "0"),
            ("\"1MB\"", "-5"),
        ] {
            assert!(refused(from, to).starts_with("line "), "{to}");
        }
    }

    #[test]
    fn hosts_without_a_path_to_each_other_are_refused() {
        let text = r#"
[topology.graph]
hosts = ["a", "b", "c", "d"]
switches = ["s", "t"]
links = [
  { ends = ["a", "s"], rate = "1Gb/s" }, { ends = ["b", "s"], rate = "1Gb/s" },
  { ends = ["c", "t"], rate = "1Gb/s" }, { ends = ["d", "t"], rate = "1Gb/s" },
]
[[traffic]]
flow = { from = "a", to = "b", bytes = "1MB" }
"#;
        let message = read::<FabricScenario>(text).unwrap_err().to_string();
        assert!(message.contains("topology = c"), "{message}");
    }
}

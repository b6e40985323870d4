//! Checks of a scenario: each part by itself, then all parts together.

use straightway_core::{Bytes, Seconds};

use super::{
    super::{
        bounds::{BUFFER_MAX, DURATION_MAX, FLOWS_MAX, PACKETS_MAX, RATE_MAX, RATE_MIN, TRAFFIC_MAX, WATCHED_MAX},
        headroom,
        route::distances_to,
        topology::Network,
        traffic::Traffic,
    },
    FabricScenario, FabricTransport, Pfc, SlowReceiver, Switch, adapter_name, whole,
};
use straightway_scenario::check::{Checkable, Checker};

impl Checkable for FabricScenario {
    fn check(&self, c: &mut Checker) {
        self.check_parts(c);
        let mut parts = Checker::default();
        self.check_parts(&mut parts);
        if parts.finish().is_err() {
            // Parts that are invalid by themselves are not combined, since they may be absurdly large.
            return;
        }
        let net = self.topology.network();
        self.check_against(&net, c);
        let known = |s: &SlowReceiver| net.node(&s.host).is_some_and(|n| net.is_host(n));
        if self.slow.iter().all(known) {
            self.check_built(c);
        }
    }
}

impl FabricScenario {
    /// Each part by itself.
    fn check_parts(&self, c: &mut Checker) {
        if let Some(duration) = self.duration {
            c.seconds("duration", duration, Seconds(1e-9)..=DURATION_MAX);
        }
        c.nested("topology", &self.topology);
        c.nested("switch", &self.switch);
        c.nested("transport", &self.transport);
        c.each("traffic", &self.traffic, 1..=TRAFFIC_MAX);
        c.each("slow", &self.slow, 0..=TRAFFIC_MAX);
        c.each("claims", &self.claims, 0..=TRAFFIC_MAX);
        if self.duration.is_none() {
            for (i, traffic) in self.traffic.iter().enumerate() {
                if traffic.load().0.is_none() {
                    let field = format!("traffic[{i}].{}.bytes", traffic.key());
                    let allowed = "a size, or a `duration` for the whole run";
                    c.refuse(&field, "nothing", allowed);
                }
            }
        }
    }
}

impl Checkable for Switch {
    fn check(&self, c: &mut Checker) {
        c.bytes("buffer", self.buffer, Bytes(1 << 10)..=BUFFER_MAX);
        if let Some(cell) = self.cell {
            c.bytes("cell", cell, Bytes(1)..=Bytes(4096));
            self.check_family(cell, c);
        }
        c.seconds("latency", self.latency, Seconds(0.0)..=Seconds(1e-3));
        if let Some(ecn) = &self.ecn {
            c.nested("ecn", ecn);
        }
        c.nested("pfc", &self.pfc);
        c.range("egress_alpha", self.egress_alpha, 0.001..=1000.0, "");
    }
}

impl Switch {
    /// Refuses a cell of another family if its headroom would be calculated: the pipeline and the response are those of
    /// the calculator's switch.
    fn check_family(&self, cell: Bytes, c: &mut Checker) {
        let known = headroom::Port::default().asic.cell();
        let is_calculated = self.pfc.enabled && self.pfc.headroom.is_none();
        if is_calculated && cell != known {
            let allowed = format!(
                "{}, that of the switch whose headroom is calculated: the pipeline and the response of a family with \
                 other cells are not known (or give pfc.headroom)",
                known.0
            );
            c.refuse("cell", cell.0, allowed);
        }
    }
}

impl Checkable for Pfc {
    fn check(&self, c: &mut Checker) {
        if let Some(headroom) = self.headroom {
            c.bytes("headroom", headroom, Bytes(0)..=BUFFER_MAX);
        }
        c.share("small_packet_share", self.small_packet_share);
        c.range("alpha", self.alpha, 0.001..=1000.0, "");
        c.bytes("resume_below", self.resume_below, Bytes(0)..=BUFFER_MAX);
        if let Some(response) = self.response {
            c.seconds("response", response, Seconds(0.0)..=Seconds(1e-3));
        }
    }
}

impl Checkable for FabricTransport {
    fn check(&self, c: &mut Checker) {
        if let Some(dcqcn) = &self.dcqcn {
            c.nested("dcqcn", dcqcn);
        }
        c.bytes("packet", self.packet, Bytes(64)..=Bytes(65_000));
        c.bytes("overhead", self.overhead, Bytes(0)..=Bytes(500));
        c.seconds("host_latency", self.host_latency, Seconds(0.0)..=Seconds(1e-2));
        c.seconds(
            "retransmit_timeout",
            self.retransmit_timeout,
            Seconds(1e-6)..=Seconds(10.0),
        );
    }
}

impl Checkable for SlowReceiver {
    fn check(&self, c: &mut Checker) {
        c.rate("rate", self.rate, RATE_MIN..=RATE_MAX);
        c.bytes("buffer", self.buffer, Bytes(1 << 10)..=BUFFER_MAX);
    }
}

impl FabricScenario {
    /// An upper bound on the packets of a run, without retransmissions.
    fn packets(&self, net: &Network) -> Vec<u64> {
        let hosts = u64::from(net.hosts);
        let payload = self.transport.packet.0.max(1);
        let line = net.links.iter().map(|l| l.rate.0).fold(0.0, f64::max);
        let each = |traffic: &Traffic| {
            let (bytes, start) = traffic.load();
            let by_size = bytes.map_or(u64::MAX, |b| b.0.div_ceil(payload));
            let by_time = self.duration.map_or(u64::MAX, |end| {
                whole((end.0 - start.0).max(0.0) * line / self.wire_bytes() as f64)
            });
            by_size.min(by_time)
        };
        let all = self.traffic.iter();
        all.map(|t| each(t).saturating_mul(t.flows(hosts))).collect()
    }

    /// Checks that need a valid topology.
    fn check_against(&self, net: &Network, c: &mut Checker) {
        for (i, traffic) in self.traffic.iter().enumerate() {
            c.within(&format!("traffic[{i}]"), |c| traffic.check_against(net, c));
        }
        let hosts = u64::from(net.hosts);
        let flows: u64 = self.traffic.iter().map(|t| t.flows(hosts)).sum();
        if flows > FLOWS_MAX {
            c.refuse(
                "traffic",
                format!("{flows} flows"),
                format!("at most {FLOWS_MAX} flows"),
            );
        }
        self.check_packets(net, c);
        let first = net.links[net.leaving[0][0] as usize].to;
        let distance = distances_to(net, first);
        let hosts = net.names.iter().take(net.hosts as usize);
        for (name, distance) in hosts.zip(&distance) {
            if *distance == u32::MAX {
                let allowed = format!("a path to {} and every other host", net.names[0]);
                c.refuse("topology", name, allowed);
            }
        }
        for (i, slow) in self.slow.iter().enumerate() {
            let twice = self.slow[..i].iter().any(|s| s.host == slow.host);
            if twice || net.node(&slow.host).is_none_or(|n| !net.is_host(n)) {
                c.refuse(
                    &format!("slow[{i}].host"),
                    &slow.host,
                    "a host of the topology, named once",
                );
            }
        }
    }

    fn check_packets(&self, net: &Network, c: &mut Checker) {
        let packets = self.packets(net);
        let sum = packets.iter().fold(0u64, |a, b| a.saturating_add(*b));
        if sum > PACKETS_MAX {
            let most = (0..packets.len()).max_by_key(|i| packets[*i]).unwrap_or(0);
            let field = format!("traffic[{most}].{}", self.traffic[most].key());
            let allowed = format!("at most {PACKETS_MAX} packets in all; send fewer bytes, or larger packets");
            c.refuse(&field, format!("{sum} packets"), allowed);
        }
    }

    /// Refuses a switch whose ports reserve more than its buffer.
    fn check_buffers(&self, net: &Network, c: &mut Checker) {
        let buffers = self.buffers(net);
        let mut reserved = vec![0u64; net.names.len()];
        for wire in &net.links {
            reserved[wire.to as usize] += self.reserved(net, wire).sum();
        }
        let short = (0..reserved.len()).find(|n| reserved[*n] >= buffers[*n]);
        if let Some(node) = short {
            let slow = self.slow.iter();
            let adapter = slow.enumerate().find(|(_, s)| adapter_name(&s.host) == net.names[node]);
            let field = adapter.map_or("switch.buffer".to_owned(), |(i, _)| format!("slow[{i}].buffer"));
            let allowed = format!(
                "more than the {} that the ports of {} keep back: headroom and a frame each",
                Bytes(reserved[node]),
                net.names[node]
            );
            c.refuse(&field, Bytes(buffers[node]), allowed);
        }
    }

    /// Checks that need the network with its slow receivers.
    fn check_built(&self, c: &mut Checker) {
        if self.watch.len() > WATCHED_MAX {
            let allowed = format!("at most {WATCHED_MAX} links");
            c.refuse("watch", format!("{} links", self.watch.len()), allowed);
        }
        let net = self.network();
        self.check_buffers(&net, c);
        for (i, name) in self.watch.iter().enumerate() {
            if net.link(name).is_none() {
                c.refuse(&format!("watch[{i}]"), name, "a link such as `leaf0->h0`");
            }
        }
    }
}

//! Senders: their flows take turns on the wire, keep to their rate or window, and retransmit lost packets.

use super::{
    super::{
        port::{NIL, Packet},
        scenario::{Control, FabricScenario, whole},
        topology::narrow,
        traffic::Flow,
        window::{AckAction, Window},
    },
    Engine, Event, Receiver,
};
use crate::dcqcn::{Constants, PS_PER_S, Reaction, picoseconds};

/// Acknowledgements and notifications on the wire: 64 bytes, preamble and gap.
const CONTROL_FRAME_BYTES: u64 = 84;

/// The sending half of a flow.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    /// The next flow in its host's ring.
    pub(crate) next_in_ring: u32,
    /// Its host's link.
    link: u32,
    /// The index of the next link of its path.
    route: u32,
    /// The next packet.
    next: u32,
    /// The number of packets; endless flows have more than any run sends.
    pub(super) packets: u32,
    /// A packet to retransmit before all others.
    resend: u32,
    /// Bytes of the last packet on the wire.
    last_bytes: u16,
    pub(super) constants: u32,
    in_ring: bool,
    /// Whether a timeout is pending, and the last lost packet and the time of its loss.
    timeout_pending: bool,
    lost: u32,
    lost_ps: u64,
    /// Whether a wake-up is pending.
    waiting: bool,
    /// The earliest time of the next packet of a paced flow.
    not_before_ps: u64,
    /// The rate from which that time was computed, in bytes per second.
    paced_rate: f64,
    /// The rate of the host's link, in bytes per second.
    line: f64,
    /// The latency of a control frame to the sender.
    pub(super) return_ps: u64,
}

impl Engine<'_> {
    /// Adds the flows and their first events.
    pub(super) fn add_flows(&mut self, scenario: &FabricScenario, flows: &[Flow]) {
        let mut rates: Vec<u64> = Vec::new();
        for (f, flow) in (0..).zip(flows) {
            let line = self.net.links[self.routes.path(f)[0] as usize].rate;
            let known = rates.iter().position(|r| *r == line.0.to_bits());
            let constants = known.unwrap_or_else(|| {
                rates.push(line.0.to_bits());
                self.constants.push(Constants::from(&scenario.dcqcn(line)));
                rates.len() - 1
            });
            let sender = self.sender(scenario, flow, f, narrow(constants));
            self.receivers.push(Receiver::new(sender.packets));
            self.senders.push(sender);
            match self.control {
                Control::Dcqcn => {
                    let k = &self.constants[constants];
                    self.reactions.push(Reaction::new(line.0, k));
                }
                Control::Dctcp => self.windows.push(Window::new(true)),
                Control::Newreno => self.windows.push(Window::new(false)),
                Control::None => {}
            }
            self.wheel.push(flow.start_ps, Event::Start { flow: f });
        }
    }

    /// The sending half of flow `f` before it starts.
    fn sender(&self, scenario: &FabricScenario, flow: &Flow, f: u32, constants: u32) -> Sender {
        let first = self.routes.path(f)[0];
        let line = self.net.links[first as usize].rate.0;
        let payload = self.packet_bytes - self.overhead_bytes;
        let (packets, last) = flow.bytes.map_or((u64::from(NIL) - 1, payload), |bytes| {
            let packets = bytes.div_ceil(payload);
            (packets, bytes - (packets - 1) * payload)
        });
        let host_ps = picoseconds(scenario.transport.host_latency);
        Sender {
            next_in_ring: NIL,
            link: first,
            route: self.routes.start(f) + 1,
            next: 0,
            packets: u32::try_from(packets).unwrap_or(NIL - 1),
            resend: NIL,
            last_bytes: frame(last + self.overhead_bytes),
            constants,
            in_ring: false,
            timeout_pending: false,
            lost: 0,
            lost_ps: 0,
            waiting: false,
            not_before_ps: flow.start_ps,
            paced_rate: line,
            line,
            return_ps: self.reverse_latency_ps(f) + host_ps,
        }
    }

    /// The latency of a control frame along the reverse path of a flow, without queueing.
    fn reverse_latency_ps(&self, flow: u32) -> u64 {
        let path = self.routes.path(flow);
        let wires: u64 = path
            .iter()
            .map(|l| &self.ports[(l ^ 1) as usize])
            .map(|p| p.wire_ps + p.wire_time_ps(CONTROL_FRAME_BYTES))
            .sum();
        wires + (path.len() as u64 - 1) * self.latency_ps
    }

    /// Whether a flow has a packet that it may send, regardless of its pacing.
    #[inline]
    fn has_packet(&self, flow: u32) -> bool {
        let sender = &self.senders[flow as usize];
        if sender.resend != NIL {
            return true;
        }
        let more = sender.next < sender.packets;
        match self.control {
            Control::None | Control::Dcqcn => more,
            Control::Dctcp | Control::Newreno => more && self.windows[flow as usize].open(sender.next),
        }
    }

    /// Puts a flow into its host's ring if it may send now.
    pub(super) fn offer(&mut self, flow: u32) {
        let has_packet = self.has_packet(flow);
        let sender = &self.senders[flow as usize];
        let link = sender.link;
        if has_packet && !sender.in_ring && !sender.waiting {
            self.join_ring(flow, link);
            self.kick(link);
        }
    }

    #[inline]
    fn join_ring(&mut self, flow: u32, link: u32) {
        let sender = &mut self.senders[flow as usize];
        sender.in_ring = true;
        sender.next_in_ring = NIL;
        let port = &mut self.ports[link as usize];
        if port.head == NIL {
            port.head = flow;
        } else {
            self.senders[port.tail as usize].next_in_ring = flow;
        }
        port.tail = flow;
    }

    /// Creates and sends a packet of the flow whose turn it is.
    #[inline]
    pub(super) fn emit(&mut self, link: u32) {
        let flow = self.ports[link as usize].head;
        let sender = &mut self.senders[flow as usize];
        let port = &mut self.ports[link as usize];
        port.head = sender.next_in_ring;
        sender.in_ring = false;
        let seq = sender.take_packet();
        let bytes = if seq + 1 == sender.packets {
            u64::from(sender.last_bytes)
        } else {
            self.packet_bytes
        };
        port.sent_bytes += bytes;
        port.busy_until_ps = self.now + port.wire_time_ps(bytes);
        self.tally.injected_bytes += bytes;
        self.tally.injected_packets += 1;
        let packet = self.pool.put(Packet {
            ready_ps: self.now,
            next: NIL,
            flow,
            seq,
            route: sender.route,
            came_by: link,
            bytes: frame(bytes),
            marked: false,
        });
        let (free_ps, wire_ps) = (port.busy_until_ps, port.wire_ps);
        self.wheel.push(free_ps + wire_ps, Event::Arrive { link, packet });
        if self.control == Control::Dcqcn {
            self.pace(flow, bytes);
        }
        self.next_turn(flow, link, free_ps);
    }

    /// After a packet, moves the flow to the end of the ring, lets it wait, or ends it.
    #[inline]
    fn next_turn(&mut self, flow: u32, link: u32, free_ps: u64) {
        if self.has_packet(flow) {
            if self.senders[flow as usize].not_before_ps <= free_ps {
                self.join_ring(flow, link);
            } else {
                self.wait(flow);
            }
        }
        let port = &mut self.ports[link as usize];
        if port.head != NIL && !port.armed {
            port.armed = true;
            self.wheel.push(free_ps, Event::Free { link });
        }
    }

    /// Computes the time at which a paced flow may send again.
    #[inline]
    fn pace(&mut self, flow: u32, bytes: u64) {
        let sender = &mut self.senders[flow as usize];
        let reaction = &mut self.reactions[flow as usize];
        let k = &self.constants[sender.constants as usize];
        reaction.advance(self.now, sender.line, k);
        reaction.sent(bytes, sender.line, k);
        sender.paced_rate = reaction.rate;
        sender.not_before_ps = if reaction.rate >= sender.line {
            self.now
        } else {
            self.now + whole(bytes as f64 * PS_PER_S / reaction.rate)
        };
    }

    /// Schedules a wake-up for the time at which the flow may send or its rate changes.
    fn wait(&mut self, flow: u32) {
        let sender = &mut self.senders[flow as usize];
        let changes = self.reactions[flow as usize].next_change_ps();
        sender.waiting = true;
        let at = sender.not_before_ps.min(changes).max(self.now + 1);
        self.wheel.push(at, Event::Wake { flow });
    }

    /// Handles a wake-up: the flow may send, or its rate has changed while it waited.
    pub(super) fn wake(&mut self, flow: u32) {
        self.senders[flow as usize].waiting = false;
        self.repace(flow);
        if self.senders[flow as usize].not_before_ps > self.now {
            self.wait(flow);
        } else {
            self.offer(flow);
        }
    }

    /// Adjusts the send time of a waiting flow to its current rate.
    fn repace(&mut self, flow: u32) {
        let sender = &mut self.senders[flow as usize];
        let reaction = &mut self.reactions[flow as usize];
        let k = &self.constants[sender.constants as usize];
        reaction.advance(self.now, sender.line, k);
        if sender.not_before_ps > self.now {
            let left_ps = (sender.not_before_ps - self.now) as f64;
            sender.not_before_ps = self.now + whole(left_ps * sender.paced_rate / reaction.rate);
        }
        sender.paced_rate = reaction.rate;
    }

    /// Handles a congestion notification at the sender.
    pub(super) fn notify(&mut self, flow: u32) {
        let sender = &self.senders[flow as usize];
        let k = &self.constants[sender.constants as usize];
        self.reactions[flow as usize].notified(self.now, sender.line, k);
        self.repace(flow);
    }

    /// Handles an acknowledgement at the sender.
    pub(super) fn acknowledge(&mut self, flow: u32, ack: u32, marked: bool) {
        let sender = &mut self.senders[flow as usize];
        sender.next = sender.next.max(ack);
        let window = &mut self.windows[flow as usize];
        if let AckAction::Resend(seq) = window.acknowledged(ack, marked, sender.next) {
            sender.resend = seq;
        }
        if sender.resend != NIL && sender.resend < ack {
            sender.resend = NIL;
        }
        self.offer(flow);
    }

    /// Goes back to packet `seq`, which the receiver misses.
    pub(super) fn rewind(&mut self, flow: u32, seq: u32) {
        let sender = &mut self.senders[flow as usize];
        sender.next = sender.next.min(seq);
        self.offer(flow);
    }

    /// Records a loss and schedules its timeout. Only real losses time out, so no timeout is spurious.
    pub(super) fn lose(&mut self, flow: u32, seq: u32) {
        let sender = &mut self.senders[flow as usize];
        sender.lost = sender.lost.max(seq);
        sender.lost_ps = self.now;
        if !sender.timeout_pending {
            sender.timeout_pending = true;
            let at = self.now + self.timeout_ps;
            self.wheel.push(at, Event::Timeout { flow });
        }
    }

    /// Retransmits from a packet that was lost a timeout ago and has not arrived since.
    pub(super) fn time_out(&mut self, flow: u32) {
        let expected = self.receivers[flow as usize].expected;
        let sender = &mut self.senders[flow as usize];
        let due = sender.lost_ps + self.timeout_ps;
        sender.timeout_pending = expected <= sender.lost && due > self.now;
        if sender.timeout_pending {
            self.wheel.push(due, Event::Timeout { flow });
            return;
        }
        if expected > sender.lost {
            return;
        }
        if let Some(window) = self.windows.get_mut(flow as usize) {
            window.timed_out();
            self.senders[flow as usize].resend = NIL;
        }
        self.rewind(flow, expected);
    }
}

/// A frame's length: packet and overhead are checked to be below 2^16 together.
#[inline]
fn frame(bytes: u64) -> u16 {
    u16::try_from(bytes).expect("the scenario's bounds keep frames below 2^16")
}

impl Sender {
    #[inline]
    fn take_packet(&mut self) -> u32 {
        if self.resend != NIL {
            return std::mem::replace(&mut self.resend, NIL);
        }
        self.next += 1;
        self.next - 1
    }
}

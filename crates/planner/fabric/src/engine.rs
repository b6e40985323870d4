//! The packet simulation: one loop over events, with all state in flat tables.
//!
//! There are few events per hop: a packet at a free port leaves at once, without its own event. So it costs one event
//! per link (its arrival at the other end), and one more only where it waits. Control frames (acknowledgements,
//! notifications) do not queue: they have a class above the data and only the latency of the path back. Pause frames
//! wait for the frame being sent, as real ones do.

mod forward;
mod receive;
mod send;
mod waiting;

use std::ops::ControlFlow;

use straightway_core::Seconds;

use super::{
    bounds::HELD_LOOKED_AT_MAX,
    buffer::{Ingress, Shared},
    deadlock::Deadlock,
    port::{NIL, Pool, Port},
    progress::SimulationProgress,
    route::Routes,
    scenario::{Control, FabricScenario, whole},
    series::Recorder,
    topology::{Network, narrow},
    traffic::Flow,
};
use crate::{
    dcqcn::{Constants, Ecn, Reaction, picoseconds},
    headroom,
    wheel::Wheel,
};
pub(crate) use receive::Receiver;
pub(crate) use send::Sender;

use super::window::Window;

/// Events between two progress reports.
const EVENTS_PER_REPORT: u64 = 1 << 19;

/// The time between two checks for a deadlock: longer than a normal pause in a healthy fabric, and longer than the
/// longest pause of one frame at 400 Gb/s.
const LOOK_PS: u64 = 100_000_000;

/// An event at a link, a packet or a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A packet's last bit reaches the far end of a link.
    Arrive { link: u32, packet: u32 },
    /// A port's wire is free.
    Free { link: u32 },
    /// A flow begins.
    Start { flow: u32 },
    /// A paced flow may send.
    Wake { flow: u32 },
    /// A pause takes effect at the sending end of a link, or ends.
    Pause { link: u32, stop: bool },
    /// A congestion notification reaches the sender.
    Notify { flow: u32 },
    /// An acknowledgement reaches the sender: everything before `ack`.
    Ack { flow: u32, ack: u32, marked: bool },
    /// The receiver misses packet `seq`.
    Nak { flow: u32, seq: u32 },
    /// A packet of a flow was lost a timeout ago.
    Timeout { flow: u32 },
    /// It is time to check for a deadlock.
    Look,
}

/// Counters of a run; bytes are counted on the wire.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) injected_bytes: u64,
    pub(crate) injected_packets: u64,
    pub(crate) delivered_bytes: u64,
    pub(crate) dropped_bytes: u64,
    pub(crate) dropped_packets: u64,
    /// Bytes that arrived out of order or twice and were discarded.
    pub(crate) discarded_bytes: u64,
    pub(crate) notifications: u64,
    pub(crate) pause_frames: u64,
    pub(crate) first_pause_ps: Option<u64>,
    pub(crate) events: u64,
}

/// A link's pauses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pauses {
    pub(crate) since_ps: u64,
    pub(crate) ended_ps: u64,
    pub(crate) total_ps: u64,
    pub(crate) longest_ps: u64,
    pub(crate) count: u64,
    /// The congested egress that caused the current pause.
    pub(crate) root: u32,
}

/// The delay of a flow by pauses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    /// The time for which a packet of it waited at a paused link.
    pub(crate) all_ps: u64,
    /// The part of it that is due to congestion not on the flow's path.
    pub(crate) innocent_ps: u64,
    stamp: u32,
}

/// The whole state of a run.
#[derive(Debug)]
pub(crate) struct Engine<'a> {
    pub(crate) net: &'a Network,
    pub(crate) routes: &'a Routes,
    pub(crate) now: u64,
    end_ps: u64,
    wheel: Wheel<Event>,
    /// The cell size of the buffers; `None` if they are counted in bytes.
    cell: Option<u64>,
    pub(crate) pool: Pool,
    pub(crate) ports: Vec<Port>,
    /// By link: the bytes that it brought into the switch at its far end.
    pub(crate) ingress: Vec<Ingress>,
    /// By node, switches only.
    pub(crate) shared: Vec<Shared>,
    pub(crate) senders: Vec<Sender>,
    pub(crate) receivers: Vec<Receiver>,
    reactions: Vec<Reaction>,
    windows: Vec<Window>,
    constants: Vec<Constants>,
    marking: Vec<Option<Ecn>>,
    control: Control,
    lossless: bool,
    packet_bytes: u64,
    overhead_bytes: u64,
    latency_ps: u64,
    timeout_ps: u64,
    rng: straightway_core::random::Rng,
    pub(crate) pauses: Vec<Pauses>,
    /// By link: the cause of the pause that its far end requested.
    pause_roots: Vec<u32>,
    pub(crate) blame_ps: Vec<u64>,
    pub(crate) held: Vec<Held>,
    held_stamp: u32,
    pub(crate) records: Vec<(u32, Recorder)>,
    pub(crate) tally: Tally,
    pub(crate) unfinished: usize,
    /// The bytes of all flows that end.
    wanted_bytes: u64,
    pub(crate) deadlock: Option<Deadlock>,
    looking: bool,
}

impl<'a> Engine<'a> {
    /// Creates the state of a checked scenario.
    pub(crate) fn new(
        scenario: &FabricScenario,
        net: &'a Network,
        routes: &'a Routes,
        flows: &[Flow],
        watched: &[u32],
    ) -> Self {
        let switch = &scenario.switch;
        let ports = ports(scenario, net, watched);
        let marking = net.links.iter().map(|wire| {
            let marks = scenario.marks() && !net.is_host(wire.from);
            marks.then(|| scenario.ecn(wire.rate))
        });
        let mut engine = Self {
            net,
            routes,
            now: 0,
            end_ps: scenario
                .duration
                .map_or_else(|| picoseconds(super::bounds::DURATION_MAX), picoseconds),
            wheel: Wheel::new(slot_shift(scenario, net)),
            cell: scenario.switch.cell.map(|cell| cell.0),
            pool: Pool::new(),
            ports,
            ingress: Vec::new(),
            shared: Vec::new(),
            senders: Vec::with_capacity(flows.len()),
            receivers: Vec::with_capacity(flows.len()),
            reactions: Vec::new(),
            windows: Vec::new(),
            constants: Vec::new(),
            marking: marking.collect(),
            control: scenario.transport.control,
            lossless: switch.pfc.enabled,
            packet_bytes: scenario.wire_bytes(),
            overhead_bytes: scenario.transport.overhead.0,
            latency_ps: picoseconds(switch.latency),
            timeout_ps: picoseconds(scenario.transport.retransmit_timeout),
            rng: scenario.seed.part(u64::MAX).rng(),
            pauses: vec![Pauses::NONE; net.links.len()],
            pause_roots: vec![NIL; net.links.len()],
            blame_ps: vec![0; net.links.len()],
            held: vec![Held::default(); flows.len()],
            held_stamp: 0,
            records: watched.iter().map(|l| (*l, Recorder::new())).collect(),
            tally: Tally::default(),
            unfinished: flows.iter().filter(|f| f.bytes.is_some()).count(),
            wanted_bytes: flows.iter().filter_map(|f| f.bytes).sum(),
            deadlock: None,
            looking: false,
        };
        engine.divide_buffers(scenario);
        engine.add_flows(scenario, flows);
        engine
    }

    /// Runs to the end, or until `report` cancels the run.
    pub(crate) fn run(&mut self, report: &mut dyn FnMut(&SimulationProgress) -> ControlFlow<()>) -> ControlFlow<()> {
        let endless = self.unfinished < self.senders.len();
        let wanted = self.unfinished;
        while let Some((at, event)) = self.wheel.pop() {
            if at > self.end_ps {
                self.now = self.end_ps;
                break;
            }
            self.now = at;
            self.tally.events += 1;
            self.handle(event);
            if self.unfinished == 0 && !endless {
                break;
            }
            if self.tally.events.is_multiple_of(EVENTS_PER_REPORT) {
                report(&self.progress(wanted, endless))?;
            }
        }
        self.close();
        ControlFlow::Continue(())
    }

    fn progress(&self, wanted: usize, endless: bool) -> SimulationProgress {
        let by_time = self.now as f64 / self.end_ps as f64;
        let by_flows = (wanted - self.unfinished) as f64 / wanted.max(1) as f64;
        // Flows of equal length finish together, at the end. Bytes on the wire include headers and repeats.
        let by_bytes = (self.tally.delivered_bytes as f64 / self.wanted_bytes.max(1) as f64).min(0.99);
        SimulationProgress {
            done: if endless {
                by_time
            } else {
                by_time.max(by_flows).max(by_bytes)
            },
            simulated: Seconds(self.now as f64 / 1e12),
            events: self.tally.events,
            packets: self.tally.injected_packets,
        }
    }

    #[inline]
    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive { link, packet } => self.arrive(link, packet),
            Event::Free { link } => self.free(link),
            Event::Start { flow } => self.offer(flow),
            Event::Wake { flow } => self.wake(flow),
            Event::Pause { link, stop } => self.pause(link, stop),
            Event::Notify { flow } => self.notify(flow),
            Event::Ack { flow, ack, marked } => self.acknowledge(flow, ack, marked),
            Event::Nak { flow, seq } => self.rewind(flow, seq),
            Event::Timeout { flow } => self.time_out(flow),
            Event::Look => self.look(),
        }
    }

    /// Reserves headroom and a frame for each ingress; the rest of a switch's buffer is shared.
    fn divide_buffers(&mut self, scenario: &FabricScenario) {
        let pfc = &scenario.switch.pfc;
        let mut total = scenario.buffers(self.net);
        for wire in &self.net.links {
            let kept = scenario.reserved(self.net, wire);
            self.ingress.push(Ingress::new(kept.headroom, kept.frame));
            let left = &mut total[wire.to as usize];
            *left = left.saturating_sub(kept.sum());
        }
        let alpha = if pfc.enabled {
            pfc.alpha
        } else {
            scenario.switch.egress_alpha
        };
        let shared = total.iter().map(|bytes| Shared::new(*bytes, alpha, pfc.resume_below.0));
        self.shared = shared.collect();
    }

    fn close(&mut self) {
        let now = self.now;
        for link in 0..narrow(self.ports.len()) {
            if self.ports[link as usize].paused {
                self.end_pause(link);
            }
        }
        if self.deadlock.is_none() && self.lossless {
            self.deadlock = self.waiting_cycle(now.saturating_sub(LOOK_PS));
        }
    }

    /// Checks for links that have been waiting for each other since the last check.
    fn look(&mut self) {
        self.looking = false;
        if self.deadlock.is_none() {
            self.deadlock = self.waiting_cycle(self.now - LOOK_PS);
        }
        if self.deadlock.is_none() && self.ports.iter().any(|p| p.paused) {
            self.look_later();
        }
    }

    fn look_later(&mut self) {
        if !self.looking && self.deadlock.is_none() {
            self.looking = true;
            self.wheel.push(self.now + LOOK_PS, Event::Look);
        }
    }

    /// Ends a pause, and charges its duration to its cause and to the flows that it delayed.
    fn end_pause(&mut self, link: u32) {
        let pauses = &mut self.pauses[link as usize];
        let (since, root) = (pauses.since_ps, pauses.root);
        let lasted = self.now - since;
        pauses.ended_ps = self.now;
        pauses.total_ps += lasted;
        pauses.longest_ps = pauses.longest_ps.max(lasted);
        if root != NIL {
            self.blame_ps[root as usize] += lasted;
        }
        self.held_stamp = self.held_stamp.wrapping_add(1);
        let port = &self.ports[link as usize];
        let from_host = self.net.is_host(port.from);
        let mut place = port.head;
        for _ in 0..HELD_LOOKED_AT_MAX {
            if place == NIL {
                return;
            }
            let (flow, waits_from) = if from_host {
                (place, since)
            } else {
                let packet = self.pool.at(place);
                (packet.flow, packet.ready_ps.saturating_sub(self.latency_ps))
            };
            self.hold(flow, self.now - since.max(waits_from).min(self.now), root);
            place = if from_host {
                self.senders[place as usize].next_in_ring
            } else {
                self.pool.at(place).next
            };
        }
    }

    /// Charges a pause to a flow that it delayed, once.
    fn hold(&mut self, flow: u32, lasted_ps: u64, root: u32) {
        let innocent = !self.routes.path(flow).contains(&root);
        let held = &mut self.held[flow as usize];
        if held.stamp == self.held_stamp {
            return;
        }
        held.stamp = self.held_stamp;
        held.all_ps += lasted_ps;
        if innocent && root != NIL {
            held.innocent_ps += lasted_ps;
        }
    }

    /// Records the queue of a watched link.
    #[cold]
    fn record_queue(&mut self, link: u32) {
        let bytes = self.ports[link as usize].queue_bytes;
        let now = self.now;
        if let Some((_, record)) = self.records.iter_mut().find(|(l, _)| *l == link) {
            record.queue(now, bytes);
        }
    }

    #[cold]
    fn record_pause(&mut self, link: u32, paused: bool) {
        let now = self.now;
        if let Some((_, record)) = self.records.iter_mut().find(|(l, _)| *l == link) {
            record.paused(now, paused);
        }
    }
}

impl Pauses {
    const NONE: Self = Self {
        since_ps: 0,
        ended_ps: 0,
        total_ps: 0,
        longest_ps: 0,
        count: 0,
        root: NIL,
    };
}

fn ports(scenario: &FabricScenario, net: &Network, watched: &[u32]) -> Vec<Port> {
    let pfc = &scenario.switch.pfc;
    let port = |(link, wire): (u32, &super::topology::Wire)| {
        let cable_s = wire.cable_m / headroom::SIGNAL_M_PER_S;
        let response = pfc
            .response
            .unwrap_or_else(|| headroom::Port::new(wire.rate, wire.cable_m).peer_response());
        let mut port = Port::new(wire.rate.0, wire.from, wire.to);
        port.wire_ps = picoseconds(Seconds(cable_s));
        port.response_ps = picoseconds(response);
        port.watched = watched.contains(&link);
        port
    };
    (0..).zip(&net.links).map(port).collect()
}

/// The slot length of the wheel, for about 32 events per slot when every link is busy.
fn slot_shift(scenario: &FabricScenario, net: &Network) -> u32 {
    let bytes_per_ps: f64 = net.links.iter().map(|l| l.rate.0 / 1e12).sum();
    let events_per_ps = bytes_per_ps / scenario.wire_bytes() as f64;
    let slot_ps = 32.0 / events_per_ps;
    whole(slot_ps).max(1).ilog2().clamp(6, 16)
}

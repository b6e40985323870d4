//! A port: the sending end of one direction of a cable, its queue, and the packets that wait there.
//!
//! Packets are stored in one pool and linked to each other, so that queues need no memory of their own. A switch's
//! port queues packets; a host's port queues flows with something to send, since a host creates a packet only when
//! the wire is free.

/// No packet, no flow, no link.
pub(crate) const NIL: u32 = u32::MAX;

/// Fractional bits of a port's time per byte.
const FRACTION_BITS: u32 = 20;

/// A packet in flight: 32 bytes, so that thousands fit the processor's cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    /// The time at which it can leave its switch.
    pub(crate) ready_ps: u64,
    /// The packet behind it in its queue.
    pub(crate) next: u32,
    pub(crate) flow: u32,
    /// Its number in the flow.
    pub(crate) seq: u32,
    /// The index in the routes of its next link.
    pub(crate) route: u32,
    /// The link by which it came, to which its bytes are charged.
    pub(crate) came_by: u32,
    /// Bytes on the wire; 0 marks a free entry of the pool.
    pub(crate) bytes: u16,
    /// Whether a switch marked it.
    pub(crate) marked: bool,
}

const _: () = assert!(size_of::<Packet>() == 32);

/// All packets in flight.
#[derive(Debug)]
pub(crate) struct Pool {
    packets: Vec<Packet>,
    free: u32,
}

/// The sending end of a link.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    /// The time at which the wire is free again.
    pub(crate) busy_until_ps: u64,
    /// The time at which the last packet starts on the wire; it may still be passing the switch.
    pub(crate) starts_ps: u64,
    /// The time at which the last pause frame has left.
    signalled_ps: u64,
    /// First and last of its queue: packets at a switch, flows at a host.
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) queue_bytes: u64,
    /// Time per byte, in picoseconds / 2^20.
    time_per_byte: u64,
    /// The latency of the cable.
    pub(crate) wire_ps: u64,
    /// The time from a pause frame's arrival to its effect.
    pub(crate) response_ps: u64,
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// Whether the other end has paused it.
    pub(crate) paused: bool,
    /// Whether an event is pending for when the wire is free.
    pub(crate) armed: bool,
    /// Whether its queue is recorded.
    pub(crate) watched: bool,
    pub(crate) sent_bytes: u64,
    pub(crate) queue_peak: u64,
    pub(crate) marked_packets: u64,
    pub(crate) dropped_packets: u64,
}

impl Pool {
    pub(crate) fn new() -> Self {
        Self {
            packets: Vec::new(),
            free: NIL,
        }
    }

    /// Stores a packet and returns its index.
    #[inline]
    pub(crate) fn put(&mut self, packet: Packet) -> u32 {
        if self.free == NIL {
            self.packets.push(packet);
            return super::topology::narrow(self.packets.len() - 1);
        }
        let place = self.free;
        self.free = self.packets[place as usize].next;
        self.packets[place as usize] = packet;
        place
    }

    /// Frees an entry.
    #[inline]
    pub(crate) fn free(&mut self, place: u32) {
        let packet = &mut self.packets[place as usize];
        packet.bytes = 0;
        packet.next = self.free;
        self.free = place;
    }

    #[inline]
    pub(crate) fn at(&self, place: u32) -> &Packet {
        &self.packets[place as usize]
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, place: u32) -> &mut Packet {
        &mut self.packets[place as usize]
    }

    /// Bytes of all packets in flight, on the wire or waiting.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.packets.iter().map(|p| u64::from(p.bytes)).sum()
    }

    /// The maximum number of packets in flight.
    pub(crate) fn peak(&self) -> usize {
        self.packets.len()
    }
}

impl Port {
    /// An idle port of `rate` bytes per second.
    pub(crate) fn new(rate: f64, from: u32, to: u32) -> Self {
        let one = f64::from(1 << FRACTION_BITS);
        Self {
            busy_until_ps: 0,
            starts_ps: 0,
            signalled_ps: 0,
            head: NIL,
            tail: NIL,
            queue_bytes: 0,
            // Rounded up: a link is never faster than its rate.
            time_per_byte: super::scenario::whole((1e12 / rate * one * (1.0 - 1e-15)).max(1.0)),
            wire_ps: 0,
            response_ps: 0,
            from,
            to,
            paused: false,
            armed: false,
            watched: false,
            sent_bytes: 0,
            queue_peak: 0,
            marked_packets: 0,
            dropped_packets: 0,
        }
    }

    /// The time of `bytes` on the wire.
    #[inline]
    pub(crate) fn wire_time_ps(&self, bytes: u64) -> u64 {
        (bytes * self.time_per_byte + ((1 << FRACTION_BITS) - 1)) >> FRACTION_BITS
    }

    /// Sends a pause frame behind the frame on the wire, and returns the time at which it has left. It overtakes a
    /// packet that has not started yet.
    pub(crate) fn signal(&mut self, now: u64, bytes: u64) -> u64 {
        let takes = self.wire_time_ps(bytes);
        let begin = now.max(self.signalled_ps);
        let end = if begin + takes <= self.starts_ps {
            begin + takes
        } else {
            self.busy_until_ps = self.busy_until_ps.max(begin) + takes;
            self.busy_until_ps
        };
        self.signalled_ps = end;
        self.sent_bytes += bytes;
        end
    }

    /// The part of the wire time of [`Self::sent_bytes`] that lies after `now`.
    pub(crate) fn unsent_ps(&self, now: u64) -> u64 {
        let packet = self.busy_until_ps.saturating_sub(now.max(self.starts_ps));
        // A pause frame that overtakes a packet is not included.
        let overtakes = self.signalled_ps <= self.starts_ps;
        packet
            + if overtakes {
                self.signalled_ps.saturating_sub(now)
            } else {
                0
            }
    }

    /// Adds a packet to the queue.
    #[inline]
    pub(crate) fn enqueue(&mut self, pool: &mut Pool, place: u32, bytes: u64) {
        pool.at_mut(place).next = NIL;
        if self.head == NIL {
            self.head = place;
        } else {
            pool.at_mut(self.tail).next = place;
        }
        self.tail = place;
        self.queue_bytes += bytes;
        self.queue_peak = self.queue_peak.max(self.queue_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_takes_20_ps_at_400g_and_the_time_is_never_too_short() {
        let port = |gbit: f64| Port::new(gbit * 1e9 / 8.0, 0, 1);
        assert_eq!(port(400.0).wire_time_ps(1000), 20_000);
        assert_eq!(port(100.0).wire_time_ps(4178), 334_240);
        for gbit in [0.01, 37.0, 53.125, 9999.0] {
            for bytes in [1u32, 64, 4178, 65_000] {
                let exact = f64::from(bytes) * 8e3 / gbit;
                let ours = port(gbit).wire_time_ps(u64::from(bytes)) as f64;
                assert!(
                    ours >= exact - 1e-6 && ours <= exact * 1.000_001 + 2.0,
                    "{gbit} {bytes}"
                );
            }
        }
    }

    #[test]
    fn a_pause_frame_waits_for_the_frame_on_the_wire_and_overtakes_one_that_has_not_started() {
        let mut port = Port::new(50e9, 0, 1);
        (port.starts_ps, port.busy_until_ps) = (100_000, 180_000);
        assert_eq!(port.signal(50_000, 84), 51_680);
        assert_eq!(port.signal(50_500, 84), 53_360);
        assert_eq!(port.busy_until_ps, 180_000);
        assert_eq!(port.signal(120_000, 84), 181_680);
        assert_eq!(port.busy_until_ps, 181_680);
    }

    #[test]
    fn a_pool_reuses_its_entries() {
        let mut pool = Pool::new();
        let packet = Packet {
            ready_ps: 0,
            next: NIL,
            flow: 0,
            seq: 0,
            route: 0,
            came_by: NIL,
            bytes: 100,
            marked: false,
        };
        let [a, b] = [0, 1].map(|_| pool.put(packet));
        pool.free(a);
        assert_eq!((pool.live_bytes(), pool.put(packet), pool.peak()), (100, a, 2));
        assert_ne!(a, b);
    }
}

//! Switches: they admit packets, forward them, and pause their neighbours.

use super::{super::port::NIL, Engine, Event};

/// A pause frame on the wire: 64 bytes, preamble and gap.
const PAUSE_FRAME_BYTES: u64 = 84;

impl Engine<'_> {
    /// Handles the arrival of a packet at the far end of a link.
    #[inline]
    pub(super) fn arrive(&mut self, link: u32, packet: u32) {
        let node = self.ports[link as usize].to;
        if self.net.is_host(node) {
            self.deliver(packet);
            return;
        }
        let held = self.pool.at_mut(packet);
        let out = self.routes.link(held.route);
        held.route += 1;
        held.came_by = link;
        held.ready_ps = self.now + self.latency_ps;
        let bytes = u64::from(held.bytes);
        let taken = self.in_cells(bytes);
        let shared = &mut self.shared[node as usize];
        let admitted = if self.lossless {
            self.ingress[link as usize].admit(shared, taken)
        } else {
            shared.admit_lossy(self.ports[out as usize].queue_bytes, taken)
        };
        if !admitted {
            self.drop_packet(out, packet);
            return;
        }
        self.ports[out as usize].enqueue(&mut self.pool, packet, bytes);
        if self.ports[out as usize].watched {
            self.record_queue(out);
        }
        self.kick(out);
        if self.lossless {
            let shared = &self.shared[node as usize];
            if self.ingress[link as usize].should_stop(shared) {
                self.stop(link, node);
            }
        }
    }

    /// Sends from a port with a packet, now or when its wire is free.
    #[inline]
    pub(super) fn kick(&mut self, link: u32) {
        let port = &mut self.ports[link as usize];
        if port.armed || port.paused || port.head == NIL {
            return;
        }
        if port.busy_until_ps > self.now {
            port.armed = true;
            self.wheel.push(port.busy_until_ps, Event::Free { link });
        } else if self.net.is_host(port.from) {
            self.emit(link);
        } else {
            self.transmit(link);
        }
    }

    /// Handles that a port's wire is free.
    #[inline]
    pub(super) fn free(&mut self, link: u32) {
        self.ports[link as usize].armed = false;
        self.kick(link);
    }

    /// Sends the packet at the head of a switch's port.
    #[inline]
    fn transmit(&mut self, link: u32) {
        let port = &mut self.ports[link as usize];
        let place = port.head;
        let packet = self.pool.at_mut(place);
        let bytes = u64::from(packet.bytes);
        port.head = packet.next;
        if let Some(ecn) = &self.marking[link as usize]
            && port.queue_bytes > ecn.kmin.0
            && self.rng.chance(ecn.share(port.queue_bytes as f64))
        {
            packet.marked = true;
            port.marked_packets += 1;
        }
        port.queue_bytes -= bytes;
        port.sent_bytes += bytes;
        port.starts_ps = self.now.max(packet.ready_ps);
        port.busy_until_ps = port.starts_ps + port.wire_time_ps(bytes);
        let came_by = packet.came_by;
        let arrives = port.busy_until_ps + port.wire_ps;
        let packet = place;
        self.wheel.push(arrives, Event::Arrive { link, packet });
        if port.head != NIL {
            port.armed = true;
            self.wheel.push(port.busy_until_ps, Event::Free { link });
        }
        let node = port.from as usize;
        if port.watched {
            self.record_queue(link);
        }
        let taken = self.in_cells(bytes);
        if self.lossless {
            let (ingress, shared) = (&mut self.ingress[came_by as usize], &mut self.shared[node]);
            ingress.release(shared, taken);
            if ingress.should_go(shared) {
                ingress.stopped = false;
                self.signal(came_by, false);
            }
        } else {
            self.shared[node].release_lossy(taken);
        }
    }

    /// The buffer space of a packet: whole cells, if the buffer has cells.
    #[inline]
    fn in_cells(&self, bytes: u64) -> u64 {
        match self.cell {
            None => bytes,
            Some(cell) => bytes.next_multiple_of(cell),
        }
    }

    /// Pauses the neighbour at the other end of `link`, and records the cause.
    #[cold]
    fn stop(&mut self, link: u32, node: u32) {
        self.ingress[link as usize].stopped = true;
        let fullest = self.net.leaving[node as usize]
            .iter()
            .copied()
            .max_by_key(|out| self.ports[*out as usize].queue_bytes)
            .unwrap_or(NIL);
        self.pause_roots[link as usize] = self.root(fullest);
        self.signal(link, true);
    }

    /// The cause of a full egress: the egress itself or, if its queue grew while it was paused, the cause of that
    /// pause.
    fn root(&self, egress: u32) -> u32 {
        let Some(port) = self.ports.get(egress as usize) else {
            return NIL;
        };
        let pauses = &self.pauses[egress as usize];
        let drains_ps = pauses.ended_ps + port.wire_time_ps(port.queue_bytes);
        if port.paused || (pauses.count > 0 && drains_ps > self.now) {
            pauses.root
        } else {
            egress
        }
    }

    /// Sends a pause frame, or the frame that ends a pause, back along `link`.
    #[cold]
    fn signal(&mut self, link: u32, stop: bool) {
        let back = &mut self.ports[(link ^ 1) as usize];
        let left = back.signal(self.now, PAUSE_FRAME_BYTES);
        let at = left + back.wire_ps + back.response_ps;
        self.tally.pause_frames += u64::from(stop);
        self.wheel.push(at, Event::Pause { link, stop });
    }

    /// Handles the start or the end of a pause.
    #[cold]
    pub(super) fn pause(&mut self, link: u32, stop: bool) {
        if self.ports[link as usize].watched {
            self.record_pause(link, stop);
        }
        if stop {
            self.ports[link as usize].paused = true;
            let pauses = &mut self.pauses[link as usize];
            pauses.since_ps = self.now;
            pauses.count += 1;
            pauses.root = self.pause_roots[link as usize];
            self.tally.first_pause_ps.get_or_insert(self.now);
            self.look_later();
        } else {
            self.end_pause(link);
            self.ports[link as usize].paused = false;
            self.kick(link);
        }
    }

    /// Drops a packet that does not fit into the buffer.
    #[cold]
    fn drop_packet(&mut self, out: u32, place: u32) {
        let packet = *self.pool.at(place);
        self.pool.free(place);
        self.ports[out as usize].dropped_packets += 1;
        self.tally.dropped_packets += 1;
        self.tally.dropped_bytes += u64::from(packet.bytes);
        self.lose(packet.flow, packet.seq);
    }
}

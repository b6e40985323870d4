//! Delivery of a TLP at the end of its path: it is counted, a request is answered, and the next I/O is issued.

use super::{
    Engine, Ps, data_units,
    tlp::{Class, END, FENCE, LAST, Tlp},
};

impl Engine {
    /// Delivers a TLP to the node at the end of its path.
    #[inline(always)]
    pub(super) fn deliver(&mut self, p: usize, class: Class, tlp: Tlp, at: Ps) {
        let stream = usize::from(tlp.flow / 2);
        match class {
            Class::Posted => {
                let committed = at + self.flows[usize::from(tlp.flow)].commit;
                self.ports[p].committed = self.ports[p].committed.max(committed);
                let source = &mut self.sources[stream];
                source.progress.arrive(u64::from(tlp.bytes()), at);
                if tlp.has(LAST) && !source.is_fenced() {
                    source.complete(at);
                    let back = at + source.back;
                    self.issue(stream, back);
                }
            }
            Class::NonPosted => self.answer(p, tlp, at),
            Class::Completion => self.receive(stream, tlp, at),
        }
    }

    /// Returns the credits that a delivered TLP took for its last link.
    #[inline(always)]
    pub(super) fn drain(&mut self, p: usize, slot: u32, class: Class, tlp: Tlp, at: Ps) {
        let pool = self.pool_of(p, slot, class);
        let back = at + self.ports[p].wire.credit_latency;
        if self.pools[pool].give_back(back, data_units(class, tlp)) {
            self.wakes.wake(p, back);
        }
    }

    /// Answers a read: completions are sent once every posted write before it is in memory.
    fn answer(&mut self, p: usize, request: Tlp, at: Ps) {
        let flow = self.flows[usize::from(request.flow)];
        let device = &mut self.devices[flow.end as usize];
        let latency = device.read_latency;
        let mut ready = at.max(self.ports[p].committed) + device.draw(latency);
        let back = request.flow ^ 1;
        let way = &mut self.flows[usize::from(back)];
        // The answers of one stream stay in order, as its requests were and its data must be.
        ready = ready.max(way.last_ready);
        way.last_ready = ready;
        let (first, mut left) = (way.first, request.bytes());
        let hop = self.hops[first as usize];
        // A root complex merges cache lines only for requests that touch all lines of a full request.
        let touched = left.next_multiple_of(flow.completion_bytes);
        let piece = if touched < flow.whole_bytes {
            flow.completion_bytes
        } else {
            flow.mps_bytes
        };
        loop {
            let bytes = left.min(piece);
            left -= bytes;
            let marks = match left {
                0 => request.marks() | END,
                _ => request.marks() & !LAST,
            };
            let tlp = Tlp::new(ready, back, first + 1, bytes, marks);
            self.enter(hop, Class::Completion, tlp);
            if left == 0 {
                return;
            }
        }
    }

    /// Receives a completion at the device that requested it.
    fn receive(&mut self, stream: usize, tlp: Tlp, at: Ps) {
        let source = &mut self.sources[stream];
        let device = &self.devices[source.device as usize];
        if tlp.has(END) && self.pools[device.tags as usize].give_back(at, 0) {
            self.wakes.wake(device.port as usize, at);
        }
        if tlp.has(FENCE) {
            let port = device.port as usize;
            let covered = source.fence_done(at);
            for _ in 0..covered {
                self.sources[stream].complete(at);
                self.issue(stream, at);
            }
            if self.sources[stream].is_spent() {
                self.retire(stream);
            }
            self.wakes.wake(port, at);
            return;
        }
        source.progress.arrive(u64::from(tlp.bytes()), at);
        if tlp.has(LAST) {
            let end = at + device.copy_time(source.io_bytes());
            source.complete(end);
            self.issue(stream, end);
        }
    }

    /// Issues a stream's next I/O at `at`.
    pub(super) fn issue(&mut self, stream: usize, at: Ps) {
        let source = &mut self.sources[stream];
        let device = &mut self.devices[source.device as usize];
        let latency = device.media_latency;
        let delay = device.draw(latency);
        let ready = source.issue(at, delay);
        let port = device.port as usize;
        self.wakes.wake(port, ready);
    }

    /// Marks a stream's slot empty: its last fence is done.
    fn retire(&mut self, stream: usize) {
        let hop = self.hops[self.flows[2 * stream].first as usize];
        let port = &mut self.ports[hop.port as usize];
        port.occupied &= !(1 << (hop.slot - port.slots.start));
    }
}

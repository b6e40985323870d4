//! Measurements of an engine's connections while it works: round trips, retransmits, stalls, bursts.
//!
//! The kernel provides them (`TCP_INFO`). An engine on sockets has a [`Gauge`] and samples its connections every 10 ms,
//! on its lane's own thread, between two waits: one sample is one system call. It needs no other thread and no lock,
//! and nothing runs between transfers. A stalled connection is sampled again after a quarter of the time that it has
//! stalled, at most 100 ms: an upload to a slow server took 2 % less CPU time that way.

mod interfaces;

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use straightway_core::receipt;
use straightway_sys::{Socket, TcpInfo};

use interfaces::Span;

/// The shortest and the longest interval between samples of a connection.
const INTERVAL: Duration = Duration::from_millis(10);
const INTERVAL_MAX: Duration = Duration::from_millis(100);

/// The most connections that are sampled.
const CONNECTIONS_MAX: usize = 256;

/// A connection to sample.
#[derive(Clone, Copy, Debug)]
pub struct Watched<'a> {
    /// A stable number, unique among the engine's open connections.
    pub key: u64,
    /// The connection.
    pub socket: &'a Socket,
    /// Whether bytes are expected on it.
    pub is_owed: bool,
}

/// Samples the connections of one engine.
#[derive(Debug, Default)]
pub struct Gauge {
    /// When the next sample is due; `None` between transfers.
    due: Option<Instant>,
    seen: Vec<Seen>,
    tally: SocketTally,
}

/// The last sample of a connection.
#[derive(Clone, Copy, Debug)]
struct Seen {
    key: u64,
    /// When it was taken.
    looked: Instant,
    info: TcpInfo,
    is_owed: bool,
    /// How long nothing has moved.
    stalled: Duration,
}

/// The measurements of one engine's connections since its gauge began. A later tally of the same run includes an
/// earlier one.
#[derive(Clone, Debug, Default)]
pub struct SocketTally {
    /// A number for this run of this gauge.
    run: u64,
    connections: u64,
    samples: u64,
    retransmits: u64,
    out_of_order: u64,
    rtt_us_min: u32,
    rtt_us_max: u32,
    rtt_us_sum: u64,
    stalls: u64,
    stalled: Duration,
    stall_max: Duration,
    burst_bytes_per_s: f64,
    interfaces: Span,
}

impl Gauge {
    /// Whether a transfer is being measured.
    pub fn is_running(&self) -> bool {
        self.due.is_some()
    }

    /// When the next sample is due.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Begins with the connections that are already open. Their earlier counts are ignored.
    pub fn begin<'a>(&mut self, now: Instant, open: impl Iterator<Item = Watched<'a>>) {
        static RUNS: AtomicU64 = AtomicU64::new(1);
        self.rest();
        self.tally.run = RUNS.fetch_add(1, Ordering::Relaxed);
        self.tally.interfaces.begin();
        self.due = Some(now + INTERVAL);
        for watched in open.take(CONNECTIONS_MAX) {
            if let Some(info) = watched.socket.tcp_info() {
                self.tally.connections += 1;
                self.seen.push(Seen::new(&watched, now, info));
            }
        }
    }

    /// Samples the connections that are due. A new connection counts from its beginning.
    pub fn look<'a>(&mut self, now: Instant, open: impl Iterator<Item = Watched<'a>>) {
        if self.due.is_some_and(|due| due <= now) {
            // Connections that are soon due are sampled too, so that a burst is seen on all at once.
            self.look_where(now, open, |seen| seen.due() <= now + INTERVAL / 2);
        }
    }

    /// The measurements since [`begin`](Self::begin), with a final sample of all connections and interfaces.
    pub fn tally<'a>(&mut self, now: Instant, open: impl Iterator<Item = Watched<'a>>) -> Option<SocketTally> {
        self.due?;
        self.look_where(now, open, |_| true);
        self.tally.interfaces.end();
        Some(self.tally.clone())
    }

    /// Samples connections that are due, new ones, and those whose `is_owed` has changed.
    fn look_where<'a>(
        &mut self,
        now: Instant,
        open: impl Iterator<Item = Watched<'a>>,
        is_due: impl Fn(&Seen) -> bool,
    ) {
        let (mut due, mut rate) = (now + INTERVAL_MAX, 0.0);
        for watched in open.take(CONNECTIONS_MAX) {
            let at = self.seen.iter().position(|seen| seen.key == watched.key);
            let known = at.map(|at| self.seen[at]);
            let rests = known.filter(|seen| seen.is_owed == watched.is_owed && !is_due(seen));
            let next = if let Some(seen) = rests {
                seen
            } else if let Some(info) = watched.socket.tcp_info() {
                let seen = self.tally.compare(known, &watched, now, info, &mut rate);
                self.keep(at, seen);
                seen
            } else {
                continue;
            };
            due = due.min(next.due());
        }
        self.due = Some(due);
        self.tally.burst_bytes_per_s = self.tally.burst_bytes_per_s.max(rate);
    }

    /// Stores a sample in the place of the connection's last one.
    fn keep(&mut self, at: Option<usize>, seen: Seen) {
        if let Some(at) = at {
            self.seen[at] = seen;
            return;
        }
        if self.seen.len() >= CONNECTIONS_MAX {
            self.seen.remove(0);
        }
        self.seen.push(seen);
    }

    /// Discards all samples at the end of a transfer.
    pub fn rest(&mut self) {
        self.due = None;
        self.seen.clear();
        self.tally = SocketTally::default();
    }
}

impl Seen {
    fn new(watched: &Watched<'_>, now: Instant, info: TcpInfo) -> Self {
        Self {
            key: watched.key,
            looked: now,
            info,
            is_owed: watched.is_owed,
            stalled: Duration::ZERO,
        }
    }

    /// When the next sample is due.
    fn due(&self) -> Instant {
        self.looked + (self.stalled / 4).clamp(INTERVAL, INTERVAL_MAX)
    }

    fn is_before(&self, info: &TcpInfo) -> bool {
        self.info.received_bytes <= info.received_bytes
            && self.info.acked_bytes <= info.acked_bytes
            && self.info.retransmits <= info.retransmits
    }

    /// The bytes that moved since this sample.
    fn progress(&self, info: &TcpInfo) -> u64 {
        let received = info.received_bytes - self.info.received_bytes;
        received + (info.acked_bytes - self.info.acked_bytes)
    }
}

impl SocketTally {
    fn sample(&mut self, rtt_us: u32) {
        self.rtt_us_min = match self.samples {
            0 => rtt_us,
            _ => self.rtt_us_min.min(rtt_us),
        };
        self.rtt_us_max = self.rtt_us_max.max(rtt_us);
        self.rtt_us_sum += u64::from(rtt_us);
        self.samples += 1;
    }

    /// Adds what a connection did since its last sample, and adds its rate to `rate`. Returns the new sample.
    fn compare(
        &mut self,
        known: Option<Seen>,
        watched: &Watched<'_>,
        now: Instant,
        info: TcpInfo,
        rate: &mut f64,
    ) -> Seen {
        self.sample(info.rtt_us);
        let mut seen = Seen::new(watched, now, info);
        // Counters only grow. If they did not, the number belongs to another connection.
        let Some(known) = known.filter(|known| known.is_before(&info)) else {
            self.connections += 1;
            self.count(&TcpInfo::default(), &info);
            return seen;
        };
        self.count(&known.info, &info);
        let (took, progress) = (now.duration_since(known.looked), known.progress(&info));
        // Two samples close together would turn a single packet into a burst.
        if took >= INTERVAL / 2 {
            *rate += progress as f64 / took.as_secs_f64();
        }
        if progress == 0 && known.is_owed && watched.is_owed {
            self.stall(known.stalled, took);
            seen.stalled = known.stalled + took;
        }
        seen
    }

    fn count(&mut self, before: &TcpInfo, now: &TcpInfo) {
        self.retransmits += u64::from(now.retransmits.saturating_sub(before.retransmits));
        self.out_of_order += u64::from(now.out_of_order.saturating_sub(before.out_of_order));
    }

    /// Counts a connection that moved nothing for `more`, after it had been stalled for `before`.
    fn stall(&mut self, before: Duration, more: Duration) {
        self.stalls += u64::from(before.is_zero());
        self.stalled += more;
        self.stall_max = self.stall_max.max(before + more);
    }

    /// Adds a tally to those of other lanes. Only the latest of one run counts: consecutive jobs on a lane have the
    /// same connections.
    pub(crate) fn enter(self, all: &mut Vec<Self>) {
        match all.iter_mut().find(|known| known.run == self.run) {
            Some(known) if known.samples > self.samples => {}
            Some(known) => *known = self,
            None => all.push(self),
        }
    }

    /// The sum over all lanes, as reported in a receipt; `None` without measurements.
    pub(crate) fn sum(all: &[Self]) -> Option<receipt::Sockets> {
        let mut sum = all.first()?.clone();
        all[1..].iter().for_each(|other| sum.add(other));
        Some(sum.receipt())
    }

    /// Adds the measurements of another lane.
    fn add(&mut self, other: &Self) {
        self.rtt_us_min = match (self.samples, other.samples) {
            (0, _) => other.rtt_us_min,
            (_, 0) => self.rtt_us_min,
            _ => self.rtt_us_min.min(other.rtt_us_min),
        };
        self.connections += other.connections;
        self.samples += other.samples;
        self.retransmits += other.retransmits;
        self.out_of_order += other.out_of_order;
        self.rtt_us_max = self.rtt_us_max.max(other.rtt_us_max);
        self.rtt_us_sum += other.rtt_us_sum;
        self.stalls += other.stalls;
        self.stalled += other.stalled;
        self.stall_max = self.stall_max.max(other.stall_max);
        self.burst_bytes_per_s = self.burst_bytes_per_s.max(other.burst_bytes_per_s);
        self.interfaces.add(&other.interfaces);
    }

    /// The measurements as reported in a receipt.
    fn receipt(&self) -> receipt::Sockets {
        receipt::Sockets {
            connections: self.connections,
            samples: self.samples,
            retransmits: self.retransmits,
            out_of_order: self.out_of_order,
            rtt_us_min: f64::from(self.rtt_us_min),
            rtt_us_mean: self.rtt_us_sum as f64 / self.samples.max(1) as f64,
            rtt_us_max: f64::from(self.rtt_us_max),
            stalls: self.stalls,
            stalled_s: self.stalled.as_secs_f64(),
            stall_s_max: self.stall_max.as_secs_f64(),
            burst_bytes_per_s: self.burst_bytes_per_s,
            interfaces: self.interfaces.moved(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    /// A connection: this side as a socket, and the other.
    fn pair() -> (Socket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        (Socket::of_stream(own).unwrap(), other)
    }

    fn watched(socket: &Socket, is_owed: bool) -> impl Iterator<Item = Watched<'_>> {
        std::iter::once(Watched {
            key: 1,
            socket,
            is_owed,
        })
    }

    #[test]
    fn stalls_are_counted_only_while_bytes_are_due() {
        let (socket, mut other) = pair();
        let mut gauge = Gauge::default();
        let start = Instant::now();
        assert!(gauge.tally(start, watched(&socket, true)).is_none());
        gauge.begin(start, watched(&socket, true));
        let at = |n: u32| start + INTERVAL * n;
        // Two intervals without a byte are one stall. An interval in which no bytes are due is none.
        gauge.look(at(1), watched(&socket, true));
        gauge.look(at(2), watched(&socket, true));
        gauge.look(at(3), watched(&socket, false));
        gauge.look(at(4), watched(&socket, true));
        other.write_all(&[1; 4000].repeat(25)).unwrap();
        let mut read = 0;
        let mut bytes = [0; 4096];
        while read < 100_000 {
            read += socket.receive_now(&mut bytes).unwrap_or(0);
        }
        gauge.look(at(5), watched(&socket, true));
        let seen = gauge.tally(at(6), watched(&socket, true));
        let seen = seen.unwrap().receipt();
        assert_eq!((seen.connections, seen.samples, seen.stalls), (1, 6, 2));
        assert!((seen.stalled_s - 0.03).abs() < 1e-9, "{seen:?}");
        assert!((seen.stall_s_max - 0.02).abs() < 1e-9, "{seen:?}");
        assert!(seen.burst_bytes_per_s >= 1e7 && seen.rtt_us_mean > 0.0);
        let lo = seen.interfaces.iter().find(|i| i.name == "lo");
        assert!(lo.is_some_and(|lo| lo.received_bytes >= 100_000), "{seen:?}");
        gauge.rest();
        assert!(!gauge.is_running() && gauge.due().is_none());
    }

    #[test]
    fn a_stalled_connection_is_sampled_less_often_and_its_stall_is_measured_in_full() {
        let (socket, mut other) = pair();
        let mut gauge = Gauge::default();
        let start = Instant::now();
        gauge.begin(start, watched(&socket, true));
        let mut now = start;
        while now < start + Duration::from_secs(2) {
            now = gauge.due().unwrap();
            let before = now.checked_sub(Duration::from_micros(1)).unwrap();
            gauge.look(before, watched(&socket, true));
            assert_eq!(gauge.due(), Some(now), "it is not due yet");
            gauge.look(now, watched(&socket, true));
            let wait = gauge.due().unwrap() - now;
            assert!(wait >= INTERVAL && wait <= INTERVAL_MAX, "{wait:?}");
        }
        let seen = gauge.tally.clone();
        assert!((20..60).contains(&seen.samples), "{}", seen.samples);
        assert_eq!((seen.stalls, seen.stall_max), (1, now - start));
        other.write_all(&[1; 100]).unwrap();
        while socket.tcp_info().unwrap().received_bytes < 100 {
            std::thread::yield_now();
        }
        gauge.look(gauge.due().unwrap(), watched(&socket, true));
        let due = gauge.due().unwrap();
        // A change of `is_owed` is sampled at the next look.
        assert_eq!(due - gauge.seen[0].looked, INTERVAL);
        gauge.look(due, watched(&socket, false));
        assert!(!gauge.seen[0].is_owed);
    }

    #[test]
    fn only_the_latest_tally_of_a_run_counts_and_runs_are_summed() {
        let tally = |run: u64, samples: u64, stalls: u64| SocketTally {
            run,
            samples,
            stalls,
            connections: 1,
            ..SocketTally::default()
        };
        let mut all = Vec::new();
        for seen in [tally(1, 5, 2), tally(2, 3, 1), tally(1, 9, 4), tally(2, 1, 0)] {
            seen.enter(&mut all);
        }
        let sum = SocketTally::sum(&all).unwrap();
        assert_eq!((sum.connections, sum.samples, sum.stalls), (2, 12, 5));
        assert!(SocketTally::sum(&[]).is_none());
    }

    #[test]
    fn a_number_that_is_used_again_is_a_new_connection() {
        let (socket, mut other) = pair();
        other.write_all(&[1; 1000]).unwrap();
        while socket.tcp_info().unwrap().received_bytes < 1000 {
            std::thread::yield_now();
        }
        let mut gauge = Gauge::default();
        let start = Instant::now();
        gauge.begin(start, watched(&socket, true));
        let (second, mut far) = pair();
        let seen = gauge.tally(start + INTERVAL, watched(&second, true));
        let seen = seen.unwrap().receipt();
        assert_eq!((seen.connections, seen.stalls), (2, 0));
        drop(second);
        let _ = far.read(&mut [0; 1]);
    }
}

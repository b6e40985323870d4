//! Detection of links that wait for each other since the last check.

use straightway_core::Seconds;

use super::{
    super::{
        deadlock::{Deadlock, find_cycle},
        port::NIL,
        topology::narrow,
    },
    Engine,
};

impl Engine<'_> {
    /// A cycle of links paused since `since_ps`, each waiting for the next.
    pub(super) fn waiting_cycle(&self, since_ps: u64) -> Option<Deadlock> {
        let stuck = |link: u32| self.ports[link as usize].paused && self.pauses[link as usize].since_ps <= since_ps;
        let mut after: Vec<Vec<u32>> = vec![Vec::new(); self.ports.len()];
        for link in (0..narrow(self.ports.len())).filter(|l| stuck(*l)) {
            let port = &self.ports[link as usize];
            if self.net.is_host(port.from) {
                continue;
            }
            // Packets that wait at this stuck port block the links by which they came.
            let mut place = port.head;
            while place != NIL {
                let packet = self.pool.at(place);
                let waits = &mut after[packet.came_by as usize];
                if stuck(packet.came_by) && !waits.contains(&link) {
                    waits.push(link);
                }
                place = packet.next;
            }
        }
        let cycle = find_cycle(&after)?;
        let bytes = cycle.iter().map(|l| self.ingress[*l as usize].bytes());
        Some(Deadlock {
            seen: Seconds(self.now as f64 / 1e12),
            stuck_bytes: bytes.sum(),
            cycle: cycle.iter().map(|l| self.net.link_name(*l)).collect(),
        })
    }
}

//! The traffic of the machine's network interfaces during a transfer.

use std::collections::BTreeMap;

use straightway_core::receipt::Interface;

/// The kernel's table of interfaces.
const TABLE: &str = "/proc/net/dev";

/// The most interfaces that are reported.
const INTERFACES_MAX: usize = 8;

/// An interface with less than 1/100 of the busiest one's bytes is left out.
const SHARE_MIN: u64 = 100;

/// Counters of one interface: bytes received and sent, packets dropped and with errors.
type Counters = [u64; 4];

/// The counters of all interfaces at the beginning and at the end.
#[derive(Clone, Debug, Default)]
pub(super) struct Span {
    first: BTreeMap<String, Counters>,
    last: BTreeMap<String, Counters>,
}

impl Span {
    pub(super) fn begin(&mut self) {
        self.first = read();
    }

    pub(super) fn end(&mut self) {
        self.last = read();
    }

    /// Adds the span of another lane: from the earlier beginning to the later end. Counters only grow, so these are the
    /// smaller and the larger values.
    pub(super) fn add(&mut self, other: &Self) {
        join(&mut self.first, &other.first, u64::min);
        join(&mut self.last, &other.last, u64::max);
    }

    /// The traffic by interface, the busiest first.
    pub(super) fn moved(&self) -> Vec<Interface> {
        let mut all: Vec<_> = self
            .last
            .iter()
            .filter_map(|(name, last)| {
                let first = self.first.get(name)?;
                let grown = |index: usize| last[index].saturating_sub(first[index]);
                Some(Interface {
                    name: name.clone(),
                    received_bytes: grown(0),
                    sent_bytes: grown(1),
                    dropped: grown(2),
                    errors: grown(3),
                })
            })
            .collect();
        let bytes = |interface: &Interface| interface.received_bytes + interface.sent_bytes;
        all.sort_by_key(|interface| std::cmp::Reverse(bytes(interface)));
        let most = all.first().map_or(0, bytes);
        all.retain(|interface| bytes(interface) > most / SHARE_MIN);
        all.truncate(INTERFACES_MAX);
        all
    }
}

fn join(all: &mut BTreeMap<String, Counters>, others: &BTreeMap<String, Counters>, pick: fn(u64, u64) -> u64) {
    for (name, theirs) in others {
        let mine = all.entry(name.clone()).or_insert(*theirs);
        for (mine, theirs) in mine.iter_mut().zip(theirs) {
            *mine = pick(*mine, *theirs);
        }
    }
}

/// Reads the table; empty if it cannot be read.
fn read() -> BTreeMap<String, Counters> {
    let table = std::fs::read_to_string(TABLE).unwrap_or_default();
    table.lines().filter_map(line).collect()
}

/// Parses one line: the name, then eight counters for receiving and eight for sending: bytes, packets, errors, dropped
/// and others.
fn line(text: &str) -> Option<(String, Counters)> {
    let (name, counters) = text.split_once(':')?;
    let counters: Vec<u64> = counters
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    let at = |index: usize| counters.get(index).copied();
    let both = |index: usize| Some(at(index)?.saturating_add(at(index + 8)?));
    Some((name.trim().to_owned(), [at(0)?, at(8)?, both(3)?, both(2)?]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_lines_are_parsed_and_others_are_skipped() {
        let text = "  eth0: 100 2 1 3 0 0 0 0 200 2 10 30 0 0 0 0";
        assert_eq!(line(text), Some(("eth0".to_owned(), [100, 200, 33, 11])));
        for text in ["Inter-|   Receive  |  Transmit", "eth0: 1 2", "", "eth0: x"] {
            assert_eq!(line(text), None);
        }
        assert!(read().contains_key("lo"));
    }

    #[test]
    fn spans_of_lanes_are_merged_and_quiet_interfaces_are_left_out() {
        let table = |busy: u64, quiet: u64| {
            let of = |bytes: u64| [bytes, 0, 0, 0];
            BTreeMap::from([("busy".to_owned(), of(busy)), ("quiet".to_owned(), of(quiet))])
        };
        let mut span = Span {
            first: table(1000, 7),
            last: table(5000, 8),
        };
        span.add(&Span {
            first: table(500, 7),
            last: table(4000, 8),
        });
        let moved = span.moved();
        assert_eq!(moved.len(), 1);
        assert_eq!((moved[0].name.as_str(), moved[0].received_bytes), ("busy", 4500));
        assert!(Span::default().moved().is_empty());
    }
}

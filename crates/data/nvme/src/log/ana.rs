//! Asymmetric namespace access (ANA): the state of each group of namespaces on a controller.

use crate::{Malformed, wire};

/// The size of the header.
const HEADER_BYTES: usize = 16;

/// The size of a group descriptor before its namespaces.
const GROUP_BYTES: usize = 32;

/// The maximum numbers of groups and namespaces that are decoded. Linux has 128 groups.
const GROUPS_MAX: usize = 4096;
const NAMESPACES_MAX: usize = 1 << 16;

/// The access state of an ANA group on a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnaState {
    /// The best path.
    Optimized,
    /// Usable, but another path is better.
    NonOptimized,
    /// Not usable now.
    Inaccessible,
    /// Persistent loss: never usable again.
    Lost,
    /// The state is changing.
    Change,
}

impl AnaState {
    const fn number(self) -> u8 {
        match self {
            Self::Optimized => 1,
            Self::NonOptimized => 2,
            Self::Inaccessible => 3,
            Self::Lost => 4,
            Self::Change => 0xf,
        }
    }

    const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Optimized,
            2 => Self::NonOptimized,
            3 => Self::Inaccessible,
            4 => Self::Lost,
            0xf => Self::Change,
            _ => return None,
        })
    }

    /// Whether commands can be sent on this path.
    pub const fn is_usable(self) -> bool {
        matches!(self, Self::Optimized | Self::NonOptimized)
    }

    /// The name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Optimized => "optimized",
            Self::NonOptimized => "non-optimized",
            Self::Inaccessible => "inaccessible",
            Self::Lost => "persistent loss",
            Self::Change => "change",
        }
    }
}

/// An ANA group: namespaces that share a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnaGroup {
    /// The group identifier.
    pub id: u32,
    /// The change count of the group.
    pub changes: u64,
    /// Its state.
    pub state: AnaState,
    /// Its namespaces; empty if only groups were requested.
    pub namespaces: Vec<u32>,
}

/// The ANA log page.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct AnaLog {
    /// The change count of the log.
    pub changes: u64,
    /// The groups.
    pub groups: Vec<AnaGroup>,
}

impl AnaLog {
    /// The size of a page of `groups` groups with `namespaces` namespaces in total. `None` beyond the limits.
    pub fn bytes_for(groups: u32, namespaces: u32) -> Option<usize> {
        let (groups, namespaces) = (groups as usize, namespaces as usize);
        let fits = groups <= GROUPS_MAX && namespaces <= NAMESPACES_MAX;
        fits.then(|| HEADER_BYTES + groups * GROUP_BYTES + namespaces * 4)
    }

    /// The state of a namespace.
    pub fn state_of(&self, nsid: u32) -> Option<AnaState> {
        let mut groups = self.groups.iter();
        let group = groups.find(|group| group.namespaces.contains(&nsid))?;
        Some(group.state)
    }

    /// Encodes the page.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        wire::put(&mut bytes, 0, &self.changes.to_le_bytes());
        let count = u16::try_from(self.groups.len()).unwrap_or(u16::MAX);
        wire::put(&mut bytes, 8, &count.to_le_bytes());
        for group in &self.groups {
            let start = bytes.len();
            bytes.resize(start + GROUP_BYTES, 0);
            let head = &mut bytes[start..];
            let namespaces = u32::try_from(group.namespaces.len()).unwrap_or(u32::MAX);
            wire::put(head, 0, &group.id.to_le_bytes());
            wire::put(head, 4, &namespaces.to_le_bytes());
            wire::put(head, 8, &group.changes.to_le_bytes());
            head[16] = group.state.number();
            for nsid in &group.namespaces {
                bytes.extend(nsid.to_le_bytes());
            }
        }
        bytes
    }

    /// Decodes the page. Bytes after the last group are ignored.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let short = Malformed("the ANA log ends inside a group");
        if bytes.len() < HEADER_BYTES {
            return Err(short);
        }
        let count = usize::from(wire::u16_at(bytes, 8));
        if count > GROUPS_MAX {
            return Err(Malformed("the ANA log has more than 4096 groups"));
        }
        let mut groups = Vec::new();
        let mut rest = &bytes[HEADER_BYTES..];
        for _ in 0..count {
            let (head, behind) = rest.split_at_checked(GROUP_BYTES).ok_or(short)?;
            let namespaces = wire::u32_at(head, 4) as usize;
            if namespaces > NAMESPACES_MAX {
                return Err(Malformed("an ANA group has more than 65536 namespaces"));
            }
            let (list, behind) = behind.split_at_checked(namespaces * 4).ok_or(short)?;
            let state = AnaState::from_number(head[16] & 0xf);
            groups.push(AnaGroup {
                id: wire::u32_at(head, 0),
                changes: wire::u64_at(head, 8),
                state: state.ok_or(Malformed("an ANA group has an unknown state"))?,
                namespaces: (0..namespaces).map(|i| wire::u32_at(list, 4 * i)).collect(),
            });
            rest = behind;
        }
        Ok(Self {
            changes: wire::u64_at(bytes, 0),
            groups,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn group() -> impl Strategy<Value = AnaGroup> {
        let state = prop::sample::select(vec![1_u8, 2, 3, 4, 0xf]);
        let list = prop::collection::vec(any::<u32>(), 0..8);
        (any::<u32>(), any::<u64>(), state, list).prop_map(|(id, changes, state, namespaces)| AnaGroup {
            id,
            changes,
            state: AnaState::from_number(state).unwrap(),
            namespaces,
        })
    }

    proptest! {
        #[test]
        fn the_log_round_trips(changes: u64, groups in prop::collection::vec(group(), 0..8)) {
            let log = AnaLog { changes, groups };
            let bytes = log.encode();
            let namespaces = log.groups.iter().map(|group| group.namespaces.len()).sum::<usize>();
            let expected = AnaLog::bytes_for(u32::try_from(log.groups.len()).unwrap(), u32::try_from(namespaces).unwrap());
            prop_assert_eq!(Some(bytes.len()), expected);
            prop_assert_eq!(AnaLog::decode(&bytes), Ok(log.clone()));
            if !log.groups.is_empty() {
                prop_assert!(AnaLog::decode(&bytes[..bytes.len() - 1]).is_err());
            }
        }

        #[test]
        fn arbitrary_bytes_are_decoded_or_refused(bytes: Vec<u8>) {
            let _ = AnaLog::decode(&bytes);
        }
    }

    #[test]
    fn states_are_found_by_namespace() {
        let group = |id, state, namespaces| AnaGroup {
            id,
            changes: 0,
            state,
            namespaces,
        };
        let groups = vec![
            group(1, AnaState::Optimized, vec![1, 3]),
            group(2, AnaState::Lost, vec![2]),
        ];
        let log = AnaLog { changes: 1, groups };
        assert_eq!(log.state_of(3), Some(AnaState::Optimized));
        assert_eq!(log.state_of(2), Some(AnaState::Lost));
        assert_eq!(log.state_of(4), None);
    }
}

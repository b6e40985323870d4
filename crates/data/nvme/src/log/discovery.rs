//! The discovery log: the subsystems of a discovery controller and their addresses.

use std::fmt;

use crate::{Malformed, Nqn, wire};

/// The size of the header.
pub const DISCOVERY_HEADER_BYTES: usize = 1024;
/// The size of an entry.
pub const DISCOVERY_ENTRY_BYTES: usize = 1024;

/// The header of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DiscoveryHeader {
    /// The generation counter. A log that was read in parts is consistent if it did not change.
    pub generation: u64,
    /// The number of entries that follow.
    pub entries: u64,
    /// The format of the entries: 0.
    pub format: u16,
}

impl DiscoveryHeader {
    /// Encodes the header.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; DISCOVERY_HEADER_BYTES];
        wire::put(&mut bytes, 0, &self.generation.to_le_bytes());
        wire::put(&mut bytes, 8, &self.entries.to_le_bytes());
        wire::put(&mut bytes, 16, &self.format.to_le_bytes());
        bytes
    }

    /// Decodes the header.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() < DISCOVERY_HEADER_BYTES {
            return Err(Malformed("the discovery log is shorter than its header"));
        }
        let header = Self {
            generation: wire::u64_at(bytes, 0),
            entries: wire::u64_at(bytes, 8),
            format: wire::u16_at(bytes, 16),
        };
        match header.format {
            0 => Ok(header),
            _ => Err(Malformed("the discovery log has an unknown format")),
        }
    }
}

/// The transport type (TRTYPE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportType(pub u8);

impl TransportType {
    /// RDMA.
    pub const RDMA: Self = Self(1);
    /// TCP.
    pub const TCP: Self = Self(3);
}

/// The address family (ADRFAM).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressFamily(pub u8);

impl AddressFamily {
    /// IPv4.
    pub const V4: Self = Self(1);
    /// IPv6.
    pub const V6: Self = Self(2);
}

/// The subsystem type (SUBTYPE) of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubsystemKind(pub u8);

impl SubsystemKind {
    /// Another discovery controller.
    pub const REFERRAL: Self = Self(1);
    /// A subsystem with namespaces.
    pub const NVM: Self = Self(2);
    /// This discovery controller.
    pub const CURRENT: Self = Self(3);
}

impl fmt::Display for SubsystemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::REFERRAL => f.write_str("referral"),
            Self::NVM => f.write_str("subsystem"),
            Self::CURRENT => f.write_str("discovery"),
            Self(other) => write!(f, "kind {other}"),
        }
    }
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryEntry {
    /// The transport type.
    pub transport: TransportType,
    /// The family of its address.
    pub family: AddressFamily,
    /// The subsystem type.
    pub kind: SubsystemKind,
    /// Transport requirements: bits 0 and 1 secure channel (1 required, 2 not), bit 2 flow control may be disabled.
    pub requirements: u8,
    /// The port identifier.
    pub port: u16,
    /// The controller identifier; 0xffff for any.
    pub controller: u16,
    /// The maximum size of the admin queue in entries.
    pub admin_entries: u16,
    /// Flags: bit 0 duplicate returned information, bit 1 explicit persistent connections.
    pub flags: u16,
    /// The TCP port, as text (TRSVCID).
    pub service: String,
    /// The NQN of the subsystem.
    pub subsystem: Nqn,
    /// The address, as text (TRADDR).
    pub address: String,
    /// The security type of TCP: 0 none, 2 TLS 1.3.
    pub security: u8,
}

impl DiscoveryEntry {
    /// Encodes the entry.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; DISCOVERY_ENTRY_BYTES];
        bytes[0] = self.transport.0;
        bytes[1] = self.family.0;
        bytes[2] = self.kind.0;
        bytes[3] = self.requirements;
        wire::put(&mut bytes, 4, &self.port.to_le_bytes());
        wire::put(&mut bytes, 6, &self.controller.to_le_bytes());
        wire::put(&mut bytes, 8, &self.admin_entries.to_le_bytes());
        wire::put(&mut bytes, 10, &self.flags.to_le_bytes());
        wire::put_text(&mut bytes, 32, 32, &self.service);
        self.subsystem.put(&mut bytes, 256);
        wire::put_text(&mut bytes, 512, 256, &self.address);
        bytes[768] = self.security;
        bytes
    }

    /// Decodes the entry.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() != DISCOVERY_ENTRY_BYTES {
            return Err(Malformed("an entry of the discovery log does not have 1024 bytes"));
        }
        Ok(Self {
            transport: TransportType(bytes[0]),
            family: AddressFamily(bytes[1]),
            kind: SubsystemKind(bytes[2]),
            requirements: bytes[3],
            port: wire::u16_at(bytes, 4),
            controller: wire::u16_at(bytes, 6),
            admin_entries: wire::u16_at(bytes, 8),
            flags: wire::u16_at(bytes, 10),
            service: wire::text_at(bytes, 32, 32),
            subsystem: Nqn::at(bytes, 256)?,
            address: wire::text_at(bytes, 512, 256),
            security: bytes[768],
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_entry_round_trips(
            bytes in prop::collection::vec(any::<u8>(), DISCOVERY_ENTRY_BYTES),
            nqn in "[a-z.:]{1,223}",
        ) {
            let mut bytes = bytes;
            bytes[256..512].fill(0);
            bytes[256..256 + nqn.len()].copy_from_slice(nqn.as_bytes());
            let entry = DiscoveryEntry::decode(&bytes).unwrap();
            prop_assert_eq!(DiscoveryEntry::decode(&entry.encode()).unwrap(), entry);
        }

        #[test]
        fn a_header_round_trips(generation: u64, entries: u64) {
            let header = DiscoveryHeader { generation, entries, format: 0 };
            prop_assert_eq!(DiscoveryHeader::decode(&header.encode()), Ok(header));
        }
    }

    #[test]
    fn truncated_and_unknown_logs_are_refused() {
        assert!(DiscoveryHeader::decode(&[0; 1023]).is_err());
        let mut header = DiscoveryHeader::default().encode();
        header[16] = 1;
        assert!(DiscoveryHeader::decode(&header).is_err());
        assert!(DiscoveryEntry::decode(&[0; 1024]).is_err(), "no NQN");
    }
}

//! The discovery log: which subsystems there are, and where.

use std::fmt;

use crate::{Malformed, Nqn, wire};

/// The bytes of the header, and of each entry behind it.
pub const DISCOVERY_HEADER_BYTES: usize = 1024;
/// The bytes of an entry.
pub const DISCOVERY_ENTRY_BYTES: usize = 1024;

/// How the log begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DiscoveryHeader {
    /// Grows with each change: a log that was read in parts is whole where it did not.
    pub generation: u64,
    /// How many entries follow.
    pub entries: u64,
    /// The format of the entries: 0.
    pub format: u16,
}

impl DiscoveryHeader {
    /// As it is on the wire.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; DISCOVERY_HEADER_BYTES];
        wire::put(&mut bytes, 0, &self.generation.to_le_bytes());
        wire::put(&mut bytes, 8, &self.entries.to_le_bytes());
        wire::put(&mut bytes, 16, &self.format.to_le_bytes());
        bytes
    }

    /// From the wire.
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

/// How a subsystem is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport(pub u8);

impl Transport {
    /// RDMA.
    pub const RDMA: Self = Self(1);
    /// TCP.
    pub const TCP: Self = Self(3);
}

/// The kind of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressFamily(pub u8);

impl AddressFamily {
    /// IPv4.
    pub const V4: Self = Self(1);
    /// IPv6.
    pub const V6: Self = Self(2);
}

/// What an entry is about.
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
    /// How it is reached.
    pub transport: Transport,
    /// The kind of its address.
    pub family: AddressFamily,
    /// What it is about.
    pub kind: SubsystemKind,
    /// What its transport requires: bits 0 and 1 a secure channel (1 required, 2 not), bit 2 flow control may be off.
    pub requirements: u8,
    /// The port of the subsystem.
    pub port: u16,
    /// The controller; 0xffff for any.
    pub controller: u16,
    /// The most entries of the admin queue.
    pub admin_entries: u16,
    /// Flags: bit 0 the same entries as others, bit 1 events for discovery.
    pub flags: u16,
    /// The port of the address, as text.
    pub service: String,
    /// The subsystem.
    pub subsystem: Nqn,
    /// The address, as text.
    pub address: String,
    /// TCP: 0 plain, 2 TLS 1.3.
    pub security: u8,
}

impl DiscoveryEntry {
    /// As it is on the wire.
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

    /// From the wire.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() != DISCOVERY_ENTRY_BYTES {
            return Err(Malformed(
                "an entry of the discovery log does not have 1024 bytes",
            ));
        }
        Ok(Self {
            transport: Transport(bytes[0]),
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
        fn an_entry_survives_the_wire(
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
        fn a_header_survives_the_wire(generation: u64, entries: u64) {
            let header = DiscoveryHeader { generation, entries, format: 0 };
            prop_assert_eq!(DiscoveryHeader::decode(&header.encode()), Ok(header));
        }
    }

    #[test]
    fn what_is_cut_or_unknown_is_refused() {
        assert!(DiscoveryHeader::decode(&[0; 1023]).is_err());
        let mut header = DiscoveryHeader::default().encode();
        header[16] = 1;
        assert!(DiscoveryHeader::decode(&header).is_err());
        assert!(DiscoveryEntry::decode(&[0; 1024]).is_err(), "no NQN");
    }
}

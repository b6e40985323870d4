//! The Identify Controller data structure.

use super::IDENTIFY_BYTES;
use crate::{Malformed, Nqn, wire};

/// The controller type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerKind(pub u8);

impl ControllerKind {
    /// An I/O controller.
    pub const IO: Self = Self(1);
    /// A discovery controller.
    pub const DISCOVERY: Self = Self(2);
}

/// Identify Controller. Unused fields are encoded as zero and ignored when decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// The PCI vendor identifier and the PCI subsystem vendor identifier.
    pub vendor: [u16; 2],
    /// The serial number: up to 20 ASCII characters.
    pub serial: String,
    /// The model: up to 40 ASCII characters.
    pub model: String,
    /// The firmware: up to 8 ASCII characters.
    pub firmware: String,
    /// Multipath capabilities: [`Controller::SHARED`] and [`Controller::ANA`].
    pub multipath: u8,
    /// MDTS: the longest transfer is 4096 bytes × 2 to this power; 0 for no limit.
    pub transfer_shift: u8,
    /// The controller identifier.
    pub id: u16,
    /// The version: `0x0002_0000` is 2.0.
    pub version: u32,
    /// The optional asynchronous events that it supports: see [`crate::admin::EventMask`].
    pub events: u32,
    /// Attributes: bit 0 128-bit host identifiers, bit 6 any command restarts the keep-alive timer.
    pub attributes: u32,
    /// The controller type; 0 from old controllers.
    pub kind: ControllerKind,
    /// Command retry delays 1 to 3, in units of 100 ms.
    pub retry_delays: [u16; 3],
    /// Optional admin commands.
    pub admin_commands: u16,
    /// The maximum number of concurrent Aborts, less one.
    pub abort_limit: u8,
    /// The maximum number of outstanding Asynchronous Event Requests, less one.
    pub event_limit: u8,
    /// Firmware updates.
    pub firmware_updates: u8,
    /// Attributes of log pages: bit 1 commands supported and effects, bit 2 extended data (offsets).
    pub log_attributes: u8,
    /// Error log entries, less one.
    pub error_entries: u8,
    /// The granularity of the keep-alive timeout in units of 100 ms; 0 without keep-alive.
    pub keep_alive_100ms: u16,
    /// The maximum time of an ANA transition, in seconds.
    pub ana_transition_s: u8,
    /// The supported ANA states: bit 0 optimized to bit 4 change; bit 6 group identifiers do not change.
    pub ana_states: u8,
    /// The largest ANA group identifier.
    pub ana_group_max: u32,
    /// The number of ANA groups.
    pub ana_groups: u32,
    /// The sizes of submission queue entries: 0x66.
    pub sqe_sizes: u8,
    /// The sizes of completion queue entries: 0x44.
    pub cqe_sizes: u8,
    /// The maximum number of outstanding commands per queue.
    pub commands_max: u16,
    /// The largest namespace identifier.
    pub namespaces: u32,
    /// Optional I/O commands: bit 0 compare, 2 dataset management, 3 write zeroes.
    pub io_commands: u16,
    /// Fused commands.
    pub fused: u16,
    /// The volatile write cache: bit 0 present, bits 1 and 2 Flush of all namespaces.
    pub write_cache: u8,
    /// The atomic write unit in blocks, less one; normal and at power loss.
    pub atomic_blocks: [u16; 2],
    /// SGL support: bit 0, bit 20 an offset in the capsule.
    pub sgl: u32,
    /// The maximum number of allowed namespaces; 0 if not reported.
    pub namespaces_max: u32,
    /// The NQN of the subsystem; `None` if the page has no valid one.
    pub subsystem: Option<Nqn>,
    /// The longest command capsule in units of 16 bytes.
    pub command_capsule_16: u32,
    /// The longest response capsule in units of 16 bytes.
    pub response_capsule_16: u32,
    /// The offset of in-capsule data in units of 16 bytes: 0.
    pub capsule_offset_16: u16,
    /// Fabrics attributes: bit 0 a static controller.
    pub fabrics: u8,
    /// The maximum number of SGL data block descriptors in a capsule.
    pub descriptors_max: u8,
}

impl Controller {
    /// [`Controller::multipath`]: the subsystem has several ports or controllers.
    pub const SHARED: u8 = 0b011;
    /// [`Controller::multipath`]: ANA reporting is supported.
    pub const ANA: u8 = 0b1000;
    /// [`Controller::attributes`]: any command restarts the keep-alive timer.
    pub const ANY_COMMAND_KEEPS_ALIVE: u32 = 1 << 6;

    /// A controller with only the fields that fabrics require.
    pub fn new() -> Self {
        Self::decode_fields(&[0; IDENTIFY_BYTES]).with_required()
    }

    fn with_required(mut self) -> Self {
        self.version = 0x0001_0400;
        self.kind = ControllerKind::IO;
        self.sqe_sizes = 0x66;
        self.cqe_sizes = 0x44;
        self.sgl = 1 | 1 << 20;
        self.command_capsule_16 = 4;
        self.response_capsule_16 = 1;
        self.descriptors_max = 1;
        self.attributes = 1;
        self
    }

    /// The longest transfer of one command, if there is a limit.
    pub fn transfer_bytes_max(&self) -> Option<u64> {
        let shift = 12 + u32::from(self.transfer_shift);
        (self.transfer_shift > 0).then(|| 1_u64.checked_shl(shift).unwrap_or(1 << 63))
    }

    /// The maximum in-capsule data size of a command.
    pub fn capsule_bytes_max(&self) -> u32 {
        let capsule = self.command_capsule_16.saturating_mul(16);
        capsule.saturating_sub(64)
    }

    /// Whether it supports ANA reporting.
    pub fn has_ana(&self) -> bool {
        self.multipath & Self::ANA != 0
    }

    /// Encodes the page.
    pub fn encode(&self) -> Vec<u8> {
        let mut page = vec![0; IDENTIFY_BYTES];
        let bytes = &mut page[..];
        wire::put(bytes, 0, &self.vendor[0].to_le_bytes());
        wire::put(bytes, 2, &self.vendor[1].to_le_bytes());
        wire::put_text(bytes, 4, 20, &self.serial);
        wire::put_text(bytes, 24, 40, &self.model);
        wire::put_text(bytes, 64, 8, &self.firmware);
        bytes[76] = self.multipath;
        bytes[77] = self.transfer_shift;
        wire::put(bytes, 78, &self.id.to_le_bytes());
        wire::put(bytes, 80, &self.version.to_le_bytes());
        wire::put(bytes, 92, &self.events.to_le_bytes());
        wire::put(bytes, 96, &self.attributes.to_le_bytes());
        bytes[111] = self.kind.0;
        for (index, delay) in self.retry_delays.iter().enumerate() {
            wire::put(bytes, 128 + 2 * index, &delay.to_le_bytes());
        }
        wire::put(bytes, 256, &self.admin_commands.to_le_bytes());
        bytes[258] = self.abort_limit;
        bytes[259] = self.event_limit;
        bytes[260] = self.firmware_updates;
        bytes[261] = self.log_attributes;
        bytes[262] = self.error_entries;
        wire::put(bytes, 320, &self.keep_alive_100ms.to_le_bytes());
        bytes[342] = self.ana_transition_s;
        bytes[343] = self.ana_states;
        wire::put(bytes, 344, &self.ana_group_max.to_le_bytes());
        wire::put(bytes, 348, &self.ana_groups.to_le_bytes());
        self.encode_nvm(bytes);
        page
    }

    /// Encodes the fields from byte 512 on.
    fn encode_nvm(&self, bytes: &mut [u8]) {
        bytes[512] = self.sqe_sizes;
        bytes[513] = self.cqe_sizes;
        wire::put(bytes, 514, &self.commands_max.to_le_bytes());
        wire::put(bytes, 516, &self.namespaces.to_le_bytes());
        wire::put(bytes, 520, &self.io_commands.to_le_bytes());
        wire::put(bytes, 522, &self.fused.to_le_bytes());
        bytes[525] = self.write_cache;
        wire::put(bytes, 526, &self.atomic_blocks[0].to_le_bytes());
        wire::put(bytes, 528, &self.atomic_blocks[1].to_le_bytes());
        wire::put(bytes, 536, &self.sgl.to_le_bytes());
        wire::put(bytes, 540, &self.namespaces_max.to_le_bytes());
        if let Some(subsystem) = &self.subsystem {
            subsystem.put(bytes, 768);
        }
        wire::put(bytes, 1792, &self.command_capsule_16.to_le_bytes());
        wire::put(bytes, 1796, &self.response_capsule_16.to_le_bytes());
        wire::put(bytes, 1800, &self.capsule_offset_16.to_le_bytes());
        bytes[1802] = self.fabrics;
        bytes[1803] = self.descriptors_max;
    }

    /// Decodes the page.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() != IDENTIFY_BYTES {
            return Err(Malformed("Identify Controller does not have 4096 bytes"));
        }
        Ok(Self::decode_fields(bytes))
    }

    fn decode_fields(bytes: &[u8]) -> Self {
        Self {
            vendor: [wire::u16_at(bytes, 0), wire::u16_at(bytes, 2)],
            serial: wire::text_at(bytes, 4, 20),
            model: wire::text_at(bytes, 24, 40),
            firmware: wire::text_at(bytes, 64, 8),
            multipath: bytes[76],
            transfer_shift: bytes[77],
            id: wire::u16_at(bytes, 78),
            version: wire::u32_at(bytes, 80),
            events: wire::u32_at(bytes, 92),
            attributes: wire::u32_at(bytes, 96),
            kind: ControllerKind(bytes[111]),
            retry_delays: std::array::from_fn(|index| wire::u16_at(bytes, 128 + 2 * index)),
            admin_commands: wire::u16_at(bytes, 256),
            abort_limit: bytes[258],
            event_limit: bytes[259],
            firmware_updates: bytes[260],
            log_attributes: bytes[261],
            error_entries: bytes[262],
            keep_alive_100ms: wire::u16_at(bytes, 320),
            ana_transition_s: bytes[342],
            ana_states: bytes[343],
            ana_group_max: wire::u32_at(bytes, 344),
            ana_groups: wire::u32_at(bytes, 348),
            sqe_sizes: bytes[512],
            cqe_sizes: bytes[513],
            commands_max: wire::u16_at(bytes, 514),
            namespaces: wire::u32_at(bytes, 516),
            io_commands: wire::u16_at(bytes, 520),
            fused: wire::u16_at(bytes, 522),
            write_cache: bytes[525],
            atomic_blocks: [wire::u16_at(bytes, 526), wire::u16_at(bytes, 528)],
            sgl: wire::u32_at(bytes, 536),
            namespaces_max: wire::u32_at(bytes, 540),
            subsystem: Nqn::at(bytes, 768).ok(),
            command_capsule_16: wire::u32_at(bytes, 1792),
            response_capsule_16: wire::u32_at(bytes, 1796),
            capsule_offset_16: wire::u16_at(bytes, 1800),
            fabrics: bytes[1802],
            descriptors_max: bytes[1803],
        }
    }
}

impl Default for Controller {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// For any page: decoding, encoding and decoding again gives the same value.
        #[test]
        fn a_page_round_trips(bytes in prop::collection::vec(any::<u8>(), IDENTIFY_BYTES), named: bool) {
            let mut page = Controller::decode(&bytes).unwrap();
            page.subsystem = named.then(Nqn::discovery);
            prop_assert_eq!(Controller::decode(&page.encode()).unwrap(), page);
        }
    }

    #[test]
    fn limits_follow_from_the_fields() {
        let mut page = Controller::new();
        assert_eq!((page.transfer_bytes_max(), page.capsule_bytes_max()), (None, 0));
        page.transfer_shift = 5;
        page.command_capsule_16 = 1028;
        assert_eq!(page.transfer_bytes_max(), Some(128 << 10));
        assert_eq!(page.capsule_bytes_max(), 16 << 10);
        page.transfer_shift = 255;
        page.command_capsule_16 = u32::MAX;
        assert!(page.transfer_bytes_max().is_some() && page.capsule_bytes_max() > 0);
        assert!(Controller::decode(&[0; 4095]).is_err());
    }
}

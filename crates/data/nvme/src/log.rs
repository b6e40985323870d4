//! Log pages.

mod ana;
mod discovery;

pub use ana::{AnaGroup, AnaLog, AnaState};
pub use discovery::{
    AddressFamily, DISCOVERY_ENTRY_BYTES, DISCOVERY_HEADER_BYTES, DiscoveryEntry, DiscoveryHeader, SubsystemKind,
    TransportType,
};

use crate::{Malformed, wire};

/// Log page identifiers.
pub mod page {
    /// Error information.
    pub const ERRORS: u8 = 0x01;
    /// SMART / health information.
    pub const SMART: u8 = 0x02;
    /// Firmware slots.
    pub const FIRMWARE: u8 = 0x03;
    /// Namespaces that changed: see [`super::decode_changed`].
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands supported and effects.
    pub const EFFECTS: u8 = 0x05;
    /// ANA states: see [`super::AnaLog`].
    pub const ANA: u8 = 0x0c;
    /// Subsystems: see [`super::DiscoveryEntry`].
    pub const DISCOVERY: u8 = 0x70;
}

/// The size of the Changed Namespace List.
pub const CHANGED_BYTES: usize = 4096;

/// The maximum number of namespaces in that list.
const CHANGED_MAX: usize = CHANGED_BYTES / 4;

/// Decodes the namespaces that changed since the log was last read; `None` if there are too many to list.
pub fn decode_changed(bytes: &[u8]) -> Result<Option<Vec<u32>>, Malformed> {
    if bytes.len() != CHANGED_BYTES {
        return Err(Malformed("the list of changed namespaces does not have 4096 bytes"));
    }
    let all = (0..CHANGED_MAX).map(|index| wire::u32_at(bytes, 4 * index));
    let list: Vec<u32> = all.take_while(|nsid| *nsid != 0).collect();
    Ok((list.first() != Some(&u32::MAX)).then_some(list))
}

/// Encodes the list of [`decode_changed`]. More than 1024 namespaces are encoded as too many.
pub fn encode_changed(namespaces: Option<&[u32]>) -> Vec<u8> {
    let mut bytes = vec![0; CHANGED_BYTES];
    match namespaces {
        Some(list) if list.len() <= CHANGED_MAX => {
            for (index, nsid) in list.iter().enumerate() {
                wire::put(&mut bytes, 4 * index, &nsid.to_le_bytes());
            }
        }
        _ => wire::put(&mut bytes, 0, &u32::MAX.to_le_bytes()),
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_namespaces_round_trip() {
        for list in [vec![], vec![3, 7], (1..=1024).collect()] {
            let page = encode_changed(Some(&list));
            assert_eq!(decode_changed(&page).unwrap(), Some(list));
        }
        let many: Vec<u32> = (1..=1025).collect();
        assert_eq!(decode_changed(&encode_changed(Some(&many))).unwrap(), None);
        assert!(decode_changed(&[0; 8]).is_err());
    }
}

//! Identify data structures: 4096 bytes each.

mod controller;
mod descriptor;
mod namespace;

pub use controller::{Controller, ControllerKind};
pub use descriptor::NamespaceId;
pub use namespace::{BLOCK_SHIFT_MAX, Format, Namespace};

use crate::{Malformed, wire};

/// The size of a page.
pub const IDENTIFY_BYTES: usize = 4096;

/// [`IDENTIFY_BYTES`] as a `u32`, for commands.
pub(crate) const IDENTIFY_LENGTH: u32 = 4096;

/// The maximum number of namespaces in a list.
pub const LIST_MAX: usize = 1024;

/// Page identifiers (CNS).
pub mod page {
    /// A namespace: [`super::Namespace`].
    pub const NAMESPACE: u8 = 0x00;
    /// The controller: [`super::Controller`].
    pub const CONTROLLER: u8 = 0x01;
    /// Active namespaces above a given one: [`super::decode_list`].
    pub const NAMESPACES: u8 = 0x02;
    /// The identifiers of a namespace: [`super::NamespaceId`].
    pub const DESCRIPTORS: u8 = 0x03;
    /// A namespace, specific to a command set. Empty for NVM without extensions.
    pub const NAMESPACE_SET: u8 = 0x05;
    /// The controller, specific to a command set.
    pub const CONTROLLER_SET: u8 = 0x06;
    /// A namespace, independent of command sets.
    pub const NAMESPACE_COMMON: u8 = 0x08;
}

/// Decodes a namespace list, up to the first 0. It must be strictly increasing, so that repeated queries from the last
/// entry terminate.
pub fn decode_list(bytes: &[u8]) -> Result<Vec<u32>, Malformed> {
    if bytes.len() != IDENTIFY_BYTES {
        return Err(Malformed("the list of namespaces does not have 4096 bytes"));
    }
    let all = (0..LIST_MAX).map(|index| wire::u32_at(bytes, 4 * index));
    let list: Vec<u32> = all.take_while(|nsid| *nsid != 0).collect();
    if !list.is_sorted_by(|a, b| a < b) {
        return Err(Malformed("the list of namespaces is not in order"));
    }
    Ok(list)
}

/// Encodes a list of up to [`LIST_MAX`] namespaces.
pub fn encode_list(namespaces: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0; IDENTIFY_BYTES];
    for (index, nsid) in namespaces.iter().take(LIST_MAX).enumerate() {
        wire::put(&mut bytes, 4 * index, &nsid.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_end_at_zero_and_must_be_sorted() {
        let all: Vec<u32> = (1..2000).collect();
        assert_eq!(decode_list(&encode_list(&all)).unwrap(), all[..LIST_MAX]);
        assert_eq!(decode_list(&encode_list(&[])).unwrap(), [0; 0]);
        assert!(decode_list(&encode_list(&[1, 2, 2])).is_err());
        assert!(decode_list(&[0; 4095]).is_err());
    }
}

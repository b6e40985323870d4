//! Namespace Identification Descriptors: the identifiers of a namespace on every controller.

use super::IDENTIFY_BYTES;
use crate::Malformed;

/// The identifiers of a namespace. Compare them with [`NamespaceId::is_same`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NamespaceId {
    /// 8 bytes.
    pub eui64: Option<[u8; 8]>,
    /// 16 bytes.
    pub nguid: Option<[u8; 16]>,
    /// 16 bytes.
    pub uuid: Option<[u8; 16]>,
    /// The command set: 0 for NVM.
    pub command_set: Option<u8>,
}

mod kind {
    pub(super) const EUI64: u8 = 1;
    pub(super) const NGUID: u8 = 2;
    pub(super) const UUID: u8 = 3;
    pub(super) const COMMAND_SET: u8 = 4;
}

impl NamespaceId {
    /// Encodes the descriptor list.
    pub fn encode(&self) -> Vec<u8> {
        let mut page = Vec::with_capacity(IDENTIFY_BYTES);
        let mut add = |kind: u8, value: Option<&[u8]>| {
            if let Some(value) = value {
                let length = u8::try_from(value.len()).expect("at most 16 bytes");
                page.extend([kind, length, 0, 0]);
                page.extend(value);
            }
        };
        add(kind::EUI64, self.eui64.as_ref().map(|id| &id[..]));
        add(kind::NGUID, self.nguid.as_ref().map(|id| &id[..]));
        add(kind::UUID, self.uuid.as_ref().map(|id| &id[..]));
        add(kind::COMMAND_SET, self.command_set.as_ref().map(std::slice::from_ref));
        page.resize(IDENTIFY_BYTES, 0);
        page
    }

    /// Decodes the list up to type 0 or the end. Unknown types are skipped.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() != IDENTIFY_BYTES {
            return Err(Malformed("a list of identifiers does not have 4096 bytes"));
        }
        let mut id = Self::default();
        let mut at = 0;
        while at + 4 <= bytes.len() && bytes[at] != 0 {
            let (kind, length) = (bytes[at], usize::from(bytes[at + 1]));
            let value = bytes.get(at + 4..at + 4 + length);
            let value = value.ok_or(Malformed("an identifier passes the end of its page"))?;
            let wrong = Malformed("an identifier has a wrong length");
            match kind {
                kind::EUI64 => id.eui64 = Some(value.try_into().map_err(|_| wrong)?),
                kind::NGUID => id.nguid = Some(value.try_into().map_err(|_| wrong)?),
                kind::UUID => id.uuid = Some(value.try_into().map_err(|_| wrong)?),
                kind::COMMAND_SET if length == 1 => id.command_set = Some(value[0]),
                kind::COMMAND_SET => return Err(wrong),
                _ if length == 0 => return Err(wrong),
                _ => {}
            }
            at += 4 + length;
        }
        Ok(id)
    }

    /// Whether both belong to the same namespace: they share an identifier, and none differs.
    pub fn is_same(&self, other: &Self) -> bool {
        fn both<T: PartialEq>(one: Option<T>, other: Option<T>) -> Option<bool> {
            Some(one? == other?)
        }
        let same = [
            both(self.uuid, other.uuid),
            both(self.nguid, other.nguid),
            both(self.eui64, other.eui64),
        ];
        // Every identifier that both have must be equal, and there must be at least one.
        same.contains(&Some(true)) && !same.contains(&Some(false))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn identifiers_round_trip(
            eui64: Option<[u8; 8]>,
            nguid: Option<[u8; 16]>,
            uuid: Option<[u8; 16]>,
            command_set: Option<u8>,
        ) {
            let id = NamespaceId { eui64, nguid, uuid, command_set };
            prop_assert_eq!(NamespaceId::decode(&id.encode()).unwrap(), id);
        }

        #[test]
        fn any_page_is_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), IDENTIFY_BYTES)) {
            if let Ok(id) = NamespaceId::decode(&bytes) {
                prop_assert_eq!(NamespaceId::decode(&id.encode()).unwrap(), id);
            }
        }
    }

    #[test]
    fn namespaces_are_compared_by_the_identifiers_that_both_have() {
        let uuid = |byte| NamespaceId {
            uuid: Some([byte; 16]),
            ..NamespaceId::default()
        };
        assert!(uuid(1).is_same(&uuid(1)) && !uuid(1).is_same(&uuid(2)));
        assert!(!NamespaceId::default().is_same(&NamespaceId::default()));
        let both = NamespaceId {
            eui64: Some([3; 8]),
            ..uuid(1)
        };
        let other = NamespaceId {
            eui64: Some([4; 8]),
            ..uuid(1)
        };
        assert!(both.is_same(&uuid(1)) && !both.is_same(&other));
    }
}

//! The contents of an asynchronous event.

/// An asynchronous event: dword 0 of the completion of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// The type: 2 is a notice.
    pub kind: u8,
    /// The event information. Its meaning depends on the type.
    pub information: u8,
    /// The log page with details. The event is sent again only after that page was read.
    pub log: u8,
}

impl AsyncEvent {
    /// Namespaces were added, removed or resized.
    pub const NAMESPACES: Self = Self::notice(0x00, crate::log::page::CHANGED_NAMESPACES);
    /// ANA states changed.
    pub const ANA: Self = Self::notice(0x03, crate::log::page::ANA);
    /// The discovery log changed.
    pub const DISCOVERY: Self = Self::notice(0xf0, crate::log::page::DISCOVERY);

    const fn notice(information: u8, log: u8) -> Self {
        Self {
            kind: 2,
            information,
            log,
        }
    }

    /// Encodes dword 0 of the completion.
    pub const fn to_result(self) -> u64 {
        self.kind as u64 | (self.information as u64) << 8 | (self.log as u64) << 16
    }

    /// Decodes dword 0 of the completion.
    pub const fn from_result(result: u64) -> Self {
        Self {
            kind: (result & 7) as u8,
            information: (result >> 8 & 0xff) as u8,
            log: (result >> 16 & 0xff) as u8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_values_match_linux() {
        assert_eq!(AsyncEvent::ANA.to_result(), 0x0c_03_02);
        assert_eq!(AsyncEvent::DISCOVERY.to_result(), 0x70_f0_02);
        for event in [AsyncEvent::NAMESPACES, AsyncEvent::ANA, AsyncEvent::DISCOVERY] {
            assert_eq!(AsyncEvent::from_result(event.to_result()), event);
        }
    }
}

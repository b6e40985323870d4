//! Features of controllers.

/// Feature identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature;

impl Feature {
    /// The volatile write cache.
    pub const WRITE_CACHE: u8 = 0x06;
    /// The number of I/O queues: see [`QueueCounts`].
    pub const QUEUES: u8 = 0x07;
    /// The enabled asynchronous events: see [`EventMask`].
    pub const EVENTS: u8 = 0x0b;
    /// The keep-alive timeout in ms.
    pub const KEEP_ALIVE: u8 = 0x0f;
    /// The identifier of the host.
    pub const HOST_ID: u8 = 0x81;
    /// Write protection of a namespace.
    pub const WRITE_PROTECT: u8 = 0x84;
}

/// The numbers of I/O queues that are requested or granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounts {
    /// Submission queues: at least 1.
    pub submission: u16,
    /// Completion queues: at least 1.
    pub completion: u16,
}

impl QueueCounts {
    /// `count` queues of each kind.
    pub const fn both(count: u16) -> Self {
        Self {
            submission: count,
            completion: count,
        }
    }

    /// Encodes the feature value. Its counts are zero-based.
    pub const fn to_value(self) -> u32 {
        let submission = self.submission.saturating_sub(1) as u32;
        submission | (self.completion.saturating_sub(1) as u32) << 16
    }

    /// Decodes the feature value. 65,536 queues count as 65,535.
    pub const fn from_value(value: u32) -> Self {
        Self {
            submission: ((value & 0xffff) as u16).saturating_add(1),
            completion: ((value >> 16) as u16).saturating_add(1),
        }
    }

    /// The number of queue pairs.
    pub fn pairs(self) -> u16 {
        self.submission.min(self.completion)
    }
}

/// Bits of [`Feature::EVENTS`] and of OAES in Identify Controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventMask;

impl EventMask {
    /// Namespaces were added, removed or resized.
    pub const NAMESPACES: u32 = 1 << 8;
    /// ANA states changed.
    pub const ANA: u32 = 1 << 11;
    /// The discovery log changed.
    pub const DISCOVERY: u32 = 1 << 31;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_counts_are_zero_based() {
        assert_eq!(QueueCounts::both(8).to_value(), 0x0007_0007);
        assert_eq!(QueueCounts::from_value(0x007e_0003).pairs(), 4);
    }
}

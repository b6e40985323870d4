//! A TLP: its class, its path and its payload.

use super::Ps;

/// The class of a TLP, for ordering and credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Class {
    /// A memory write.
    Posted = 0,
    /// A read request.
    NonPosted = 1,
    /// A completion.
    Completion = 2,
}

pub(super) const CLASSES: usize = 3;

/// The classes by their number.
pub(super) const CLASS: [Class; CLASSES] = [Class::Posted, Class::NonPosted, Class::Completion];

/// One packet, 16 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tlp {
    /// The time at which it can leave its queue.
    pub(super) ready: Ps,
    /// The index of its next hop in the list of all hops.
    pub(super) hop: u32,
    /// Its path: twice the stream number, plus one for completions.
    pub(super) flow: u16,
    /// The payload, or the requested bytes of a request; the marks in the three highest bits.
    load: u16,
}

/// The last TLP of an I/O.
pub(super) const LAST: u16 = 1 << 13;
/// The last completion of a request.
pub(super) const END: u16 = 1 << 14;
/// A fence, or its completion.
pub(super) const FENCE: u16 = 1 << 15;

impl Tlp {
    /// A TLP at its start.
    #[inline]
    pub(super) fn new(ready: Ps, flow: u16, hop: u32, bytes: u16, marks: u16) -> Self {
        debug_assert!(bytes < LAST && marks & (LAST - 1) == 0, "payloads end at 4 KiB");
        Self {
            ready,
            hop,
            flow,
            load: bytes | marks,
        }
    }

    #[inline(always)]
    pub(super) fn bytes(self) -> u16 {
        self.load & (LAST - 1)
    }

    /// The marks of the TLP: [`LAST`], [`END`] and [`FENCE`].
    #[inline]
    pub(super) fn marks(self) -> u16 {
        self.load & !(LAST - 1)
    }

    #[inline]
    pub(super) fn has(self, mark: u16) -> bool {
        self.load & mark != 0
    }

    /// The same TLP at another time.
    #[inline(always)]
    pub(super) fn at(self, ready: Ps) -> Self {
        Self { ready, ..self }
    }

    /// The same TLP in its next queue.
    #[inline(always)]
    pub(super) fn onward(self, ready: Ps) -> Self {
        Self {
            ready,
            hop: self.hop + 1,
            ..self
        }
    }
}

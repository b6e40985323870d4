//! A TLP: what it is, which way it takes, and what it carries.

use super::Ps;

/// What a TLP is, for ordering and credits.
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
    /// When it can leave the queue it stands in.
    pub(super) ready: Ps,
    /// The place of its next hop in the list of all hops.
    pub(super) hop: u32,
    /// Which way it takes: twice its stream, plus one for the way of the completions.
    pub(super) flow: u16,
    /// Payload, or for a request what it asks for; the marks in the three highest bits.
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
        debug_assert!(
            bytes < LAST && marks & (LAST - 1) == 0,
            "payloads end at 4 KiB"
        );
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

    /// Which of [`LAST`], [`END`] and [`FENCE`] it bears.
    #[inline]
    pub(super) fn marks(self) -> u16 {
        self.load & !(LAST - 1)
    }

    #[inline]
    pub(super) fn bears(self, mark: u16) -> bool {
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

//! A switch's buffer: the part that its ports share, and the headroom of each port for data after XOFF.
//!
//! With flow control, a packet is charged to the link by which it came. The threshold of an ingress is `alpha` of the
//! free shared part; the packet that reaches it or finds it reached makes the switch pause its neighbour. Later
//! packets are charged to the ingress's own headroom, and only packets that fit nowhere are dropped. (The dynamic
//! threshold follows the switch of HPCC's simulation.)
//!
//! The headroom is sized for data after XOFF, so no earlier packet may be charged to it. The threshold falls while
//! other ports fill the buffer, but an ingress only notices with its next packet, which also came before XOFF. That
//! packet goes to the shared part or, if that is full, to a reserve of one frame per ingress (SONiC's profiles have
//! such a part, `xon`, in addition to `xoff`).
//!
//! Without flow control the whole buffer is shared, and an egress queue longer than its share of the free part drops
//! packets.

/// The shared buffer of one switch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shared {
    /// Bytes not reserved as headroom.
    pub(crate) total: u64,
    pub(crate) used: u64,
    /// The share of the free bytes that one ingress (or, without flow control, one egress) may take, in 1/65536.
    alpha: u64,
    /// The distance below the threshold that an ingress must reach before XON.
    resume_below: u64,
    pub(crate) peak: u64,
}

/// The bytes that one link has brought into a switch and that are still there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ingress {
    used: u64,
    headroom_used: u64,
    headroom: u64,
    reserve_used: u64,
    reserve: u64,
    /// Whether the neighbour has been paused.
    pub(crate) stopped: bool,
    pub(crate) headroom_peak: u64,
}

impl Shared {
    /// A buffer of `total` shareable bytes.
    pub(crate) fn new(total: u64, alpha: f64, resume_below: u64) -> Self {
        Self {
            total,
            used: 0,
            alpha: super::scenario::whole(alpha * 65536.0),
            resume_below,
            peak: 0,
        }
    }

    /// The bytes that one port may take now.
    #[inline]
    pub(crate) fn threshold(&self) -> u64 {
        ((self.total - self.used) * self.alpha) >> 16
    }

    /// Admits a packet without flow control, if its egress queue may grow by it.
    #[inline]
    pub(crate) fn admit_lossy(&mut self, queue_bytes: u64, bytes: u64) -> bool {
        let fits = self.used + bytes <= self.total && queue_bytes + bytes <= self.threshold();
        if fits {
            self.take(bytes);
        }
        fits
    }

    #[inline]
    fn take(&mut self, bytes: u64) {
        self.used += bytes;
        self.peak = self.peak.max(self.used);
    }

    /// Releases bytes that [`Self::admit_lossy`] took.
    #[inline]
    pub(crate) fn release_lossy(&mut self, bytes: u64) {
        self.used -= bytes;
    }
}

impl Ingress {
    /// An ingress with this headroom, and a reserve for the packet that triggers XOFF.
    pub(crate) fn new(headroom: u64, reserve: u64) -> Self {
        Self {
            headroom,
            reserve,
            ..Self::default()
        }
    }

    /// All bytes of this ingress: shared, reserve and headroom.
    pub(crate) fn bytes(&self) -> u64 {
        self.used + self.reserve_used + self.headroom_used
    }

    /// Admits a packet; false if it fits nowhere.
    #[inline]
    pub(crate) fn admit(&mut self, shared: &mut Shared, bytes: u64) -> bool {
        let may_share = !self.stopped || self.used < shared.threshold();
        if may_share && shared.used + bytes <= shared.total {
            self.used += bytes;
            shared.take(bytes);
            return true;
        }
        if self.stopped {
            return self.admit_late(bytes);
        }
        let fits = self.reserve_used + bytes <= self.reserve;
        self.reserve_used += if fits { bytes } else { 0 };
        fits
    }

    /// Admits a packet that was in flight when the neighbour was paused.
    fn admit_late(&mut self, bytes: u64) -> bool {
        if self.headroom_used + bytes > self.headroom {
            return false;
        }
        self.headroom_used += bytes;
        self.headroom_peak = self.headroom_peak.max(self.headroom_used);
        true
    }

    /// Releases a packet's bytes, from the headroom first, then from the reserve.
    #[inline]
    pub(crate) fn release(&mut self, shared: &mut Shared, bytes: u64) {
        let from_headroom = bytes.min(self.headroom_used);
        self.headroom_used -= from_headroom;
        let from_reserve = (bytes - from_headroom).min(self.reserve_used);
        self.reserve_used -= from_reserve;
        let from_shared = bytes - from_headroom - from_reserve;
        self.used -= from_shared;
        shared.used -= from_shared;
    }

    /// Whether the neighbour must be paused now.
    #[inline]
    pub(crate) fn should_stop(&self, shared: &Shared) -> bool {
        !self.stopped && (self.reserve_used > 0 || self.used >= shared.threshold())
    }

    /// Whether a paused neighbour may resume.
    #[inline]
    pub(crate) fn should_go(&self, shared: &Shared) -> bool {
        self.stopped
            && self.headroom_used == 0
            && self.reserve_used == 0
            && (self.used == 0 || self.used + shared.resume_below <= shared.threshold())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_ingress_is_paused_at_its_share_and_drops_only_beyond_its_headroom() {
        let mut shared = Shared::new(80_000, 0.125, 1000);
        let mut ingress = Ingress::new(3000, 1000);
        let mut admitted = 0;
        while ingress.admit(&mut shared, 1000) {
            admitted += 1;
            assert_eq!(ingress.should_stop(&shared), admitted == 9, "{admitted}");
            ingress.stopped |= ingress.should_stop(&shared);
        }
        // The ninth finds an eighth of 72,000 bytes free and fits; then three of headroom.
        assert_eq!((admitted, ingress.bytes()), (12, 12_000));
    }

    #[test]
    fn a_packet_after_a_fall_of_the_threshold_does_not_use_the_headroom() {
        let mut shared = Shared::new(80_000, 0.5, 1000);
        let [mut early, mut late] = [Ingress::new(3000, 1000); 2];
        while early.bytes() < 20_000 {
            assert!(early.admit(&mut shared, 1000) && !early.should_stop(&shared));
        }
        // The other port lowers the threshold below what this one holds.
        while shared.threshold() > 20_000 {
            assert!(late.admit(&mut shared, 1000));
        }
        assert!(early.admit(&mut shared, 1000) && early.should_stop(&shared));
        assert_eq!((early.headroom_used, early.used), (0, 21_000));
    }

    #[test]
    fn the_packet_that_triggers_xoff_uses_the_reserve_if_the_shared_part_is_full() {
        let mut shared = Shared::new(500, 0.5, 1000);
        let mut ingress = Ingress::new(3000, 1000);
        assert!(ingress.admit(&mut shared, 1000) && ingress.should_stop(&shared));
        ingress.stopped = true;
        for _ in 0..3 {
            assert!(ingress.admit(&mut shared, 1000));
        }
        assert!(!ingress.admit(&mut shared, 1000));
        for left in (0..4).rev() {
            assert!(!ingress.should_go(&shared));
            ingress.release(&mut shared, 1000);
            assert_eq!(ingress.bytes(), left * 1000);
        }
        assert!(ingress.should_go(&shared));
    }

    #[test]
    fn a_paused_ingress_resumes_only_well_below_the_threshold() {
        let mut shared = Shared::new(80_000, 0.125, 3000);
        let mut ingress = Ingress::new(5000, 1000);
        while !ingress.should_stop(&shared) {
            assert!(ingress.admit(&mut shared, 1000));
        }
        ingress.stopped = true;
        let full = ingress.bytes();
        while !ingress.should_go(&shared) {
            ingress.release(&mut shared, 1000);
        }
        assert!((3000..=4000).contains(&(full - ingress.bytes())));
    }

    proptest! {
        #[test]
        fn the_accounts_always_add_up(
            steps in prop::collection::vec((0usize..4, 64u64..9000, any::<bool>()), 1..300),
        ) {
            let mut shared = Shared::new(100_000, 0.5, 3000);
            let mut ingress = [Ingress::new(20_000, 9000); 4];
            let mut held: [Vec<u64>; 4] = Default::default();
            for (i, bytes, arrives) in steps {
                if arrives {
                    if ingress[i].admit(&mut shared, bytes) {
                        held[i].push(bytes);
                    }
                    ingress[i].stopped |= ingress[i].should_stop(&shared);
                } else if let Some(bytes) = held[i].pop() {
                    ingress[i].release(&mut shared, bytes);
                    ingress[i].stopped &= !ingress[i].should_go(&shared);
                }
                let kept = ingress.iter().map(|i| i.headroom_used + i.reserve_used);
                let all: u64 = held.iter().flatten().sum();
                prop_assert_eq!(shared.used + kept.sum::<u64>(), all);
                prop_assert_eq!(ingress[i].bytes(), held[i].iter().sum::<u64>());
                prop_assert!(shared.used <= shared.total);
            }
        }
    }
}

//! The slots of files or buffers that are registered with a ring, with the number of I/Os that use each slot.
//!
//! A queue entry refers to a registered file or buffer by its slot, and the kernel looks up the slot when the
//! entry is submitted, which may be long after it was queued. A slot therefore belongs to its key from the
//! time an I/O takes it until the last I/O that took it has completed. Only a slot without users can be
//! given to another key. An I/O whose slot is taken runs without registration.

/// A slot that an I/O uses. It is not `Clone`: each is given back exactly once.
#[derive(Debug)]
pub(super) struct Taken(u16);

impl Taken {
    /// The number of the slot in the kernel's table.
    pub(super) fn number(&self) -> u16 {
        self.0
    }
}

/// Keys registered with a ring, by slot.
#[derive(Debug)]
pub(super) struct Registered<K> {
    slots: Vec<Slot<K>>,
}

#[derive(Clone, Debug)]
struct Slot<K> {
    key: Option<K>,
    /// I/Os that were queued with this slot and have not completed.
    users: u32,
}

impl<K: PartialEq + Copy> Registered<K> {
    /// A table with `slots` slots, all empty.
    pub(super) fn new(slots: u32) -> Self {
        let empty = Slot { key: None, users: 0 };
        Self {
            slots: vec![empty; slots as usize],
        }
    }

    /// Takes the slot of `key` for one I/O. `hash` determines the slot, so no search is needed.
    ///
    /// If the slot has another key without users, `register` is called with the slot's number to replace it in
    /// the kernel. Returns `None` if the other key is in use, if the kernel refuses, or if there are no slots: the
    /// I/O then runs without registration.
    pub(super) fn take(&mut self, key: K, hash: u64, register: impl FnOnce(u16) -> bool) -> Option<Taken> {
        let number = usize::try_from(hash.checked_rem(self.slots.len() as u64)?).ok()?;
        let slot = &mut self.slots[number];
        let number = u16::try_from(number).expect("a table has under 2^16 slots");
        if slot.key != Some(key) {
            if slot.users > 0 {
                return None;
            }
            // A replacement that fails half way may have emptied the slot.
            slot.key = None;
            if !register(number) {
                return None;
            }
            slot.key = Some(key);
        }
        slot.users += 1;
        Some(Taken(number))
    }

    /// Takes back the slot of an I/O that has completed or was never queued.
    #[expect(clippy::needless_pass_by_value, reason = "it is given back once, and gone then")]
    pub(super) fn give_back(&mut self, taken: Taken) {
        let Taken(number) = taken;
        let users = &mut self.slots[usize::from(number)].users;
        *users = users.checked_sub(1).expect("a slot is given back once");
    }

    /// Empties the slots that no I/O uses. `unregister` is called with the number of each.
    pub(super) fn forget(&mut self, mut unregister: impl FnMut(u16)) {
        for (number, slot) in (0..).zip(&mut self.slots) {
            if slot.users == 0 && slot.key.take().is_some() {
                unregister(number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_slot_in_use_is_not_given_to_another_key() {
        let mut table = Registered::new(4);
        let first = table.take('a', 1, |_| true).unwrap();
        let second = table.take('a', 1, |_| panic!("it is registered")).unwrap();
        assert!(table.take('b', 5, |_| panic!("its slot is in use")).is_none());
        table.give_back(first);
        assert!(table.take('b', 5, |_| panic!("its slot is in use")).is_none());
        table.give_back(second);
        assert_eq!(table.take('b', 5, |_| true).unwrap().number(), 1);
    }

    #[test]
    fn a_key_that_was_refused_does_not_count_as_registered() {
        let mut table = Registered::new(4);
        let taken = table.take('a', 0, |_| true).unwrap();
        table.give_back(taken);
        assert!(table.take('b', 0, |_| false).is_none());
        let mut registered = false;
        table.take('a', 0, |_| {
            registered = true;
            true
        });
        assert!(registered, "the refused replacement may have emptied the slot");
    }

    #[test]
    fn slots_in_use_are_not_forgotten() {
        let mut table = Registered::new(4);
        let used = table.take('a', 0, |_| true).unwrap();
        let idle = table.take('b', 1, |_| true).unwrap();
        table.give_back(idle);
        let mut forgotten = Vec::new();
        table.forget(|number| forgotten.push(number));
        assert_eq!(forgotten, [1]);
        table.give_back(used);
        table.forget(|number| forgotten.push(number));
        assert_eq!(forgotten, [1, 0]);
    }

    #[test]
    fn a_table_without_slots_registers_nothing() {
        let mut table = Registered::new(0);
        assert!(table.take('a', 7, |_| panic!("there is no slot")).is_none());
    }

    proptest! {
        /// The kernel's table is replayed from the calls alone, as the kernel would.
        #[test]
        fn the_kernel_finds_the_key_of_every_io_from_its_queueing_to_its_completion(
            steps in proptest::collection::vec((0_u64..40, any::<bool>(), 0_usize..1000), 1..400),
        ) {
            let mut table = Registered::new(8);
            let mut kernel = [None; 8];
            let mut flying: Vec<(u64, Taken)> = Vec::new();
            for (key, ends, pick) in steps {
                if ends && !flying.is_empty() {
                    let (_, taken) = flying.swap_remove(pick % flying.len());
                    table.give_back(taken);
                } else if pick % 50 == 0 {
                    table.forget(|number| kernel[usize::from(number)] = None);
                } else {
                    let works = pick % 7 != 0;
                    let taken = table.take(key, key, |number| {
                        kernel[usize::from(number)] = works.then_some(key);
                        works
                    });
                    flying.extend(taken.map(|taken| (key, taken)));
                }
                for (key, taken) in &flying {
                    prop_assert_eq!(kernel[usize::from(taken.number())], Some(*key));
                }
            }
        }
    }
}

//! Host memory of somebody else's that is read while others may write to it: the tensors of a training job.
//!
//! No `&[u8]` can be made of it, for that would promise that nobody writes. Its bytes are copied out by
//! [`shared::copy`](crate::shared), and what others write meanwhile is in the copy or not.

use std::ptr::NonNull;

use crate::{cuda::Owner, shared};

/// Host memory of somebody else's, who is kept.
#[derive(Clone, Debug)]
pub struct LentBytes {
    start: NonNull<u8>,
    bytes: usize,
    _owner: Owner,
}

// SAFETY: the memory may be read from any thread, as whoever lent it promised, and the owner is `Send` and `Sync`.
unsafe impl Send for LentBytes {}
// SAFETY: as above; `&LentBytes` gives out copies, never a reference to the bytes.
unsafe impl Sync for LentBytes {}

impl LentBytes {
    /// `bytes` bytes from `start` on.
    ///
    /// # Safety
    ///
    /// The range is mapped, initialised and readable as long as `owner` is kept. Others may write to it, but nobody
    /// has a `&mut` reference to any of it while it is copied.
    pub unsafe fn new(start: NonNull<u8>, bytes: usize, owner: Owner) -> Self {
        Self {
            start,
            bytes,
            _owner: owner,
        }
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies those from `from` on into `target`.
    ///
    /// # Panics
    ///
    /// Where that reaches beyond the end.
    pub fn copy_to(&self, from: usize, target: &mut [u8]) {
        let end = from.checked_add(target.len());
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "a copy ends inside the memory"
        );
        // SAFETY: the range lies inside; `target` is exclusive, so that it is no part of it; the copy allows a race.
        unsafe {
            let source = self.start.as_ptr().add(from);
            shared::copy(target.as_mut_ptr(), source, target.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    };

    use super::*;

    #[test]
    fn bytes_that_another_thread_writes_are_copied_all_the_same() {
        let owner: Arc<Vec<AtomicU8>> = Arc::new((0..8192).map(|_| AtomicU8::new(1)).collect());
        let start = NonNull::new(owner.as_ptr().cast_mut().cast()).unwrap();
        let written = Arc::clone(&owner);
        // SAFETY: the vector is kept, and is written by atomic operations alone.
        let lent = unsafe { LentBytes::new(start, 8192, owner) };
        let writer = std::thread::spawn(move || {
            for byte in &*written {
                byte.store(2, Ordering::Relaxed);
            }
        });
        let mut copy = [0; 4096];
        lent.copy_to(4096, &mut copy);
        writer.join().unwrap();
        assert!(copy.iter().all(|byte| matches!(byte, 1 | 2)));
        lent.copy_to(4096, &mut copy);
        assert_eq!(copy, [2; 4096]);
    }

    #[test]
    #[should_panic(expected = "inside the memory")]
    fn no_copy_reaches_beyond_the_end() {
        let owner = Arc::new([0_u8; 16]);
        let start = NonNull::from(&owner[0]);
        // SAFETY: the array is kept and nobody writes to it.
        let lent = unsafe { LentBytes::new(start, 16, owner) };
        lent.copy_to(usize::MAX, &mut [0; 2]);
    }
}

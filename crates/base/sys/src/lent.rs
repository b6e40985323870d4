//! Host memory of another owner that is read while others may write to it, such as the tensors of a training job.
//!
//! A `&[u8]` would promise that nobody writes, so there is none. The bytes are copied by
//! [`shared::copy`](crate::shared). A concurrent write may or may not be in the copy.

use std::ptr::NonNull;

use crate::{cuda::Owner, shared};

/// Host memory of another owner, which is kept alive.
#[derive(Clone, Debug)]
pub struct LentBytes {
    start: NonNull<u8>,
    bytes: usize,
    _owner: Owner,
}

// SAFETY: the memory may be read from any thread, as the lender promised, and the owner is `Send` and `Sync`.
unsafe impl Send for LentBytes {}
// SAFETY: as above; `&LentBytes` provides copies, never a reference to the bytes.
unsafe impl Sync for LentBytes {}

impl LentBytes {
    /// Lends `bytes` bytes that start at `start`.
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

    /// The number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Fills `target` with the bytes that start at `from`.
    ///
    /// # Panics
    ///
    /// If that exceeds the memory.
    pub fn copy_to(&self, from: usize, target: &mut [u8]) {
        let end = from.checked_add(target.len());
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "a copy ends inside the memory"
        );
        // SAFETY: the range is in bounds; `target` is exclusive, so it does not overlap; the copy allows a race.
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
    fn bytes_are_copied_while_another_thread_writes_them() {
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
    fn a_copy_beyond_the_end_panics() {
        let owner = Arc::new([0_u8; 16]);
        let start = NonNull::from(&owner[0]);
        // SAFETY: the array is kept and nobody writes to it.
        let lent = unsafe { LentBytes::new(start, 16, owner) };
        lent.copy_to(usize::MAX, &mut [0; 2]);
    }
}

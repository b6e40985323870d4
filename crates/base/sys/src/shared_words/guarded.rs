//! Atomic accesses to a word whose page may be gone.
//!
//! The functions are written in assembly, so that the handler of SIGBUS (`streaming.rs`) can recognise a fault inside
//! them by its address, and let them return a failure.

/// The word at an address; `None` if its page is gone.
///
/// # Safety
///
/// The address lies in a mapping of a file, and is aligned.
pub(super) unsafe fn load(word: *const u64) -> Option<u64> {
    // SAFETY: what the caller promised.
    unsafe { arch::load(word) }
}

/// Changes the word at an address. Returns false if its page is gone.
///
/// # Safety
///
/// As for [`load`], and the mapping is writable.
pub(super) unsafe fn store(word: *mut u64, value: u64) -> bool {
    // SAFETY: what the caller promised.
    unsafe { arch::store(word, value) }
}

/// Adds to the word at an address. Returns its former value; `None` if its page is gone.
///
/// # Safety
///
/// As for [`store`].
pub(super) unsafe fn add(word: *mut u64, value: u64) -> Option<u64> {
    // SAFETY: what the caller promised.
    unsafe { arch::add(word, value) }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use arch::resume;

#[cfg(target_arch = "x86_64")]
mod arch {
    // rdi: the word, rsi: the value or the place of the result, rdx: the place of the result. All return whether the
    // access succeeded. A fault between `begin` and `end` continues at `fault`. Nothing is on the stack but the return
    // address. `xchg` with memory is atomic and a full barrier.
    std::arch::global_asm!(
        ".globl straightway_words_load",
        ".globl straightway_words_store",
        ".globl straightway_words_add",
        ".globl straightway_words_end",
        ".globl straightway_words_fault",
        "straightway_words_load:",
        "    mov rax, [rdi]",
        "    mov [rsi], rax",
        "    mov eax, 1",
        "    ret",
        "straightway_words_store:",
        "    xchg [rdi], rsi",
        "    mov eax, 1",
        "    ret",
        "straightway_words_add:",
        "    lock xadd [rdi], rsi",
        "    mov [rdx], rsi",
        "    mov eax, 1",
        "    ret",
        "straightway_words_end:",
        "straightway_words_fault:",
        "    xor eax, eax",
        "    ret",
    );

    unsafe extern "C" {
        fn straightway_words_load(word: *const u64, result: *mut u64) -> u32;
        fn straightway_words_store(word: *mut u64, value: u64) -> u32;
        fn straightway_words_add(word: *mut u64, value: u64, result: *mut u64) -> u32;
        fn straightway_words_end();
        fn straightway_words_fault();
    }

    pub(super) unsafe fn load(word: *const u64) -> Option<u64> {
        let mut result = 0;
        // SAFETY: what the caller of `super::load` promised; a fault is handled.
        let is_there = unsafe { straightway_words_load(word, &raw mut result) } == 1;
        is_there.then_some(result)
    }

    pub(super) unsafe fn store(word: *mut u64, value: u64) -> bool {
        // SAFETY: as above.
        unsafe { straightway_words_store(word, value) == 1 }
    }

    pub(super) unsafe fn add(word: *mut u64, value: u64) -> Option<u64> {
        let mut result = 0;
        // SAFETY: as above.
        let is_there = unsafe { straightway_words_add(word, value, &raw mut result) } == 1;
        is_there.then_some(result)
    }

    /// Where a thread continues that faulted at this address; `None` if that is not in the functions here.
    pub(crate) fn resume(at: i64) -> Option<i64> {
        let begin = straightway_words_load as *const () as i64;
        let end = straightway_words_end as *const () as i64;
        (begin..end)
            .contains(&at)
            .then_some(straightway_words_fault as *const () as i64)
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod arch {
    use std::sync::atomic::{AtomicU64, Ordering};

    pub(super) unsafe fn load(word: *const u64) -> Option<u64> {
        // SAFETY: what the caller of `super::load` promised; all accesses are atomic.
        Some(unsafe { AtomicU64::from_ptr(word.cast_mut()) }.load(Ordering::SeqCst))
    }

    pub(super) unsafe fn store(word: *mut u64, value: u64) -> bool {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::SeqCst);
        true
    }

    pub(super) unsafe fn add(word: *mut u64, value: u64) -> Option<u64> {
        // SAFETY: as above.
        Some(unsafe { AtomicU64::from_ptr(word) }.fetch_add(value, Ordering::SeqCst))
    }
}

//! System calls that a sandbox forbids, for tests.

use std::io;

/// The system call `io_uring_enter`, which has the same number on all architectures.
const IO_URING_ENTER: u32 = 426;

/// Offset of the number of the system call in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;

/// Forbids `io_uring_enter` for this thread and all threads and processes that it starts from now on, for good: the
/// call then fails with EPERM. `io_uring_setup` stays permitted.
pub fn forbid_io_uring_enter() -> io::Result<()> {
    let step = |code: u32, k: u32, (jt, jf): (u8, u8)| libc::sock_filter {
        code: u16::try_from(code).expect("codes have 16 bits"),
        jt,
        jf,
        k,
    };
    let denied = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
    let mut program = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, NUMBER_AT, (0, 0)),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, IO_URING_ENTER, (0, 1)),
        step(libc::BPF_RET | libc::BPF_K, denied, (0, 0)),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, (0, 0)),
    ];
    let filter = libc::sock_fprog {
        len: 4,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the first call only sets a flag of the thread. The second copies the program, which exists until it
    // returns, and whose length is right; the kernel checks it.
    let outcomes = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter),
        ]
    };
    if outcomes == [0, 0] {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

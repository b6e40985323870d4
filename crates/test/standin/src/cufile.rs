//! The entry points of libcufile.
//!
//! Reads and writes are real: they transfer between the registered file descriptor and the memory behind a device
//! address. As in cuFile, the counters depend on the mode and the alignment, and an unaligned request succeeds
//! silently.

pub(crate) mod state;

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::thread;
use std::time::Duration;

use self::state::GPUS_MAX;
use crate::device::uuid_of;
use crate::plan::CufileMode;
use crate::world::{SUCCESS, World, current_device, world};

const ALIGN_BYTES: u64 = 4096;
const PARAMETER_ALLOW_COMPAT: c_uint = 1;

/// `CUfileError_t`.
#[repr(C)]
struct Status {
    op: u32,
    cuda: u32,
}

/// `CUfileDescr_t`: only the file descriptor is used.
#[repr(C)]
struct Description {
    kind: u32,
    padding: u32,
    fd: c_int,
    rest: u32,
    fs_ops: *const c_void,
}

/// Offsets of the counters in the words of one GPU.
mod word {
    pub(super) const READ_BYTES: usize = 2;
    pub(super) const READS: usize = 6;
    pub(super) const WRITE_BYTES: usize = 15;
    pub(super) const WRITES: usize = 19;
    /// Offsets from `READS` and `WRITES`.
    pub(super) const P2P: usize = 1;
    pub(super) const NVFS: usize = 2;
    pub(super) const POSIX: usize = 3;
    pub(super) const UNALIGNED: usize = 4;
}

const OK: Status = Status { op: SUCCESS, cuda: 0 };

fn failed(op: u32) -> Status {
    Status { op, cuda: 0 }
}

macro_rules! begin {
    ($name:literal) => {{
        let mut world = world();
        if let Some(code) = world.call($name) {
            return failed(code);
        }
        world
    }};
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverOpen() -> Status {
    let mut world = begin!("cuFileDriverOpen");
    match world.plan.cufile {
        CufileMode::Closed => failed(5033),
        CufileMode::Hanging => {
            drop(world);
            // SAFETY: nothing depends on descriptor 0; losing it is what is tested.
            unsafe { libc::close(0) };
            loop {
                thread::sleep(Duration::from_secs(1));
            }
        }
        _ if current_device().is_none() => failed(5047),
        _ if world.cufile.is_open => failed(5026),
        _ => {
            world.cufile.is_open = true;
            OK
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuFileDriverClose_v2() -> Status {
    let mut world = world();
    let failure = world.call("cuFileDriverClose_v2");
    if !world.cufile.files.is_empty() || !world.cufile.buffers.is_empty() {
        world.misuse("cuFile was closed with files or memory registered");
    }
    world.cufile.is_open = false;
    failed(failure.unwrap_or(SUCCESS))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileGetVersion(version: *mut c_int) -> Status {
    let world = begin!("cuFileGetVersion");
    // SAFETY: the caller gives a valid pointer.
    unsafe { version.write(world.plan.cufile_version) };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileGetParameterBool(parameter: c_uint, value: *mut bool) -> Status {
    let world = begin!("cuFileGetParameterBool");
    let unset = parameter == PARAMETER_ALLOW_COMPAT;
    let known = world.cufile.parameters.get(&parameter).copied().unwrap_or(unset);
    // SAFETY: the caller gives a valid pointer.
    unsafe { value.write(known) };
    OK
}

#[unsafe(no_mangle)]
extern "C" fn cuFileSetParameterBool(parameter: c_uint, value: bool) -> Status {
    let mut world = begin!("cuFileSetParameterBool");
    if world.cufile.is_open {
        return failed(5026);
    }
    world.cufile.parameters.insert(parameter, value);
    OK
}

/// Returns the defaults of cuFile's documentation.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileDriverGetProperties(properties: *mut u32) -> Status {
    let world = begin!("cuFileDriverGetProperties");
    let nvfs = if world.plan.cufile == CufileMode::Nvfs {
        [2, 26]
    } else {
        [0, 0]
    };
    let rest = [
        4,
        0,
        16 << 10,
        0,
        0,
        0,
        0,
        128 << 10,
        1 << 10,
        world.plan.device_pinned_kib,
        128,
        0,
    ];
    let words: Vec<u32> = nvfs.into_iter().chain(rest).collect();
    // SAFETY: the caller gives the struct's 56 bytes, and these are 14 words.
    unsafe { ptr::copy_nonoverlapping(words.as_ptr(), properties, words.len()) };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileHandleRegister(handle: *mut *mut c_void, description: *const Description) -> Status {
    let mut world = begin!("cuFileHandleRegister");
    // SAFETY: the caller gives a valid description.
    let Description { kind, fd, .. } = unsafe { &*description };
    let allows_compat = world.cufile.parameters.get(&PARAMETER_ALLOW_COMPAT) != Some(&false);
    match world.plan.cufile {
        _ if !world.cufile.is_open => failed(5001),
        _ if *kind != 1 => failed(5022),
        CufileMode::Unregistrable => failed(5027),
        CufileMode::Compat if !allows_compat => failed(5049),
        _ => {
            let number = world.handle();
            world.cufile.files.insert(number, *fd);
            // SAFETY: the caller gives a valid pointer.
            unsafe { handle.write(number as *mut c_void) };
            OK
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuFileHandleDeregister(handle: *mut c_void) {
    let mut world = world();
    world.call("cuFileHandleDeregister");
    let Some(fd) = world.cufile.files.remove(&(handle as usize)) else {
        return world.misuse("a file was deregistered that is not registered");
    };
    // SAFETY: only checks whether it is open.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        world.misuse("a file was closed before it was deregistered");
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuFileBufRegister(base: *const c_void, len: usize, flags: c_int) -> Status {
    let mut world = begin!("cuFileBufRegister");
    let base = base as u64;
    if flags != 0 {
        return failed(5022);
    }
    if world.allocation(base, len).is_none() {
        return failed(5014);
    }
    if world.cufile.buffers.contains_key(&base) {
        return failed(5023);
    }
    world.cufile.buffers.insert(base, len);
    OK
}

#[unsafe(no_mangle)]
extern "C" fn cuFileBufDeregister(base: *const c_void) -> Status {
    let mut world = world();
    let failure = world.call("cuFileBufDeregister");
    if world.cufile.buffers.remove(&(base as u64)).is_none() {
        world.misuse("memory was deregistered that is not registered");
        return failed(5024);
    }
    failed(failure.unwrap_or(SUCCESS))
}

#[unsafe(no_mangle)]
extern "C" fn cuFileRead(
    handle: *mut c_void,
    base: *mut c_void,
    len: usize,
    file_offset: i64,
    memory_offset: i64,
) -> isize {
    transfer(
        "cuFileRead",
        true,
        handle as usize,
        base as u64,
        len,
        file_offset,
        memory_offset,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuFileWrite(
    handle: *mut c_void,
    base: *const c_void,
    len: usize,
    file_offset: i64,
    memory_offset: i64,
) -> isize {
    transfer(
        "cuFileWrite",
        false,
        handle as usize,
        base as u64,
        len,
        file_offset,
        memory_offset,
    )
}

/// Transfers bytes. Returns their number, −1 with `errno` set, or a negated code, like cuFile.
fn transfer(
    name: &str,
    is_read: bool,
    handle: usize,
    base: u64,
    len: usize,
    file_offset: i64,
    memory_offset: i64,
) -> isize {
    let mut world = world();
    if let Some(code) = world.call(name) {
        return if code >= 5000 {
            -isize::try_from(code).unwrap_or(isize::MAX)
        } else {
            fail_with_errno(code)
        };
    }
    let Some(&fd) = world.cufile.files.get(&handle) else {
        return -5027;
    };
    if current_device().is_none() {
        return -5047;
    }
    let start = base.wrapping_add_signed(memory_offset);
    let Some(allocation) = world.allocation(start, len) else {
        return -5014;
    };
    let (device, place) = (allocation.device, allocation.host_pointer(start));
    // SAFETY: `len` bytes from `place` belong to the allocation; the caller provides the descriptor.
    let moved = unsafe {
        if is_read {
            libc::pread(fd, place.cast(), len, file_offset)
        } else {
            libc::pwrite(fd, place.cast(), len, file_offset)
        }
    };
    if let Ok(bytes) = u64::try_from(moved) {
        let aligned = [base, start, len as u64, file_offset.cast_unsigned()];
        let is_aligned = aligned.iter().all(|n| n % ALIGN_BYTES == 0);
        count(&mut world, device, is_read, is_aligned, bytes);
    }
    moved
}

fn fail_with_errno(code: u32) -> isize {
    // SAFETY: the C library gives each thread a valid `errno`.
    unsafe { libc::__errno_location().write(code.cast_signed()) };
    -1
}

fn count(world: &mut World, device: usize, is_read: bool, is_aligned: bool, bytes: u64) {
    if !world.cufile.is_counting || world.cufile.level < 3 {
        return;
    }
    let path = match world.plan.cufile {
        _ if !is_aligned => word::UNALIGNED,
        CufileMode::Nvfs => word::NVFS,
        CufileMode::P2p => word::P2P,
        _ => word::POSIX,
    };
    let Some(words) = world.cufile.counters.get_mut(device) else {
        return;
    };
    let (first, total) = if is_read {
        (word::READS, word::READ_BYTES)
    } else {
        (word::WRITES, word::WRITE_BYTES)
    };
    words[first] += 1;
    words[first + path] += 1;
    words[total] += bytes;
}

#[unsafe(no_mangle)]
extern "C" fn cuFileSetStatsLevel(level: c_int) -> Status {
    let mut world = begin!("cuFileSetStatsLevel");
    world.cufile.level = level;
    OK
}

#[unsafe(no_mangle)]
extern "C" fn cuFileStatsStart() -> Status {
    let mut world = begin!("cuFileStatsStart");
    world.cufile.is_counting = true;
    OK
}

#[unsafe(no_mangle)]
extern "C" fn cuFileStatsStop() -> Status {
    let mut world = begin!("cuFileStatsStop");
    world.cufile.is_counting = false;
    OK
}

/// Version 1.19 added 14 words before the counters.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuFileGetStatsL3(stats: *mut u64) -> Status {
    let world = begin!("cuFileGetStatsL3");
    if world.cufile.level < 3 {
        return failed(5022);
    }
    let count_at = if world.plan.cufile_version < 1190 { 128 } else { 142 };
    let gpus = world.plan.devices.min(GPUS_MAX);
    let mut words = vec![0u64; count_at];
    words.push(gpus as u64);
    for (device, counters) in world.cufile.counters.iter().enumerate() {
        let mut counters = *counters;
        if device < gpus {
            let uuid = uuid_of(device);
            for (word, bytes) in counters.iter_mut().zip(uuid.chunks_exact(8)) {
                *word = u64::from_ne_bytes(bytes.try_into().expect("chunks of eight"));
            }
        }
        words.extend(counters);
    }
    // SAFETY: the caller gives the struct, and this is its size in this version.
    unsafe { ptr::copy_nonoverlapping(words.as_ptr(), stats, words.len()) };
    OK
}

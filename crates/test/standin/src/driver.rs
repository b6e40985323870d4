//! The entry points of libcuda.
//!
//! Each call is counted, and fails if the plan says so. A call that *releases* something releases it even if it fails,
//! like the driver: its result may be the error of earlier work.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

use crate::device::uuid_of;
use crate::world::{
    CONTEXT_DESTROYED, INVALID_CONTEXT, INVALID_VALUE, SUCCESS, changed, pop_context, push_context, world,
};

const DEVICE_UNAVAILABLE: u32 = 46;
const INVALID_DEVICE: u32 = 101;

/// The contexts of devices are distinguished by their address, which is never dereferenced.
const CONTEXT_BASE: usize = 0xC0DE_0000;

const COMPUTE_MODE: c_uint = 20;
const HOST_NUMA_ID: c_uint = 134;

/// Stores a result for the caller.
///
/// # Safety
/// `place` is null or valid for a `T`.
unsafe fn answer<T>(place: *mut T, value: T) -> u32 {
    if place.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not null, so the caller guarantees that it is valid.
    unsafe { place.write(value) };
    SUCCESS
}

/// Starts a call: binds the world, or returns the failure code.
macro_rules! begin {
    ($name:literal) => {{
        let mut world = world();
        if let Some(code) = world.call($name) {
            return code;
        }
        world
    }};
}

/// Starts a call that fails permanently once a copy has failed.
macro_rules! begin_work {
    ($name:literal) => {{
        let world = begin!($name);
        if let Some(code) = world.fatal {
            return code;
        }
        if world.is_reset {
            return crate::world::CONTEXT_DESTROYED;
        }
        world
    }};
}

// After the macros, which these modules use.
mod memory;
mod work;

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> u32 {
    let world = begin!("cuInit");
    if world.plan.devices == 0 { 100 } else { SUCCESS }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> u32 {
    let world = begin!("cuDriverGetVersion");
    // SAFETY: the caller gives a valid pointer.
    unsafe { answer(version, world.plan.version) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(code: u32, name: *mut *const c_char) -> u32 {
    let text = match code {
        1 => c"CUDA_ERROR_INVALID_VALUE",
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        46 => c"CUDA_ERROR_DEVICE_UNAVAILABLE",
        100 => c"CUDA_ERROR_NO_DEVICE",
        700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        999 => c"CUDA_ERROR_UNKNOWN",
        _ => return INVALID_VALUE,
    };
    // SAFETY: the caller gives a valid pointer.
    unsafe { answer(name, text.as_ptr()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> u32 {
    let world = begin!("cuDeviceGetCount");
    let devices = c_int::try_from(world.plan.devices).unwrap_or(c_int::MAX);
    // SAFETY: the caller gives a valid pointer.
    unsafe { answer(count, devices) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> u32 {
    let world = begin!("cuDeviceGet");
    if !usize::try_from(ordinal).is_ok_and(|n| n < world.plan.devices) {
        return INVALID_DEVICE;
    }
    // SAFETY: the caller gives a valid pointer.
    unsafe { answer(device, ordinal) }
}

/// Writes a C string of at most `room` bytes, the NUL included.
///
/// # Safety
/// `place` has `room` bytes.
unsafe fn answer_text(place: *mut c_char, room: c_int, text: &str) -> u32 {
    let Some(room) = usize::try_from(room).ok().filter(|&n| n > 0) else {
        return INVALID_VALUE;
    };
    let len = text.len().min(room - 1);
    // SAFETY: `len` and the NUL fit the `room` that the caller guarantees.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr(), place.cast(), len);
        place.add(len).write(0);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, room: c_int, device: c_int) -> u32 {
    let _world = begin!("cuDeviceGetName");
    // SAFETY: the caller gives `room` bytes.
    unsafe { answer_text(name, room, &format!("Stand-in GPU {device}")) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetPCIBusId(id: *mut c_char, room: c_int, device: c_int) -> u32 {
    let _world = begin!("cuDeviceGetPCIBusId");
    // SAFETY: the caller gives `room` bytes.
    unsafe { answer_text(id, room, &format!("0000:{:02X}:00.0", 0x1B + device)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> u32 {
    let _world = begin!("cuDeviceGetUuid_v2");
    // SAFETY: the caller gives a valid pointer.
    unsafe { answer(uuid, uuid_of(usize::try_from(device).unwrap_or(0))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> u32 {
    let world = begin!("cuDeviceTotalMem_v2");
    // SAFETY: the caller gives a valid pointer.
    unsafe { answer(bytes, world.plan.memory_bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: c_int) -> u32 {
    let world = begin!("cuDeviceGetAttribute");
    let known = match attribute {
        COMPUTE_MODE => world.plan.compute_mode,
        HOST_NUMA_ID => device % 2,
        _ => return INVALID_VALUE,
    };
    // SAFETY: the caller gives a valid pointer.
    unsafe { answer(value, known) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) -> u32 {
    let mut world = begin!("cuDevicePrimaryCtxRetain");
    if let Some(code) = world.fatal {
        return code;
    }
    // 2 is prohibited, 3 exclusive to one process.
    if world.plan.compute_mode == 2 || (world.plan.compute_mode == 3 && world.plan.held) {
        return DEVICE_UNAVAILABLE;
    }
    let Ok(device) = usize::try_from(device) else {
        return INVALID_DEVICE;
    };
    world.contexts += 1;
    world.is_reset = false;
    // SAFETY: the caller gives a valid pointer.
    unsafe { answer(context, (CONTEXT_BASE + device) as *mut c_void) }
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> u32 {
    let mut world = world();
    let failure = world.call("cuDevicePrimaryCtxRelease_v2");
    if world.contexts == 0 {
        world.misuse("a context was released more often than retained");
        return INVALID_VALUE;
    }
    world.contexts -= 1;
    failure.unwrap_or(SUCCESS)
}

/// Behaves as driver 580 does on an H200, for all devices at once: the handle stays the same, and the id changes when
/// the context is retained again.
#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxReset_v2(_device: c_int) -> u32 {
    let mut world = begin!("cuDevicePrimaryCtxReset_v2");
    world.reset();
    changed();
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetId(_context: *mut c_void, id: *mut u64) -> u32 {
    let world = begin!("cuCtxGetId");
    if world.is_reset {
        return CONTEXT_DESTROYED;
    }
    // SAFETY: the caller gives a valid pointer.
    unsafe { answer(id, world.resets + 1) }
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: *mut c_void) -> u32 {
    let world = begin!("cuCtxPushCurrent_v2");
    let device = (context as usize).wrapping_sub(CONTEXT_BASE);
    if device >= world.plan.devices || world.contexts == 0 {
        return INVALID_CONTEXT;
    }
    push_context(device);
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut *mut c_void) -> u32 {
    let failure = world().call("cuCtxPopCurrent_v2");
    let Some(device) = pop_context() else {
        return INVALID_CONTEXT;
    };
    // SAFETY: the caller gives a valid pointer.
    let stored = unsafe { answer(context, (CONTEXT_BASE + device) as *mut c_void) };
    failure.unwrap_or(stored)
}

//! Copies, streams and events.

use std::ffi::{c_uint, c_void};
use std::sync::MutexGuard;

use super::answer;
use crate::queue::{Copy, Mark, Op, Queue};
use crate::world::{
    INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, SUCCESS, World, changed, current_device, wait_for_change, world,
};

const NOT_READY: u32 = 600;

/// Copies synchronously.
fn copy_now(world: &mut World, copy: Copy) -> u32 {
    let Some(allocation) = world.allocation(copy.device, copy.len) else {
        world.misuse(format!("{copy:?} reaches beyond an allocation"));
        return INVALID_VALUE;
    };
    copy.run(allocation);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(device: u64, host: *const c_void, len: usize) -> u32 {
    let mut world = begin_work!("cuMemcpyHtoD_v2");
    copy_now(
        &mut world,
        Copy {
            host: host as usize,
            device,
            len,
            is_to_device: true,
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(host: *mut c_void, device: u64, len: usize) -> u32 {
    let mut world = begin_work!("cuMemcpyDtoH_v2");
    copy_now(
        &mut world,
        Copy {
            host: host as usize,
            device,
            len,
            is_to_device: false,
        },
    )
}

/// Queues an asynchronous copy.
fn copy_later(world: &mut World, copy: Copy, stream: usize) -> u32 {
    if current_device().is_none() {
        return INVALID_CONTEXT;
    }
    if !world.streams.contains_key(&stream) {
        let misuse = format!("{copy:?} on a stream that does not exist");
        return world.unknown_handle(stream, INVALID_HANDLE, &misuse);
    }
    if world.allocation(copy.device, copy.len).is_none() {
        world.misuse(format!("{copy:?} reaches beyond an allocation"));
        return INVALID_VALUE;
    }
    if !world.is_pinned(copy.host, copy.len) {
        world.misuse(format!("{copy:?} uses host memory that is not pinned"));
        return INVALID_VALUE;
    }
    let fingerprint = copy.fingerprint();
    world.enqueue(stream, Op::Copy { copy, fingerprint });
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(device: u64, host: *const c_void, len: usize, stream: *mut c_void) -> u32 {
    let mut world = begin_work!("cuMemcpyHtoDAsync_v2");
    let copy = Copy {
        host: host as usize,
        device,
        len,
        is_to_device: true,
    };
    copy_later(&mut world, copy, stream as usize)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(host: *mut c_void, device: u64, len: usize, stream: *mut c_void) -> u32 {
    let mut world = begin_work!("cuMemcpyDtoHAsync_v2");
    let copy = Copy {
        host: host as usize,
        device,
        len,
        is_to_device: false,
    };
    copy_later(&mut world, copy, stream as usize)
}

/// Derives from the addresses which end of each pair is on the device, like the driver.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyBatchAsync(
    to: *const u64,
    from: *const u64,
    sizes: *const usize,
    count: usize,
    _attributes: *const c_void,
    _attribute_starts: *const usize,
    attribute_count: usize,
    failed: *mut usize,
    stream: *mut c_void,
) -> u32 {
    let mut world = begin_work!("cuMemcpyBatchAsync");
    // The driver requires at least one attribute, and refuses the null stream.
    if count == 0 || attribute_count == 0 || stream.is_null() {
        return INVALID_VALUE;
    }
    for i in 0..count {
        // SAFETY: the caller gives `count` entries in each array.
        let (to, from, len) = unsafe { (*to.add(i), *from.add(i), *sizes.add(i)) };
        let is_to_device = world.allocation(to, len).is_some();
        let (device, host) = if is_to_device { (to, from) } else { (from, to) };
        let Ok(host) = usize::try_from(host) else {
            return INVALID_VALUE;
        };
        let copy = Copy {
            host,
            device,
            len,
            is_to_device,
        };
        let code = copy_later(&mut world, copy, stream as usize);
        if code != SUCCESS {
            // SAFETY: the caller gives a valid pointer.
            unsafe { answer(failed, i) };
            return code;
        }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut *mut c_void, _flags: c_uint) -> u32 {
    let world = begin_work!("cuStreamCreate");
    let insert = |world: &mut World, handle| {
        world.streams.insert(handle, Queue::default());
    };
    // SAFETY: the caller gives a valid pointer.
    unsafe { create(world, stream, insert) }
}

/// Answers with a new handle for what `insert` makes in the current device.
///
/// # Safety
/// The pointer is valid.
unsafe fn create(
    mut world: MutexGuard<'static, World>,
    place: *mut *mut c_void,
    insert: impl FnOnce(&mut World, usize),
) -> u32 {
    if current_device().is_none() {
        return INVALID_CONTEXT;
    }
    let handle = world.handle();
    insert(&mut world, handle);
    // SAFETY: the caller guarantees it.
    unsafe { answer(place, handle as *mut c_void) }
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: *mut c_void) -> u32 {
    let mut world = world();
    let failure = world.call("cuStreamDestroy_v2").or(world.fatal);
    if world.destroy_stream(stream as usize).is_none() {
        world.misuse("a stream was destroyed that does not exist");
        return INVALID_HANDLE;
    }
    failure.unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: *mut c_void) -> u32 {
    let world = begin_work!("cuStreamSynchronize");
    // Nothing is ever queued on the null stream.
    if stream.is_null() {
        return SUCCESS;
    }
    wait_until_empty(world, stream as usize)
}

/// Waits until a stream is empty or a copy has failed.
fn wait_until_empty(mut world: MutexGuard<'static, World>, stream: usize) -> u32 {
    loop {
        if let Some(code) = world.fatal {
            return code;
        }
        match world.streams.get(&stream).map(|queue| queue.len() == 0) {
            Some(true) => return SUCCESS,
            Some(false) => world = wait_for_change(world),
            None => {
                let misuse = "a stream was waited for that does not exist";
                return world.unknown_handle(stream, INVALID_HANDLE, misuse);
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut *mut c_void, _flags: c_uint) -> u32 {
    let world = begin_work!("cuEventCreate");
    let insert = |world: &mut World, handle| {
        world.events.insert(handle, Mark::default());
    };
    // SAFETY: the caller gives a valid pointer.
    unsafe { create(world, event, insert) }
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: *mut c_void) -> u32 {
    let mut world = world();
    let failure = world.call("cuEventDestroy_v2").or(world.fatal);
    if world.events.remove(&(event as usize)).is_none() {
        world.misuse("an event was destroyed that does not exist");
        return INVALID_HANDLE;
    }
    changed();
    failure.unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: *mut c_void, stream: *mut c_void) -> u32 {
    let mut world = begin_work!("cuEventRecord");
    let is_stream = stream.is_null() || world.streams.contains_key(&(stream as usize));
    if world.lost_handles.contains(&(event as usize)) {
        return INVALID_CONTEXT;
    }
    if !is_stream || world.record(event as usize, stream as usize).is_none() {
        world.misuse("an event was recorded that does not exist, or on a stream that does not exist");
        return INVALID_HANDLE;
    }
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: *mut c_void, event: *mut c_void, _flags: c_uint) -> u32 {
    let mut world = begin_work!("cuStreamWaitEvent");
    let is_stream = world.streams.contains_key(&(stream as usize));
    if !is_stream || world.wait_for(event as usize, stream as usize).is_none() {
        world.misuse("a stream waited for an event, and one of them does not exist");
        return INVALID_HANDLE;
    }
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: *mut c_void) -> u32 {
    let mut world = begin_work!("cuEventQuery");
    match world.events.get(&(event as usize)) {
        Some(mark) if mark.is_passed() => SUCCESS,
        Some(_) => NOT_READY,
        None => world.unknown_handle(
            event as usize,
            INVALID_CONTEXT,
            "an event was queried that does not exist",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::super::memory::{cuMemAlloc_v2, cuMemFree_v2, cuMemHostRegister_v2, cuMemHostUnregister};
    use super::super::{cuCtxPushCurrent_v2, cuDevicePrimaryCtxRetain};
    use super::*;

    /// One test, because there is one world per process.
    #[test]
    fn misuse_is_refused_and_counted() {
        let (mut context, mut stream, mut event, mut device) = (null_mut(), null_mut(), null_mut(), 0);
        let mut host = vec![1u8; 8192];
        let (pinned, pageable) = (host.as_mut_ptr().cast::<c_void>(), host[4096..].as_ptr().cast());
        let misuses = || world().misuses.len();
        // SAFETY: every pointer is to a local that outlives the calls.
        unsafe {
            assert_eq!(cuDevicePrimaryCtxRetain(&raw mut context, 0), SUCCESS);
            assert_eq!(cuCtxPushCurrent_v2(context), SUCCESS);
            assert_eq!(cuStreamCreate(&raw mut stream, 0), SUCCESS);
            assert_eq!(cuEventCreate(&raw mut event, 0), SUCCESS);
            assert_eq!(cuMemAlloc_v2(&raw mut device, 4096), SUCCESS);
        }
        assert_eq!(cuMemHostRegister_v2(pinned, 4096, 0), SUCCESS);

        assert_eq!(cuMemcpyHtoDAsync_v2(device, pageable, 16, stream), INVALID_VALUE);
        assert_eq!(cuMemcpyHtoDAsync_v2(device + 4090, pinned, 16, stream), INVALID_VALUE);
        assert_eq!(
            misuses(),
            2,
            "memory that is not pinned, and a range beyond the allocation"
        );

        world().is_held = true;
        assert_eq!(cuMemcpyHtoDAsync_v2(device, pinned, 16, stream), SUCCESS);
        assert_eq!(cuEventRecord(event, stream), SUCCESS);
        assert_eq!(cuEventQuery(event), NOT_READY);
        assert_eq!(cuMemFree_v2(device), INVALID_VALUE);
        assert_eq!(cuMemHostUnregister(pinned), INVALID_VALUE);
        assert_eq!(misuses(), 4, "both ends of a copy that has not run");
        world().is_held = false;
        changed();
        assert_eq!(cuStreamSynchronize(stream), SUCCESS);
        assert_eq!(cuEventQuery(event), SUCCESS);

        assert_eq!((cuMemFree_v2(device), cuMemHostUnregister(pinned)), (SUCCESS, SUCCESS));
        assert_eq!(cuMemFree_v2(device), INVALID_VALUE);
        assert_eq!(cuEventDestroy_v2(event), SUCCESS);
        assert_eq!(cuEventQuery(event), INVALID_HANDLE);
        assert_eq!(cuStreamDestroy_v2(stream), SUCCESS);
        assert_eq!(cuStreamSynchronize(stream), INVALID_HANDLE);
        assert_eq!(misuses(), 7, "freed twice, and used after they were destroyed");
    }
}

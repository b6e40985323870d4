//! Device memory, pinned host memory, and pointer attributes.

use std::ffi::{c_uint, c_void};

use super::answer;
use crate::device::Allocation;
use crate::world::{INVALID_CONTEXT, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS, World, current_device, world};

const ALREADY_REGISTERED: u32 = 712;
const POINTER_MEMORY_TYPE: c_uint = 2;
const POINTER_IS_MANAGED: c_uint = 8;
const POINTER_DEVICE_ORDINAL: c_uint = 9;
const POINTER_RANGE_START: c_uint = 11;
const POINTER_RANGE_SIZE: c_uint = 12;

fn used_bytes(world: &World, device: usize) -> usize {
    world
        .allocations
        .values()
        .filter(|a| a.device == device)
        .map(|a| a.len)
        .sum()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> u32 {
    let world = begin_work!("cuMemGetInfo_v2");
    let Some(device) = current_device() else {
        return INVALID_CONTEXT;
    };
    // SAFETY: the caller gives valid pointers.
    unsafe {
        answer(free, world.plan.memory_bytes - used_bytes(&world, device));
        answer(total, world.plan.memory_bytes)
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, len: usize) -> u32 {
    let mut world = begin_work!("cuMemAlloc_v2");
    let Some(device) = current_device() else {
        return INVALID_CONTEXT;
    };
    if len == 0 {
        return INVALID_VALUE;
    }
    if used_bytes(&world, device).saturating_add(len) > world.plan.memory_bytes {
        return OUT_OF_MEMORY;
    }
    let Some(allocation) = Allocation::new(device, len) else {
        return OUT_OF_MEMORY;
    };
    let start = allocation.address;
    world.allocations.insert(start, allocation);
    // SAFETY: the caller gives a valid pointer.
    unsafe { answer(address, start) }
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemFree_v2(address: u64) -> u32 {
    let mut world = world();
    let failure = world.call("cuMemFree_v2").or(world.fatal);
    let Some(len) = world.allocations.get(&address).map(|a| a.len) else {
        world.misuse(format!("{address:#x} was freed and is not an allocation"));
        return INVALID_VALUE;
    };
    if world.fatal.is_none() && world.is_device_in_flight(address, len) {
        world.misuse(format!("{address:#x} was freed during a copy"));
        return INVALID_VALUE;
    }
    if world.cufile.buffers.contains_key(&address) {
        world.misuse(format!("{address:#x} was freed while cuFile had it registered"));
    }
    world.allocations.remove(&address);
    failure.unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemHostRegister_v2(address: *mut c_void, len: usize, _flags: c_uint) -> u32 {
    let mut world = begin_work!("cuMemHostRegister_v2");
    if current_device().is_none() {
        return INVALID_CONTEXT;
    }
    let start = address as usize;
    if start == 0 || len == 0 {
        return INVALID_VALUE;
    }
    let overlaps = |(&at, &bytes): (&usize, &usize)| at < start + len && start < at + bytes;
    if world.pinned.iter().any(overlaps) {
        return ALREADY_REGISTERED;
    }
    if world.pinned.values().sum::<usize>().saturating_add(len) > world.plan.pinned_bytes_max {
        return OUT_OF_MEMORY;
    }
    world.pinned.insert(start, len);
    SUCCESS
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemHostUnregister(address: *mut c_void) -> u32 {
    let mut world = world();
    let failure = world.call("cuMemHostUnregister").or(world.fatal);
    let start = address as usize;
    let Some(&len) = world.pinned.get(&start) else {
        world.misuse(format!("{start:#x} was unregistered and is not registered"));
        return INVALID_VALUE;
    };
    if world.fatal.is_none() && world.is_host_in_flight(start, len) {
        world.misuse(format!("{start:#x} was unregistered during a copy"));
        return INVALID_VALUE;
    }
    world.pinned.remove(&start);
    failure.unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttribute(data: *mut c_void, attribute: c_uint, address: u64) -> u32 {
    let world = begin!("cuPointerGetAttribute");
    let Some(allocation) = world.allocation(address, 1) else {
        let is_pinned = usize::try_from(address).is_ok_and(|at| world.is_pinned(at, 1));
        if !is_pinned || attribute != POINTER_MEMORY_TYPE {
            return INVALID_VALUE;
        }
        // SAFETY: the caller gives a pointer for this attribute, four bytes; 1 is host memory.
        return unsafe { answer(data.cast(), 1u32) };
    };
    let piece = world.plan.piece_bytes;
    let skipped = (address - allocation.address) / piece * piece;
    let rest = allocation.len as u64 - skipped;
    let ordinal = u32::try_from(allocation.device).unwrap_or(u32::MAX);
    // SAFETY: the caller gives a pointer to a value as wide as the attribute.
    unsafe {
        match attribute {
            // 2 is device memory.
            POINTER_MEMORY_TYPE => answer(data.cast(), 2u32),
            POINTER_IS_MANAGED => answer(data.cast(), false),
            POINTER_DEVICE_ORDINAL => answer(data.cast(), ordinal),
            POINTER_RANGE_START => answer(data.cast(), allocation.address + skipped),
            POINTER_RANGE_SIZE => answer(data.cast(), rest.min(piece)),
            _ => INVALID_VALUE,
        }
    }
}

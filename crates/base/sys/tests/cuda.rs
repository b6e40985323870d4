//! The driver layer with the stand-in driver: late copies, failing calls, bad pointers, broken machines.

#![expect(clippy::unwrap_used, reason = "a test's helpers are tests too")]

use std::sync::Arc;

use straightway_core::{ErrorKind, Place, Result};
use straightway_standin::Standin;
use straightway_sys::cuda::{Context, CopyDirection, Copying, CudaStream, DeviceMemory, Driver, Span};
use straightway_sys::memory::HostMemory;
use straightway_sys::{Region, RingSpace, Slot};

const SLOT_BYTES: usize = 64 << 10;

fn context() -> Context {
    Driver::load().unwrap().device(0).unwrap().context().unwrap()
}

fn ring(context: &Context, slots: usize) -> Result<Vec<Slot>> {
    RingSpace::default().pinned_ring(context, slots, SLOT_BYTES)
}

fn whole(memory_offset: usize) -> Span {
    Span {
        slot_offset: 0,
        memory_offset,
        bytes: SLOT_BYTES,
    }
}

/// Bytes that differ from chunk to chunk, so that a wrong chunk is detected.
fn pattern(chunk: usize) -> Vec<u8> {
    (0..SLOT_BYTES)
        .map(|i| u8::try_from((i * 7 + chunk * 131 + 3) % 251).unwrap())
        .collect()
}

#[test]
fn a_machine_without_a_driver_is_unsupported_with_a_reason() {
    match Driver::load() {
        Ok(driver) => println!("skipped: this machine has a driver ({})", driver.version()),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(
                error.to_string().contains("libcuda") || error.hint().is_some(),
                "{error}"
            );
        }
    }
}

#[test]
fn a_device_reports_its_name_address_and_memory() {
    Standin::run("devices=2 memory_bytes=1048576", |_| {
        let driver = Driver::load().unwrap();
        assert_eq!(
            (driver.version().to_string().as_str(), driver.device_count().unwrap()),
            ("13.0", 2)
        );
        let device = driver.device(1).unwrap();
        assert_eq!(device.name().unwrap(), "Stand-in GPU 1");
        assert_eq!(device.pci_address().unwrap(), "0000:1c:00.0");
        assert_eq!(device.memory_total().unwrap().0, 1 << 20);
        assert_ne!(device.uuid().unwrap(), driver.device(0).unwrap().uuid().unwrap());
        let error = driver.device(2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("2 device(s)"), "{error}");
    });
}

#[test]
fn an_old_driver_is_unsupported_with_both_versions() {
    Standin::run("version=11020", |_| {
        let error = Driver::load().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.to_string().contains("11.2") && error.to_string().contains("11.4"),
            "{error}"
        );
    });
}

#[test]
fn a_driver_without_a_device_is_unsupported() {
    Standin::run("devices=0", |_| {
        let error = Driver::load().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("no GPU"), "{error}");
    });
}

#[test]
fn an_unknown_code_is_an_error_with_its_number() {
    Standin::run("fail=cuInit:1:31337", |_| {
        let error = Driver::load().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("31337"), "{error}");
    });
}

#[test]
fn a_device_held_exclusively_by_another_process_is_a_clear_error() {
    Standin::run("compute_mode=3 held=true", |standin| {
        let device = Driver::load().unwrap().device(0).unwrap();
        let error = device.context().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transient);
        assert!(error.to_string().contains("another process holds it"), "{error}");
        assert!(error.hint().unwrap().contains("nvidia-smi"));
        // When the other process has ended, this process can use the device.
        standin.plan("compute_mode=3");
        drop(device.context().unwrap());
        standin.assert_clean();
    });
}

#[test]
fn a_device_with_prohibited_compute_mode_is_unsupported() {
    Standin::run("compute_mode=2", |standin| {
        let error = Driver::load().unwrap().device(0).unwrap().context().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        standin.assert_clean();
    });
}

#[test]
fn device_memory_that_runs_out_is_an_error_with_the_sizes() {
    Standin::run("memory_bytes=1048576", |standin| {
        let context = context();
        let held = DeviceMemory::allocate(&context, 512 << 10).unwrap();
        let error = DeviceMemory::allocate(&context, 1 << 20).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transient);
        let text = error.to_string();
        assert!(text.contains("1 MiB wanted") && text.contains("512 KiB free"), "{text}");
        drop(held);
        drop(DeviceMemory::allocate(&context, 1 << 20).unwrap());
        drop(context);
        standin.assert_clean();
    });
}

#[test]
fn pinned_memory_that_runs_out_is_an_error_with_the_needed_size() {
    Standin::run("pinned_bytes_max=65536", |standin| {
        let context = context();
        let pin = |bytes| HostMemory::new(bytes).unwrap().pin(&context);
        let error = pin(128 << 10).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("128 KiB wanted") && text.contains("RLIMIT_MEMLOCK"),
            "{text}"
        );
        assert!(error.hint().unwrap().contains("ulimit -l 128"));
        pin(64 << 10).unwrap();
        drop(context);
        standin.assert_clean();
    });
}

#[test]
fn memory_is_pinned_once_until_it_is_dropped() {
    Standin::run("", |standin| {
        let context = context();
        let memory = HostMemory::new(3 * 4096).unwrap();
        assert!(!memory.is_pinned());
        memory.pin(&context).unwrap();
        memory.pin(&context).unwrap();
        assert!(memory.is_pinned());
        assert_eq!(standin.calls()["cuMemHostRegister_v2"], 1);
        drop((memory, context));
        standin.assert_clean();
    });
}

#[test]
fn a_slot_that_is_not_pinned_is_refused() {
    Standin::run("", |standin| {
        let context = context();
        let stream = CudaStream::new(&context).unwrap();
        let memory = Arc::new(DeviceMemory::allocate(&context, SLOT_BYTES).unwrap());
        let slot = Slot::ring(1, SLOT_BYTES).unwrap().pop().unwrap();
        let refused = stream
            .copy(CopyDirection::ToDevice, slot, &memory, &[whole(0)])
            .unwrap_err();
        assert!(refused.error.to_string().contains("not pinned"));
        assert!(refused.slot.is_some());
        assert_eq!(standin.count("pending"), 0);
    });
}

#[test]
fn a_region_on_a_gpu_has_its_place_and_is_read_and_written_by_copies() {
    Standin::run("devices=2", |standin| {
        let device = Driver::load().unwrap().device(1).unwrap();
        let context = device.context().unwrap();
        let mut region = Region::device(&context, 10_000).unwrap();
        assert_eq!(region.place(), Place::Gpu(1));
        region.write_at(9_990, b"0123456789").unwrap();
        let mut seen = [0; 4];
        region.read_at(9_996, &mut seen).unwrap();
        assert_eq!(&seen, b"6789");
        assert!(region.read_at(9_997, &mut seen).is_err());
        assert_eq!(Region::device(&context, 0).unwrap().bytes(), 0);
        let owner = Arc::new(region);
        let address = owner.address() + 512;
        // SAFETY: the owner keeps the range, and nobody else uses it here.
        let mut lent = unsafe { Region::lent(&context, address, 100, owner.clone()) }.unwrap();
        lent.read_at(0, &mut seen).unwrap();
        // SAFETY: refused, so nothing is used.
        assert!(unsafe { Region::lent(&context, address, 10_000, owner.clone()) }.is_err());
        let memory = owner.device_memory().unwrap();
        let mut part = Region::part_of(memory, 9_996, 4).unwrap();
        part.read_at(0, &mut seen).unwrap();
        assert_eq!(&seen, b"6789");
        for (offset, bytes) in [(9_997, 4), (0, 0), (u64::MAX, 2)] {
            assert!(Region::part_of(memory, offset, bytes).is_err());
        }
        drop((owner, part));
        drop((lent, context));
        standin.assert_clean();
    });
}

#[test]
fn bytes_survive_late_copies_both_ways_through_a_ring_smaller_than_the_data() {
    for seed in 0..8 {
        round_trip(seed);
    }
}

/// Copies 24 chunks through 4 slots and 3 streams and back. The seed determines the order.
fn round_trip(seed: u64) {
    const CHUNKS: usize = 24;
    Standin::run(&format!("seed={seed} delay_us_max=500"), |standin| {
        let context = context();
        let streams: Vec<_> = (0..3).map(|_| CudaStream::new(&context).unwrap()).collect();
        let memory = DeviceMemory::allocate(&context, CHUNKS * SLOT_BYTES).unwrap();
        let memory = Arc::new(memory);
        let mut free = ring(&context, 4).unwrap();
        let mut copies = Vec::new();
        for chunk in 0..CHUNKS {
            let mut slot = free.pop().unwrap_or_else(|| {
                let copy: Copying = copies.remove(0);
                copy.wait().unwrap()
            });
            slot.as_mut_slice().copy_from_slice(&pattern(chunk));
            let stream = &streams[chunk % streams.len()];
            copies.push(
                stream
                    .copy(CopyDirection::ToDevice, slot, &memory, &[whole(chunk * SLOT_BYTES)])
                    .unwrap(),
            );
        }
        free.extend(copies.drain(..).map(|copy| copy.wait().unwrap()));
        for chunk in 0..CHUNKS {
            let slot = free.pop().unwrap();
            let stream = &streams[chunk % streams.len()];
            let copy = stream
                .copy(CopyDirection::ToHost, slot, &memory, &[whole(chunk * SLOT_BYTES)])
                .unwrap();
            let slot = copy.wait().unwrap();
            assert_eq!(slot.as_slice(), pattern(chunk), "chunk {chunk}");
            free.push(slot);
        }
        drop((free, memory, streams, context));
        standin.assert_clean();
    });
}

#[test]
fn lanes_on_their_own_threads_share_a_device() {
    Standin::run("seed=11", |standin| {
        let context = context();
        let memory = Arc::new(DeviceMemory::allocate(&context, 32 * SLOT_BYTES).unwrap());
        let mut slots = ring(&context, 4).unwrap();
        std::thread::scope(|scope| {
            for lane in 0..4 {
                let (mut slot, context, memory) = (slots.pop().unwrap(), &context, &memory);
                scope.spawn(move || {
                    let stream = CudaStream::new(context).unwrap();
                    for chunk in (lane..32).step_by(4) {
                        slot.as_mut_slice().copy_from_slice(&pattern(chunk));
                        let span = whole(chunk * SLOT_BYTES);
                        slot = stream
                            .copy(CopyDirection::ToDevice, slot, memory, &[span])
                            .unwrap()
                            .wait()
                            .unwrap();
                    }
                });
            }
        });
        let mut seen = vec![0; SLOT_BYTES];
        for chunk in 0..32 {
            memory.read(chunk * SLOT_BYTES, &mut seen).unwrap();
            assert_eq!(seen, pattern(chunk), "chunk {chunk}");
        }
        drop((memory, slots, context));
        standin.assert_clean();
    });
}

#[test]
fn a_copy_is_not_done_before_its_event() {
    Standin::run("", |standin| {
        let context = context();
        let stream = CudaStream::new(&context).unwrap();
        let memory = Arc::new(DeviceMemory::allocate(&context, SLOT_BYTES).unwrap());
        let mut slot = ring(&context, 1).unwrap().pop().unwrap();
        slot.as_mut_slice().fill(9);
        standin.hold();
        let copy = stream
            .copy(CopyDirection::ToDevice, slot, &memory, &[whole(0)])
            .unwrap();
        assert!(!copy.is_done().unwrap());
        assert_eq!(standin.count("pending"), 2);
        let mut seen = [0; 1];
        memory.read(0, &mut seen).unwrap();
        assert_eq!(seen, [0xA5], "nothing has been copied yet");
        standin.release();
        copy.wait().unwrap();
        memory.read(0, &mut seen).unwrap();
        assert_eq!(seen, [9]);
    });
}

#[test]
fn the_stand_in_detects_a_slot_that_is_reused_too_early() {
    Standin::run("", |standin| {
        let context = context();
        let stream = CudaStream::new(&context).unwrap();
        let memory = Arc::new(DeviceMemory::allocate(&context, SLOT_BYTES).unwrap());
        let mut slot = ring(&context, 1).unwrap().pop().unwrap();
        slot.as_mut_slice().fill(1);
        let address = slot.pointer();
        standin.hold();
        let copy = stream
            .copy(CopyDirection::ToDevice, slot, &memory, &[whole(0)])
            .unwrap();
        // The types forbid this; a raw pointer does not.
        // SAFETY: the slot's memory is alive, and the copy is held back.
        unsafe { address.write_bytes(2, SLOT_BYTES) };
        standin.release();
        copy.wait().unwrap();
        let mut seen = [0; 1];
        memory.read(0, &mut seen).unwrap();
        assert_eq!(seen, [2], "the copy read its source when it ran");
        let misuses = standin.misuses();
        assert!(
            misuses.len() == 1 && misuses[0].contains("used before the copy ran"),
            "{misuses:?}"
        );
    });
}

#[test]
fn dropping_a_copy_waits_for_it_and_keeps_its_memory_until_then() {
    Standin::run("delay_us_max=2000", |standin| {
        let context = context();
        let stream = CudaStream::new(&context).unwrap();
        let memory = Arc::new(DeviceMemory::allocate(&context, SLOT_BYTES).unwrap());
        let slot = ring(&context, 1).unwrap().pop().unwrap();
        let copy = stream
            .copy(CopyDirection::ToDevice, slot, &memory, &[whole(0)])
            .unwrap();
        // Only the copy still holds memory, ring and stream.
        drop((memory, stream));
        assert_eq!((standin.count("allocations"), standin.count("pinned")), (1, 1));
        drop(copy);
        drop(context);
        standin.assert_clean();
    });
}

#[test]
fn many_spans_of_one_slot_are_copied_to_their_offsets() {
    // 200 spans make several batched calls; every other KiB of the slot, backwards on the device.
    for plan in ["seed=3", "seed=4 delay_us_max=20"] {
        Standin::run(plan, |standin| {
            let context = context();
            let stream = CudaStream::new(&context).unwrap();
            let memory = Arc::new(DeviceMemory::allocate(&context, SLOT_BYTES).unwrap());
            let mut slots = ring(&context, 2).unwrap();
            let mut slot = slots.pop().unwrap();
            slot.as_mut_slice().copy_from_slice(&pattern(5));
            let span = |i: usize| Span {
                slot_offset: i * 300,
                memory_offset: (199 - i) * 310,
                bytes: 100 + i,
            };
            let spans: Vec<_> = (0..200).map(span).collect();
            let slot = stream
                .copy(CopyDirection::ToDevice, slot, &memory, &spans)
                .unwrap()
                .wait()
                .unwrap();
            for span in &spans {
                let mut seen = vec![0; span.bytes];
                memory.read(span.memory_offset, &mut seen).unwrap();
                assert_eq!(seen, slot.as_slice()[span.slot_offset..][..span.bytes], "{span:?}");
            }
            let back = stream
                .copy(CopyDirection::ToHost, slots.pop().unwrap(), &memory, &spans)
                .unwrap();
            let back = back.wait().unwrap();
            for span in &spans {
                let range = span.slot_offset..span.slot_offset + span.bytes;
                assert_eq!(back.as_slice()[range.clone()], slot.as_slice()[range]);
            }
            assert_eq!(standin.misuses(), [""; 0]);
        });
    }
}

#[test]
fn a_span_out_of_bounds_is_refused_and_the_slot_is_returned() {
    Standin::run("", |standin| {
        let context = context();
        let stream = CudaStream::new(&context).unwrap();
        let memory = Arc::new(DeviceMemory::allocate(&context, SLOT_BYTES).unwrap());
        let mut slot = ring(&context, 1).unwrap().pop().unwrap();
        let wrong = [
            Span {
                slot_offset: 1,
                memory_offset: 0,
                bytes: SLOT_BYTES,
            },
            Span {
                slot_offset: 0,
                memory_offset: 1,
                bytes: SLOT_BYTES,
            },
            Span {
                slot_offset: usize::MAX,
                memory_offset: 0,
                bytes: 1,
            },
            Span {
                slot_offset: 0,
                memory_offset: usize::MAX,
                bytes: 1,
            },
            Span {
                slot_offset: 0,
                memory_offset: 0,
                bytes: 0,
            },
        ];
        for span in wrong {
            let refused = stream
                .copy(CopyDirection::ToDevice, slot, &memory, &[span])
                .unwrap_err();
            assert_eq!(refused.error.kind(), ErrorKind::Invalid);
            slot = refused.slot.unwrap();
        }
        assert_eq!(standin.count("pending"), 0);
        assert_eq!(standin.misuses(), [""; 0]);
    });
}

#[test]
fn a_copy_that_fails_half_way_is_an_error_and_leaks_nothing() {
    Standin::run("fail=copy:2:700", |standin| {
        let context = context();
        let stream = CudaStream::new(&context).unwrap();
        let memory = Arc::new(DeviceMemory::allocate(&context, 4 * SLOT_BYTES).unwrap());
        let slots = ring(&context, 4).unwrap();
        let start = |(i, slot)| stream.copy(CopyDirection::ToDevice, slot, &memory, &[whole(i * SLOT_BYTES)]);
        let outcomes: Vec<_> = slots.into_iter().enumerate().map(start).collect();
        let errors: Vec<_> = outcomes
            .into_iter()
            .filter_map(|started| started.and_then(Copying::wait).err())
            .collect();
        assert!(!errors.is_empty());
        for refused in errors {
            assert!(
                refused.error.to_string().contains("ILLEGAL_ADDRESS"),
                "{}",
                refused.error
            );
            assert!(refused.slot.is_some(), "a dead context copies nothing more");
        }
        drop((stream, memory, context));
        standin.assert_clean();
    });
}

#[test]
fn lent_memory_is_used_in_place_and_not_freed() {
    Standin::run("piece_bytes=4096", |standin| {
        let context = context();
        let owned = Arc::new(DeviceMemory::allocate(&context, 10_000).unwrap());
        // The range spans three of the pieces the driver reports.
        let lender = Arc::clone(&owned);
        let address = owned.address() + 10;
        // SAFETY: the owner keeps the range, and nobody else uses it here.
        let lent = unsafe { DeviceMemory::lend(&context, address, 9_000, lender) }.unwrap();
        lent.write(5, b"straight").unwrap();
        let mut seen = [0; 8];
        owned.read(15, &mut seen).unwrap();
        assert_eq!(&seen, b"straight");
        drop(owned);
        assert_eq!(standin.count("allocations"), 1, "the loan keeps its owner");
        drop(lent);
        drop(context);
        standin.assert_clean();
    });
}

#[test]
fn a_pointer_that_is_not_this_device_s_memory_is_refused() {
    Standin::run("devices=2", |standin| {
        let context = context();
        let other = Driver::load().unwrap().device(1).unwrap().context().unwrap();
        let here = DeviceMemory::allocate(&context, 4096).unwrap();
        let there = DeviceMemory::allocate(&other, 4096).unwrap();
        let pinned = HostMemory::new(4096).unwrap();
        let host = pinned.start().addr().get() as u64;
        pinned.pin(&context).unwrap();
        let nothing = || Arc::new(());
        let cases = [
            (0, 16, "not memory that the driver knows"),
            (0xdead_0000, 16, "not memory that the driver knows"),
            (host, 16, "host memory"),
            (here.address(), 4097, "not memory that the driver knows"),
            (here.address(), 0, "not a valid range"),
            (u64::MAX - 8, 16, "not a valid range"),
            (there.address(), 16, "cuda:1"),
        ];
        for (address, len, reason) in cases {
            // SAFETY: refused, so nothing is used.
            let lent = unsafe { DeviceMemory::lend(&context, address, len, nothing()) };
            let error = lent.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(reason), "{error}");
        }
        drop((here, there, pinned, context, other));
        standin.assert_clean();
    });
}

/// Uses every function of the driver once.
fn use_everything() -> Result<()> {
    let device = Driver::load()?.device(0)?;
    device.name()?;
    device.pci_address()?;
    device.uuid()?;
    device.memory_total()?;
    let context = device.context()?;
    context.memory_free()?;
    let memory = Arc::new(DeviceMemory::allocate(&context, 2 * SLOT_BYTES)?);
    // SAFETY: the owner keeps the range, and nobody else uses it here.
    let lent = unsafe { DeviceMemory::lend(&context, memory.address(), 4096, memory.clone()) }?;
    lent.write(0, &[1; 64])?;
    lent.read(0, &mut [0; 64])?;
    let stream = CudaStream::new(&context)?;
    let slot = ring(&context, 1)?.pop().expect("a ring of one");
    let halves = [
        Span {
            slot_offset: 0,
            memory_offset: 0,
            bytes: 100,
        },
        Span {
            slot_offset: 100,
            memory_offset: 300,
            bytes: 100,
        },
    ];
    let copy = stream
        .copy(CopyDirection::ToDevice, slot, &memory, &[whole(0)])
        .map_err(|r| r.error)?;
    copy.is_done()?;
    let slot = copy.wait().map_err(|r| r.error)?;
    let copy = stream
        .copy(CopyDirection::ToHost, slot, &memory, &[whole(0)])
        .map_err(|r| r.error)?;
    let slot = copy.wait().map_err(|r| r.error)?;
    drop(
        stream
            .copy(CopyDirection::ToDevice, slot, &memory, &halves)
            .map_err(|r| r.error)?,
    );
    // A copy that fails after it was dropped makes the next call fail.
    memory.read(0, &mut [0; 64])
}

#[test]
fn every_call_that_fails_is_an_error_and_leaks_nothing() {
    // Calls that only release something cannot return an error; it is logged. Dropping a copy is such a call.
    const SILENT: [&str; 7] = [
        "cuCtxGetId",
        "cuMemFree_v2",
        "cuMemHostUnregister",
        "cuStreamDestroy_v2",
        "cuEventDestroy_v2",
        "cuDevicePrimaryCtxRelease_v2",
        "cuCtxPopCurrent_v2",
    ];
    Standin::run("", |standin| {
        use_everything().unwrap();
        standin.assert_clean();
        let calls = standin.calls();
        assert!(calls.len() >= 30, "{calls:?}");
        for (name, &count) in &calls {
            for nth in 1..=count {
                // A copy that fails when it runs destroys the context (launch failure).
                let code = if name == "copy" { 719 } else { 999 };
                standin.plan(&format!("fail={name}:{nth}:{code}"));
                let outcome = use_everything();
                let silent = SILENT.contains(&name.as_str())
                    // The first query is that of `is_done`, the second begins the first wait. A wait repeats its query
                    // no fixed number of times, and the last wait belongs to the dropped copy.
                    || (name == "cuEventQuery" && nth > 2)
                    // The pushes of the drops at the end.
                    || (name == "cuCtxPushCurrent_v2" && outcome.is_ok());
                assert!(silent || outcome.is_err(), "call {nth} of {name} failed unnoticed");
                standin.assert_clean();
            }
        }
    });
}

//! cuFile with the stand-in library: files, registrations, counters and failures.

#![expect(clippy::unwrap_used, reason = "a test's helpers are tests too")]

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use straightway_core::{ErrorKind, Result};
use straightway_standin::Standin;
use straightway_sys::cuda::{Context, DeviceMemory, Driver};
use straightway_sys::cufile::{CuFile, CufileRequest, Library, Parameter};

const SOON: Duration = Duration::from_secs(20);

fn context() -> Context {
    Driver::load().unwrap().device(0).unwrap().context().unwrap()
}

fn open(context: &Context) -> Result<CuFile> {
    Library::load()?.open(context, SOON)
}

fn request(memory_offset: usize, bytes: usize, file_offset: u64) -> CufileRequest {
    CufileRequest {
        file_offset,
        memory_offset,
        bytes,
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from(i * 13 % 253).unwrap()).collect()
}

#[test]
fn bytes_are_moved_between_a_file_and_registered_memory() {
    Standin::run("cufile=nvfs", |standin| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        fs::write(&path, bytes(10_000)).unwrap();
        let context = context();
        let cufile = open(&context).unwrap();
        let memory = Arc::new(DeviceMemory::allocate(&context, 16 << 10).unwrap());
        let registered = cufile.register_memory(&memory).unwrap();
        let file = cufile.register_file(File::open(&path).unwrap().into(), "data").unwrap();
        // The file ends 1808 bytes into its third page: an aligned request comes back short.
        assert_eq!(file.read(&registered, request(0, 12 << 10, 0)).unwrap(), 10_000);
        let mut seen = vec![0; 10_000];
        memory.read(0, &mut seen).unwrap();
        assert_eq!(seen, bytes(10_000));
        assert_eq!(file.read(&registered, request(12 << 10, 4096, 4096)).unwrap(), 4096);
        memory.read(12 << 10, &mut seen[..4096]).unwrap();
        assert_eq!(seen[..4096], bytes(10_000)[4096..8192]);

        let copy = folder.path().join("copy");
        let target = File::create(&copy).unwrap();
        let target = cufile.register_file(target.into(), "copy").unwrap();
        assert_eq!(target.write(&registered, request(0, 8192, 0)).unwrap(), 8192);
        assert_eq!(fs::read(&copy).unwrap(), bytes(10_000)[..8192]);
        drop((target, file, registered, memory, cufile, context));
        standin.assert_clean();
        assert_eq!(standin.count("opened"), 0);
    });
}

#[test]
fn a_request_that_is_not_aligned_never_reaches_cufile() {
    Standin::run("cufile=nvfs", |standin| {
        let context = context();
        let cufile = open(&context).unwrap();
        let watch = cufile.watch().unwrap();
        let memory = Arc::new(DeviceMemory::allocate(&context, 16 << 10).unwrap());
        let registered = cufile.register_memory(&memory).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let file = cufile.register_file(file.into(), "data").unwrap();
        for (memory_offset, len, file_offset) in [(512, 4096, 0), (0, 512, 0), (0, 4096, 512)] {
            let error = file
                .read(&registered, request(memory_offset, len, file_offset))
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("not aligned"), "{error}");
        }
        let beyond = file.read(&registered, request(8192, 12 << 10, 0)).unwrap_err();
        assert_eq!(beyond.kind(), ErrorKind::Invalid);
        let counters = watch.counters(context.device().uuid().unwrap()).unwrap();
        assert_eq!((counters.reads.total, counters.reads.unaligned), (0, 0));
        assert!(!standin.calls().contains_key("cuFileRead"));
    });
}

#[test]
fn the_counters_report_the_path_of_each_request() {
    // The struct is laid out one way until version 1.18 and another from 1.19 on.
    for version in [1150, 1180, 1190] {
        for mode in ["nvfs", "p2p", "compat"] {
            counted(mode, version);
        }
    }
}

fn counted(mode: &str, version: u32) {
    Standin::run(
        &format!("devices=3 cufile={mode} cufile_version={version}"),
        |standin| {
            let context = Driver::load().unwrap().device(2).unwrap().context().unwrap();
            let cufile = open(&context).unwrap();
            let watch = cufile.watch().unwrap();
            let uuid = context.device().uuid().unwrap();
            let memory = Arc::new(DeviceMemory::allocate(&context, 16 << 10).unwrap());
            let registered = cufile.register_memory(&memory).unwrap();
            let file = tempfile::tempfile().unwrap();
            file.set_len(1 << 20).unwrap();
            let file = cufile.register_file(file.into(), "data").unwrap();
            file.read(&registered, request(0, 4096, 0)).unwrap();
            let before = watch.counters(uuid).unwrap();
            for i in 0..3 {
                file.read(&registered, request(4096, 8192, i * 8192)).unwrap();
            }
            file.write(&registered, request(0, 4096, 0)).unwrap();
            let now = watch.counters(uuid).unwrap().since(before);
            let of = |direct: &str, count: u64| if mode == direct { count } else { 0 };
            assert_eq!((now.reads.total, now.read_bytes), (3, 3 * 8192));
            assert_eq!((now.writes.total, now.write_bytes), (1, 4096));
            assert_eq!((now.reads.nvfs, now.writes.nvfs), (of("nvfs", 3), of("nvfs", 1)));
            assert_eq!((now.reads.p2p, now.writes.p2p), (of("p2p", 3), of("p2p", 1)));
            assert_eq!((now.reads.posix, now.writes.posix), (of("compat", 3), of("compat", 1)));
            let stranger = watch.counters([1; 16]).unwrap_err();
            assert_eq!(stranger.kind(), ErrorKind::Unsupported);
            assert_eq!(standin.misuses(), [""; 0]);
        },
    );
}

#[test]
fn counters_of_an_unknown_version_are_unsupported() {
    Standin::run("cufile_version=1200", |_| {
        let context = context();
        let error = open(&context).unwrap().watch().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("1.20"), "{error}");
    });
}

#[test]
fn a_file_that_cannot_be_registered_is_unsupported_with_a_hint_to_udev() {
    Standin::run("cufile=unregistrable", |standin| {
        let context = context();
        let cufile = open(&context).unwrap();
        let file = tempfile::tempfile().unwrap();
        let error = cufile.register_file(file.into(), "model.safetensors").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("model.safetensors"), "{error}");
        assert!(error.to_string().contains("5027"), "{error}");
        assert!(error.hint().unwrap().contains("/run/udev"));
        drop((cufile, context));
        standin.assert_clean();
    });
}

#[test]
fn a_driver_that_does_not_open_is_unsupported() {
    Standin::run("cufile=closed", |standin| {
        let context = context();
        let error = open(&context).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("5033"), "{error}");
        drop(context);
        standin.assert_clean();
    });
}

#[test]
fn a_driver_that_hangs_times_out_and_descriptor_0_is_restored() {
    Standin::run("cufile=hanging", |_| {
        let context = context();
        let before = fs::read_link("/proc/self/fd/0").unwrap();
        let started = Instant::now();
        let error = Library::load()
            .unwrap()
            .open(&context, Duration::from_millis(300))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("within 0.3 s"), "{error}");
        assert!(started.elapsed() < SOON);
        assert_eq!(fs::read_link("/proc/self/fd/0").unwrap(), before);
        // A second attempt would hang too, so it is refused at once.
        let error = open(&context).unwrap_err();
        assert!(error.to_string().contains("has not returned"), "{error}");
    });
}

#[test]
fn with_compat_mode_off_a_file_that_cannot_be_direct_is_an_error() {
    Standin::run("cufile=compat", |_| {
        let context = context();
        let library = Library::load().unwrap();
        assert_eq!(library.version().unwrap().to_string(), "1.15");
        library.set_parameter(Parameter::AllowCompatMode, false).unwrap();
        let cufile = library.open(&context, SOON).unwrap();
        let file = tempfile::tempfile().unwrap();
        let error = cufile.register_file(file.into(), "data").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("5049"), "{error}");
    });
}

#[test]
fn a_driver_opened_by_other_code_is_used_and_stays_open() {
    Standin::run("", |standin| {
        let context = context();
        let theirs = open(&context).unwrap();
        let ours = open(&context).unwrap();
        assert_eq!(ours.device_pinned_max().unwrap().0, 32 << 30);
        drop(ours);
        assert_eq!(standin.count("opened"), 1);
        drop(theirs);
        assert_eq!(standin.count("opened"), 0);
    });
}

#[test]
fn a_failed_read_distinguishes_errno_and_cufile_codes() {
    Standin::run("fail=cuFileRead:1:5 fail=cuFileRead:2:5016", |_| {
        let context = context();
        let cufile = open(&context).unwrap();
        let memory = Arc::new(DeviceMemory::allocate(&context, 4096).unwrap());
        let registered = cufile.register_memory(&memory).unwrap();
        let file = cufile
            .register_file(tempfile::tempfile().unwrap().into(), "data")
            .unwrap();
        let error = file.read(&registered, request(0, 4096, 0)).unwrap_err();
        assert_eq!((error.kind(), error.os_code()), (ErrorKind::Transient, Some(5)));
        let error = file.read(&registered, request(0, 4096, 0)).unwrap_err();
        assert!(
            error.to_string().contains("pinned memory (cuFile error 5016)"),
            "{error}"
        );
        assert_eq!(
            file.read(&registered, request(0, 4096, 0)).unwrap(),
            0,
            "the process goes on"
        );
    });
}

#[test]
fn a_handle_closes_its_descriptor_after_deregistering() {
    Standin::run("", |standin| {
        let context = context();
        let cufile = open(&context).unwrap();
        let file = tempfile::tempfile().unwrap();
        let number = file.as_raw_fd();
        let handle = cufile.register_file(file.into(), "data").unwrap();
        let link = format!("/proc/self/fd/{number}");
        assert!(fs::symlink_metadata(&link).is_ok());
        drop(handle);
        assert!(fs::symlink_metadata(&link).is_err());
        assert_eq!(standin.misuses(), [""; 0]);
    });
}

/// Uses every function of cuFile once.
fn use_everything() -> Result<()> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("data");
    fs::write(&path, bytes(8192)).expect("a small file");
    let context = Driver::load()?.device(0)?.context()?;
    let library = Library::load()?;
    library.set_parameter(Parameter::AllowCompatMode, true)?;
    let cufile = library.open(&context, SOON)?;
    cufile.device_pinned_max()?;
    let watch = cufile.watch()?;
    let memory = Arc::new(DeviceMemory::allocate(&context, 8192)?);
    let registered = cufile.register_memory(&memory)?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .expect("just written");
    let file = cufile.register_file(file.into(), "data")?;
    file.read(&registered, request(0, 8192, 0))?;
    file.write(&registered, request(0, 4096, 0))?;
    watch.counters(context.device().uuid()?)?;
    Ok(())
}

#[test]
fn every_call_that_fails_is_an_error_and_leaks_nothing() {
    // Calls that only release something cannot return an error; it is logged.
    const SILENT: [&str; 4] = [
        "cuFileHandleDeregister",
        "cuFileBufDeregister",
        "cuFileDriverClose_v2",
        "cuFileStatsStop",
    ];
    Standin::run("cufile=p2p", |standin| {
        use_everything().unwrap();
        standin.assert_clean();
        let calls = standin.calls();
        for (name, &count) in calls.iter().filter(|(name, _)| name.starts_with("cuFile")) {
            for nth in 1..=count {
                standin.plan(&format!("cufile=p2p fail={name}:{nth}:5030"));
                let outcome = use_everything();
                let is_silent = SILENT.contains(&name.as_str());
                assert!(is_silent || outcome.is_err(), "call {nth} of {name} failed unnoticed");
                standin.assert_clean();
                assert_eq!(standin.count("opened"), 0, "{name}");
            }
        }
    });
}

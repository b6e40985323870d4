//! cuFile for one GPU: its open files, registered regions and counters.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};

use straightway_core::{Bytes, Error, ErrorKind, Extent, Leg, Lock, Result};
use straightway_sys::{
    File, Io, IoPath, Op, Region, Window,
    cuda::{Context, DeviceMemory},
    cufile::{
        Counters, CuFile, CufileRegistration, CufileRequest, FileHandle, Library, Parameter, RegisteredMemory, Watch,
    },
};

use super::Proof;
use crate::request::usize_of;

/// The longest wait for cuFile to open. Half a second is usual.
const OPEN_DEADLINE: Duration = Duration::from_secs(5);

/// The size of the memory for proofs. One block is used, at most 64 KiB; an allocation this long is page-aligned, a
/// short one need not be.
const SCRATCH_BYTES: usize = 2 << 20;

/// The most registered files; the oldest is evicted.
const FILES_MAX: usize = 256;

/// The process-wide cuFile driver. It is opened once, by the first user, and stays open, because closing it would
/// affect other users.
#[derive(Clone, Debug)]
struct Opened {
    cufile: CuFile,
    /// The counters, if this version has known ones.
    watch: Option<Arc<Watch>>,
}

/// cuFile for one GPU.
#[derive(Debug)]
pub(crate) struct Session {
    opened: Opened,
    uuid: [u8; 16],
    /// GPU memory for proofs, one at a time.
    scratch: Lock<RegisteredMemory>,
    files: Lock<Vec<Known>>,
    /// The registered regions, oldest first.
    registrations: Lock<Vec<Weak<CufileRegistration>>>,
    registered_bytes_max: u64,
}

/// A file registered with cuFile.
#[derive(Debug)]
struct Known {
    id: u64,
    handle: Arc<FileHandle>,
    /// The proofs for reading and for writing.
    proofs: [Option<Proof>; 2],
}

impl Session {
    /// Opens cuFile for the context's GPU. With `allow_compat`, bytes that cannot go direct go through host memory,
    /// whatever cuFile's configuration says. The first call in a process decides this.
    pub(crate) fn open(context: &Context, allow_compat: bool) -> Result<Self> {
        let opened = Opened::get(context, allow_compat)?;
        let memory = DeviceMemory::allocate(context, SCRATCH_BYTES)?;
        let scratch = opened.cufile.register_memory(&Arc::new(memory))?;
        let pinned_max = opened.cufile.device_pinned_max();
        let pinned_max = pinned_max.map_or(u64::MAX, |bytes| bytes.0);
        let bar1 = bar1_bytes(context).unwrap_or(u64::MAX);
        Ok(Self {
            uuid: context.device().uuid()?,
            opened,
            scratch: Lock::new(scratch),
            files: Lock::default(),
            registrations: Lock::default(),
            registered_bytes_max: pinned_max.min(bar1),
        })
    }

    /// The current counters of this GPU, if there are any.
    pub(crate) fn counters(&self) -> Option<Counters> {
        self.opened.watch.as_ref()?.counters(self.uuid).ok()
    }

    /// The path that the counters prove for everything since `earlier`.
    pub(crate) fn proof_since(&self, earlier: Option<Counters>, leg: Leg) -> Proof {
        let (Some(earlier), Some(now)) = (earlier, self.counters()) else {
            return Proof::Unknown;
        };
        let since = now.since(earlier);
        Proof::of(match leg {
            Leg::Read => since.reads,
            Leg::Write => since.writes,
        })
    }

    /// The cuFile handle of a file, registered on first use.
    pub(crate) fn handle(&self, file: &File) -> Result<Arc<FileHandle>> {
        let mut files = self.files.lock();
        if let Some(known) = files.iter().find(|known| known.id == file.id()) {
            return Ok(Arc::clone(&known.handle));
        }
        let name = file.path().display().to_string();
        let descriptor: OwnedFd = file
            .descriptor(IoPath::Direct)
            .try_clone_to_owned()
            .map_err(|e| file.error("duplicate the descriptor of", e))?;
        let handle = Arc::new(self.opened.cufile.register_file(descriptor, &name)?);
        if files.len() == FILES_MAX {
            files.remove(0);
        }
        files.push(Known {
            id: file.id(),
            handle: Arc::clone(&handle),
            proofs: [None; 2],
        });
        Ok(handle)
    }

    /// The path of this file's bytes, determined once by moving `block`; unknown without a block.
    ///
    /// A write fills the block with zeros. So the block must lie inside a move of the transfer: it has no other bytes,
    /// and the transfer writes its own bytes there later.
    pub(crate) fn proof(&self, file: &File, leg: Leg, block: Option<Extent>) -> Result<Proof> {
        let handle = self.handle(file)?;
        let place = usize::from(leg == Leg::Write);
        let known = self.with_known(file, |known| known.proofs[place]);
        if let Some(Some(proof)) = known {
            return Ok(proof);
        }
        let Some(block) = block else {
            return Ok(Proof::Unknown);
        };
        let scratch = self.scratch.lock();
        let request = CufileRequest {
            file_offset: block.offset,
            memory_offset: 0,
            bytes: usize_of(block.bytes),
        };
        let attempt = || match leg {
            Leg::Read => handle.read(&scratch, request),
            Leg::Write => {
                scratch.memory().write(0, &vec![0_u8; request.bytes])?;
                handle.write(&scratch, request)
            }
        };
        let mut before = self.counters();
        if before.is_none() {
            // A GPU without any transfers may not be listed yet.
            attempt()?;
            before = self.counters();
        }
        attempt()?;
        let proof = self.proof_since(before, leg);
        drop(scratch);
        tracing::debug!(file = %file.path().display(), ?leg, ?proof, "cuFile was tried");
        self.with_known(file, |known| known.proofs[place] = Some(proof));
        Ok(proof)
    }

    fn with_known<T>(&self, file: &File, call: impl FnOnce(&mut Known) -> T) -> Option<T> {
        let mut files = self.files.lock();
        files.iter_mut().find(|k| k.id == file.id()).map(call)
    }

    /// Registers a region, unless it is registered already. Returns the registration and the seconds that it took.
    ///
    /// BAR1 and cuFile's own limit bound the registered bytes: regions that no transfer uses are evicted, the oldest
    /// first.
    pub(crate) fn register(&self, region: &Arc<Region>) -> Result<(Arc<RegisteredMemory>, Option<f64>)> {
        let mut registrations = self.registrations.lock();
        if let Some(known) = region.registration().get() {
            return Ok((known, None));
        }
        let memory = region.device_memory().ok_or_else(|| {
            let message = "it is host memory";
            Error::new(ErrorKind::Invalid, "register with cuFile", "the region", message)
        })?;
        let start = Instant::now();
        let most = self.registered_bytes_max;
        make_room(&mut registrations, region.bytes(), most)?;
        let register = || self.opened.cufile.register_memory(memory);
        let registered = region.registration().get_or_register(register)?;
        registrations.push(Arc::downgrade(region.registration()));
        Ok((registered, Some(start.elapsed().as_secs_f64())))
    }

    /// Runs one I/O with GPU memory.
    pub(crate) fn transfer(&self, io: &Io, window: &Window, registered: &RegisteredMemory) -> Result<usize> {
        let handle = self.handle(&io.object)?;
        let start = usize::try_from(window.offset()).expect("it lies inside memory");
        let request = CufileRequest {
            file_offset: io.offset,
            memory_offset: start + io.start,
            bytes: io.bytes,
        };
        match io.op {
            Op::Read => handle.read(registered, request),
            Op::Write => handle.write(registered, request),
        }
    }

    /// Closes all files: a handle keeps its file open.
    pub(crate) fn forget_files(&self) {
        self.files.lock().clear();
    }
}

impl Opened {
    fn get(context: &Context, allow_compat: bool) -> Result<Self> {
        static PROCESS: OnceLock<Opened> = OnceLock::new();
        static ONE_AT_A_TIME: Lock<()> = Lock::new(());
        let _turn = ONE_AT_A_TIME.lock();
        if let Some(opened) = PROCESS.get() {
            return Ok(opened.clone());
        }
        let library = Library::load()?;
        if allow_compat {
            // Versions before 12.9 lack this parameter and follow their configuration.
            let _ = library.set_parameter(Parameter::AllowCompatMode, true);
        }
        let cufile = library.open(context, OPEN_DEADLINE)?;
        let watch = cufile
            .watch()
            .inspect_err(|error| tracing::debug!(%error, "cuFile has no readable counters"))
            .ok()
            .map(Arc::new);
        Ok(PROCESS.get_or_init(|| Self { cufile, watch }).clone())
    }
}

/// Deregisters idle regions until `bytes` more fit below `bytes_max`.
fn make_room(all: &mut Vec<Weak<CufileRegistration>>, bytes: u64, bytes_max: u64) -> Result<()> {
    let bytes_of = |registration: &Weak<CufileRegistration>| {
        let known = registration.upgrade()?.get()?;
        Some(known.memory().bytes() as u64)
    };
    all.retain(|registration| bytes_of(registration).is_some());
    let mut sum: u64 = all.iter().filter_map(bytes_of).sum();
    all.retain(|registration| {
        let size = bytes_of(registration).unwrap_or(0);
        let goes = sum + bytes > bytes_max && registration.upgrade().is_none_or(|known| known.deregister_unused());
        sum -= if goes { size } else { 0 };
        !goes
    });
    if sum + bytes <= bytes_max {
        return Ok(());
    }
    let (more, used, most) = (Bytes(bytes), Bytes(sum), Bytes(bytes_max));
    let why = format!("{more} more than the {used} in use do not fit into {most}");
    let hint = "use smaller regions; BAR1 and cuFile's max_device_pinned_mem_size_kb bound them";
    Err(Error::new(ErrorKind::Unsupported, "register with cuFile", "the region", why).with_hint(hint))
}

/// The GPU memory that the bus can reach: the size of BAR1.
fn bar1_bytes(context: &Context) -> Option<u64> {
    let address = context.device().pci_address().ok()?;
    let path = format!("/sys/bus/pci/devices/{address}/resource1");
    std::fs::metadata(path).ok().map(|bar| bar.len())
}

//! GPUDirect Storage: when it is used, and the proof of what it did.
//!
//! cuFile silently falls back to host memory, so each file is *proven* first: one block is read or written, and
//! cuFile's own counters show which path it took ([`Proof`]). Only proven bytes count as direct, and the counters are
//! checked again after each transfer.
//!
//! Opening cuFile takes half a second even where it cannot be used. So it is opened only on demand, or for a transfer
//! large enough to gain that back on a machine where direct I/O is possible. [`Gds`] is a handle: clones share the open
//! sessions.
//!
//! cuFile needs one region that it can register. A caller that has memory of another kind gives that up only for a
//! proof, which [`Gds::will_serve`] finds before any memory is allocated.

mod proof;
mod session;

use std::{collections::BTreeMap, path::Path, sync::Arc};

use straightway_core::{Alignment, Choice, Error, ErrorKind, Extent, Leg, Lock, Place, Result, Route, Survey};
use straightway_sys::{
    Buf, Done, File, Io, Region,
    cuda::Context,
    cufile::{ALIGN_BYTES, RegisteredMemory},
    mount::DeviceNumber,
};

use crate::peer::FirstExtent;
pub use proof::Proof;
pub(crate) use session::Session;

/// Below this, opening cuFile costs more than it can save: half a second at the 3 GB/s of one
/// drive is 1.5 GB.
const WORTHWHILE_BYTES: u64 = 1 << 30;

/// When to use cuFile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GdsUse {
    /// Where it is proven to be direct.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Wherever it accepts the file, direct or not: to measure its compat mode.
    Force,
}

/// A handle to GPUDirect Storage.
#[derive(Clone, Debug, Default)]
pub struct Gds {
    when: GdsUse,
    sessions: Arc<Lock<Sessions>>,
    proven: Arc<Lock<ProvenDevices>>,
}

/// The session of each GPU that cuFile was opened for; `None` if that failed.
type Sessions = BTreeMap<u32, Option<Arc<Session>>>;

/// Whether test transfers were direct, by GPU and by the device that stores the file.
type ProvenDevices = BTreeMap<(u32, DeviceNumber), bool>;

/// A job's use of cuFile: the session, and the region's registration while the job runs.
#[derive(Debug)]
pub(crate) struct CuFileLease {
    pub(crate) session: Arc<Session>,
    /// Held so that the registration is not evicted.
    _registered: Arc<RegisteredMemory>,
    /// The seconds that the registration took, if the region was not registered already.
    pub(crate) registration_s: Option<f64>,
}

impl From<GdsUse> for Gds {
    fn from(when: GdsUse) -> Self {
        Self {
            when,
            ..Self::default()
        }
    }
}

impl Gds {
    /// When it is used.
    pub fn when(&self) -> GdsUse {
        self.when
    }

    /// Whether a read of this many bytes into memory of that place may be direct, before any file is proven. A caller
    /// that lays out the region can then align it for direct I/O.
    pub fn may_serve(&self, place: Place, bytes: u64, choice: Choice) -> bool {
        match place {
            Place::Host | Place::P2p(_) => false,
            Place::Gpu(ordinal) => self.is_wanted(ordinal, bytes, choice),
        }
    }

    /// Whether a read of this many bytes into memory of a GPU will be direct: the user demands it, or a test transfer
    /// from `file` proves it. The file is opened only if there is something to prove.
    pub fn will_serve(
        &self,
        context: &Context,
        bytes: u64,
        choice: Choice,
        file: impl FnOnce() -> Result<Arc<File>>,
    ) -> bool {
        if !self.is_wanted(context.device().ordinal(), bytes, choice) {
            return false;
        }
        if self.is_insisted(choice) {
            return true;
        }
        let proven = file().and_then(|file| self.is_proven(&file, context));
        proven.unwrap_or_else(|error| {
            tracing::debug!(%error, "not by cuFile");
            false
        })
    }

    /// Whether a test transfer from this file, or an earlier one from its device, was direct.
    fn is_proven(&self, file: &File, context: &Context) -> Result<bool> {
        // Without O_DIRECT there is nothing to prove.
        let Some(alignment) = file.survey().direct else {
            return Ok(false);
        };
        let device = (context.device().ordinal(), file.device()?);
        let known = self.proven.lock().get(&device).copied();
        if let Some(is_direct) = known {
            return Ok(is_direct);
        }
        let session = self.session(context)?;
        let proof = session.proof(file, Leg::Read, first_block(file, alignment));
        // The transfer opens the file again. A registered file would stay open.
        session.forget_files();
        let proof = proof?;
        // Not if the path is unknown: other transfers of the process may have disturbed the counters.
        if proof != Proof::Unknown {
            self.proven.lock().insert(device, proof.is_direct());
        }
        Ok(proof.is_direct())
    }

    /// Whether the user demands it, or it is likely to pay off.
    fn is_wanted(&self, ordinal: u32, bytes: u64, choice: Choice) -> bool {
        match (self.when, choice) {
            (GdsUse::Off, _) | (_, Choice::Only(Route::Staged | Route::Buffered)) => false,
            _ => self.is_insisted(choice) || self.is_worthwhile(ordinal, bytes),
        }
    }

    fn is_insisted(&self, choice: Choice) -> bool {
        self.when == GdsUse::Force || choice == Choice::Only(Route::Direct)
    }

    /// Checks whether a transfer between `files` and `region` can be direct, and marks the surveys of those files for
    /// which it can. Returns `None` if cuFile moves none of the bytes, and an error only if the user demands it. The
    /// reason why cuFile could not be used is added to `warnings`. `firsts` has a whole block inside a move of each
    /// file, to test with. A job that has direct chunks then needs a [`lease`](Self::lease).
    pub(crate) fn survey(
        &self,
        files: impl FnOnce() -> Result<Vec<Arc<File>>>,
        (surveys, firsts): (&mut [Survey], &[FirstExtent]),
        region: &Arc<Region>,
        (leg, choice): (Leg, Choice),
        warnings: &mut Vec<String>,
    ) -> Result<Option<Arc<Session>>> {
        let Place::Gpu(ordinal) = region.place() else {
            return Ok(None);
        };
        if !self.is_wanted(ordinal, region.bytes(), choice) {
            return Ok(None);
        }
        let all = (&mut *surveys, firsts);
        let session = files().and_then(|files| self.prove(&files, all, region, (leg, choice)));
        self.unless_demanded(session, surveys, choice, warnings)
    }

    /// Registers the region of a job that has direct chunks. Returns `None` and unmarks the surveys if that fails and
    /// the user does not demand cuFile: the job has to be planned again.
    pub(crate) fn lease(
        &self,
        session: Arc<Session>,
        surveys: &mut [Survey],
        region: &Arc<Region>,
        choice: Choice,
        warnings: &mut Vec<String>,
    ) -> Result<Option<CuFileLease>> {
        let registered = check_aligned(region).and_then(|()| session.register(region));
        let lease = registered.map(|(registered, registration_s)| {
            Some(CuFileLease {
                session,
                _registered: registered,
                registration_s,
            })
        });
        self.unless_demanded(lease, surveys, choice, warnings)
    }

    /// Turns an error into a warning, unless the user demands cuFile. The bytes then take another route.
    fn unless_demanded<T>(
        &self,
        found: Result<Option<T>>,
        surveys: &mut [Survey],
        choice: Choice,
        warnings: &mut Vec<String>,
    ) -> Result<Option<T>> {
        match found {
            Err(error) if !self.is_insisted(choice) => {
                tracing::debug!(%error, "not by cuFile");
                warnings.push(format!("GPUDirect Storage was not used: {error}"));
                for survey in surveys {
                    survey.device_direct = false;
                }
                Ok(None)
            }
            found => found,
        }
    }

    /// Marks the surveys of files that cuFile can move. Returns the session if there are any.
    fn prove(
        &self,
        files: &[Arc<File>],
        (surveys, firsts): (&mut [Survey], &[FirstExtent]),
        region: &Arc<Region>,
        (leg, choice): (Leg, Choice),
    ) -> Result<Option<Arc<Session>>> {
        let has_block = firsts.iter().any(Option::is_some);
        if !has_block && !self.is_insisted(choice) {
            // All bytes are edges. Opening cuFile would take half a second for nothing.
            return Ok(None);
        }
        // If `direct` is demanded, the plan decides whether any byte needs an aligned region.
        if has_block && choice != Choice::Only(Route::Direct) {
            check_aligned(region)?;
        }
        let memory = region.device_memory().expect("its place is a GPU");
        let session = self.session(memory.context())?;
        for ((file, survey), block) in files.iter().zip(&mut *surveys).zip(firsts) {
            // Without O_DIRECT there is nothing to prove.
            if survey.direct.is_none() {
                continue;
            }
            // cuFile moves none of its bytes: they are edges, which go through the ring even if `direct` is demanded.
            let is_edges = block.is_none() && survey.doubt.is_none() && choice == Choice::Only(Route::Direct);
            survey.device_direct = if self.when == GdsUse::Force || is_edges {
                session.handle(file).map(|_| true)?
            } else {
                session.proof(file, leg, *block)?.is_direct()
            };
        }
        let is_used = surveys.iter().any(|survey| survey.device_direct);
        Ok(is_used.then_some(session))
    }

    /// The session of the context's GPU, opened on first use.
    fn session(&self, context: &Context) -> Result<Arc<Session>> {
        let ordinal = context.device().ordinal();
        let mut sessions = self.sessions.lock();
        if let Some(Some(session)) = sessions.get(&ordinal) {
            return Ok(Arc::clone(session));
        }
        let opened = Session::open(context, self.when == GdsUse::Force).map(Arc::new);
        sessions.insert(ordinal, opened.as_ref().ok().cloned());
        opened
    }

    /// Whether to use it without a demand: an open session costs nothing, a failed attempt would fail again, and
    /// opening has to pay off.
    fn is_worthwhile(&self, ordinal: u32, bytes: u64) -> bool {
        match self.sessions.lock().get(&ordinal) {
            Some(attempt) => attempt.is_some(),
            None => bytes >= WORTHWHILE_BYTES && is_possible(),
        }
    }

    /// Runs an I/O with GPU memory on this thread.
    pub(crate) fn run(&self, io: Io) -> Done {
        let result = self.transfer(&io).map_err(|error| match error.os_code() {
            Some(code) => std::io::Error::from_raw_os_error(code),
            None => std::io::Error::other(error.to_string()),
        });
        Done::new(io, result)
    }

    fn transfer(&self, io: &Io) -> Result<usize> {
        let missing = |what: &str| {
            let why = "it is not registered";
            Error::new(ErrorKind::Invalid, "use cuFile with", what, why)
        };
        let Buf::Window(window) = &io.buf else {
            return Err(missing("a slot"));
        };
        let registered = window.region().registration().get();
        let registered = registered.ok_or_else(|| missing("the region"))?;
        let ordinal = registered.memory().context().device().ordinal();
        let session = self.sessions.lock().get(&ordinal).cloned().flatten();
        let session = session.ok_or_else(|| missing("the GPU"))?;
        session.transfer(io, window, &registered)
    }

    /// Closes the files of the last transfer.
    pub(crate) fn forget_files(&self) {
        for session in self.sessions.lock().values().flatten() {
            session.forget_files();
        }
    }
}

/// Returns an error if the region is not page-aligned. cuFile would stage all of such a region.
fn check_aligned(region: &Region) -> Result<()> {
    if region.address().is_multiple_of(ALIGN_BYTES as u64) {
        return Ok(());
    }
    let address = region.address();
    let why = format!("its address {address:#x} is not a multiple of {ALIGN_BYTES}");
    Err(Error::new(ErrorKind::Unsupported, "go direct with", "the region", why)
        .with_hint("lend memory that begins on a page, or use ⟦route=auto⟧"))
}

/// The first block of a file, if the file is that long.
fn first_block(file: &File, alignment: Alignment) -> Option<Extent> {
    let block = Extent::new(0, alignment.block_bytes().max(ALIGN_BYTES as u64));
    (block.end() <= file.bytes()).then_some(block)
}

/// Whether direct I/O is possible: the machine has nvidia-fs, or an NVMe drive for peer-to-peer DMA. Otherwise cuFile
/// has only its compat mode.
fn is_possible() -> bool {
    let has_nvme = std::fs::read_dir("/sys/class/nvme").is_ok_and(|mut all| all.next().is_some());
    Path::new("/dev/nvidia-fs0").exists() || has_nvme
}

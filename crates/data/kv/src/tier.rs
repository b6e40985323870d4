//! A tier: a KV cache in a folder.

use std::{
    path::Path,
    sync::{Arc, OnceLock},
};

use straightway_core::{Class, Error, ErrorKind, Result, Share};
use straightway_io::Executor;
use straightway_sys::{
    Folder, Process, SharedWords, WordAccess,
    folder::{Access, Durability},
    nonce::nonce,
};

use crate::{
    batch::Batch,
    cipher::KeyFile,
    format::{Geometry, PAGE_BYTES, PAGE_WORDS, SUPERBLOCK, TierId, is_segment_name},
    key::{Key, KvNamespace},
    loading::{self, ChunkAt},
    receipt::{KvCounts, MissReason, Prefill},
    segment::Lease,
    space::{Shared, Space},
    staging::Staging,
    storing,
};

/// How a tier is opened.
#[derive(Clone, Debug)]
pub struct TierOptions {
    /// Whether this process stores, or only loads. Without permission to write to the folder it can only load.
    pub stores: bool,
    /// The number of processes that store to the tier. Each of them leases its share of the segments.
    pub writers: u32,
    /// The secret for encryption. Without it, chunks are stored as they are.
    pub key: Option<KeyFile>,
    /// The most host memory for stores that cannot be written from where they are.
    pub staging_bytes_max: u64,
}

impl Default for TierOptions {
    fn default() -> Self {
        Self {
            stores: true,
            writers: 1,
            key: None,
            staging_bytes_max: 512 << 20,
        }
    }
}

/// An open tier. Clones share it.
#[derive(Clone, Debug)]
pub struct Tier {
    pub(crate) shared: Arc<Shared>,
    staging: Arc<Staging>,
    /// Not in `shared`: the end of a job holds that, and must not drop an executor.
    pub(crate) now: Executor,
    pub(crate) background: Executor,
    process: Process,
}

impl Tier {
    /// Creates a tier in a folder, which is created if it is missing. The files of the tier will take at most
    /// `bytes_max`.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` if the folder has one, and `Invalid` if the bound is too small for one chunk.
    pub fn create(path: &Path, chunk_bytes: u64, bytes_max: u64) -> Result<Geometry> {
        let geometry = Geometry::fit(TierId([nonce(), nonce()]), chunk_bytes, bytes_max)?;
        std::fs::create_dir_all(path).map_err(|e| Error::os("create", path.display(), e))?;
        let folder = Folder::open(path)?;
        if !folder.has_file(SUPERBLOCK)? {
            // Segments of a tier that was cleared halfway do not count for the new bound.
            for name in folder.list()?.iter().filter(|name| is_segment_name(name)) {
                folder.remove(name)?;
            }
        }
        if folder.put_if_absent(SUPERBLOCK, &geometry.encode(), Durability::Synced)? {
            return Ok(geometry);
        }
        let why = "it already has a KV cache";
        Err(
            Error::new(ErrorKind::AlreadyExists, "create a KV cache in", path.display(), why)
                .with_hint("open it, or remove its chunks with `straightway kv clear`"),
        )
    }

    /// The sizes of the tier in a folder.
    pub fn geometry_of(path: &Path) -> Result<Geometry> {
        Self::read_superblock(&Folder::open(path)?)
    }

    fn read_superblock(folder: &Folder) -> Result<Geometry> {
        let bytes = folder.read(SUPERBLOCK, PAGE_BYTES)?;
        Geometry::decode(&bytes).map_err(|why| {
            let path = folder.join(SUPERBLOCK);
            Error::new(ErrorKind::Corrupt, "open", path.display(), why)
                .with_hint("remove its chunks with `straightway kv clear`, and create it again")
        })
    }

    /// Opens the tier in a folder. The executor's lanes move its chunks: loads in class *now*, stores in class
    /// *background*.
    pub fn open(path: &Path, executor: &Executor, options: TierOptions) -> Result<Self> {
        let folder = Folder::open(path)?;
        let geometry = Self::read_superblock(&folder)?;
        let (access, how) = if options.stores {
            (WordAccess::Write, Access::Keep)
        } else {
            (WordAccess::Read, Access::Read)
        };
        if options.writers == 0 {
            let why = "0 writers: it must be 1 or more";
            return Err(Error::new(ErrorKind::Invalid, "open", path.display(), why));
        }
        let file = folder.open_file(SUPERBLOCK, how)?;
        let superblock = SharedWords::map(&file, PAGE_WORDS, access, &folder.join(SUPERBLOCK))?;
        let shared = Shared {
            segments: (0..geometry.segments()).map(|_| OnceLock::new()).collect(),
            leases_max: geometry.segments().div_ceil(options.writers),
            space: straightway_core::Lock::new(Space::new(&geometry)),
            folder,
            geometry,
            superblock,
            access,
            key: options.key,
            counters: crate::receipt::Counters::default(),
        };
        shared.load_index()?;
        let sharing = |class| executor.sharing(Share::of(class), class);
        Ok(Self {
            shared: Arc::new(shared),
            staging: Staging::new(options.staging_bytes_max),
            now: sharing(Class::Now)?,
            background: sharing(Class::Background)?,
            process: Process::this(),
        })
    }

    /// Opens the tier in a folder, and creates it if there is none.
    ///
    /// # Errors
    ///
    /// `Invalid` if there is one with other sizes.
    pub fn open_or_create(
        path: &Path,
        (chunk_bytes, bytes_max): (u64, u64),
        executor: &Executor,
        options: TierOptions,
    ) -> Result<Self> {
        match Self::create(path, chunk_bytes, bytes_max) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let tier = Self::open(path, executor, options)?;
        let is = tier.geometry();
        if (is.chunk_bytes(), is.bytes_max()) == (chunk_bytes, bytes_max) {
            return Ok(tier);
        }
        let why = format!(
            "it has chunks of {} bytes and a bound of {}, not {chunk_bytes} and {bytes_max}",
            is.chunk_bytes(),
            is.bytes_max()
        );
        Err(Error::new(ErrorKind::Invalid, "open", path.display(), why)
            .with_hint("use its sizes or another folder, or remove its chunks with `straightway kv clear`"))
    }

    /// Removes the tier in a folder: its superblock first, so that nobody opens it any more, and then its segments.
    ///
    /// # Errors
    ///
    /// `Busy` if a process has leased a segment.
    pub fn clear(path: &Path) -> Result<()> {
        let folder = Folder::open(path)?;
        let mut leases = Vec::new();
        if let Ok(geometry) = Self::read_superblock(&folder) {
            for segment in 0..geometry.segments() {
                if !folder.has_file(&crate::format::chunks_name(segment))? {
                    continue;
                }
                let lease = Lease::take(&folder, &geometry, segment)?.ok_or_else(|| {
                    let why = "a process that stores to it is running";
                    Error::new(ErrorKind::Busy, "clear", path.display(), why).with_hint("end the processes that use it")
                })?;
                leases.push(lease);
            }
        }
        folder.remove(SUPERBLOCK)?;
        for name in folder.list()?.iter().filter(|name| is_segment_name(name)) {
            folder.remove(name)?;
        }
        Ok(())
    }

    /// The sizes of the tier.
    pub fn geometry(&self) -> &Geometry {
        &self.shared.geometry
    }

    /// Whether a chunk is stored, without a system call. It becomes the most recently used one.
    ///
    /// A hit is no promise: the chunk may be evicted, or turn out to be damaged, before it is loaded.
    pub fn lookup(&self, namespace: KvNamespace, key: &Key) -> Result<(), MissReason> {
        storing::lookup(&self.shared, namespace, key)
    }

    /// Begins to load chunks into memory. The memory of a chunk that is a miss stays as it is.
    ///
    /// # Errors
    ///
    /// `Invalid` if the parts of a chunk do not have its length, or in a forked child.
    pub fn load(&self, namespace: KvNamespace, wanted: &[ChunkAt], prefill: Option<Prefill>) -> Result<Batch> {
        self.check_own()?;
        loading::load(&self.shared, &self.now, namespace, wanted, prefill)
    }

    /// Begins to store chunks from memory, which must not change before the end of the batch. A chunk is visible, to
    /// all processes, once it is stored whole.
    ///
    /// The call returns when all chunks are checksummed and queued. Chunks on a GPU, in several parts, or with
    /// encryption are copied by the call, which waits if the staging memory is full.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load), and if the tier is open for loads only.
    pub fn store(&self, namespace: KvNamespace, chunks: &[ChunkAt]) -> Result<Batch> {
        self.check_own()?;
        if self.shared.access == WordAccess::Read {
            return Err(storing::read_only(&self.shared));
        }
        storing::store(&self.shared, &self.background, &self.staging, namespace, chunks)
    }

    /// The counters of this process, since it opened the tier.
    pub fn counts(&self) -> KvCounts {
        self.shared.counters.counts()
    }

    /// The chunks that this process knows of, and the memory of its index in bytes.
    pub fn index_size(&self) -> (usize, usize) {
        self.shared.space.lock().size()
    }

    /// The segments that this process has leased.
    pub fn leased(&self) -> usize {
        self.shared.space.lock().leased()
    }

    fn check_own(&self) -> Result<()> {
        if self.process.is_this() {
            return Ok(());
        }
        let why = format!(
            "process {} opened it, from which this one was forked",
            self.process.number()
        );
        let path = self.shared.folder.path().display();
        Err(Error::new(ErrorKind::Invalid, "use", path, why).with_hint("open it in the child"))
    }
}

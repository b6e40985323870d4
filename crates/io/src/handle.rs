//! An open object of any store.

use std::{any::Any, fmt, io, sync::Arc};

use straightway_core::{Error, Extent, Kind, Object, Result};
use straightway_sys::{File, identity::Identity};

/// An open object. Engines find their own type by [`Any`].
pub trait Handle: Any + fmt::Debug + Send + Sync {
    /// What it is called, and how long it is or will be.
    fn object(&self) -> Object;

    /// Which version of the object it is; `None` where the store has no tags.
    fn tag(&self) -> Option<Tag> {
        None
    }

    /// Fills `bytes` with what is at `offset`: for headers and manifests. An object that ends before is an error.
    fn read_exact_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()>;

    /// An error where the object is not the one any more that was opened.
    fn check_unchanged(&self) -> Result<()>;

    /// Whether the store refuses each read once the object is another one: it need not be asked after a transfer.
    fn pins_reads(&self) -> bool {
        false
    }

    /// The parts of it that are stored: all of it, unless it has holes.
    fn data_extents(&self) -> Result<Vec<Extent>> {
        let bytes = self.object().bytes;
        Ok((bytes > 0)
            .then(|| Extent::new(0, bytes))
            .into_iter()
            .collect())
    }

    /// The file that it is, if it is one.
    fn file(&self) -> Option<&File> {
        None
    }

    /// What I/Os around a cache are counted in: one that came up short is continued at a multiple of this.
    fn block_bytes(&self) -> u64 {
        1
    }

    /// Where writing it must end. Writes are padded to whole pages, and a block device may end within one.
    fn room_bytes(&self) -> u64 {
        u64::MAX
    }

    /// What went wrong with an I/O of this object. An engine that knows more than an error number wraps an [`Error`].
    fn error(&self, operation: &'static str, source: io::Error) -> Error {
        match source.downcast::<Error>() {
            Ok(error) => error,
            Err(source) => Error::os(operation, self.object().name, source),
        }
    }
}

const _: [&dyn Handle; 0] = [];

/// What tells two versions of an object apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tag {
    /// What a service says: an `ETag`.
    Text(String),
    /// What a file system says. As text it would cost each of thousands of small files an allocation.
    File(Identity),
}

/// The file that a handle is, for engines of files.
pub fn file(handle: &Arc<dyn Handle>) -> Result<Arc<File>> {
    let any: Arc<dyn Any + Send + Sync> = Arc::clone(handle) as _;
    any.downcast().map_err(|_| {
        let message = "it is no file";
        Error::new(Kind::Unsupported, "transfer", handle.object().name, message)
    })
}

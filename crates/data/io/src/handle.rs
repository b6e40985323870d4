//! An open object of any store.

use std::{any::Any, fmt, io, sync::Arc};

use straightway_core::{Direction, Error, ErrorKind, Extent, Object, Result, Survey};
use straightway_sys::{File, identity::Identity};

/// An open object. Engines downcast it to their own type by [`Any`].
pub trait Handle: Any + fmt::Debug + Send + Sync {
    /// Its name, and its present or future length.
    fn object(&self) -> Object;

    /// The version of the object; `None` if the store has no tags.
    fn tag(&self) -> Option<Tag> {
        None
    }

    /// Reads exactly `bytes` at `offset`: for headers and manifests. An object that ends earlier is an error.
    fn read_exact_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()>;

    /// Returns an error if the object has changed since it was opened.
    fn check_unchanged(&self) -> Result<()>;

    /// Returns what is known of it before a transfer is planned. Where a hull is given, the survey also says which of its
    /// bytes are in a cache that is faster than the store.
    fn survey(&self, _hull: Option<Extent>, _: Direction) -> Result<Survey> {
        Ok(Survey::default())
    }

    /// Whether the store refuses reads once the object has changed: then no check is needed after a transfer.
    fn pins_reads(&self) -> bool {
        false
    }

    /// The extents that are stored: all of it, unless it has holes.
    fn data_extents(&self) -> Result<Vec<Extent>> {
        let bytes = self.object().bytes;
        Ok((bytes > 0).then(|| Extent::new(0, bytes)).into_iter().collect())
    }

    /// Its file, if it is one.
    fn file(&self) -> Option<&File> {
        None
    }

    /// The block size of direct I/O: a short I/O is continued at a multiple of this.
    fn block_bytes(&self) -> u64 {
        1
    }

    /// The offset that writes must not exceed. Writes are padded to whole pages, and a block device may end within one.
    fn room_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Called before bytes up to `end` are written. A file whose length is a server's claim reserves their space.
    fn reserve_up_to(&self, _end: u64) -> Result<()> {
        Ok(())
    }

    /// The error of a failed I/O on this object. An engine that knows more than an error number wraps an [`Error`].
    fn error(&self, operation: &'static str, source: io::Error) -> Error {
        match source.downcast::<Error>() {
            Ok(error) => error,
            Err(source) => Error::os(operation, self.object().name, source),
        }
    }
}

const _: [&dyn Handle; 0] = [];

/// The version of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tag {
    /// A service's `ETag`.
    Text(String),
    /// A file's identity. As text it would cost an allocation for each of thousands of small files.
    File(Identity),
}

/// Converts a handle back to the type of the store that opened it.
pub fn own_handle<H: Handle>(handle: &Arc<dyn Handle>) -> Option<Arc<H>> {
    let any: Arc<dyn Any + Send + Sync> = Arc::clone(handle) as _;
    any.downcast().ok()
}

/// The file behind a handle, for engines of files.
pub fn file(handle: &Arc<dyn Handle>) -> Result<Arc<File>> {
    own_handle(handle).ok_or_else(|| {
        let message = "it is not a file";
        Error::new(ErrorKind::Unsupported, "transfer", handle.object().name, message)
    })
}

//! How a file's pages in the page cache are found.

use std::sync::atomic::Ordering;

use super::File;
use crate::page_map::PageMap;

impl File {
    /// Its mapping for questions about the page cache. `None` if the kernel does not tell which of its pages are
    /// cached.
    pub(crate) fn page_map(&self) -> Option<&PageMap> {
        let map = || PageMap::of(&self.buffered, self.bytes());
        self.page_map.get_or_init(map).as_ref()
    }

    /// Whether it is on an overlay, so that its pages are cached by the file system below.
    pub(crate) fn is_overlaid(&self) -> bool {
        self.direct_io.is_overlaid
    }

    /// Whether a read that does not wait shows which bytes are in the page cache, as far as is known.
    pub(crate) fn reads_nowait(&self) -> bool {
        !self.refuses_nowait.load(Ordering::Relaxed)
    }

    /// Notes that its file system does not support reads that do not wait.
    pub(crate) fn note_no_nowait(&self) {
        self.refuses_nowait.store(true, Ordering::Relaxed);
    }
}

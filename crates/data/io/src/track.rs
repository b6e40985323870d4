//! The kinds of lanes: for the drive, for the page cache, and for checked reads.

/// The kind of chunks that a lane runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Track {
    /// Chunks that go to the drive.
    Drive,
    /// Chunks that go through the page cache.
    Cached,
    /// Chunks that are checked before they are copied on, from either source.
    Checked,
}

impl Track {
    /// All tracks.
    pub(crate) const ALL: [Self; 3] = [Self::Drive, Self::Cached, Self::Checked];
}

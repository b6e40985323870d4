//! The kinds of lanes: to the drive, through the page cache, and those that check what they read.

/// Which chunks a lane takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Track {
    /// Those that go to the drive.
    Drive,
    /// Those that go through the page cache.
    Cached,
    /// Those that are checked before they go on, whichever way they are read.
    Checked,
}

impl Track {
    /// All there are.
    pub(crate) const ALL: [Self; 3] = [Self::Drive, Self::Cached, Self::Checked];
}

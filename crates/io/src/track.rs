//! The two kinds of lanes: to the drive, and through the page cache.

/// Which chunks a lane takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Track {
    /// Those that go to the drive.
    Drive,
    /// Those that go through the page cache.
    Cached,
}

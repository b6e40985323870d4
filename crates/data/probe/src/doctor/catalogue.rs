//! The list of all checks, for the doctor and for the guide.

use super::{check::Check, device, driver, fabric, kernel, library, live, nvidia_fs, peer, platform, storage};

/// Every check, in the order of the guide.
pub fn all() -> impl Iterator<Item = &'static Check> {
    let tables = [
        // The kernel comes first: a missing kernel feature is harder to add than a module or a setting, and the
        // verdict names the first reason it finds.
        kernel::CHECKS,
        driver::CHECKS,
        nvidia_fs::CHECKS,
        library::CHECKS,
        platform::CHECKS,
        peer::CHECKS,
        fabric::CHECKS,
        storage::CHECKS,
        device::CHECKS,
        live::CHECKS,
    ];
    tables.into_iter().flatten()
}

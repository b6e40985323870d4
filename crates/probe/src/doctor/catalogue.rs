//! All checks: what a run looks at, and what the guide describes.

use super::{
    check::Check, device, driver, fabric, kernel, library, live, nvidia_fs, peer, platform, storage,
};

/// Every check, in the order of the guide.
pub fn all() -> impl Iterator<Item = &'static Check> {
    let tables = [
        // The kernel comes first: what it lacks is harder to add than a module or a setting, and the
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

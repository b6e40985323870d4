//! The stores that this program knows.

use std::sync::LazyLock;

use straightway_io::store::Registry;

/// All of them. A new kind of store is added here.
pub(crate) fn stores() -> &'static Registry {
    static STORES: LazyLock<Registry> = LazyLock::new(Registry::default);
    &STORES
}

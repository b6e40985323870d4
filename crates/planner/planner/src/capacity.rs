//! The default capacities that several topics share, with their sources.

use straightway_core::Bytes;
use straightway_scenario::provenance::{Basis, Citation};

/// The memory of a GPU.
pub(crate) const GPU_MEMORY: Bytes = Bytes(80_000_000_000);
/// The source of [`GPU_MEMORY`].
pub(crate) const H100_MEMORY: Citation =
    Citation::read("Llama 3 (arXiv 2407.21783), section 3.3.1", "H100 with 80 GB of HBM3");

/// The memory of a host.
pub(crate) const HOST_MEMORY: Bytes = Bytes(2_000_000_000_000);
/// The source of [`HOST_MEMORY`].
pub(crate) const DGX_MEMORY: Citation = Citation::quoted("NVIDIA DGX H100 data sheet", "2 TB of system memory");

/// The capacity of the storage.
pub(crate) const STORAGE_CAPACITY: Bytes = Bytes(240_000_000_000_000_000);
/// The source of [`STORAGE_CAPACITY`] and of the storage's rate.
pub(crate) const LLAMA_STORAGE: Citation = Citation::read(
    "Llama 3 (arXiv 2407.21783), section 3.3.1",
    "Tectonic for 16 k GPUs: 240 PB, 2 TB/s sustained, 7 TB/s peak",
);

/// Converts a computed size to `Bytes` for a message, rounding up.
pub(crate) fn shown_bytes(bytes: f64) -> Bytes {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a size is positive, and a float saturates"
    )]
    Bytes(bytes.ceil() as u64)
}

/// Adds the capacities to a basis. The path of the storage's capacity differs between topics.
pub(crate) fn assume_capacities(
    basis: &mut Basis,
    gpu: Bytes,
    host: Bytes,
    (storage_path, storage): (&'static str, Bytes),
) {
    for (path, what, bytes, source) in [
        ("cluster.gpu_memory", "memory of a GPU", gpu, H100_MEMORY),
        ("node.host.memory", "memory of a host", host, DGX_MEMORY),
        (storage_path, "capacity of the storage", storage, LLAMA_STORAGE),
    ] {
        basis.parameter(path, what, bytes.0 as f64, "B", source);
    }
}

//! Memory for chunks that cannot be written from where they are: they are on a GPU, consist of several parts, or are
//! encrypted before they are written.

use std::sync::Arc;

use straightway_core::{Lock, Place, Result, Signal, extent::up};
use straightway_io::Region;
use straightway_sys::{Window, cuda::Context};

use crate::loading::Part;

/// Memory is allocated in multiples of this.
const GRAIN_BYTES: u64 = 2 << 20;

/// A pool of memory that is bounded. Whoever needs more waits for stores that are under way.
#[derive(Debug)]
pub(crate) struct Staging {
    bytes_max: u64,
    pool: Lock<Pool>,
    returned: Signal,
}

#[derive(Debug, Default)]
struct Pool {
    used_bytes: u64,
    /// Memory of former stores. A job may still hold it for a moment.
    regions: Vec<Arc<Region>>,
}

/// Memory from the pool. It is returned when this is dropped.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) region: Arc<Region>,
    bytes: u64,
    staging: Arc<Staging>,
}

impl Staging {
    pub(crate) fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            pool: Lock::default(),
            returned: Signal::new(),
        })
    }

    /// Waits for memory, and fills it. `fill` gets the region before anybody else does.
    pub(crate) fn take(
        self: &Arc<Self>,
        bytes: u64,
        context: Option<&Context>,
        fill: impl FnOnce(&mut Region) -> Result<()>,
    ) -> Result<Staged> {
        let bytes = up(bytes, GRAIN_BYTES);
        let is_full = |pool: &mut Pool| pool.used_bytes > 0 && pool.used_bytes + bytes > self.bytes_max;
        let mut pool = self.returned.wait_while(self.pool.lock(), is_full);
        pool.used_bytes += bytes;
        let usable = |region: &mut Arc<Region>| region.bytes() == bytes && Arc::get_mut(region).is_some();
        let found = pool.regions.iter_mut().position(usable);
        let found = found.map(|at| pool.regions.swap_remove(at));
        drop(pool);
        let staged = |region| Staged {
            region,
            bytes,
            staging: Arc::clone(self),
        };
        let fresh = || Region::at(Place::Host, bytes).map(Arc::new);
        let mut region = match found.map_or_else(fresh, Ok) {
            Ok(region) => region,
            Err(error) => {
                self.give_back(bytes, None);
                return Err(error);
            }
        };
        let own = Arc::get_mut(&mut region).expect("nobody else has it");
        let filled = context
            .map_or(Ok(()), |context| own.pin(context))
            .and_then(|()| fill(own));
        let staged = staged(region);
        filled.map(|()| staged)
    }

    fn give_back(&self, bytes: u64, region: Option<Arc<Region>>) {
        let mut pool = self.pool.lock();
        pool.used_bytes -= bytes;
        let kept: u64 = pool.regions.iter().map(|region| region.bytes()).sum();
        if kept + bytes <= self.bytes_max {
            pool.regions.extend(region);
        } else if let Some(region) = region {
            // The lengths that are used have changed.
            pool.regions.clear();
            pool.regions.push(region);
        }
        drop(pool);
        self.returned.notify_all();
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.staging.give_back(self.bytes, Some(Arc::clone(&self.region)));
    }
}

/// Copies the parts of a chunk to `target`, which is as long.
pub(crate) fn copy(parts: &[Part], target: &mut [u8]) -> Result<()> {
    let mut rest = target;
    for part in parts {
        let bytes = usize::try_from(part.bytes).expect("it is in memory");
        let (own, others) = rest.split_at_mut(bytes);
        match part.region.device_memory() {
            Some(memory) => memory.read(usize::try_from(part.at).expect("it is in memory"), own)?,
            None => Window::new(&part.region, part.at, bytes).copy_to(own),
        }
        rest = others;
    }
    Ok(())
}

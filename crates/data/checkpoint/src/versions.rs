//! The versions of a step's objects: read at the commit, and stored in the manifest.
//!
//! Local files have none: a file is opened once, and stays readable if its name is reused.

use std::sync::Arc;

use straightway_core::Result;
use straightway_io::store::{Handle, Named, StoreExt, Tag};

use super::{
    coordination::Home,
    manifest::{Manifest, ObjectVersion, Versions},
    steps::Steps,
};

/// The maximum number of objects opened at once. A local folder needs as many descriptors.
const LOOKED_AT_ONCE: usize = 64;

impl Home {
    /// Opens objects of an attempt by name, and calls `look` with the number and handle of each.
    pub(crate) fn look_at(
        &self,
        names: &[&str],
        mut look: impl FnMut(usize, &Arc<dyn Handle>) -> Result<()>,
    ) -> Result<()> {
        for (batch, names) in names.chunks(LOOKED_AT_ONCE).enumerate() {
            let wanted: Vec<_> = names.iter().map(|name| Named::new(*name)).collect();
            for (number, handle) in self.store.open(&wanted)?.iter().enumerate() {
                look(batch * LOOKED_AT_ONCE + number, handle)?;
            }
        }
        Ok(())
    }
}

/// The version of an object of a step, if the store has versions.
pub(crate) fn version_of(step: u64, file: &str, handle: &Arc<dyn Handle>) -> Option<ObjectVersion> {
    let Some(Tag::Text(tag)) = handle.tag() else {
        return None;
    };
    let file = file.to_owned();
    Some(ObjectVersion { step, file, tag })
}

impl Manifest {
    /// The versions of its own objects, if `store` is the one that it was committed to.
    pub(crate) fn own_versions(&self, store: &str) -> Vec<ObjectVersion> {
        let versions = self.versions.iter().filter(|known| known.store == store);
        let objects = versions.flat_map(|known| &known.objects);
        let own = objects.filter(|object| object.step == self.step);
        own.cloned().collect()
    }
}

impl Steps {
    /// The version table of a manifest for objects in this store; `None` if there are none.
    pub(crate) fn versions(&self, mut objects: Vec<ObjectVersion>) -> Option<Versions> {
        objects.sort_unstable();
        objects.dedup();
        let store = self.root().address();
        (!objects.is_empty()).then_some(Versions { store, objects })
    }
}

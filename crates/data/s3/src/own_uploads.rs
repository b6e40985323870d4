//! The uploads of this process to a bucket.

use std::{collections::BTreeMap, sync::MutexGuard};

use straightway_core::Lock;

use crate::xml::OpenUpload;

/// The uploads of this process to a bucket.
#[derive(Debug, Default)]
pub(crate) struct OwnUploads(Lock<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The ids of the uploads in use.
    ids: Vec<String>,
    /// The keys whose uploads are being begun, and how many of each.
    starting: BTreeMap<String, u32>,
}

impl OwnUploads {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock()
    }

    pub(crate) fn begin(&self, key: &str) {
        *self.lock().starting.entry(key.to_owned()).or_default() += 1;
    }

    /// Ends a start, which gave the upload `id` unless it failed.
    pub(crate) fn end(&self, key: &str, id: Option<&str>) {
        let mut known = self.lock();
        if let Some(count) = known.starting.get_mut(key) {
            *count -= 1;
        }
        known.starting.retain(|_, count| *count > 0);
        known.ids.extend(id.map(str::to_owned));
    }

    /// Whether an upload may belong to another writer of this process.
    pub(crate) fn may_have(&self, upload: &OpenUpload) -> bool {
        let known = self.lock();
        known.starting.contains_key(&upload.key) || known.ids.contains(&upload.upload_id)
    }

    /// Forgets an upload that is over.
    pub(crate) fn forget(&self, id: &str) {
        self.lock().ids.retain(|known| known != id);
    }
}

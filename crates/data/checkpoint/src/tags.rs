//! Tags: names for steps, which protect them from removal.
//!
//! Each tag is a file in its step. Two processes that tag one step at once put two files, so no tag is lost.

use std::sync::Arc;

use straightway_core::{Error, ErrorKind, Result};
use straightway_io::store::{Durability, Store, StoreExt};

use super::{
    name::{TAGS, check_tag, fresh_nonce, tag_file, tag_of},
    records::{if_there, names, put},
    removal,
    steps::Steps,
};

impl Steps {
    /// Adds a tag to a step, which protects it from removal. The tag is durable on return.
    pub fn tag(&self, step: u64, tag: &str) -> Result<()> {
        check_tag(tag)?;
        self.manifest(step)?;
        let put = |held: &Arc<dyn Store>| put_tag(&**held, tag);
        if removal::keep(self, step, put)? {
            return Ok(());
        }
        let target = format!("step {step} of {}", self.folder().display());
        let message = "it was removed meanwhile";
        Err(Error::new(ErrorKind::NotFound, "tag", target, message))
    }

    /// Removes a tag from a step.
    pub fn untag(&self, step: u64, tag: &str) -> Result<()> {
        check_tag(tag)?;
        let held = self.step(step)?;
        held.remove(tag_file(tag).as_ref(), Durability::Synced)
    }

    /// The tags of a step, in order.
    pub fn tags(&self, step: u64) -> Result<Vec<String>> {
        match if_there(self.step(step))? {
            None => Ok(Vec::new()),
            Some(held) => Self::tags_in(&*held),
        }
    }

    /// The tags in a step's folder.
    pub(crate) fn tags_in(held: &dyn Store) -> Result<Vec<String>> {
        let names = names(held)?;
        if names.iter().any(|name| name == TAGS) {
            let message = "version 0.1.0 wrote it, which kept all tags of a step in one file";
            return Err(
                Error::new(ErrorKind::Unsupported, "read", held.describe(TAGS.as_ref()), message)
                    .with_hint("tag the step with the names in it (`straightway checkpoint tag`), and delete it"),
            );
        }
        let mut tags: Vec<_> = names
            .iter()
            .filter_map(|name| tag_of(name))
            .map(str::to_owned)
            .collect();
        tags.sort_unstable();
        Ok(tags)
    }
}

fn put_tag(held: &dyn Store, tag: &str) -> Result<()> {
    // The nonce distinguishes it from the same tag of a step that was saved again: object stores derive versions from
    // the bytes.
    let text = format!("{tag}\n{}\n", fresh_nonce());
    put(held, &tag_file(tag), &text, Durability::Synced).map(drop)
}

//! Tags: names for steps, which protect them from removal.
//!
//! Each tag is a file in its step. Two processes that tag one step at once put two files, so no tag is lost.

use std::{collections::BTreeSet, sync::Arc};

use straightway_core::{Error, ErrorKind, Result};
use straightway_io::store::{Durability, Store};

use super::{
    name::{TAGS, check_tag, fresh_nonce, tag_file, tag_of},
    removal,
    steps::{Steps, if_there, names, put},
};

/// The maximum length of a tag file of version 0.1.0.
const TAGS_BYTES_MAX: u64 = 1 << 20;

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
        let old = old_tags(&*held)?;
        if old.iter().any(|known| known == tag) {
            for other in old.iter().filter(|known| *known != tag) {
                put_tag(&*held, other)?;
            }
            held.remove(TAGS.as_ref(), Durability::Unsynced)?;
        }
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
        let own = names.iter().filter_map(|name| tag_of(name)).map(str::to_owned);
        let tags: BTreeSet<_> = own.chain(old_tags(held)?).collect();
        Ok(tags.into_iter().collect())
    }
}

fn put_tag(held: &dyn Store, tag: &str) -> Result<()> {
    // The nonce distinguishes it from the same tag of a step that was saved again: object stores derive versions from
    // the bytes.
    let text = format!("{tag}\n{}\n", fresh_nonce());
    put(held, &tag_file(tag), &text, Durability::Synced).map(drop)
}

/// The tags that version 0.1.0 wrote.
fn old_tags(held: &dyn Store) -> Result<Vec<String>> {
    match if_there(held.get(TAGS.as_ref(), TAGS_BYTES_MAX))? {
        None => Ok(Vec::new()),
        Some(text) => parse_tags(&held.describe(TAGS.as_ref()), &text),
    }
}

/// Parses a tag file of version 0.1.0. Errors call it `name`.
pub fn parse_tags(name: &str, text: &[u8]) -> Result<Vec<String>> {
    let corrupt = |why: String| {
        Error::new(ErrorKind::Corrupt, "read", name, why).with_hint("delete that file if the tags in it are not needed")
    };
    let tags: Vec<String> = serde_json::from_slice(text).map_err(|e| corrupt(e.to_string()))?;
    match tags.iter().find_map(|tag| check_tag(tag).err()) {
        Some(error) => Err(corrupt(error.to_string())),
        None => Ok(tags),
    }
}

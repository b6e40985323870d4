//! Two stores of different families, joined for lanes that copy from one to the other.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    sync::{Arc, Mutex, PoisonError},
};

use straightway_core::Result;

use super::{Handle, LaneSpec, Named, Store, Verbs};
use crate::engine::{Engine, mixed::Mixed};

/// The source of a copy, with lanes that write to another store.
#[derive(Debug)]
pub(crate) struct Pair {
    from: Arc<dyn Store>,
    to: Arc<dyn Store>,
}

impl Pair {
    /// The store whose lanes copy between these two: the source itself where both are of one family.
    pub(crate) fn of(from: &Arc<dyn Store>, to: &Arc<dyn Store>) -> Arc<dyn Store> {
        if from.family() == to.family() {
            return Arc::clone(from);
        }
        let (from, to) = (Arc::clone(from), Arc::clone(to));
        Arc::new(Self { from, to })
    }
}

impl Store for Pair {
    fn describe(&self, name: &OsStr) -> String {
        self.from.describe(name)
    }

    fn verbs(&self) -> Verbs {
        Verbs::default()
    }

    fn open(&self, objects: &[Named]) -> Result<Vec<Arc<dyn Handle>>> {
        self.from.open(objects)
    }

    fn engine(&self, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
        let (read, write) = (self.from.engine(lane)?, self.to.engine(lane)?);
        Ok(Box::new(Mixed::of_legs(read, write)))
    }

    fn family(&self) -> &'static str {
        /// The names of pairs. They are leaked; there are few families.
        static NAMES: Mutex<BTreeMap<(&str, &str), &str>> = Mutex::new(BTreeMap::new());
        let pair = (self.from.family(), self.to.family());
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        names
            .entry(pair)
            .or_insert_with(|| Box::leak(format!("{} to {}", pair.0, pair.1).into_boxed_str()))
    }
}

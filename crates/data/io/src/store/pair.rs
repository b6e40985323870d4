//! Two stores of different families, joined for lanes that copy from one to the other.

use std::{collections::BTreeMap, ffi::OsStr, sync::Arc};

use straightway_core::{Lock, Result};

use super::{Facts, Handle, LaneSpec, Named, Store, Verbs};
use crate::{
    engine::{Engine, mixed::Mixed},
    request::Op,
};

/// The source of a copy, with lanes that write to another store.
#[derive(Debug)]
pub(crate) struct Pair {
    from: Arc<dyn Store>,
    to: Arc<dyn Store>,
}

impl Pair {
    /// The store whose lanes copy between these two: the source itself where both are of one family.
    pub(crate) fn of(from: &Arc<dyn Store>, to: &Arc<dyn Store>) -> Arc<dyn Store> {
        if from.facts().family == to.facts().family {
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

    fn settle(&self, after: Op, objects: &[Arc<dyn Handle>]) -> Result<()> {
        match after {
            Op::Read => self.from.settle(after, objects),
            Op::Write => self.to.settle(after, objects),
        }
    }

    fn engine(&self, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
        let (read, write) = (self.from.engine(lane)?, self.to.engine(lane)?);
        Ok(Box::new(Mixed::of_legs(read, write)))
    }

    fn facts(&self) -> Facts<'_> {
        /// The names of pairs. They are leaked; there are few families.
        static NAMES: Lock<BTreeMap<(&str, &str), &str>> = Lock::new(BTreeMap::new());
        let pair = (self.from.facts().family, self.to.facts().family);
        let mut names = NAMES.lock();
        let family = names
            .entry(pair)
            .or_insert_with(|| Box::leak(format!("{} to {}", pair.0, pair.1).into_boxed_str()));
        Facts::of(family)
    }
}

#[cfg(test)]
mod tests {
    use straightway_core::{Error, ErrorKind};

    use super::*;
    use crate::store::{StoreExt, Verb};

    /// A store that knows whether its objects have changed.
    #[derive(Debug)]
    struct Checked {
        family: &'static str,
        is_changed: bool,
    }

    impl Store for Checked {
        fn describe(&self, _: &OsStr) -> String {
            self.family.to_owned()
        }

        fn verbs(&self) -> Verbs {
            Verbs::default()
        }

        fn open(&self, _: &[Named]) -> Result<Vec<Arc<dyn Handle>>> {
            Ok(Vec::new())
        }

        fn settle(&self, _: Op, _: &[Arc<dyn Handle>]) -> Result<()> {
            if self.is_changed {
                let why = "it changed";
                return Err(Error::new(ErrorKind::Corrupt, "read", self.family, why));
            }
            Ok(())
        }

        fn engine(&self, _: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
            Err(self.lacks(Verb::List))
        }

        fn facts(&self) -> Facts<'_> {
            Facts::of(self.family)
        }
    }

    #[test]
    fn the_source_of_a_copy_is_checked_by_its_own_store() {
        let store =
            |family: &'static str, is_changed: bool| -> Arc<dyn Store> { Arc::new(Checked { family, is_changed }) };
        for is_changed in [false, true] {
            let pair = Pair::of(&store("from", is_changed), &store("to", !is_changed));
            assert_eq!(pair.check_unchanged(&[]).is_err(), is_changed);
        }
    }
}

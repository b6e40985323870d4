//! The arguments of a load, for `load` and `inspect`.

use std::{path::PathBuf, sync::Arc};

use straightway_core::{Choice, Place, Result};
use straightway_io::store::Location;
use straightway_stores::Session;
use straightway_weights::Loader;

use super::{
    selection_args::SelectionArgs,
    stores::{CacheArgs, StoreArgs},
    tuning::Tuning,
    words::one_of,
};

/// A model, a selection, the target memory and the route.
#[derive(Debug, clap::Args)]
pub(crate) struct LoadArgs {
    /// A safetensors file, a folder of them, or an index file, by path or URI (`s3://BUCKET/KEY`).
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,

    /// The target memory: `host` or `cuda:0`; `cpu`, `cuda` and `gpu` are accepted too.
    #[arg(long, value_name = "DEVICE", default_value = "host")]
    pub(crate) device: Place,

    /// The route of the bytes.
    #[arg(long, value_parser = one_of(&Choice::WORDS), default_value = "auto")]
    route: Choice,

    #[command(flatten)]
    pub(crate) selection: SelectionArgs,

    #[command(flatten)]
    tuning: Tuning,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    cache: CacheArgs,
}

impl LoadArgs {
    /// The location of the model.
    pub(crate) fn location(&self, session: &Session) -> Result<Location> {
        self.store.stores_through(&self.cache, session)?.locate(&self.path)
    }

    /// The loader for these arguments and the location of the model.
    pub(crate) fn loader(&self, session: &Session, model: &Location) -> Result<Loader> {
        let executor = Arc::new(self.tuning.executor(session, &[model])?);
        Ok(Loader {
            choice: self.route,
            ..Loader::new(executor)
        })
    }
}

//! The arguments of a load, for `load` and `inspect`.

use std::{path::PathBuf, sync::Arc};

use straightway_core::Place;
use straightway_io::{Executor, store::Location};
use straightway_weights::Loader;

use super::{
    selection_args::{SelectionArgs, device},
    stores::{CacheArgs, StoreArgs},
    tuning::{RouteChoice, Tuning},
};

/// A model, a selection, the target memory and the route.
#[derive(Debug, clap::Args)]
pub(crate) struct LoadArgs {
    /// A safetensors file, a folder of them, or an index file, by path or URI (`s3://BUCKET/KEY`).
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,

    /// The target memory: `host` or `cuda:0`.
    #[arg(long, value_name = "DEVICE", default_value = "host", value_parser = device)]
    pub(crate) device: Place,

    /// The route of the bytes.
    #[arg(long, value_enum, default_value_t)]
    route: RouteChoice,

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
    pub(crate) fn location(&self) -> anyhow::Result<Location> {
        Ok(self.store.stores_through(&self.cache)?.locate(&self.path)?)
    }

    /// The loader for these arguments and the location of the model.
    pub(crate) fn loader(&self, model: &Location) -> anyhow::Result<Loader> {
        let executor = Arc::new(Executor::new(self.tuning.settings([model], [])?)?);
        Ok(Loader {
            choice: self.route.into(),
            ..Loader::new(executor)
        })
    }
}

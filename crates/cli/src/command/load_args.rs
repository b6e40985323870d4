//! The arguments of a load, for `load` and `inspect`.

use std::{path::PathBuf, sync::Arc};

use straightway_core::{Place, Uri};
use straightway_io::Executor;
use straightway_pipeline::weights::{Loader, Model};

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
    /// Opens the model.
    pub(crate) fn model(&self) -> anyhow::Result<Model> {
        Ok(Model::find(
            &self.store.stores_through(&self.cache)?,
            &Uri::parse(&self.path)?,
        )?)
    }

    /// The loader for these arguments.
    pub(crate) fn loader(&self) -> anyhow::Result<Loader> {
        let executor = Arc::new(Executor::new(self.tuning.settings(&self.path)?)?);
        Ok(Loader {
            choice: self.route.into(),
            ..Loader::new(executor)
        })
    }
}

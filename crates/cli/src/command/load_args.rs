//! What is to be loaded, whereto and which way: what `load` and `inspect` share.

use std::{path::PathBuf, sync::Arc};

use straightway_core::{Place, Uri};
use straightway_io::Executor;
use straightway_pipeline::weights::{Loader, Model};

use super::{
    chosen::{Chosen, device},
    stores::{Keep, Reach},
    tuning::{RouteChoice, Tuning},
};

/// A model, the part of it that is meant, and how it gets into which memory.
#[derive(Debug, clap::Args)]
pub(crate) struct Wanted {
    /// A safetensors file, a folder of them, or an index file, by path or URI (`s3://BUCKET/KEY`).
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,

    /// Whose memory: `host` or `cuda:0`.
    #[arg(long, value_name = "DEVICE", default_value = "host", value_parser = device)]
    pub(crate) device: Place,

    /// Which way the bytes are to go.
    #[arg(long, value_enum, default_value_t)]
    route: RouteChoice,

    #[command(flatten)]
    pub(crate) chosen: Chosen,

    #[command(flatten)]
    tuning: Tuning,

    #[command(flatten)]
    reach: Reach,

    #[command(flatten)]
    keep: Keep,
}

impl Wanted {
    /// The model.
    pub(crate) fn model(&self) -> anyhow::Result<Model> {
        Ok(Model::find(
            &self.reach.stores_through(&self.keep)?,
            &Uri::parse(&self.path)?,
        )?)
    }

    /// Who loads it.
    pub(crate) fn loader(&self) -> anyhow::Result<Loader> {
        let executor = Arc::new(Executor::new(self.tuning.settings(&self.path)?)?);
        Ok(Loader {
            choice: self.route.into(),
            ..Loader::new(executor)
        })
    }
}

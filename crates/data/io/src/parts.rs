//! What an executor is made with beside its settings: handles to proofs, faults to inject, and a trace.

use straightway_core::Result;

use crate::{
    engine::Engine,
    gds::Gds,
    peer::Peers,
    settings::Settings,
    store::{LaneSpec, Store},
    wrapper::{
        faulty::{Faults, Faulty},
        traced::{Trace, Traced},
    },
};

/// The parts of an executor that are not settings.
#[derive(Clone, Debug, Default)]
pub struct ExecutorParts {
    /// The proofs of peer-to-peer DMA.
    pub peers: Peers,
    /// Faults to inject.
    pub faults: Option<Faults>,
    /// The trace that records all I/Os.
    pub trace: Option<Trace>,
}

impl From<Faults> for ExecutorParts {
    fn from(faults: Faults) -> Self {
        Self {
            faults: Some(faults),
            ..Self::default()
        }
    }
}

/// The settings and all parts of an executor. Its jobs are planned with them, and its lanes are made with them.
#[derive(Clone, Debug)]
pub(crate) struct Outfit {
    pub(crate) settings: Settings,
    pub(crate) gds: Gds,
    pub(crate) parts: ExecutorParts,
}

impl Outfit {
    pub(crate) fn new(settings: Settings, parts: ExecutorParts) -> Self {
        Self {
            gds: settings.gds.into(),
            settings,
            parts,
        }
    }

    /// The same with other settings for planning.
    pub(crate) fn with(&self, settings: Settings) -> Self {
        Self {
            settings,
            ..self.clone()
        }
    }

    /// Makes the engine of a lane, with the faults and the trace around it.
    pub(crate) fn engine(&self, store: &dyn Store, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
        let mut engine = store.engine(lane)?;
        if let Some(faults) = self.parts.faults {
            engine = Box::new(Faulty::new(engine, faults));
        }
        if let Some(trace) = &self.parts.trace {
            engine = Box::new(Traced::new(engine, trace.clone()));
        }
        Ok(engine)
    }
}

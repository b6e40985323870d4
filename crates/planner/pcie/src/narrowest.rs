//! The rate that a machine carries between its parts: the minimum cut of its tree.

use std::cell::RefCell;

use crate::{
    MachineSpec, PcieScenario, PcieTopology,
    cut::{self, Cut},
    node::NodeKind,
};

/// The two parts of a machine between which bytes are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// Network ports and GPUs, peer to peer.
    PortsAndGpus,
    /// Drives and GPUs, peer to peer.
    DrivesAndGpus,
    /// Network ports and host memory.
    PortsAndHost,
    /// Drives and host memory.
    DrivesAndHost,
    /// Host memory and GPUs.
    HostAndGpus,
}

/// A cached cut.
struct Known {
    machine: MachineSpec,
    asked: (Between, u64, bool),
    cut: Option<Cut>,
}

/// The maximum number of cached cuts: one answer needs the same few again and again.
const CUTS_MAX: usize = 64;

thread_local! {
    static CUTS: RefCell<Vec<Known>> = const { RefCell::new(Vec::new()) };
}

impl MachineSpec {
    /// Returns the minimum cut between two sets of parts, with an equal share for each of `gpus` GPUs; `None` if a
    /// set is empty. Port and drive rates count only if `with_media`.
    pub fn cut(&self, between: Between, gpus: u64, with_media: bool) -> Option<Cut> {
        CUTS.with_borrow_mut(|known| {
            let is_it = |k: &&Known| k.asked == (between, gpus, with_media) && k.machine == *self;
            if let Some(known) = known.iter().find(is_it) {
                return known.cut.clone();
            }
            let cut = self.find_cut(between, gpus, with_media);
            if known.len() == CUTS_MAX {
                known.clear();
            }
            known.push(Known {
                machine: self.clone(),
                asked: (between, gpus, with_media),
                cut: cut.clone(),
            });
            cut
        })
    }

    fn find_cut(&self, between: Between, gpus: u64, with_media: bool) -> Option<Cut> {
        let topology = self.topology(gpus);
        let of = |kind: NodeKind| -> Vec<usize> {
            let nodes = topology.nodes.iter().enumerate();
            nodes.filter(|(_, n)| n.kind == kind).map(|(i, _)| i).collect()
        };
        let host = || vec![0];
        let (from, to) = match between {
            Between::PortsAndGpus => (of(NodeKind::Hca), of(NodeKind::Gpu)),
            Between::DrivesAndGpus => (of(NodeKind::Drive), of(NodeKind::Gpu)),
            Between::PortsAndHost => (of(NodeKind::Hca), host()),
            Between::DrivesAndHost => (of(NodeKind::Drive), host()),
            Between::HostAndGpus => (host(), of(NodeKind::Gpu)),
        };
        let taking = usize::try_from(gpus).unwrap_or(usize::MAX);
        let to = &to[..to.len().min(taking)];
        (!from.is_empty() && !to.is_empty()).then(|| cut::minimum(&topology, &from, to, with_media))
    }

    /// The compiled tree of the machine, without streams.
    fn topology(&self, gpus: u64) -> PcieTopology {
        let machine = Self {
            gpus: Some(self.gpus.unwrap_or(gpus)),
            ..self.clone()
        };
        PcieTopology::new(&PcieScenario::of(machine))
    }
}

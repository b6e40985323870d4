//! What a machine carries between its parts: the minimum cut of the tree that it stands for.

use std::cell::RefCell;

use crate::{
    Machine, Scenario, Topology,
    cut::{self, Cut},
    node::Kind,
};

/// Between which parts of a machine bytes go.
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

/// A cut that was found.
struct Known {
    machine: Machine,
    asked: (Between, u64, bool),
    cut: Option<Cut>,
}

/// Cuts remembered: one answer asks for the same few again and again.
const CUTS_MAX: usize = 64;

thread_local! {
    static CUTS: RefCell<Vec<Known>> = const { RefCell::new(Vec::new()) };
}

impl Machine {
    /// The minimum cut between two sets of parts, with `gpus` GPUs taking part, each with an equal share.
    /// None where a set is empty. Port and drive rates count only where `with_media`.
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
        let of = |kind: Kind| -> Vec<usize> {
            let nodes = topology.nodes.iter().enumerate();
            nodes
                .filter(|(_, n)| n.kind == kind)
                .map(|(i, _)| i)
                .collect()
        };
        let host = || vec![0];
        let (from, to) = match between {
            Between::PortsAndGpus => (of(Kind::Hca), of(Kind::Gpu)),
            Between::DrivesAndGpus => (of(Kind::Drive), of(Kind::Gpu)),
            Between::PortsAndHost => (of(Kind::Hca), host()),
            Between::DrivesAndHost => (of(Kind::Drive), host()),
            Between::HostAndGpus => (host(), of(Kind::Gpu)),
        };
        let taking = usize::try_from(gpus).unwrap_or(usize::MAX);
        let to = &to[..to.len().min(taking)];
        (!from.is_empty() && !to.is_empty()).then(|| cut::minimum(&topology, &from, to, with_media))
    }

    /// The machine as a tree in numbers, without streams.
    fn topology(&self, gpus: u64) -> Topology {
        let machine = Self {
            gpus: Some(self.gpus.unwrap_or(gpus)),
            ..self.clone()
        };
        Topology::new(&Scenario::of(machine))
    }
}

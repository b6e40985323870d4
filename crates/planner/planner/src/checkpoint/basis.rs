//! The formulas and constants of a checkpoint, with their sources and bands.

use straightway_scenario::provenance::{Basis, Citation, Confidence, Formula};

use super::{CheckpointQuestion, interval};
use crate::{capacity::assume_capacities, path, redundancy};

const ADAM: Citation = Citation::read("mlcommons/storage", "submission guidelines: 14 bytes a parameter");

/// GPU hours between failures, by source.
const MTBF_BAND: Citation = Citation::quoted(
    "Llama 3, BLOOM, OPT-175B, Meta RSC",
    "50,677, about 43,000, 13,600 and 8,000 GPU-hours",
);

/// No published figure covers this part alone, so the band is wide.
const RESTART: Citation = Citation {
    name: "an assumption",
    place: "1 to 30 minutes: detect, replace, start processes",
    confidence: Confidence::Assumed,
};

/// 419 unexpected interruptions of 16,384 GPUs in 54 days.
const LLAMA_MTBF: Citation = Citation::read("Llama 3 405B, press", "419 in 54 d on 16,384 GPUs: 50,677 h a GPU");

/// Stops of one process that saves 8.6 GB, and the pinned copy of those bytes.
const SNAPSHOT: Citation = Citation::read(
    "PyTorch 2.11 on an H200 host: DCP async_save of 8.6 GB, and copies into pinned and pageable memory",
    "stops of 4.8 to 7.6 s; 55.1 GB/s pinned, 5.9 pageable, 1.13 with pinning and serialising",
);

const SIZE: Formula = Formula {
    gives: "checkpoint size and time",
    text: "S = bytes_per_parameter × P; T = S/B + T_sync; B = min(nodes · path, storage, servers · line rate · efficiency / ingress, ranks · writer, nodes · client)",
    source: Citation::read("Storage Infrastructure for AI", "checkpoint time formula"),
};

const ASYNCHRONOUS: Formula = Formula {
    gives: "asynchronous save",
    text: "stop = T_sync + fixed + S/min(ranks · snapshot rate, D2H of the nodes); flush needs B ≥ S/(overlap·W); a failure also loses the flush under way",
    source: Citation::computed("definition", "restart lengthened by the flush time"),
};

/// With a sharded optimizer every byte is read once, without it by every data-parallel replica.
const REPLICAS: Citation = Citation {
    name: "an assumption",
    place: "a sharded job reads every byte once; set it to the data-parallel size of a job that is not sharded",
    confidence: Confidence::Assumed,
};

const RECOVERY: Formula = Formula {
    gives: "recovery",
    text: "R = restart + replicas · S/B_read, by the path the checkpoint was saved by",
    source: Citation::computed("definition", ""),
};

impl CheckpointQuestion {
    pub(super) fn basis(&self, mtbf_s: f64) -> Basis {
        let mut basis = Basis::of(&[SIZE, ASYNCHRONOUS, RECOVERY, redundancy::FORMULA]);
        basis.formulas.extend(path::FORMULAS);
        basis.formulas.extend(interval::FORMULAS);
        let (storage, cluster) = (&self.storage, &self.cluster);
        // First, because it has the largest effect and does not depend on the number of GPUs.
        storage.assume(&mut basis);
        if self.model.size.is_none() {
            let bytes = self.model.bytes_per_parameter();
            basis.parameter("model", "bytes per parameter", bytes, "B", ADAM);
        }
        let mtbf = cluster.mtbf_per_gpu.0;
        basis
            .parameter(
                "cluster.mtbf_per_gpu",
                "mean time between failures of a GPU",
                mtbf,
                "s",
                LLAMA_MTBF,
            )
            .between(8_000.0 * 3600.0, 50_677.0 * 3600.0, MTBF_BAND);
        let source = Citation::computed("one GPU's over their number", "");
        basis.assume("mean time between failures of the job", mtbf_s, "s", source);
        basis
            .parameter(
                "schedule.restart",
                "from a failure until the read",
                self.schedule.restart.0,
                "s",
                RESTART,
            )
            .between(60.0, 1800.0, RESTART);
        if self.schedule.asynchronous {
            let snapshot = &self.schedule.snapshot;
            let what = "fixed part of an asynchronous stop";
            basis
                .parameter("schedule.snapshot.fixed", what, snapshot.fixed.0, "s", SNAPSHOT)
                .between(0.0, 4.6, SNAPSHOT);
            let what = "copy of one rank's state to host memory, pinning and serialising included";
            basis
                .parameter("schedule.snapshot.rate", what, snapshot.rate.0, "B/s", SNAPSHOT)
                .between(1.13e9, 55.1e9, SNAPSHOT);
        }
        let replicas = self.cluster.replicas as f64;
        let what = "replicas that read the checkpoint back";
        basis.parameter("cluster.replicas", what, replicas, "", REPLICAS);
        let capacity = ("storage.capacity", storage.capacity);
        let host = self.node.host.memory;
        assume_capacities(&mut basis, cluster.gpu_memory, host, capacity);
        self.node.assume(&mut basis, self.gpus_in_node());
        basis
    }
}

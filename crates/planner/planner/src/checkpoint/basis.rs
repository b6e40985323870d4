//! The formulas and constants of a checkpoint, with their sources and bands.

use straightway_scenario::provenance::{Basis, Citation, Confidence, Formula};

use super::{CheckpointQuestion, interval};
use crate::{
    capacity::{LLAMA_STORAGE, assume_capacities},
    path,
};

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

const SIZE: Formula = Formula {
    gives: "checkpoint size and time",
    text: "S = bytes_per_parameter × P; T = S/B + T_sync",
    source: Citation::read("seed article on storage networking", "checkpoint time formula"),
};

const ASYNCHRONOUS: Formula = Formula {
    gives: "asynchronous save",
    text: "stop = S/D2H + T_sync; flush needs B ≥ S/(overlap·W); a failure also loses the flush under way",
    source: Citation::computed("definition", "restart lengthened by the flush time"),
};

const RECOVERY: Formula = Formula {
    gives: "recovery",
    text: "R = restart + S/B_read; every byte is read once, by the path the checkpoint was saved by",
    source: Citation::computed("definition", ""),
};

impl CheckpointQuestion {
    pub(super) fn basis(&self, mtbf_s: f64) -> Basis {
        let mut basis = Basis::of(&[SIZE, ASYNCHRONOUS, RECOVERY]);
        basis.formulas.extend(path::FORMULAS);
        basis.formulas.extend(interval::FORMULAS);
        let (storage, cluster) = (&self.storage, &self.cluster);
        // First, because it has the largest effect and does not depend on the number of GPUs.
        basis
            .parameter(
                "storage.rate",
                "storage, all nodes together",
                storage.rate.0,
                "B/s",
                LLAMA_STORAGE,
            )
            .between(1e12, 7e12, LLAMA_STORAGE);
        if let Some(rate) = storage.read_rate {
            let what = "storage, reads of all nodes together";
            basis.parameter("storage.read_rate", what, rate.0, "B/s", Citation::SCENARIO);
        }
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
        let capacity = ("storage.capacity", storage.capacity);
        let host = self.node.host.memory;
        assume_capacities(&mut basis, cluster.gpu_memory, host, capacity);
        self.node.assume(&mut basis, self.gpus_in_node());
        basis
    }
}

//! Ingest: whether GPUs wait for their training samples.
//!
//! A step needs `batch × sample` bytes for each GPU within its compute time. Accelerator utilisation (AU), the measure
//! of MLPerf Storage, is compute time divided by run time. With prefetch a step takes the longest of compute, read,
//! lookups and decode; without prefetch it takes their sum.

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

use crate::question::Question;
use crate::{
    capacity::{GPU_MEMORY, LLAMA_STORAGE, STORAGE_CAPACITY, assume_capacities, shown_bytes},
    client::Clients,
    path::{self, ComputeNode, Flow, PathEstimate},
    queue::{self, Wait},
    servers::Servers,
};
use straightway_scenario::check::Refusals;
use straightway_scenario::{
    check::{BYTES_ANY, Checkable, Checker, RATE_ANY, TIME_ANY, TIME_POSITIVE},
    provenance::{Basis, Citation, Formula},
};

/// The input of the topic `ingest`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IngestQuestion {
    /// The training load of one GPU.
    #[serde(default)]
    pub training: Training,
    /// The cluster.
    #[serde(default)]
    pub cluster: IngestCluster,
    /// One node and its path to storage.
    #[serde(default)]
    pub node: ComputeNode,
    /// The files that hold the samples.
    #[serde(default)]
    pub files: SampleFiles,
}

/// The training load of one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Training {
    /// Samples per step of one GPU.
    pub batch: u64,
    /// The size of a sample.
    pub sample: Bytes,
    /// The compute time of a step.
    pub compute: Seconds,
    /// Whether the next step is read during the compute of the current one.
    pub prefetch: bool,
    /// Reader processes of one GPU.
    pub readers: u64,
    /// CPU time to decode a sample.
    pub decode: Seconds,
    /// The required utilisation.
    pub target: f64,
}

/// The cluster that trains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IngestCluster {
    /// The number of GPUs.
    pub gpus: u64,
    /// The number of GPUs per node.
    pub gpus_per_node: u64,
    /// Cores per node that decode.
    pub cores_per_node: u64,
    /// The total read rate of the storage, independent of the number of nodes.
    pub storage_rate: Rate,
    /// The storage servers.
    pub servers: Servers,
    /// The software of the clients.
    pub clients: Clients,
    /// The capacity of the storage.
    pub storage_capacity: Bytes,
    /// The memory of a GPU.
    pub gpu_memory: Bytes,
}

/// The files that hold the samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SampleFiles {
    /// Files opened for one sample; a shard with a thousand samples is 0.001.
    pub per_sample: f64,
    /// Metadata lookups per file.
    pub lookups: f64,
    /// The number of metadata servers.
    pub servers: u64,
    /// Lookups per second of one metadata server.
    pub lookups_per_s: f64,
    /// The size of the data set.
    pub dataset: Bytes,
}

/// The answer of the topic `ingest`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IngestAnswer {
    /// The rate that one GPU consumes without waiting.
    pub per_gpu_bytes_per_s: f64,
    /// The rate that one GPU needs for the target.
    pub per_gpu_at_target_bytes_per_s: f64,
    /// The rate that all GPUs consume without waiting.
    pub all_bytes_per_s: f64,
    /// Training fed by the standard path.
    pub standard: IngestOutcome,
    /// Training fed by the direct path.
    pub direct: IngestOutcome,
    /// Lookups per second if no GPU waits.
    pub lookups_per_s: f64,
    /// The queue of the metadata servers at that load.
    pub metadata: Wait,
    /// Cores per node needed to decode if no GPU waits.
    pub decode_cores_per_node: f64,
    /// The bytes of samples that a GPU holds: one step, and the next step with prefetch.
    pub held_per_gpu_bytes: f64,
    /// The formulas and constants behind the answer.
    pub basis: Basis,
}

/// Training fed by one path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IngestOutcome {
    /// The path's performance.
    pub path: PathEstimate,
    /// The read rate per GPU.
    pub per_gpu_bytes_per_s: f64,
    /// The read time of a step.
    pub read_s: f64,
    /// The time of a step.
    pub step_s: f64,
    /// Accelerator utilisation.
    pub utilisation: f64,
    /// The bottleneck of the step.
    pub bound_by: &'static str,
    /// Whether the target is met.
    pub target_met: bool,
    /// The number of GPUs that the nodes, the storage, the metadata servers and the decoding cores can feed at the
    /// target.
    pub gpus_at_target: f64,
}

const UNET3D: Citation = Citation::read(
    "mlcommons/storage unet3d_h100.yaml",
    "7 × 146.6 MB in 0.323 s, AU ≥ 90 %",
);

const UNET3D_FILES: Citation = Citation::read(
    "mlcommons/storage_results_v1.0",
    "36 H100s: at least 126,000 files, 500 steps",
);

const FORMULAS: [Formula; 2] = [
    Formula {
        gives: "accelerator utilisation",
        text: "AU = compute time / run time; a step is max(compute, read, lookups, decode) with prefetch, their sum without; GPUs fed: as many as keep it at compute / target",
        source: Citation::read("mlcommons/storage submission guidelines", "accelerator utilisation"),
    },
    queue::MMC,
];

impl Default for Training {
    fn default() -> Self {
        Self {
            batch: 7,
            sample: Bytes(146_600_628),
            compute: Seconds(0.323),
            prefetch: true,
            readers: 8,
            decode: Seconds(0.0),
            target: 0.9,
        }
    }
}

impl Default for IngestCluster {
    fn default() -> Self {
        Self {
            gpus: 64,
            gpus_per_node: 8,
            cores_per_node: 96,
            storage_rate: Rate(2e12),
            servers: Servers::default(),
            clients: Clients::default(),
            storage_capacity: STORAGE_CAPACITY,
            gpu_memory: GPU_MEMORY,
        }
    }
}

impl Default for SampleFiles {
    fn default() -> Self {
        Self {
            per_sample: 1.0,
            lookups: 2.0,
            servers: 2,
            lookups_per_s: 100e3,
            // 126,000 files of one sample.
            dataset: Bytes(126_000 * 146_600_628),
        }
    }
}

impl Checkable for IngestQuestion {
    fn check(&self, c: &mut Checker) {
        c.within("training", |c| {
            let training = &self.training;
            c.count("batch", training.batch, 1..=10_000_000);
            c.bytes("sample", training.sample, BYTES_ANY);
            c.seconds("compute", training.compute, TIME_POSITIVE);
            c.count("readers", training.readers, 1..=4096);
            c.seconds("decode", training.decode, TIME_ANY);
            c.range("target", training.target, 0.001..=1.0, "");
        });
        c.within("cluster", |c| {
            let cluster = &self.cluster;
            c.count("gpus", cluster.gpus, 1..=10_000_000);
            c.count("gpus_per_node", cluster.gpus_per_node, 1..=1024);
            c.count("cores_per_node", cluster.cores_per_node, 1..=4096);
            c.rate("storage_rate", cluster.storage_rate, RATE_ANY);
            c.within("servers", |c| cluster.servers.check(c));
            c.within("clients", |c| cluster.clients.check(c));
            c.bytes("storage_capacity", cluster.storage_capacity, BYTES_ANY);
            c.bytes("gpu_memory", cluster.gpu_memory, BYTES_ANY);
        });
        c.nested("node", &self.node);
        c.within("files", |c| {
            c.range("per_sample", self.files.per_sample, 0.0..=1e6, "");
            c.range("lookups", self.files.lookups, 0.0..=1000.0, "");
            c.count("servers", self.files.servers, 1..=1_000_000);
            c.range("lookups_per_s", self.files.lookups_per_s, 1.0..=1e12, "per s");
            c.bytes("dataset", self.files.dataset, BYTES_ANY);
        });
        if c.is_clean() {
            self.check_capacities(c);
        }
    }
}

impl IngestQuestion {
    /// Computes the answer.
    fn compute(&self) -> IngestAnswer {
        let (training, cluster, files) = (&self.training, &self.cluster, &self.files);
        let per_gpu = self.step_bytes() / training.compute.0;
        let steps_per_s = cluster.gpus as f64 / training.compute.0;
        let lookups_per_s = steps_per_s * self.lookups_of_step();
        let node_gpus = self.gpus_in_node() as f64;
        let (standard, direct) = self.node.estimate_both(Flow::Read, self.gpus_in_node());
        IngestAnswer {
            per_gpu_bytes_per_s: per_gpu,
            per_gpu_at_target_bytes_per_s: per_gpu * training.target,
            all_bytes_per_s: per_gpu * cluster.gpus as f64,
            standard: self.outcome(standard),
            direct: self.outcome(direct),
            lookups_per_s,
            metadata: queue::mmc(files.servers, files.lookups_per_s, lookups_per_s),
            decode_cores_per_node: node_gpus * training.batch as f64 * training.decode.0 / training.compute.0,
            held_per_gpu_bytes: self.held_bytes(),
            basis: self.basis(),
        }
    }

    /// Refuses samples or a data set that do not fit GPU memory, host memory or storage, and says what would be enough.
    fn check_capacities(&self, c: &mut Checker) {
        let (cluster, held) = (&self.cluster, self.held_bytes());
        let memory = cluster.gpu_memory;
        if held > memory.0 as f64 {
            let gpus = (held * cluster.gpus as f64 / memory.0 as f64).ceil();
            let allowed = format!(
                "at least {} for the samples it holds (or the same samples a step over {gpus:.0} GPUs of {memory})",
                shown_bytes(held)
            );
            c.refuse("cluster.gpu_memory", memory, allowed);
            // More GPUs bring more hosts.
            return;
        }
        let (memory, gpus) = (self.node.host.memory, self.gpus_in_node());
        let staged = held * gpus as f64;
        if staged > memory.0 as f64 {
            let fit = (memory.0 as f64 / held).floor();
            let others = if fit < 1.0 {
                String::new()
            } else {
                let hosts = (cluster.gpus as f64 / fit).ceil();
                format!(" (or {hosts:.0} hosts of {memory} with {fit:.0} GPUs each)")
            };
            let allowed = format!(
                "at least {} to stage the samples of {gpus} GPUs{others}",
                shown_bytes(staged)
            );
            c.refuse("node.host.memory", memory, allowed);
        }
        let (dataset, capacity) = (self.files.dataset, cluster.storage_capacity);
        if dataset > capacity {
            let allowed = format!("at least {dataset}, the data set");
            c.refuse("cluster.storage_capacity", capacity, allowed);
        }
    }

    /// The bytes of samples that a GPU holds: one step, and the next step with prefetch.
    fn held_bytes(&self) -> f64 {
        let steps = if self.training.prefetch { 2.0 } else { 1.0 };
        steps * self.step_bytes()
    }

    fn step_bytes(&self) -> f64 {
        self.training.batch as f64 * self.training.sample.0 as f64
    }

    fn lookups_of_step(&self) -> f64 {
        self.training.batch as f64 * self.files.per_sample * self.files.lookups
    }

    fn gpus_in_node(&self) -> u64 {
        self.cluster.gpus_per_node.min(self.cluster.gpus)
    }

    /// The read rate of one GPU: its share of the node's path, of the storage and its servers, and what its readers and
    /// the node's client reach.
    fn per_gpu(&self, path: &PathEstimate) -> f64 {
        let (cluster, gpus) = (&self.cluster, self.cluster.gpus as f64);
        let in_node = self.gpus_in_node() as f64;
        let readers = self.training.readers as f64;
        let limits = [
            Some(path.rate_bytes_per_s / in_node),
            Some(cluster.storage_rate.0 / gpus),
            cluster.servers.bytes_per_s().map(|rate| rate / gpus),
            cluster.clients.reader_bytes_per_s().map(|rate| rate * readers),
            cluster.clients.node_bytes_per_s().map(|rate| rate / in_node),
        ];
        limits.into_iter().flatten().fold(f64::MAX, f64::min)
    }

    fn outcome(&self, path: PathEstimate) -> IngestOutcome {
        let (training, cluster) = (&self.training, &self.cluster);
        let gpus = cluster.gpus as f64;
        let per_gpu = self.per_gpu(&path);
        let read_s = self.step_bytes() / per_gpu;
        // All GPUs share the metadata servers. The GPUs of a node share its cores for decoding.
        let served = self.files.servers as f64 * self.files.lookups_per_s;
        let lookup_s = self.lookups_of_step() * gpus / served;
        let cores = cluster.cores_per_node as f64 / self.gpus_in_node() as f64;
        let decode_s = training.batch as f64 * training.decode.0 / cores;
        let parts = [
            (training.compute.0, "compute"),
            (read_s, "reading"),
            (lookup_s, "metadata"),
            (decode_s, "decoding"),
        ];
        let (longest, bound_by) = parts
            .into_iter()
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .expect("a step has four parts");
        let sum: f64 = parts.iter().map(|(seconds, _)| seconds).sum();
        let step_s = if training.prefetch { longest } else { sum };
        let utilisation = training.compute.0 / step_s;
        // The times of read, lookups and decode grow in proportion to the number of GPUs that share them.
        let feeding = [read_s, lookup_s, decode_s];
        let at_target_s = training.compute.0 / training.target;
        let fed = if training.prefetch {
            at_target_s / feeding.into_iter().fold(0.0, f64::max)
        } else {
            (at_target_s - training.compute.0) / feeding.into_iter().sum::<f64>()
        };
        IngestOutcome {
            per_gpu_bytes_per_s: per_gpu,
            read_s,
            step_s,
            utilisation,
            bound_by,
            target_met: utilisation >= training.target,
            gpus_at_target: (fed * gpus).floor(),
            path,
        }
    }

    fn basis(&self) -> Basis {
        let mut basis = Basis::of(&FORMULAS);
        basis.formulas.extend(path::FORMULAS);
        let (training, cluster) = (&self.training, &self.cluster);
        let rate = cluster.storage_rate.0;
        basis
            .parameter(
                "cluster.storage_rate",
                "storage, all nodes together",
                rate,
                "B/s",
                LLAMA_STORAGE,
            )
            .between(1e12, 7e12, LLAMA_STORAGE);
        cluster.servers.assume(&mut basis, "cluster.servers");
        cluster.clients.assume(&mut basis, "cluster.clients");
        basis.parameter("training.sample", "sample", training.sample.0 as f64, "B", UNET3D);
        basis.parameter("training.compute", "compute of a step", training.compute.0, "s", UNET3D);
        basis.parameter("training.batch", "samples in a step", training.batch as f64, "", UNET3D);
        let storage = ("cluster.storage_capacity", cluster.storage_capacity);
        let host = self.node.host.memory;
        assume_capacities(&mut basis, cluster.gpu_memory, host, storage);
        basis.parameter(
            "files.dataset",
            "data set",
            self.files.dataset.0 as f64,
            "B",
            UNET3D_FILES,
        );
        self.node.assume(&mut basis, self.gpus_in_node());
        basis
    }
}

impl Question for IngestQuestion {
    const NAME: &'static str = "ingest";
    type Answer = IngestAnswer;

    fn answer(&self) -> Result<IngestAnswer, Refusals> {
        Ok(self.compute())
    }

    fn verdict(answer: &IngestAnswer) -> String {
        match (answer.standard.target_met, answer.direct.target_met) {
            (true, true) => "target met by both paths",
            (false, true) => "target met by the direct path alone",
            (true, false) => "target met by the standard path alone",
            (false, false) => "target missed by both paths",
        }
        .to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use straightway_scenario::near::near;

    #[test]
    fn no_more_gpus_are_fed_than_reach_the_target() {
        let mut slow = IngestQuestion::default();
        slow.training.decode = Seconds(1.0);
        let mut crowded = IngestQuestion::default();
        crowded.files.lookups_per_s = 100.0;
        let mut in_turn = IngestQuestion::default();
        in_turn.training.prefetch = false;
        in_turn.training.target = 0.2;
        for mut asked in [IngestQuestion::default(), slow, crowded, in_turn] {
            let outcome = asked.compute().direct;
            assert_eq!(outcome.target_met, outcome.gpus_at_target >= 64.0, "{outcome:?}");
            // With all rates scaled to the number of GPUs, the number fed meets the target and one more does
            // not.
            let per_gpu = |what: f64, gpus: f64| what * 64.0 / gpus;
            let meets = |asked: &mut IngestQuestion, gpus: f64| {
                let mut given = asked.clone();
                given.cluster.storage_rate = Rate(outcome.per_gpu_bytes_per_s * 64.0);
                given.node.media.rate = Some(Rate(1e15));
                given.node.hop = None;
                given.node.host.peer_rate = Some(Rate(1e15));
                given.node.host.cores = 4096;
                given.node.direct_depth = 1_000_000;
                given.training.decode.0 *= gpus / 64.0;
                given.files.lookups_per_s = per_gpu(given.files.lookups_per_s, gpus);
                given.cluster.storage_rate = Rate(per_gpu(given.cluster.storage_rate.0, gpus));
                given.compute().direct.target_met
            };
            let fed = outcome.gpus_at_target;
            assert!(meets(&mut asked, fed.max(1.0)) || fed < 1.0, "{outcome:?}");
            assert!(!meets(&mut asked, fed + 1.0), "{outcome:?}");
        }
    }

    #[test]
    fn readers_of_an_object_store_and_the_ports_of_its_servers_limit_a_gpu() {
        let mut asked = IngestQuestion::default();
        asked.cluster.clients.kind = crate::client::ClientKind::S3;
        asked.training.readers = 1;
        near(asked.compute().direct.per_gpu_bytes_per_s, 1.2e9, 1e-9);
        asked.cluster.servers.count = Some(2);
        near(
            asked.compute().direct.per_gpu_bytes_per_s,
            2.0 * 12.5e9 * 0.9 / 64.0,
            1e-9,
        );
    }

    #[test]
    fn local_drives_feed_the_gpus_of_their_node() {
        let mut asked = IngestQuestion::default();
        asked.node.hop = None;
        asked.node.machine.as_mut().unwrap().drives[0].rate = Rate(5e9);
        near(asked.compute().direct.per_gpu_bytes_per_s, 5e9, 1e-9);
        asked.node.machine.as_mut().unwrap().drives[0].count = 2;
        near(asked.compute().direct.per_gpu_bytes_per_s, 2.0 * 5e9 / 8.0, 1e-9);
    }

    #[test]
    fn unet3d_on_an_h100_consumes_3_18_gb_per_second() {
        // unet3d_h100.yaml, within 1 %.
        near(IngestQuestion::default().compute().per_gpu_bytes_per_s, 3.18e9, 0.01);
    }

    #[test]
    fn half_the_bandwidth_halves_the_utilisation() {
        let mut asked = IngestQuestion::default();
        let need = asked.compute().all_bytes_per_s;
        asked.cluster.storage_rate = Rate(need / 2.0);
        let answer = asked.compute();
        near(answer.direct.utilisation, 0.5, 1e-9);
        assert_eq!((answer.direct.bound_by, answer.direct.target_met), ("reading", false));
        asked.cluster.storage_rate = Rate(need * 0.91);
        near(asked.compute().direct.utilisation, 0.91, 1e-9);
        assert!(asked.compute().direct.target_met);
    }

    #[test]
    fn without_prefetch_utilisation_is_lower() {
        let mut asked = IngestQuestion::default();
        let with = asked.compute().direct.utilisation;
        asked.training.prefetch = false;
        assert!(asked.compute().direct.utilisation < with);
    }

    #[test]
    fn a_file_for_every_small_sample_is_bound_by_metadata() {
        let training = Training {
            batch: 1024,
            sample: Bytes::kib(110),
            compute: Seconds(0.2),
            ..Training::default()
        };
        let mut asked = IngestQuestion {
            training,
            ..IngestQuestion::default()
        };
        asked.cluster.gpus = 1024;
        assert_eq!(asked.compute().direct.bound_by, "metadata");
        asked.files.per_sample = 0.001;
        assert_eq!(asked.compute().direct.bound_by, "compute");
    }
}

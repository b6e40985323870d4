//! The checkpoint estimator: the time of a save, the time training stops, and the goodput of a job.
//!
//! The size of a checkpoint is `S = bytes_per_parameter × parameters`. Its time is `S / B + T_sync`, where `B` comes
//! from the [path](crate::path) of every node and the storage behind them, not from a factor for "GDS". Availability,
//! goodput and the cost of lost time follow from that time, the cluster's failure rate and the interval. Three ways are
//! compared: saving through host memory, saving directly from the GPUs, and copying to host memory with an asynchronous
//! flush.

mod answer;
mod basis;
pub mod failures;
pub mod interval;
mod limits;
mod storage;

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

pub use self::{
    answer::{CheckpointAnswer, CheckpointOutcome, GoodputPoint, Ways},
    failures::SimulatedGoodput,
    storage::Storage,
};
use self::{
    failures::{Job, Trials},
    interval::{availability, availability_of_cycle, daly_s, goodput, training, young_s},
};
use crate::capacity::GPU_MEMORY;
use crate::path::{ComputeNode, Flow, PathEstimate};
use crate::question::Question;
use straightway_scenario::check::Refusals;

/// The input of the topic `checkpoint`: a model, a cluster, its storage and a schedule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointQuestion {
    /// The state that is saved.
    #[serde(default)]
    pub model: ModelState,
    /// The cluster that trains the model.
    #[serde(default)]
    pub cluster: CheckpointCluster,
    /// One node and its path to storage.
    #[serde(default)]
    pub node: ComputeNode,
    /// The storage of all nodes.
    #[serde(default)]
    pub storage: Storage,
    /// The schedule of saves.
    #[serde(default)]
    pub schedule: Schedule,
    /// The size of the failure simulation.
    #[serde(default)]
    pub trials: Trials,
}

/// The state of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelState {
    /// The number of parameters, such as 70e9 or `70B`.
    #[serde(deserialize_with = "crate::parameters::deserialize")]
    pub parameters: f64,
    /// Bytes of weights per parameter: 2 for 16 bits.
    pub weight_bytes: f64,
    /// Bytes of optimizer state and master weights per parameter: 12 for Adam in 32 bits, 0 for weights alone.
    pub optimizer_bytes: f64,
    /// Bytes of gradients per parameter, if they are saved: 2 for 16 bits.
    pub gradient_bytes: f64,
    /// The size of the checkpoint, if known; overrides the bytes per parameter.
    pub size: Option<Bytes>,
}

/// The cluster that trains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointCluster {
    /// The number of GPUs in the job.
    pub gpus: u64,
    /// The number of GPUs per node.
    pub gpus_per_node: u64,
    /// Data-parallel replicas that each read the whole checkpoint back; 1 if every byte is read once.
    pub replicas: u64,
    /// The memory of one GPU.
    pub gpu_memory: Bytes,
    /// Mean time between failures of one GPU and its share of the node.
    pub mtbf_per_gpu: Seconds,
    /// The power of the cluster while training, in watts.
    pub power_w: f64,
    /// The share of that power drawn while waiting; 1 gives the upper bound of wasted power.
    pub idle_power_share: f64,
    /// The cost of a GPU hour, in any currency.
    pub gpu_hour_cost: f64,
}

/// The schedule of saves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Schedule {
    /// Training time between saves; absent for Daly's interval.
    pub interval: Option<Seconds>,
    /// The time from a failure until the restore starts: detection, new nodes, start of the processes.
    pub restart: Seconds,
    /// Whether asynchronous saving (copy to host memory, then flush) is also planned.
    pub asynchronous: bool,
    /// The copy of the state to host memory that an asynchronous save begins with.
    pub snapshot: Snapshot,
    /// The share of the interval that an asynchronous flush may take.
    pub overlap: f64,
    /// The required availability, for which the answer gives the bandwidth.
    pub target_availability: f64,
    /// A gain in availability (0.1 is ten points), for which the answer gives the interval.
    pub target_gain: Option<f64>,
}

/// The software's part of the copy to host memory, for which training stops.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Snapshot {
    /// The fixed time: planning, gathering the state, starting the writer.
    pub fixed: Seconds,
    /// The rate at which one rank pins host memory, serialises its state and copies it. The links of the node limit all
    /// ranks together.
    pub rate: Rate,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self {
            fixed: Seconds(0.5),
            // Copies into pageable memory, as frameworks make without a pinned pool.
            rate: Rate(5.9e9),
        }
    }
}

impl Default for ModelState {
    fn default() -> Self {
        Self {
            parameters: 405.9e9,
            weight_bytes: 2.0,
            optimizer_bytes: 12.0,
            gradient_bytes: 0.0,
            size: None,
        }
    }
}

impl Default for CheckpointCluster {
    fn default() -> Self {
        Self {
            gpus: 1024,
            gpus_per_node: 8,
            replicas: 1,
            gpu_memory: GPU_MEMORY,
            mtbf_per_gpu: Seconds(50_677.0 * 3600.0),
            power_w: 1.2e6,
            idle_power_share: 1.0,
            gpu_hour_cost: 2.0,
        }
    }
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            interval: None,
            restart: Seconds(300.0),
            asynchronous: true,
            snapshot: Snapshot::default(),
            overlap: 0.9,
            target_availability: 0.99,
            target_gain: None,
        }
    }
}

/// The size, rate and times of one way of saving and restoring.
struct Save {
    size: f64,
    rate: f64,
    bound_by: String,
    durable_s: f64,
    stop_s: f64,
    restore_s: f64,
}

impl ModelState {
    fn bytes_per_parameter(&self) -> f64 {
        self.weight_bytes + self.optimizer_bytes + self.gradient_bytes
    }

    fn size_bytes(&self) -> f64 {
        match self.size {
            Some(size) => size.0 as f64,
            None => self.bytes_per_parameter() * self.parameters,
        }
    }
}

impl CheckpointQuestion {
    /// Computes the answer; refuses an interval shorter than every way of saving.
    fn compute(&self) -> Result<CheckpointAnswer, Refusals> {
        let size_bytes = self.model.size_bytes();
        let nodes = self.cluster.gpus.div_ceil(self.cluster.gpus_per_node);
        let mtbf_s = self.cluster.mtbf_per_gpu.0 / self.cluster.gpus as f64;
        let node_gpus = self.gpus_in_node();
        let (standard, direct) = self.node.estimate_both(Flow::Write, node_gpus);
        let ways = self.ways(size_bytes, mtbf_s, (&standard, &direct));
        self.refuse_short_interval(&ways)?;
        let work_s = ways.standard.interval_s;
        let writing_for_target_s = self.stop_for_target_s(mtbf_s) - self.storage.sync.0;
        Ok(CheckpointAnswer {
            size_bytes,
            bytes_per_parameter: size_bytes / self.model.parameters,
            size_at_16_bytes: 16.0 * self.model.parameters,
            parameters_at_14_bytes: size_bytes / 14.0,
            nodes,
            mtbf_s,
            gain: ways.standard.durable_s / ways.direct.durable_s,
            gain_points: availability(ways.direct.stop_s, work_s) - availability(ways.standard.stop_s, work_s),
            interval_for_gain_s: self
                .schedule
                .target_gain
                .and_then(|gain| interval::interval_for_gain_s(ways.standard.stop_s, ways.direct.stop_s, gain)),
            rate_for_target_bytes_per_s: (writing_for_target_s > 0.0).then_some(size_bytes / writing_for_target_s),
            // C / (W + C) = 1/5 at W = 4 C.
            interval_for_fifth_s: 4.0 * ways.standard.stop_s,
            curve: Self::curve(&ways, mtbf_s),
            basis: self.basis(mtbf_s),
            standard,
            direct,
            ways,
        })
    }

    /// The number of GPUs of a node that belong to the job.
    fn gpus_in_node(&self) -> u64 {
        self.cluster.gpus_per_node.min(self.cluster.gpus)
    }

    /// The longest stop for a save that keeps the target availability. If no interval is given, the interval is the
    /// best one for that stop, not for the current path.
    fn stop_for_target_s(&self, mtbf_s: f64) -> f64 {
        let target = self.schedule.target_availability;
        match self.schedule.interval {
            Some(work) => work.0 * (1.0 - target) / target,
            None => interval::save_for_availability_s(mtbf_s, target),
        }
    }

    fn ways(&self, size: f64, mtbf_s: f64, (standard, direct): (&PathEstimate, &PathEstimate)) -> Ways {
        let together = |path: &PathEstimate, flow| self.storage.together(&self.cluster, path, flow);
        let (read_standard, read_direct) = self.node.estimate_both(Flow::Read, self.gpus_in_node());
        let save = |write: &PathEstimate, read: &PathEstimate, snapshot_s: Option<f64>| {
            let (rate, bound_by) = together(write, Flow::Write);
            let written_s = size / rate;
            // A flush starts when the snapshot is complete.
            let stop_s = snapshot_s.unwrap_or(written_s) + self.storage.sync.0;
            let (read_rate, _) = together(read, Flow::Read);
            self.outcome(
                Save {
                    size,
                    rate,
                    bound_by,
                    durable_s: stop_s + snapshot_s.map_or(0.0, |_| written_s),
                    stop_s,
                    restore_s: size * self.cluster.replicas as f64 / read_rate,
                },
                mtbf_s,
            )
        };
        Ways {
            standard: save(standard, &read_standard, None),
            direct: save(direct, &read_direct, None),
            // The flush uses the standard path, but training does not wait for it.
            asynchronous: self
                .schedule
                .asynchronous
                .then(|| save(standard, &read_standard, Some(self.snapshot_s(size)))),
        }
    }

    /// The time to copy the state into host memory: the software of each rank, or the links of the nodes.
    fn snapshot_s(&self, size: f64) -> f64 {
        let (cluster, snapshot) = (&self.cluster, &self.schedule.snapshot);
        let nodes = cluster.gpus.div_ceil(cluster.gpus_per_node) as f64;
        let links = nodes * self.node.from_gpus_bytes_per_s(self.gpus_in_node());
        let ranks = cluster.gpus as f64 * snapshot.rate.0;
        snapshot.fixed.0 + size / links.min(ranks)
    }

    fn outcome(&self, save: Save, mtbf_s: f64) -> CheckpointOutcome {
        let Save {
            size,
            rate,
            bound_by,
            durable_s,
            stop_s,
            restore_s,
        } = save;
        let (young_s, daly_s) = (young_s(mtbf_s, stop_s), daly_s(mtbf_s, stop_s));
        let flush_s = durable_s - stop_s.min(durable_s);
        // A synchronous save must end before the next one starts. An asynchronous flush must end within its share
        // of the interval.
        let shortest_s = if flush_s > 0.0 {
            stop_s.max(size / rate / self.schedule.overlap)
        } else {
            stop_s
        };
        // A computed interval must leave room for the flush.
        let found = if flush_s > 0.0 { daly_s.max(shortest_s) } else { daly_s };
        let interval_s = self.schedule.interval.map_or(found, |interval| interval.0);
        let recovery_s = self.schedule.restart.0 + restore_s;
        let restart_s = recovery_s + flush_s;
        let goodput = goodput(mtbf_s, stop_s, interval_s, restart_s);
        let job = Job {
            mtbf_s,
            save_s: stop_s,
            work_s: interval_s,
            restart_s,
        };
        let (cluster, lost) = (&self.cluster, 1.0 - goodput);
        // The cluster idles while it saves or restarts. Training lost to failures ran at full power, and so did
        // training repeated because a flush was lost.
        let idle = (1.0 - training(mtbf_s, stop_s, interval_s, recovery_s)).clamp(0.0, lost);
        let hours = lost * cluster.gpus as f64 * 24.0;
        CheckpointOutcome {
            durable_s,
            rate_bytes_per_s: rate,
            bound_by,
            stop_s,
            restore_s,
            recovery_s,
            young_s,
            daly_s,
            interval_s,
            shortest_s,
            fits: shortest_s <= interval_s,
            availability: availability(stop_s, interval_s),
            availability_of_cycle: availability_of_cycle(stop_s, interval_s),
            goodput,
            played: failures::simulate(job, &self.trials),
            rate_needed_bytes_per_s: size / (self.schedule.overlap * interval_s),
            wasted_w: cluster.power_w * (lost - idle * (1.0 - cluster.idle_power_share)),
            wasted_w_max: cluster.power_w * lost,
            lost_gpu_hours_per_day: hours,
            lost_cost_per_day: hours * cluster.gpu_hour_cost,
        }
    }

    /// Refuses an interval in which no way of saving completes.
    fn refuse_short_interval(&self, ways: &Ways) -> Result<(), Refusals> {
        let Some(interval) = self.schedule.interval else {
            return Ok(());
        };
        if ways.all().any(|way| way.fits) {
            return Ok(());
        }
        let fastest_s = ways.all().map(|way| way.shortest_s).fold(f64::INFINITY, f64::min);
        Err(Refusals::one(
            "schedule.interval",
            interval.to_string(),
            format!(
                "at least {}, the time of the fastest save (leave it out for the best interval)",
                Seconds(fastest_s)
            ),
        ))
    }

    /// Goodput from a tenth to ten times the best interval.
    fn curve(ways: &Ways, mtbf_s: f64) -> Vec<GoodputPoint> {
        const POINTS: i32 = 41;
        let middle = ways.standard.daly_s;
        let at = |outcome: &CheckpointOutcome, work_s: f64| {
            let flush_s = (outcome.durable_s - outcome.stop_s).max(0.0);
            goodput(mtbf_s, outcome.stop_s, work_s, outcome.recovery_s + flush_s)
        };
        (0..POINTS)
            .map(|i| middle * 10f64.powf(f64::from(i) / f64::from(POINTS - 1) * 2.0 - 1.0))
            .map(|interval_s| GoodputPoint {
                interval_s,
                standard: at(&ways.standard, interval_s),
                direct: at(&ways.direct, interval_s),
                asynchronous: ways
                    .asynchronous
                    .as_ref()
                    .filter(|way| way.shortest_s <= interval_s)
                    .map(|way| at(way, interval_s)),
            })
            .collect()
    }
}

impl Question for CheckpointQuestion {
    const NAME: &'static str = "checkpoint";
    type Answer = CheckpointAnswer;

    fn answer(&self) -> Result<CheckpointAnswer, Refusals> {
        self.compute()
    }

    fn verdict(answer: &CheckpointAnswer) -> String {
        let pays = if answer.gain >= PAYS {
            "direct pays off"
        } else {
            "direct does not pay off"
        };
        let ways = &answer.ways;
        let named = [("standard", Some(&ways.standard)), ("direct", Some(&ways.direct))];
        let named = named.into_iter().chain([("asynchronous", ways.asynchronous.as_ref())]);
        let best = named
            .filter_map(|(name, way)| Some((name, way?.goodput)))
            .max_by(|a, b| a.1.total_cmp(&b.1));
        let best = best.map_or("none", |(name, _)| name);
        format!("{pays}; best goodput {best}")
    }

    fn drop_lists(answer: &mut CheckpointAnswer) {
        answer.curve.clear();
    }
}

/// The smallest gain at which the direct path pays off. A smaller gain is within the uncertainty of the constants.
pub const PAYS: f64 = 1.05;

#[cfg(test)]
mod tests {
    use super::*;
    use straightway_scenario::near::near;

    #[test]
    fn mlperf_sizes_follow_from_14_bytes_a_parameter() {
        // mlcommons/storage submission guidelines, ±3 %; real parameter counts of Llama 3.
        const GIB: f64 = 1_073_741_824.0;
        for (parameters, published_gib) in [(8.03e9, 105.0), (70.6e9, 912.0), (405.9e9, 5.29 * 1024.0)] {
            let model = ModelState {
                parameters,
                ..ModelState::default()
            };
            near(model.size_bytes() / GIB, published_gib, 0.03);
        }
    }

    #[test]
    fn failures_of_one_gpu_and_of_all_are_those_published() {
        // Llama 3 405B: 419 interruptions in 54 days: 3.09 h; MLCommons: 50 kh and 100 k GPUs: half an hour.
        near(54.0 * 24.0 / 419.0, 3.09, 0.01);
        let asked = |gpus, hours: f64| CheckpointQuestion {
            cluster: CheckpointCluster {
                gpus,
                mtbf_per_gpu: Seconds(hours * 3600.0),
                ..CheckpointCluster::default()
            },
            ..CheckpointQuestion::default()
        };
        near(asked(16_384, 50_677.0).compute().unwrap().mtbf_s / 3600.0, 3.093, 0.001);
        near(asked(100_000, 50_000.0).compute().unwrap().mtbf_s, 1800.0, 1e-12);
    }

    #[test]
    fn an_interval_shorter_than_every_save_is_refused() {
        let asked = CheckpointQuestion {
            schedule: Schedule {
                interval: Some(Seconds(0.01)),
                ..Schedule::default()
            },
            ..CheckpointQuestion::default()
        };
        let refusal = asked.compute().unwrap_err().to_string();
        assert!(
            refusal.starts_with("schedule.interval = 10 ms: allowed is at least"),
            "{refusal}"
        );
    }

    #[test]
    fn the_rate_for_a_target_reaches_the_target() {
        for interval in [None, Some(Seconds(1800.0))] {
            let mut asked = CheckpointQuestion::default();
            asked.schedule.interval = interval;
            let needed = asked.compute().unwrap().rate_for_target_bytes_per_s.unwrap();
            asked.storage.rate = Rate(needed);
            let again = asked.compute().unwrap();
            near(again.ways.standard.availability, 0.99, 1e-6);
            near(again.rate_for_target_bytes_per_s.unwrap(), needed, 1e-9);
        }
    }

    #[test]
    fn asynchronous_saving_stops_training_only_for_the_copy() {
        let answer = CheckpointQuestion::default().compute().unwrap();
        let ways = &answer.ways;
        // 5.68 TB over 1,024 ranks, which copy 5.9 GB/s each; half a second to begin and a second of barrier.
        let asynchronous = ways.asynchronous.as_ref().unwrap();
        near(asynchronous.stop_s, 405.9e9 * 14.0 / (1024.0 * 5.9e9) + 1.5, 1e-9);
        near(
            asynchronous.durable_s,
            asynchronous.stop_s + 405.9e9 * 14.0 / 2e12,
            1e-9,
        );
        assert!(asynchronous.rate_bytes_per_s >= asynchronous.rate_needed_bytes_per_s);
        // With a pinned pool the links limit it: eight GPUs leave by the uplinks of four switches, 51.98 GB/s each.
        let mut pinned = CheckpointQuestion::default();
        (pinned.schedule.snapshot.fixed, pinned.schedule.snapshot.rate) = (Seconds(0.0), Rate(1e12));
        let stop_s = pinned.compute().unwrap().ways.asynchronous.unwrap().stop_s;
        near(stop_s, 405.9e9 * 14.0 / (128.0 * 4.0 * 51.98e9) + 1.0, 1e-3);
    }

    #[test]
    fn ranks_of_an_object_store_are_bound_by_their_software_until_the_ports_are_full() {
        // MLPerf Storage v3.0, AIStore on 12 servers of 100 Gb/s: 64 ranks 27.7 GiB/s, 512 ranks 114.5 GiB/s.
        let saved = |gib: f64, gpus, gpus_per_node| {
            let mut asked = CheckpointQuestion::default();
            asked.model.size = Some(crate::capacity::shown_bytes(gib * 1_073_741_824.0));
            (asked.cluster.gpus, asked.cluster.gpus_per_node) = (gpus, gpus_per_node);
            asked.storage.servers.count = Some(12);
            asked.storage.clients.kind = crate::client::ClientKind::S3;
            asked.storage.sync = Seconds(0.0);
            asked.compute().unwrap().ways.standard
        };
        let few = saved(911.2, 64, 8);
        assert_eq!(few.bound_by, "the writers' software");
        near(few.rate_bytes_per_s, 64.0 * 0.42e9, 1e-9);
        let many = saved(5292.2, 512, 32);
        assert_eq!(many.bound_by, "the servers' ports");
        near(many.rate_bytes_per_s, 12.0 * 12.5e9 * 0.9, 1e-9);
    }

    #[test]
    fn every_replica_reads_the_checkpoint_back_and_copies_fill_the_servers_ports() {
        let mut asked = CheckpointQuestion::default();
        asked.storage.rate = Rate(1e15);
        asked.storage.servers.count = Some(16);
        let once = asked.compute().unwrap().ways.standard;
        asked.cluster.replicas = 27;
        asked.storage.redundancy.copies = 3;
        let replicated = asked.compute().unwrap().ways.standard;
        near(replicated.restore_s, 27.0 * once.restore_s, 1e-9);
        near(replicated.rate_bytes_per_s, once.rate_bytes_per_s / 3.0, 1e-9);
    }

    #[test]
    fn a_flush_that_needs_more_than_the_available_rate_does_not_fit() {
        let asked = |interval| CheckpointQuestion {
            model: ModelState {
                size: Some(Bytes(100_000_000_000_000)),
                ..ModelState::default()
            },
            storage: Storage {
                rate: Rate(100e9),
                ..Storage::default()
            },
            schedule: Schedule {
                interval,
                ..Schedule::default()
            },
            ..CheckpointQuestion::default()
        };
        // 1,000 s of flush in nine tenths of 1,010.
        let ways = asked(Some(Seconds(1010.0))).compute().unwrap().ways;
        assert!(ways.standard.fits && !ways.asynchronous.as_ref().unwrap().fits);
        // A computed interval fits, and its flush needs no more than the available rate.
        let flushed = asked(None).compute().unwrap().ways.asynchronous.unwrap();
        assert!(flushed.fits);
        assert!(flushed.rate_needed_bytes_per_s <= flushed.rate_bytes_per_s * (1.0 + 1e-9));
    }

    #[test]
    fn failures_cost_energy_as_they_cost_hours() {
        let mut asked = CheckpointQuestion::default();
        asked.cluster.mtbf_per_gpu = Seconds(2000.0 * 3600.0);
        asked.schedule.restart = Seconds(3600.0);
        let at_full = asked.compute().unwrap().ways.standard;
        // If waiting takes full power, each lost hour wastes an hour of power.
        let lost = at_full.lost_gpu_hours_per_day / 24.0 / 1024.0;
        near(at_full.wasted_w / asked.cluster.power_w, lost, 1e-9);
        // If waiting takes no power, only the training that was thrown away remains.
        asked.cluster.idle_power_share = 0.0;
        let at_none = asked.compute().unwrap().ways.standard;
        let thrown = at_none.wasted_w / asked.cluster.power_w;
        // Half a segment per failure, outside of restarts.
        let mtbf_s: f64 = 2000.0 * 3600.0 / 1024.0;
        let training = (-3600.0 / mtbf_s).exp();
        near(thrown, at_none.interval_s / 2.0 / mtbf_s * training, 0.05);
    }

    #[test]
    fn each_gpu_of_a_node_adds_a_link() {
        let stop = |gpus_per_node| {
            let mut asked = CheckpointQuestion::default();
            asked.cluster.gpus = gpus_per_node;
            asked.cluster.gpus_per_node = gpus_per_node;
            asked.storage.sync = Seconds(0.0);
            (asked.schedule.snapshot.fixed, asked.schedule.snapshot.rate) = (Seconds(0.0), Rate(1e12));
            asked.compute().unwrap().ways.asynchronous.as_ref().unwrap().stop_s
        };
        near(stop(1) / stop(4), 4.0, 1e-9);
        // Eight links exceed the rate of host memory.
        near(stop(8) / stop(16), 1.0, 1e-9);
    }

    #[test]
    fn a_small_io_gains_its_copy_time_and_not_a_deeper_queue() {
        let mut asked = CheckpointQuestion::default();
        asked.node.io = Bytes::kib(4);
        let gain = asked.compute().unwrap().gain;
        assert!((1.0..1.1).contains(&gain), "{gain}");
    }

    #[test]
    fn every_default_is_within_its_own_range() {
        straightway_scenario::check::checked(&CheckpointQuestion::default()).unwrap();
    }
}

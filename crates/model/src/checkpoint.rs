//! The checkpoint estimator: how long a save takes, what it stops, and what is left of a job's time.
//!
//! A checkpoint is `bytes_per_parameter × parameters`; its time is `S / B + T_sync`, where `B` comes
//! from the [path](crate::path) of every node and the storage behind them, never from a factor for
//! "GDS". From that time, the cluster's failures and the interval follow availability, goodput, and
//! what the lost time costs. Three ways are compared: saving through host memory, saving directly
//! from the GPUs, and copying to host memory and flushing behind the training's back.

mod answer;
mod basis;
pub mod failures;
pub mod interval;
mod limits;

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

pub use self::{
    answer::{Answer, Outcome, Point, Ways},
    failures::Played,
};
use self::{
    failures::{Job, Trials},
    interval::{availability, availability_of_cycle, daly_s, goodput, training, young_s},
};
use crate::capacity::{GPU_MEMORY, STORAGE_CAPACITY};
use crate::path::{Carried, Node};
use crate::question::Question;
use straightway_scenario::check::Refusals;

/// What is asked: a model, a cluster, its storage and a schedule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// What is saved.
    #[serde(default)]
    pub model: Model,
    /// What trains it.
    #[serde(default)]
    pub cluster: Cluster,
    /// One node's way to storage.
    #[serde(default)]
    pub node: Node,
    /// What the storage takes from all nodes together.
    #[serde(default)]
    pub storage: Storage,
    /// When it is saved.
    #[serde(default)]
    pub schedule: Schedule,
    /// How failures are played out.
    #[serde(default)]
    pub trials: Trials,
}

/// The model's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Model {
    /// The number of parameters.
    pub parameters: f64,
    /// Bytes of weights for a parameter: 2 for 16 bits.
    pub weight_bytes: f64,
    /// Bytes of optimizer state and master weights: 12 for Adam in 32 bits, 0 for weights alone.
    pub optimizer_bytes: f64,
    /// Bytes of gradients, where they are saved: 2 for 16 bits.
    pub gradient_bytes: f64,
    /// The size of the checkpoint, where it is known; it overrides the bytes for a parameter.
    pub size: Option<Bytes>,
}

/// The cluster that trains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cluster {
    /// GPUs in the job.
    pub gpus: u64,
    /// GPUs in a node.
    pub gpus_per_node: u64,
    /// Memory of one GPU.
    pub gpu_memory: Bytes,
    /// Mean time between failures of one GPU and what belongs to it.
    pub mtbf_per_gpu: Seconds,
    /// What the cluster draws when it trains, in watts.
    pub power_w: f64,
    /// The share of that power it draws while it waits; 1 gives the upper bound of waste.
    pub idle_power_share: f64,
    /// What a GPU costs for an hour, in whatever money.
    pub gpu_hour_cost: f64,
}

/// The storage behind all nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Storage {
    /// What it takes from all nodes together, however many they are.
    pub rate: Rate,
    /// What it gives all nodes together; absent for the same as it takes.
    pub read_rate: Option<Rate>,
    /// What it holds.
    pub capacity: Bytes,
    /// Checkpoints kept on it.
    pub kept: u64,
    /// The barrier across all ranks at a save.
    pub sync: Seconds,
}

/// When the job saves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Schedule {
    /// Training time between saves; absent for Daly's best.
    pub interval: Option<Seconds>,
    /// From a failure until the checkpoint is read: detection, new nodes, start of the processes.
    pub restart: Seconds,
    /// Whether saving into host memory and flushing from there is planned too.
    pub asynchronous: bool,
    /// The part of the interval an asynchronous flush may take.
    pub overlap: f64,
    /// A share of time that must remain for training: what bandwidth does it need?
    pub target_availability: f64,
    /// A gain in availability, in points (0.1 is ten), for which the interval is sought.
    pub target_gain: Option<f64>,
}

impl Default for Model {
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

impl Default for Cluster {
    fn default() -> Self {
        Self {
            gpus: 1024,
            gpus_per_node: 8,
            gpu_memory: GPU_MEMORY,
            mtbf_per_gpu: Seconds(50_677.0 * 3600.0),
            power_w: 1.2e6,
            idle_power_share: 1.0,
            gpu_hour_cost: 2.0,
        }
    }
}

impl Default for Storage {
    fn default() -> Self {
        Self {
            rate: Rate(2e12),
            read_rate: None,
            capacity: STORAGE_CAPACITY,
            kept: 3,
            sync: Seconds(1.0),
        }
    }
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            interval: None,
            restart: Seconds(300.0),
            asynchronous: true,
            overlap: 0.9,
            target_availability: 0.99,
            target_gain: None,
        }
    }
}

/// One way of saving and restoring, in seconds and bytes.
struct Save {
    size: f64,
    rate: f64,
    durable_s: f64,
    stop_s: f64,
    restore_s: f64,
}

impl Model {
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

impl Checkpoint {
    /// Estimates; refuses an interval shorter than every way of saving.
    fn compute(&self) -> Result<Answer, Refusals> {
        let size_bytes = self.model.size_bytes();
        let nodes = self.cluster.gpus.div_ceil(self.cluster.gpus_per_node);
        let mtbf_s = self.cluster.mtbf_per_gpu.0 / self.cluster.gpus as f64;
        let node_gpus = self.gpus_in_node();
        let (standard, direct) = self.node.carry_both(node_gpus);
        let ways = self.ways(size_bytes, nodes, mtbf_s, (&standard, &direct));
        self.refuse_short_interval(&ways)?;
        let work_s = ways.standard.interval_s;
        let writing_for_target_s = self.stop_for_target_s(mtbf_s) - self.storage.sync.0;
        Ok(Answer {
            size_bytes,
            bytes_per_parameter: size_bytes / self.model.parameters,
            size_at_16_bytes: 16.0 * self.model.parameters,
            parameters_at_14_bytes: size_bytes / 14.0,
            nodes,
            mtbf_s,
            gain: ways.standard.durable_s / ways.direct.durable_s,
            gain_points: availability(ways.direct.stop_s, work_s)
                - availability(ways.standard.stop_s, work_s),
            interval_for_gain_s: self.schedule.target_gain.and_then(|gain| {
                interval::interval_for_gain_s(ways.standard.stop_s, ways.direct.stop_s, gain)
            }),
            rate_for_target_bytes_per_s: (writing_for_target_s > 0.0)
                .then_some(size_bytes / writing_for_target_s),
            // C / (W + C) = 1/5 at W = 4 C.
            interval_for_fifth_s: 4.0 * ways.standard.stop_s,
            curve: Self::curve(&ways, mtbf_s),
            basis: self.basis(mtbf_s),
            standard,
            direct,
            ways,
        })
    }

    /// The GPUs of a node that take part.
    fn gpus_in_node(&self) -> u64 {
        self.cluster.gpus_per_node.min(self.cluster.gpus)
    }

    /// How long training may stand still for a save and keep the target. Where no interval is
    /// given it follows from the stop that is sought, not from what the path of today takes.
    fn stop_for_target_s(&self, mtbf_s: f64) -> f64 {
        let target = self.schedule.target_availability;
        match self.schedule.interval {
            Some(work) => work.0 * (1.0 - target) / target,
            None => interval::save_for_availability_s(mtbf_s, target),
        }
    }

    fn ways(
        &self,
        size: f64,
        nodes: u64,
        mtbf_s: f64,
        (standard, direct): (&Carried, &Carried),
    ) -> Ways {
        let together = |one_node: f64| (one_node * nodes as f64).min(self.storage.rate.0);
        let read = self.storage.read_rate.unwrap_or(self.storage.rate).0;
        let restore_s = |one_node: f64| size / (one_node * nodes as f64).min(read);
        let save = |one_node: f64, stop_of: &dyn Fn(f64) -> f64| {
            let rate = together(one_node);
            let durable_s = size / rate + self.storage.sync.0;
            let save = Save {
                size,
                rate,
                durable_s,
                stop_s: stop_of(durable_s),
                restore_s: restore_s(one_node),
            };
            self.outcome(&save, mtbf_s)
        };
        let stopped = |durable_s: f64| durable_s;
        let to_host = nodes as f64 * self.node.from_gpus_bytes_per_s(self.gpus_in_node());
        let copied = |_: f64| size / to_host + self.storage.sync.0;
        Ways {
            standard: save(standard.rate_bytes_per_s, &stopped),
            direct: save(direct.rate_bytes_per_s, &stopped),
            // The flush leaves host memory by the standard path, but no longer in its way.
            asynchronous: self
                .schedule
                .asynchronous
                .then(|| save(standard.rate_bytes_per_s, &copied)),
        }
    }

    fn outcome(&self, save: &Save, mtbf_s: f64) -> Outcome {
        let Save {
            size,
            rate,
            durable_s,
            stop_s,
            restore_s,
        } = *save;
        let (young_s, daly_s) = (young_s(mtbf_s, stop_s), daly_s(mtbf_s, stop_s));
        let flush_s = durable_s - stop_s.min(durable_s);
        // A save that training waits for has to end before the next; one behind its back, within
        // the part of the interval it may take.
        let shortest_s = if flush_s > 0.0 {
            stop_s.max(size / rate / self.schedule.overlap)
        } else {
            stop_s
        };
        // An interval found here must leave room for the flush.
        let found = if flush_s > 0.0 {
            daly_s.max(shortest_s)
        } else {
            daly_s
        };
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
        // While it saves or restarts the cluster idles; what failures throw away was computed at
        // full power, and so was what is trained again because a flush was lost.
        let idle = (1.0 - training(mtbf_s, stop_s, interval_s, recovery_s)).clamp(0.0, lost);
        let hours = lost * cluster.gpus as f64 * 24.0;
        Outcome {
            durable_s,
            rate_bytes_per_s: rate,
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
            played: failures::play(job, &self.trials),
            rate_needed_bytes_per_s: size / (self.schedule.overlap * interval_s),
            wasted_w: cluster.power_w * (lost - idle * (1.0 - cluster.idle_power_share)),
            wasted_w_max: cluster.power_w * lost,
            lost_gpu_hours_per_day: hours,
            lost_cost_per_day: hours * cluster.gpu_hour_cost,
        }
    }

    /// A checkpoint that is not done when the next is due, by any way, is no schedule.
    fn refuse_short_interval(&self, ways: &Ways) -> Result<(), Refusals> {
        let Some(interval) = self.schedule.interval else {
            return Ok(());
        };
        if ways.all().any(|way| way.fits) {
            return Ok(());
        }
        let fastest_s = ways
            .all()
            .map(|way| way.shortest_s)
            .fold(f64::INFINITY, f64::min);
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
    fn curve(ways: &Ways, mtbf_s: f64) -> Vec<Point> {
        const POINTS: i32 = 41;
        let middle = ways.standard.daly_s;
        let at = |outcome: &Outcome, work_s: f64| {
            let flush_s = (outcome.durable_s - outcome.stop_s).max(0.0);
            goodput(mtbf_s, outcome.stop_s, work_s, outcome.recovery_s + flush_s)
        };
        (0..POINTS)
            .map(|i| middle * 10f64.powf(f64::from(i) / f64::from(POINTS - 1) * 2.0 - 1.0))
            .map(|interval_s| Point {
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

impl Question for Checkpoint {
    const NAME: &'static str = "checkpoint";
    type Answer = Answer;

    fn answer(&self) -> Result<Answer, Refusals> {
        self.compute()
    }

    fn verdict(answer: &Answer) -> String {
        let pays = if answer.gain >= PAYS {
            "direct pays off"
        } else {
            "direct does not pay off"
        };
        let ways = &answer.ways;
        let named = [
            ("standard", Some(&ways.standard)),
            ("direct", Some(&ways.direct)),
        ];
        let named = named
            .into_iter()
            .chain([("asynchronous", ways.asynchronous.as_ref())]);
        let best = named
            .filter_map(|(name, way)| Some((name, way?.goodput)))
            .max_by(|a, b| a.1.total_cmp(&b.1));
        let best = best.map_or("none", |(name, _)| name);
        format!("{pays}; best goodput {best}")
    }

    fn drop_lists(answer: &mut Answer) {
        answer.curve.clear();
    }
}

/// The gain from which on the direct path is said to pay off: less is within what the constants are known to.
pub const PAYS: f64 = 1.05;

#[cfg(test)]
mod tests {
    use super::*;
    use straightway_scenario::near::near;

    #[test]
    fn mlperf_sizes_follow_from_14_bytes_a_parameter() {
        // mlcommons/storage submission guidelines, ±3 %; real parameter counts of Llama 3.
        const GIB: f64 = 1_073_741_824.0;
        for (parameters, published_gib) in
            [(8.03e9, 105.0), (70.6e9, 912.0), (405.9e9, 5.29 * 1024.0)]
        {
            let model = Model {
                parameters,
                ..Model::default()
            };
            near(model.size_bytes() / GIB, published_gib, 0.03);
        }
    }

    #[test]
    fn failures_of_one_gpu_and_of_all_are_those_published() {
        // Llama 3 405B: 419 interruptions in 54 days: 3.09 h; MLCommons: 50 kh and 100 k GPUs: half an hour.
        near(54.0 * 24.0 / 419.0, 3.09, 0.01);
        let asked = |gpus, hours: f64| Checkpoint {
            cluster: Cluster {
                gpus,
                mtbf_per_gpu: Seconds(hours * 3600.0),
                ..Cluster::default()
            },
            ..Checkpoint::default()
        };
        near(
            asked(16_384, 50_677.0).compute().unwrap().mtbf_s / 3600.0,
            3.093,
            0.001,
        );
        near(
            asked(100_000, 50_000.0).compute().unwrap().mtbf_s,
            1800.0,
            1e-12,
        );
    }

    #[test]
    fn an_interval_shorter_than_every_save_is_refused() {
        let asked = Checkpoint {
            schedule: Schedule {
                interval: Some(Seconds(0.01)),
                ..Schedule::default()
            },
            ..Checkpoint::default()
        };
        let refusal = asked.compute().unwrap_err().to_string();
        assert!(
            refusal.starts_with("schedule.interval = 10 ms: allowed is at least"),
            "{refusal}"
        );
    }

    #[test]
    fn the_rate_asked_for_a_target_gives_the_target() {
        for interval in [None, Some(Seconds(1800.0))] {
            let mut asked = Checkpoint::default();
            asked.schedule.interval = interval;
            let needed = asked
                .compute()
                .unwrap()
                .rate_for_target_bytes_per_s
                .unwrap();
            asked.storage.rate = Rate(needed);
            let again = asked.compute().unwrap();
            near(again.ways.standard.availability, 0.99, 1e-6);
            near(again.rate_for_target_bytes_per_s.unwrap(), needed, 1e-9);
        }
    }

    #[test]
    fn asynchronous_saving_stops_training_only_for_the_copy() {
        let answer = Checkpoint::default().compute().unwrap();
        let ways = &answer.ways;
        // 5.68 TB over 128 nodes: eight GPUs leave by the uplinks of four switches, 51.98 GB/s each; and a
        // second of barrier.
        let asynchronous = ways.asynchronous.as_ref().unwrap();
        near(
            asynchronous.stop_s,
            405.9e9 * 14.0 / (128.0 * 4.0 * 51.98e9) + 1.0,
            1e-3,
        );
        assert!(asynchronous.durable_s >= asynchronous.stop_s);
        assert!(asynchronous.rate_bytes_per_s >= asynchronous.rate_needed_bytes_per_s);
    }

    #[test]
    fn a_flush_that_needs_more_than_there_is_does_not_fit() {
        let asked = |interval| Checkpoint {
            model: Model {
                size: Some(Bytes(100_000_000_000_000)),
                ..Model::default()
            },
            storage: Storage {
                rate: Rate(100e9),
                ..Storage::default()
            },
            schedule: Schedule {
                interval,
                ..Schedule::default()
            },
            ..Checkpoint::default()
        };
        // 1,000 s of flush in nine tenths of 1,010.
        let ways = asked(Some(Seconds(1010.0))).compute().unwrap().ways;
        assert!(ways.standard.fits && !ways.asynchronous.as_ref().unwrap().fits);
        // An interval found here fits, and so does what fits need no more than there is.
        let flushed = asked(None).compute().unwrap().ways.asynchronous.unwrap();
        assert!(flushed.fits);
        assert!(flushed.rate_needed_bytes_per_s <= flushed.rate_bytes_per_s * (1.0 + 1e-9));
    }

    #[test]
    fn failures_cost_energy_as_they_cost_hours() {
        let mut asked = Checkpoint::default();
        asked.cluster.mtbf_per_gpu = Seconds(2000.0 * 3600.0);
        asked.schedule.restart = Seconds(3600.0);
        let at_full = asked.compute().unwrap().ways.standard;
        // Waiting at full power, each hour lost is an hour's power lost.
        let lost = at_full.lost_gpu_hours_per_day / 24.0 / 1024.0;
        near(at_full.wasted_w / asked.cluster.power_w, lost, 1e-9);
        // Waiting at none, what was computed and thrown away is left, and only that.
        asked.cluster.idle_power_share = 0.0;
        let at_none = asked.compute().unwrap().ways.standard;
        let thrown = at_none.wasted_w / asked.cluster.power_w;
        // Half a segment at each failure, of the time that is no restart.
        let mtbf_s: f64 = 2000.0 * 3600.0 / 1024.0;
        let training = (-3600.0 / mtbf_s).exp();
        near(thrown, at_none.interval_s / 2.0 / mtbf_s * training, 0.05);
    }

    #[test]
    fn a_gpu_more_in_a_node_is_a_link_more() {
        let stop = |gpus_per_node| {
            let mut asked = Checkpoint::default();
            asked.cluster.gpus = gpus_per_node;
            asked.cluster.gpus_per_node = gpus_per_node;
            asked.storage.sync = Seconds(0.0);
            asked
                .compute()
                .unwrap()
                .ways
                .asynchronous
                .as_ref()
                .unwrap()
                .stop_s
        };
        near(stop(1) / stop(4), 4.0, 1e-9);
        // Eight links are more than host memory takes.
        near(stop(8) / stop(16), 1.0, 1e-9);
    }

    #[test]
    fn a_small_io_gains_what_its_copy_costs_and_not_what_a_depth_gives() {
        let mut asked = Checkpoint::default();
        asked.node.io = Bytes::kib(4);
        let gain = asked.compute().unwrap().gain;
        assert!((1.0..1.1).contains(&gain), "{gain}");
    }

    #[test]
    fn every_default_is_within_its_own_range() {
        straightway_scenario::check::checked(&Checkpoint::default()).unwrap();
    }
}

//! The valid ranges of a checkpoint's parameters, and the capacity checks.

use straightway_core::Seconds;
use straightway_scenario::check::{BYTES_ANY, Checkable, Checker, RATE_ANY, TIME_ANY, TIME_POSITIVE};

use super::{CheckpointQuestion, Schedule};
use crate::capacity::shown_bytes;

impl Checkable for CheckpointQuestion {
    fn check(&self, c: &mut Checker) {
        c.within("model", |c| {
            let model = &self.model;
            c.range("parameters", model.parameters, 1.0..=1e16, "");
            c.range("weight_bytes", model.weight_bytes, 0.0..=64.0, "bytes");
            c.range("optimizer_bytes", model.optimizer_bytes, 0.0..=64.0, "bytes");
            c.range("gradient_bytes", model.gradient_bytes, 0.0..=64.0, "bytes");
            if let Some(size) = model.size {
                c.bytes("size", size, BYTES_ANY);
            } else if model.bytes_per_parameter() <= 0.0 {
                c.refuse("weight_bytes", "0 bytes per parameter in all", "more than 0 in all");
            }
        });
        c.within("cluster", |c| {
            let cluster = &self.cluster;
            c.count("gpus", cluster.gpus, 1..=10_000_000);
            c.count("gpus_per_node", cluster.gpus_per_node, 1..=1024);
            c.count("replicas", cluster.replicas, 1..=10_000_000);
            c.bytes("gpu_memory", cluster.gpu_memory, BYTES_ANY);
            c.seconds("mtbf_per_gpu", cluster.mtbf_per_gpu, Seconds(1.0)..=Seconds(1e12));
            c.range("power_w", cluster.power_w, 0.0..=1e12, "W");
            c.share("idle_power_share", cluster.idle_power_share);
            c.range("gpu_hour_cost", cluster.gpu_hour_cost, 0.0..=1e6, "");
        });
        c.nested("node", &self.node);
        c.nested("storage", &self.storage);
        c.nested("schedule", &self.schedule);
        c.nested("trials", &self.trials);
        if c.is_clean() {
            self.check_capacities(c);
        }
    }
}

impl Checkable for Schedule {
    fn check(&self, c: &mut Checker) {
        if let Some(interval) = self.interval {
            c.seconds("interval", interval, TIME_POSITIVE);
        }
        c.seconds("restart", self.restart, TIME_ANY);
        c.within("snapshot", |c| {
            c.seconds("fixed", self.snapshot.fixed, TIME_ANY);
            c.rate("rate", self.snapshot.rate, RATE_ANY);
        });
        c.range("overlap", self.overlap, 0.001..=1.0, "");
        c.range("target_availability", self.target_availability, 0.001..=0.999_999, "");
        if let Some(gain) = self.target_gain {
            c.range("target_gain", gain, 1e-6..=0.999_999, "");
        }
    }
}

impl CheckpointQuestion {
    /// Refuses a checkpoint that does not fit GPU memory, host memory or storage, and says what would be enough.
    fn check_capacities(&self, c: &mut Checker) {
        let (cluster, size) = (&self.cluster, self.model.size_bytes());
        let gpus = (size / cluster.gpu_memory.0 as f64).ceil();
        if gpus > cluster.gpus as f64 {
            let memory = cluster.gpu_memory;
            let allowed = format!(
                "at least {gpus:.0} GPUs of {memory}: weights and optimizer take {} (activations not counted)",
                shown_bytes(size)
            );
            c.refuse("cluster.gpus", cluster.gpus, allowed);
            // More GPUs bring more hosts.
            return;
        }
        let nodes = cluster.gpus.div_ceil(cluster.gpus_per_node);
        let hosts = (size / self.node.host.memory.0 as f64).ceil();
        if self.schedule.asynchronous && hosts > nodes as f64 {
            let allowed = format!(
                "at least {} to hold its part of {} (or {hosts:.0} hosts of {}; or schedule.asynchronous = false)",
                shown_bytes(size / nodes as f64),
                shown_bytes(size),
                self.node.host.memory
            );
            c.refuse("node.host.memory", self.node.host.memory, allowed);
        }
        let kept = size * self.storage.kept as f64;
        if kept > self.storage.capacity.0 as f64 {
            let allowed = format!(
                "at least {} for {} checkpoints of {}",
                shown_bytes(kept),
                self.storage.kept,
                shown_bytes(size)
            );
            c.refuse("storage.capacity", self.storage.capacity, allowed);
        }
    }
}

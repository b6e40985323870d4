//! The topics of the planner: one table with one row each.
//!
//! A row has the topic's help text, its name as a variant and as a field, and its question. The scenario's
//! tables, the answers, the pages and the commands are all expanded from it, so a new topic is a row here,
//! a [`Question`](crate::question::Question) and a page.

/// Hands the table to the macro `$expand`.
#[macro_export]
macro_rules! topics {
    ($expand:ident) => {
        $expand! {
            /// How long a checkpoint takes and stops training, how often to save, what is lost to failures
            Checkpoint checkpoint: $crate::checkpoint::Checkpoint,
            /// What registering memory costs, and when doing it once pays off
            Registration registration: $crate::registration::Registration,
            /// What NVMe over RoCE, InfiniBand, TCP, SRP and CXL carry, and the cores they take
            Transport transport: $crate::transport::Transport,
            /// Lustre, Weka, VAST and FlashBlade under checkpoint, ingest and a metadata storm
            Architecture architecture: $crate::architecture::Architecture,
            /// Whether GPUs wait for their samples
            Ingest ingest: $crate::ingest::Ingest,
            /// How many requests hide the latency of object storage
            S3 s3: $crate::s3::S3,
            /// What several network ports give a node together
            Rail rail: $crate::rail::Rails,
            /// Deduplication against compression
            Reduction reduction: $crate::reduction::Reduction,
            /// What reservation, limit and weight do for tenants of one store
            Qos qos: $crate::qos::Qos,
            /// Which cores a DPU gives back, and what it carries itself
            Dpu dpu: $crate::dpu::Dpu,
            /// The buffer a lossless Ethernet port needs beyond its pause threshold
            Headroom headroom: $crate::topic::Port,
        }
    };
}

pub use straightway_fabric::headroom::Port;

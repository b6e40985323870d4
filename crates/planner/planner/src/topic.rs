//! The topics of the cluster planner: one table with one row each.
//!
//! A row has the topic's help text, its name as a variant and as a field, and its input type. The scenario's
//! tables, the answers, the pages and the commands are expanded from it. A new topic needs a row here, a
//! [`Question`](crate::question::Question) and a page.

/// Calls the macro `$expand` with the table.
#[macro_export]
macro_rules! topics {
    ($expand:ident) => {
        $expand! {
            /// How long a checkpoint takes and stops training, how often to save, what is lost to failures
            Checkpoint checkpoint: $crate::checkpoint::CheckpointQuestion,
            /// What registering memory costs, and when doing it once pays off
            Registration registration: $crate::registration::RegistrationQuestion,
            /// What NVMe over RoCE, InfiniBand, TCP, SRP and CXL carry, and the cores they take
            Transport transport: $crate::transport::TransportQuestion,
            /// Lustre, Weka, VAST and FlashBlade under checkpoint, ingest and a metadata storm
            Architecture architecture: $crate::architecture::ArchitectureQuestion,
            /// Whether GPUs wait for their samples
            Ingest ingest: $crate::ingest::IngestQuestion,
            /// How many requests hide the latency of object storage
            S3 s3: $crate::s3::S3Question,
            /// What several network ports give a node together
            Rail rail: $crate::rail::RailQuestion,
            /// Deduplication against compression
            Reduction reduction: $crate::reduction::ReductionQuestion,
            /// What reservation, limit and weight do for tenants of one store
            Qos qos: $crate::qos::QosQuestion,
            /// Which cores a DPU gives back, and what it carries itself
            Dpu dpu: $crate::dpu::DpuQuestion,
            /// The buffer a lossless Ethernet port needs beyond its pause threshold
            Headroom headroom: $crate::topic::Port,
        }
    };
}

pub use straightway_fabric::headroom::Port;

//! The figures that matter most, topic by topic: what a sweep shows where none are asked for.

use straightway_model::scenario::Topic;

/// Each figure's path in the JSON answer, and what to call it.
pub(super) fn usual(topic: Topic) -> &'static [(&'static str, &'static str)] {
    match topic {
        Topic::Checkpoint => &[
            ("ways.standard.durable_s", "standard"),
            ("ways.direct.durable_s", "direct"),
            ("gain", "gain"),
            ("ways.asynchronous.stop_s", "async stop"),
            ("ways.standard.goodput", "goodput standard"),
            ("ways.direct.goodput", "goodput direct"),
            ("ways.asynchronous.goodput", "goodput async"),
        ],
        Topic::Registration => &[
            ("register.seconds", "registration"),
            ("transfer_s", "transfer"),
            ("efficiency.per_io", "each I/O"),
            ("efficiency.persistent", "once"),
            ("efficiency.gds", "gds"),
            ("crossover", "crossover"),
        ],
        Topic::Transport => &[
            ("fabrics[0].rate_bytes_per_s", "first"),
            ("fabrics[1].rate_bytes_per_s", "second"),
            ("fabrics[3].rate_bytes_per_s", "fourth"),
            ("fabrics[3].cores", "its cores"),
        ],
        Topic::Architecture => &[
            ("systems[0].write_bytes_per_s", "first: write"),
            ("systems[1].write_bytes_per_s", "second: write"),
            ("systems[0].storm_s", "first: storm"),
            ("systems[1].storm_s", "second: storm"),
        ],
        Topic::Ingest => &[
            ("all_bytes_per_s", "needed"),
            ("standard.utilisation", "AU standard"),
            ("direct.utilisation", "AU direct"),
            ("metadata.load", "metadata load"),
        ],
        Topic::S3 => &[
            ("in_flight_min", "in flight, best"),
            ("in_flight_max", "in flight, worst"),
            ("memory_bytes", "memory"),
            ("prefixes_to_read", "prefixes"),
        ],
        Topic::Rail => &[
            ("rate_bytes_per_s", "as used"),
            ("steered_bytes_per_s", "steered"),
            ("per_gpu_bytes_per_s", "for a GPU"),
        ],
        Topic::Reduction => &[
            ("table_bytes", "table"),
            ("lookups_per_s_write", "lookups on write"),
            ("codecs[0].cores_write", "cores of the first codec"),
        ],
        Topic::Qos => &[
            ("fifo[0].latency_s_p99", "first tenant p99, in line"),
            ("tags[0].latency_s_p99", "first tenant p99, by tags"),
            ("tags[2].operations_per_s", "third tenant"),
        ],
        Topic::Headroom => &[
            ("xoff", "headroom"),
            ("propagation", "arrives after XOFF"),
            ("pause_max", "longest pause"),
        ],
        Topic::Dpu => &[
            ("cores_without", "cores without"),
            ("cores_with", "cores with"),
            ("rate_with_bytes_per_s", "rate with the card"),
        ],
    }
}

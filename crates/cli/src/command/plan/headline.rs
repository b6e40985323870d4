//! The figures of an answer that a sweep shows.

use straightway_model::scenario::Topic;
use straightway_report::Unit;

/// A figure of an answer: where it stands, what to call it, what it counts.
#[derive(Clone, Debug)]
pub(super) struct Headline {
    /// Its path in the JSON answer.
    pub(super) path: String,
    /// What it is called.
    pub(super) label: String,
    /// What it counts.
    pub(super) unit: Unit,
}

/// The figures asked for, or those that matter most for the topic.
pub(super) fn chosen(topic: Topic, asked: &[String]) -> Vec<Headline> {
    if asked.is_empty() {
        let few = usual(topic).iter();
        return few.map(|(path, label)| headline(path, label)).collect();
    }
    asked.iter().map(|path| headline(path, path)).collect()
}

fn headline(path: &str, label: &str) -> Headline {
    Headline {
        path: path.to_owned(),
        label: label.to_owned(),
        unit: unit(path),
    }
}

/// What a figure counts, by the ending of its name.
fn unit(path: &str) -> Unit {
    let name = path.rsplit('.').next().unwrap_or(path);
    let share = [
        "availability",
        "goodput",
        "utilisation",
        "load",
        "per_io",
        "gds",
        "persistent",
    ];
    if let "xoff" | "propagation" | "cable" | "peer_response" = name {
        Unit::Bytes
    } else if name == "pause_max" {
        Unit::Seconds
    } else if name.ends_with("_bytes_per_s") {
        Unit::Rate
    } else if name.ends_with("_bytes") {
        Unit::Bytes
    } else if name.ends_with("_per_s") {
        Unit::Count
    } else if name.ends_with("_s") || name.ends_with("_s_p99") || name == "seconds" {
        Unit::Seconds
    } else if name.ends_with("_w") {
        Unit::named("W")
    } else if share.contains(&name) || name.ends_with("_share") || name.ends_with("_points") {
        Unit::Share
    } else {
        Unit::Count
    }
}

fn usual(topic: Topic) -> &'static [(&'static str, &'static str)] {
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

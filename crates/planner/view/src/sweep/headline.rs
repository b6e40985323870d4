//! The figures that a sweep shows.

use straightway_report::Unit;

/// A figure of an answer: its path, label and unit.
#[derive(Clone, Debug)]
pub struct Headline {
    /// Its path in the JSON answer.
    pub path: String,
    /// Its label.
    pub label: String,
    /// Its unit.
    pub unit: Unit,
    /// Whether the user requested it. A requested figure must exist.
    pub is_asked: bool,
}

/// The requested figures, or else the `usual` ones.
pub fn chosen(usual: &[(&str, &str)], asked: &[String]) -> Vec<Headline> {
    if asked.is_empty() {
        let few = usual.iter();
        return few.map(|(path, label)| headline(path, label, false)).collect();
    }
    asked.iter().map(|path| headline(path, path, true)).collect()
}

fn headline(path: &str, label: &str, is_asked: bool) -> Headline {
    Headline {
        path: path.to_owned(),
        label: label.to_owned(),
        unit: unit(path),
        is_asked,
    }
}

/// The unit of a figure, derived from the end of its name.
pub fn unit(path: &str) -> Unit {
    let name = path.rsplit('.').next().unwrap_or(path);
    let parent = path.rsplit('.').nth(1).unwrap_or_default();
    let share = [
        "availability",
        "goodput",
        "utilisation",
        "load",
        "per_io",
        "gds",
        "persistent",
    ];
    if let "xoff" | "propagation" | "cable" | "peer_response" | "queue_max" | "queue_bytes" = name {
        Unit::Bytes
    } else if let "goodput_mean" | "goodput_min" | "offered" = name {
        Unit::Rate
    } else if parent == "completion"
        || matches!(
            name,
            "pause_max" | "longest" | "first" | "simulated" | "paused" | "silenced"
        )
    {
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

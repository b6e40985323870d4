//! Properties of every topic: more bandwidth never hurts, less latency never hurts, nothing exceeds its capacity.
//!
//! Every case lists which parameters of a topic are bandwidths and latencies, and which figures are rates and times.
//! Random inputs are the defaults with several parameters multiplied by random factors.

use proptest::prelude::*;
use serde_json::Value;
use straightway_planner::scenario::{Scenario, Topic};
use straightway_scenario::{claim::lookup, setting::ParameterSetting};

/// The parameters and figures of a topic's properties.
struct Case {
    topic: Topic,
    /// Bandwidths: doubling one never worsens a figure.
    rates: &'static [&'static str],
    /// Latencies: halving one never worsens a figure.
    times: &'static [&'static str],
    /// Counts that vary in the random inputs, with their ranges.
    counts: &'static [(&'static str, u64, u64)],
    /// Figures that must not decrease.
    rising: &'static [&'static str],
    /// Figures that must not increase.
    falling: &'static [&'static str],
    /// Sizes that must not increase when a latency decreases. A faster link may need larger sizes.
    shrinking: &'static [&'static str],
    /// Settings of every random input.
    fixed: &'static [(&'static str, &'static str)],
    /// The tolerance for figures simulated from random arrivals.
    noise: f64,
}

/// The defaults of a case.
const PLAIN: Case = Case {
    topic: Topic::Checkpoint,
    rates: &[],
    times: &[],
    counts: &[],
    rising: &[],
    falling: &[],
    shrinking: &[],
    fixed: &[],
    noise: 0.0,
};

const NODE_RATES: &[&str] = &[
    "node.media.rate",
    "node.hop.rate",
    "node.host.copy_rate",
    "node.host.dram_rate",
    "node.host.gpu_copy_rate",
    "storage.rate",
    "node.machine.ports[0].rate",
];
const NODE_TIMES: &[&str] = &["node.media.latency", "node.hop.latency", "node.host.io_cost"];

const CASES: &[Case] = &[
    Case {
        topic: Topic::Checkpoint,
        rates: NODE_RATES,
        times: NODE_TIMES,
        counts: &[
            ("cluster.gpus", 128, 65_536),
            ("node.host.cores", 1, 128),
            ("node.standard_depth", 1, 256),
            ("node.direct_depth", 1, 256),
            ("node.machine.ports[0].count", 1, 8),
            ("node.machine.switches", 0, 8),
            ("node.machine.uplink.lanes", 16, 16),
        ],
        rising: &[
            "ways.standard.rate_bytes_per_s",
            "ways.direct.rate_bytes_per_s",
            "ways.standard.goodput",
            "ways.direct.goodput",
        ],
        falling: &[
            "ways.standard.durable_s",
            "ways.direct.durable_s",
            "ways.standard.recovery_s",
            "ways.direct.recovery_s",
            "ways.asynchronous.stop_s",
        ],
        ..PLAIN
    },
    Case {
        topic: Topic::Ingest,
        rates: &[
            "node.media.rate",
            "node.hop.rate",
            "node.host.copy_rate",
            "node.host.dram_rate",
            "cluster.storage_rate",
        ],
        times: NODE_TIMES,
        counts: &[("cluster.gpus", 1, 4096), ("node.host.cores", 1, 128)],
        rising: &["standard.utilisation", "direct.utilisation"],
        falling: &["standard.step_s", "direct.step_s", "standard.read_s"],
        ..PLAIN
    },
    Case {
        topic: Topic::Registration,
        rates: &["link", "zero_rate"],
        times: &["fixed", "per_page", "fault", "gds.fixed", "gds.per_page"],
        counts: &[("ios", 1, 10_000), ("threads", 1, 64)],
        rising: &[],
        falling: &[
            "transfer_s",
            "register.seconds",
            "register_untouched.seconds",
            "register_gpu_pages.seconds",
        ],
        ..PLAIN
    },
    Case {
        topic: Topic::Transport,
        rates: &["link", "media.rate"],
        times: &["media.latency", "fabrics[1].latency", "fabrics[3].latency"],
        counts: &[("depth", 1, 4096), ("cores", 1, 128)],
        rising: &[
            "fabrics[1].rate_bytes_per_s",
            "fabrics[3].rate_bytes_per_s",
            "fabrics[1].iops",
        ],
        falling: &["fabrics[1].latency_s", "fabrics[3].latency_s"],
        ..PLAIN
    },
    Case {
        topic: Topic::Architecture,
        rates: &[
            "client_rate",
            "hardware.server_rate",
            "hardware.target_read",
            "hardware.target_write",
        ],
        times: &["hop"],
        counts: &[("clients", 1, 1024), ("hardware.servers", 1, 256)],
        rising: &["systems[0].write_bytes_per_s", "systems[2].read_bytes_per_s"],
        falling: &["systems[0].write_s", "systems[3].write_s", "metadata_floor_s"],
        ..PLAIN
    },
    Case {
        topic: Topic::S3,
        rates: &["connection_rate", "cache.rate"],
        times: &["latency_min", "cache.latency"],
        counts: &[("nodes", 8, 4096)],
        rising: &["serial_bytes_per_s", "cached_bytes_per_s"],
        falling: &["in_flight_min", "cached_latency_s", "memory_bytes"],
        ..PLAIN
    },
    Case {
        topic: Topic::Rail,
        rates: &["machine.ports[0].rate"],
        times: &[],
        counts: &[
            ("machine.ports[0].count", 1, 16),
            ("gpus", 1, 16),
            ("machine.switches", 0, 8),
        ],
        rising: &["rate_bytes_per_s", "steered_bytes_per_s", "per_gpu_bytes_per_s"],
        falling: &["rails_for_wanted"],
        ..PLAIN
    },
    Case {
        topic: Topic::Reduction,
        rates: &["codecs[0].compress", "codecs[0].decompress"],
        times: &["dedup.lookup_flash"],
        counts: &[("cores", 1, 256)],
        rising: &["codecs[0].write_bytes_per_s", "codecs[0].read_bytes_per_s"],
        falling: &["codecs[0].cores_write", "lookup_s"],
        ..PLAIN
    },
    Case {
        topic: Topic::Dpu,
        rates: &["work[0].per_core", "port"],
        times: &[],
        counts: &[],
        rising: &["rate_without_bytes_per_s", "rate_with_bytes_per_s"],
        falling: &[],
        ..PLAIN
    },
    Case {
        topic: Topic::Qos,
        rates: &["capacity"],
        // At least 2,500 arrivals in the simulated time: the ratio of two such counts has a standard deviation of
        // 0.028. The tolerance is five times that.
        counts: &[
            ("tenants[0].offered", 10_000, 50_000),
            ("tenants[1].offered", 10_000, 50_000),
            ("tenants[2].depth", 1, 1_000),
        ],
        rising: &[
            "fifo[0].operations_per_s",
            "fifo[1].operations_per_s",
            "fifo[2].operations_per_s",
        ],
        // By tags a tenant is guaranteed its reservation only. Capacity beyond it may go to another tenant when the
        // store becomes faster.
        falling: &["reserved", "open_wait_s", "fifo[0].latency_s", "fifo[2].latency_s"],
        fixed: &[("duration", "0.25s")],
        noise: 0.15,
        ..PLAIN
    },
    Case {
        topic: Topic::Headroom,
        rates: &["rate"],
        times: &["gearbox", "cable_m"],
        counts: &[("peer_quanta", 1, 2_000), ("small_packet_share", 0, 1)],
        falling: &["pause_max"],
        shrinking: &["xoff", "xon", "size", "propagation", "cable"],
        ..PLAIN
    },
];

/// The scenario with every parameter in `factors` multiplied.
fn varied(case: &Case, factors: &[f64], shares: &[f64]) -> Option<Scenario> {
    let scenario = Scenario::default_of(case.topic);
    let mut settings: Vec<ParameterSetting> = case
        .fixed
        .iter()
        .map(|(path, value)| ParameterSetting {
            path: (*path).to_owned(),
            value: (*value).to_owned(),
        })
        .collect();
    for (path, factor) in case.rates.iter().chain(case.times).zip(factors) {
        settings.extend(scaled(&scenario, path, *factor));
    }
    for ((path, low, high), share) in case.counts.iter().zip(shares) {
        let value = (*low as f64 * (*high as f64 / (*low).max(1) as f64).powf(*share)).round();
        settings.push(ParameterSetting {
            path: (*path).to_owned(),
            value: value.to_string(),
        });
    }
    // Some combinations are refused, which is another property.
    scenario.set(&settings).ok().filter(|changed| changed.answer().is_ok())
}

/// A setting that multiplies one parameter. An absent parameter starts from 50 GB/s, a time of zero from 100 ns.
fn scaled(scenario: &Scenario, path: &str, factor: f64) -> Option<ParameterSetting> {
    let table = serde_json::to_value(scenario).expect("a scenario is plain data");
    let full = scenario.full_path(path);
    let now = match lookup(&table, &full) {
        Some(Value::Number(number)) => number.as_f64()?,
        Some(Value::String(text)) => text
            .parse::<straightway_core::Rate>()
            .map(|rate| rate.0)
            .or_else(|_| text.parse::<straightway_core::Seconds>().map(|s| s.0))
            .ok()?,
        // A parameter that is absent by default: a latency or a rate.
        _ if path.ends_with("latency") => 100e-6,
        _ => 50e9,
    };
    let now = if now == 0.0 { 100e-9 } else { now };
    Some(ParameterSetting {
        path: path.to_owned(),
        value: format!("{:e}", now * factor),
    })
}

fn figures(scenario: &Scenario, paths: &[&str]) -> Vec<Option<f64>> {
    let answer = scenario
        .answer()
        .expect("refused scenarios were filtered out")
        .to_json();
    paths
        .iter()
        .map(|path| lookup(&answer, path).and_then(Value::as_f64))
        .collect()
}

/// Fails if `better` is worse than `base` in any figure; checks sizes too if a time was changed.
fn assert_not_worse(case: &Case, base: &Scenario, better: &Scenario, changed: &str) -> Result<(), TestCaseError> {
    let sizes = if case.times.contains(&changed) {
        case.shrinking
    } else {
        &[]
    };
    let names = || {
        let rising = case.rising.iter().map(|n| (n, 1.0));
        let falling = case.falling.iter().chain(sizes);
        rising.chain(falling.map(|n| (n, -1.0)))
    };
    let paths: Vec<&str> = names().map(|(name, _)| *name).collect();
    let (before, after) = (figures(base, &paths), figures(better, &paths));
    for (((name, sign), before), after) in names().zip(before).zip(after) {
        let (Some(before), Some(after)) = (before, after) else {
            continue;
        };
        let worse = (before - after) * sign > (1e-9 + case.noise) * before.abs().max(1e-12);
        prop_assert!(!worse, "{:?} {changed}: {name} was {before}, is {after}", case.topic);
    }
    Ok(())
}

/// Fails if a scenario is accepted and does not fit, is refused and fits, or is refused without saying what it needs.
fn assert_accepted(text: &str, fits: bool) -> Result<(), TestCaseError> {
    match Scenario::read(text) {
        Ok(_) => prop_assert!(fits, "accepted: {text}"),
        Err(refused) => {
            prop_assert!(!fits, "refused: {refused}");
            prop_assert!(refused.to_string().contains("at least"), "{refused}");
        }
    }
    Ok(())
}

#[test]
fn every_topic_has_a_case() {
    for topic in Topic::ALL {
        assert!(CASES.iter().any(|case| case.topic == *topic), "{topic:?}");
    }
}

#[test]
fn every_figure_and_parameter_of_a_case_exists() {
    for case in CASES {
        let scenario = Scenario::default_of(case.topic);
        let answer = scenario.answer().unwrap().to_json();
        for figure in case.rising.iter().chain(case.falling).chain(case.shrinking) {
            let value = lookup(&answer, figure).and_then(Value::as_f64);
            assert!(value.is_some(), "{:?}: {figure}", case.topic);
        }
        for path in case.rates.iter().chain(case.times) {
            let setting = scaled(&scenario, path, 1.0).unwrap();
            scenario
                .set(&[setting])
                .unwrap_or_else(|e| panic!("{:?}: {path}: {e}", case.topic));
        }
        for (path, low, _) in case.counts {
            let setting = ParameterSetting {
                path: (*path).to_owned(),
                value: low.to_string(),
            };
            scenario
                .set(&[setting])
                .unwrap_or_else(|e| panic!("{:?}: {path}: {e}", case.topic));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn twice_the_bandwidth_or_half_the_latency_never_worsens_anything(
        logs in prop::collection::vec(-2.0f64..2.0, 12),
        shares in prop::collection::vec(0.0f64..1.0, 8),
    ) {
        let factors: Vec<f64> = logs.iter().map(|log| 10f64.powf(*log)).collect();
        for case in CASES {
            let Some(base) = varied(case, &factors, &shares) else { continue };
            for (paths, factor) in [(case.rates, 2.0), (case.times, 0.5)] {
                for path in paths {
                    let Some(better) = scaled(&base, path, factor).and_then(|s| base.set(&[s]).ok()) else { continue };
                    if better.answer().is_ok() {
                        assert_not_worse(case, &base, &better, path)?;
                    }
                }
            }
        }
    }

    #[test]
    fn more_bandwidth_never_pushes_the_direct_gain_below_one(
        logs in prop::collection::vec(-3.0f64..3.0, 12),
        shares in prop::collection::vec(0.0f64..1.0, 8),
    ) {
        let case = &CASES[0];
        let factors: Vec<f64> = logs.iter().map(|log| 10f64.powf(*log)).collect();
        let Some(base) = varied(case, &factors, &shares) else { return Ok(()) };
        for path in case.rates {
            let Some(better) = scaled(&base, path, 2.0).and_then(|s| base.set(&[s]).ok()) else { continue };
            let gain = figures(&better, &["gain"])[0].unwrap();
            prop_assert!(gain >= 1.0 - 1e-12, "{path}: {gain}");
        }
    }

    #[test]
    fn an_accepted_checkpoint_fits(
        parameters in 1e8f64..1e14,
        gpus in 1u64..100_000,
        gpus_per_node in 1u64..64,
        gpu_gb in 16u64..300,
        host_gb in 64u64..4096,
        storage_tb in 1u64..100_000,
        kept in 1u64..50,
    ) {
        let text = format!(
            "[checkpoint]\nmodel.parameters = {parameters:e}\ncluster = {{ gpus = {gpus}, gpus_per_node = \
             {gpus_per_node}, gpu_memory = \"{gpu_gb}GB\" }}\nnode.host.memory = \"{host_gb}GB\"\nstorage = {{ \
             capacity = \"{storage_tb}TB\", kept = {kept} }}\n"
        );
        let size = parameters * 14.0;
        let nodes = gpus.div_ceil(gpus_per_node) as f64;
        let fits = size <= gpus as f64 * gpu_gb as f64 * 1e9
            && size <= nodes * host_gb as f64 * 1e9
            && size * kept as f64 <= storage_tb as f64 * 1e12;
        assert_accepted(&text, fits)?;
    }

    #[test]
    fn tenants_never_get_more_than_the_capacity(
        capacity in 25e3f64..1e6,
        offered in 1e3f64..1e6,
        depth in 1u64..1000,
        variation in 0.0f64..1.0,
    ) {
        let text = format!(
            "[qos]\ncapacity = {capacity:e}\nvariation = {variation}\nduration = \"0.1s\"\n[[qos.tenants]]\nname = \
             \"open\"\noffered = {offered:e}\nreservation = 20e3\n[[qos.tenants]]\nname = \"closed\"\ndepth = \
             {depth}\ncost = 8.0\n"
        );
        let answer = Scenario::read(&text).unwrap().answer().unwrap().to_json();
        for rule in ["fifo", "tags"] {
            let got: f64 = (0..2)
                .filter_map(|i| lookup(&answer, &format!("{rule}[{i}].operations_per_s"))?.as_f64())
                .sum();
            prop_assert!(got <= capacity * (1.0 + 1e-9), "{rule}: {got} of {capacity}");
        }
    }

    #[test]
    fn an_accepted_ingest_fits(
        batch in 1u64..5_000,
        sample_mb in 1u64..2_000,
        gpus in 1u64..10_000,
        gpus_per_node in 1u64..32,
        gpu_gb in 16u64..300,
        host_gb in 64u64..4096,
        dataset_tb in 1u64..1_000,
        storage_tb in 1u64..1_000,
        prefetch in any::<bool>(),
    ) {
        let text = format!(
            "[ingest]\ntraining = {{ batch = {batch}, sample = \"{sample_mb}MB\", prefetch = {prefetch} }}\ncluster = {{ \
             gpus = {gpus}, gpus_per_node = {gpus_per_node}, gpu_memory = \"{gpu_gb}GB\", storage_capacity = \
             \"{storage_tb}TB\" }}\nnode.host.memory = \"{host_gb}GB\"\nfiles.dataset = \"{dataset_tb}TB\"\n"
        );
        let held = (batch * sample_mb * if prefetch { 2 } else { 1 }) as f64 * 1e6;
        let fits = held <= gpu_gb as f64 * 1e9
            && held * gpus_per_node.min(gpus) as f64 <= host_gb as f64 * 1e9
            && dataset_tb <= storage_tb;
        assert_accepted(&text, fits)?;
    }

    #[test]
    fn an_accepted_architecture_fits(
        size_tb in 1u64..10_000,
        files in 1u64..4_096,
        kept in 1u64..20,
        servers in 1u64..128,
        targets in 1u64..32,
        target_tb in 1u64..64,
        stripe in 1u64..16,
    ) {
        let text = format!(
            "[architecture]\ncheckpoint = {{ size = \"{size_tb}TB\", files = {files}, kept = {kept} }}\nhardware = {{ servers \
             = {servers}, targets_per_server = {targets}, target_capacity = \"{target_tb}TB\" \
             }}\n[[architecture.systems]]\nname = \"one\"\nstripe = {stripe}\nwrite_share = 0.8\n"
        );
        let target = target_tb as f64 * 0.8;
        let fits = (size_tb * kept) as f64 <= target * (servers * targets) as f64
            && size_tb as f64 / files as f64 <= target * stripe as f64;
        assert_accepted(&text, fits)?;
    }
}

//! Checks of cuFile: the library, its configuration and its environment variables.

use super::{
    check::{Check, Layer, Outcome, list},
    cufile::{Config, Content},
    cufile_path::{ADVICE, ALL_PATHS, COMPAT, DIRECT, P2PDMA},
    facts::Facts,
};

/// cuFile's defaults, by its configuration file in CUDA 13.0.
const BATCH_DEFAULT: u64 = 128;
const SLAB_KIB_DEFAULT: [u64; 3] = [4, 1024, 16384];
const SLAB_COUNT_DEFAULT: [u64; 3] = [128, 64, 64];
/// The largest I/O chunk that cuFile accepts.
const DIRECT_IO_KIB_MAX: u64 = 16384;
/// Sizes are multiples of this.
const STEP_KIB: u64 = 64;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "cufile.library",
        layer: Layer::Machine,
        title: "libcufile",
        ways: ALL_PATHS,
        why: "it is the only API of GPUDirect Storage",
        mend: "sudo apt install libcufile-13-0, or pip install nvidia-cufile and add its folder to \
               LD_LIBRARY_PATH",
        look: look_library,
    },
    Check {
        id: "cufile.config",
        layer: Layer::Machine,
        title: "cufile.json",
        ways: ALL_PATHS,
        why: "if the configuration is unreadable, cuFile fails to open or uses defaults",
        mend: "fix the line named, or set CUFILE_ENV_PATH_JSON to a valid file",
        look: look_config,
    },
    Check {
        id: "cufile.compat",
        layer: Layer::Machine,
        title: "compat mode",
        ways: DIRECT,
        why: "forced compat mode copies through host memory even where direct would work",
        mend: "unset CUFILE_FORCE_COMPAT_MODE and set properties.force_compat_mode to false in \
               cufile.json",
        look: look_compat,
    },
    Check {
        id: "cufile.p2pdma",
        layer: Layer::Machine,
        title: "P2PDMA option",
        ways: P2PDMA,
        why: "cuFile uses the kernel's P2PDMA only if enabled; the default is off",
        mend: "set properties.use_pci_p2pdma to true in cufile.json, or export \
               CUFILE_USE_PCIP2PDMA=true",
        look: look_p2pdma,
    },
    Check {
        id: "cufile.denylist",
        layer: Layer::Machine,
        title: "deny list",
        ways: DIRECT,
        why: "entries of the deny list in cufile.json are never read directly",
        mend: "remove the entry from `denylist` in cufile.json",
        look: look_denylist,
    },
    Check {
        id: "cufile.pool",
        layer: Layer::Machine,
        title: "compat pool",
        ways: COMPAT,
        why: "in compat mode each entry of a batch holds one pool buffer; a batch larger than the \
              pool blocks forever, without an error",
        mend: "raise properties.posix_pool_slab_count to at least io_batchsize in cufile.json, or \
               submit smaller batches",
        look: look_pool,
    },
    Check {
        id: "cufile.limits",
        layer: Layer::Machine,
        title: "cuFile's sizes",
        ways: ADVICE,
        why: "misaligned sizes are refused or rounded, and a device cache smaller than the batch \
              stalls it",
        mend: "use multiples of 64 KiB, and a device cache of at least io_batchsize × \
               per_buffer_cache_size_kb, in cufile.json",
        look: look_limits,
    },
    Check {
        id: "cufile.logging",
        layer: Layer::Machine,
        title: "cuFile's logging",
        ways: ADVICE,
        why: "at DEBUG and TRACE cuFile logs every I/O, which is slow",
        mend: "unset CUFILE_LOGGING_LEVEL and set logging.level to ERROR in cufile.json",
        look: look_logging,
    },
];

fn has_gpu(facts: &Facts<'_>) -> bool {
    !facts.gpus.is_empty()
}

fn look_library(facts: &Facts<'_>) -> Outcome {
    if !has_gpu(facts) {
        return Outcome::skip("no GPU");
    }
    match &facts.cufile.library {
        Some(library) => {
            let path = library.path.display();
            match &library.version {
                Some(version) => Outcome::pass(format!("{version} at {path}")),
                None => Outcome::pass(path.to_string()),
            }
        }
        None => Outcome::fail("the loader does not find libcufile.so.0"),
    }
}

fn look_config(facts: &Facts<'_>) -> Outcome {
    if !has_gpu(facts) {
        return Outcome::skip("no GPU");
    }
    let config = &facts.cufile.config;
    let path = config.path.display();
    let variables: Vec<String> = config
        .variables
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    match &config.content {
        Content::Broken(why) => Outcome::fail(format!("{path}: {why}")),
        Content::Missing if variables.is_empty() => Outcome::pass("none: defaults apply"),
        Content::Missing => Outcome::pass(format!("none, with {}", list(variables.into_iter()))),
        Content::Settings(_) if variables.is_empty() => Outcome::pass(path.to_string()),
        Content::Settings(_) => Outcome::pass(format!("{path}, with {}", list(variables.into_iter()))),
    }
}

/// The configuration; `None` without a GPU.
fn config<'a>(facts: &'a Facts<'_>) -> Option<&'a Config> {
    has_gpu(facts).then_some(&facts.cufile.config)
}

fn look_compat(facts: &Facts<'_>) -> Outcome {
    let Some(config) = config(facts) else {
        return Outcome::skip("no GPU");
    };
    let forced = config.switch("CUFILE_FORCE_COMPAT_MODE", "properties.force_compat_mode");
    let allowed = config.switch("CUFILE_ALLOW_COMPAT_MODE", "properties.allow_compat_mode");
    match (forced, allowed) {
        (Some(true), _) => Outcome::fail("compat mode is forced"),
        (_, Some(true)) => Outcome::pass("allowed: cuFile may fall back silently"),
        (_, Some(false)) => Outcome::pass("forbidden: a fallback is an error"),
        (_, None) => Outcome::pass("not set: the default differs by version"),
    }
}

fn look_p2pdma(facts: &Facts<'_>) -> Outcome {
    let Some(config) = config(facts) else {
        return Outcome::skip("no GPU");
    };
    match config.switch("CUFILE_USE_PCIP2PDMA", "properties.use_pci_p2pdma") {
        Some(true) => Outcome::pass("on"),
        Some(false) => Outcome::fail("P2PDMA is disabled in cuFile"),
        None => Outcome::fail("P2PDMA is not enabled in cuFile"),
    }
}

fn look_denylist(facts: &Facts<'_>) -> Outcome {
    let (Some(config), Some(backing)) = (config(facts), facts.backing()) else {
        return Outcome::skip("no GPU, or no known device");
    };
    let listed = |kind: &str, name: &str| {
        let words = config.words(&format!("denylist.{kind}"));
        words.contains(&name).then(|| format!("{kind} {name}"))
    };
    let device = |name: &str| listed("devices", &format!("/dev/{name}"));
    let mount = &backing.mount;
    let found = listed("filesystems", &mount.file_system)
        .or_else(|| listed("mounts", &mount.point.to_string_lossy()))
        .or_else(|| listed("devices", &mount.source))
        .or_else(|| backing.drives.iter().find_map(|drive| device(&drive.name)));
    match found {
        Some(entry) => Outcome::fail(format!("the path is on the deny list: {entry}")),
        None => Outcome::pass("the path is not on it"),
    }
}

fn look_pool(facts: &Facts<'_>) -> Outcome {
    let Some(config) = config(facts) else {
        return Outcome::skip("no GPU");
    };
    let batch = config.number("properties.io_batchsize", BATCH_DEFAULT);
    let counts = config.numbers("properties.posix_pool_slab_count", &SLAB_COUNT_DEFAULT);
    let sizes = config.numbers("properties.posix_pool_slab_size_kb", &SLAB_KIB_DEFAULT);
    if sizes.len() != counts.len() || sizes.is_empty() {
        return Outcome::warn(format!("{} slab sizes but {} slab counts", sizes.len(), counts.len()));
    }
    match sizes.iter().zip(&counts).find(|(_, count)| **count < batch) {
        Some((kib, count)) => Outcome::warn(format!("batches of up to {batch}, but {count} buffers of {kib} KiB")),
        None => Outcome::pass(format!("enough buffers for batches of {batch}")),
    }
}

fn look_limits(facts: &Facts<'_>) -> Outcome {
    let Some(config) = config(facts) else {
        return Outcome::skip("no GPU");
    };
    let number = |name: &str, default| config.number(&format!("properties.{name}"), default);
    let chunk = number("max_direct_io_size_kb", DIRECT_IO_KIB_MAX);
    let cache = number("max_device_cache_size_kb", 131_072);
    let buffer = number("per_buffer_cache_size_kb", 1024);
    let batch = number("io_batchsize", BATCH_DEFAULT);
    let mut wrong = Vec::new();
    if chunk == 0 || chunk % STEP_KIB != 0 || chunk > DIRECT_IO_KIB_MAX {
        wrong.push(format!("max_direct_io_size_kb is {chunk}"));
    }
    if buffer == 0 || buffer % STEP_KIB != 0 {
        wrong.push(format!("per_buffer_cache_size_kb is {buffer}"));
    } else if cache / buffer < batch {
        wrong.push(format!(
            "a device cache of {cache} KiB holds {} of {batch} buffers",
            cache / buffer
        ));
    }
    if wrong.is_empty() {
        Outcome::pass(format!("chunks of up to {chunk} KiB, batches of up to {batch}"))
    } else {
        Outcome::warn(list(wrong.into_iter()))
    }
}

fn look_logging(facts: &Facts<'_>) -> Outcome {
    let Some(config) = config(facts) else {
        return Outcome::skip("no GPU");
    };
    let variable = config.variables.get("CUFILE_LOGGING_LEVEL");
    let setting = config.setting("logging.level").and_then(|level| level.as_str());
    let level = variable.map(String::as_str).or(setting).unwrap_or("ERROR");
    match level.to_uppercase().as_str() {
        "DEBUG" | "TRACE" => Outcome::warn(format!("cuFile logs at {level}")),
        _ => Outcome::pass(level.to_owned()),
    }
}

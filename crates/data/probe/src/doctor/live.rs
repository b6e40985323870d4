//! Checks of real transfers, which are measured elsewhere and judged here.
//!
//! The checks of the other layers say what should work. Only a transfer whose bytes were counted shows what does
//! work, and it decides: if it was direct, the verdict is direct, whatever else was found.

use straightway_core::{Bytes, Rate};

use super::{
    check::{Check, Layer, Outcome, list},
    cufile_path::{ADVICE, DIRECT},
    facts::Facts,
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "live.host",
        layer: Layer::Live,
        title: "host read",
        ways: ADVICE,
        why: "a real O_DIRECT read measures the rate of the drive without a GPU",
        mend: "read the error; a file system without O_DIRECT is read through the page cache",
        look: look_host,
    },
    Check {
        id: "live.gpu",
        layer: Layer::Live,
        title: "GPU transfer",
        ways: DIRECT,
        why: "cuFile falls back to host memory silently; only its own counters during a real transfer \
              prove which path the bytes took",
        mend: "fix the failures above, then run the doctor again",
        look: look_gpu,
    },
];

fn look_host(facts: &Facts<'_>) -> Outcome {
    let Some(read) = &facts.measured.host else {
        return Outcome::skip("not run: this is a capture, not the machine");
    };
    if let Some(error) = &read.error {
        return Outcome::warn(error.clone());
    }
    if read.bytes == 0 {
        return Outcome::skip("the file is empty");
    }
    let (bytes, rate) = (Bytes(read.bytes), read.rate());
    if facts.is_memory() {
        Outcome::pass(format!("{bytes} from memory at {rate}, by one thread"))
    } else {
        Outcome::pass(format!("{bytes} by O_DIRECT at {rate}, one read at a time"))
    }
}

fn look_gpu(facts: &Facts<'_>) -> Outcome {
    let Some(probe) = &facts.measured.gpu else {
        return Outcome::skip("not run");
    };
    if let Some(error) = &probe.error {
        return Outcome::fail(error.clone());
    }
    let rate = Rate(probe.bytes() as f64 / probe.seconds.max(f64::MIN_POSITIVE));
    let parts = probe.routes.iter().map(|part| {
        let bytes = Bytes(part.bytes);
        format!("{bytes} {} ({})", part.route, part.reason)
    });
    let seen = format!("{} at {rate}", list(parts));
    match probe.proof() {
        Some(_) => Outcome::pass(seen),
        None => Outcome::fail(seen),
    }
}

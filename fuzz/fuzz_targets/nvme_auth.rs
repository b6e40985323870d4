//! What this target checks stands in `straightway_fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| straightway_fuzzing::run("nvme_auth", data));

//! The checks of this target are in `straightway_fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| straightway_fuzzing::run("npy", data));

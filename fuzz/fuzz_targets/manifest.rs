//! Any bytes as a manifest: refused with words, or read and written again as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use straightway_pipeline::checkpoint::{Manifest, Part, Sum};

fuzz_target!(|data: &[u8]| {
    check(data);
    // What is not sealed is refused at once; sealed, the same bytes get further.
    if let Some(body) = data.strip_suffix(b"}") {
        let sum = Sum::of(body);
        let sealed = [body, format!(",\"crc64\":\"{sum}\"}}\n").as_bytes()].concat();
        check(&sealed);
    }
});

fn check(text: &[u8]) {
    let _ = Part::parse("a part", text);
    match Manifest::parse("a manifest", text) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(manifest) => {
            let again = Manifest::parse("again", manifest.text().as_bytes());
            let again = again.expect("what was read can be written");
            assert_eq!(again.tensors, manifest.tensors);
            assert_eq!(again.shards, manifest.shards);
            // Figures that a restore counts with must not overflow.
            let _ = (manifest.bytes(), manifest.written_bytes(), manifest.referenced());
        }
    }
}

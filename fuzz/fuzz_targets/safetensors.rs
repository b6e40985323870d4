//! Any bytes as a safetensors file: what we accept the reference accepts too, tensor by tensor, and
//! what we refuse is refused with the file's name.
#![no_main]

use libfuzzer_sys::fuzz_target;
use safetensors::SafeTensors;
use straightway_pipeline::weights::Header;

fuzz_target!(|data: &[u8]| {
    let bytes = data.len() as u64;
    let header = match Header::parse("the file", data, bytes) {
        Ok(header) => header,
        Err(error) => return assert!(error.to_string().starts_with("cannot read the file: ")),
    };
    // The tensors fill the file without hole or overlap.
    let mut end = header.data_offset;
    for tensor in &header.tensors {
        assert_eq!(tensor.extent.offset, end);
        end = tensor.extent.end();
    }
    assert_eq!(end, bytes);
    // A field that the reference does not know may be nested deeper than it can follow.
    let theirs = match SafeTensors::deserialize(data) {
        Ok(theirs) => theirs,
        Err(error) if error.to_string().contains("recursion limit") => return,
        Err(error) => panic!("only the reference refuses it: {error}"),
    };
    assert_eq!(theirs.len(), header.tensors.len());
    for tensor in &header.tensors {
        let view = theirs.tensor(&tensor.name).expect("both have it");
        assert_eq!(view.dtype().to_string(), tensor.dtype.name());
        assert!(view.shape().iter().map(|n| *n as u64).eq(tensor.shape.iter().copied()));
        assert_eq!(view.data().len() as u64, tensor.extent.bytes);
    }
});

//! Models and checkpoints.

use std::path::{Component, Path};

use safetensors::SafeTensors;
use straightway_checkpoint::{Manifest, ShardReport, Sum, canonical};
use straightway_core::npy;
use straightway_weights::{Header, WeightIndex};

use crate::assert_harmless;

/// Any bytes as the start of a NumPy file. An accepted header is within the limits, and what is written from it reads
/// back as the same.
pub(crate) fn npy(data: &[u8]) {
    let start = match npy::parse(data) {
        Ok(start) => start,
        Err(error) => return assert_harmless(&error.to_string()),
    };
    assert!(start.data_offset <= data.len() as u64 && start.header.shape.len() <= 64);
    assert_ne!(
        start.header.descr.as_bytes()[1],
        b'O',
        "elements are never Python objects"
    );
    if let Ok(bytes) = start.header.to_bytes() {
        let again = npy::parse(&bytes).expect("it was accepted before");
        assert_eq!((again.header, again.data_offset), (start.header, bytes.len() as u64));
    }
}

/// Any bytes as a safetensors file. An accepted file is accepted by the reference implementation too, tensor by tensor.
/// An error has the name of the file.
pub(crate) fn safetensors(data: &[u8]) {
    let bytes = data.len() as u64;
    let header = match Header::parse("the file", data, bytes) {
        Ok(header) => header,
        Err(error) => {
            assert!(error.to_string().starts_with("cannot read the file: "));
            return assert_harmless(&error.to_string());
        }
    };
    // The tensors fill the file without gaps or overlaps.
    let mut end = header.data_offset;
    for tensor in &header.tensors {
        assert_eq!(tensor.extent.offset, end);
        end = tensor.extent.end();
    }
    assert_eq!(end, bytes);
    // A field that the reference does not know may exceed its nesting limit.
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
}

/// Any bytes as an index. It is refused with an error, or its files lie in its folder and contain its tensors.
pub(crate) fn index(data: &[u8]) {
    let folder = Path::new("/models/some");
    let index = match WeightIndex::parse(&folder.join("model.safetensors.index.json"), data) {
        Ok(index) => index,
        Err(error) => return assert_harmless(&error.to_string()),
    };
    for file in &index.files {
        let inside = file.strip_prefix(folder).expect("a file of the folder");
        assert!(
            inside.components().all(|part| matches!(part, Component::Normal(_))),
            "{}",
            file.display()
        );
    }
    assert!(
        index.files.is_sorted()
            && index
                .places
                .iter()
                .all(|(_, file)| (*file as usize) < index.files.len())
    );
    if let Some(metadata) = &index.metadata {
        serde_json::from_str::<serde::de::IgnoredAny>(metadata).expect("metadata is JSON");
    }
}

/// Any bytes as a manifest or a part of one. It is refused with an error, or it round-trips.
pub(crate) fn manifest(data: &[u8]) {
    sealed(data);
    // Bytes without a seal are refused at once. With a seal, the same bytes get further.
    if let Some(body) = data.strip_suffix(b"}") {
        let sum = Sum::of(body);
        sealed(&[body, format!(",\"crc64\":\"{sum}\"}}\n").as_bytes()].concat());
    }
}

fn sealed(text: &[u8]) {
    if let Err(error) = ShardReport::parse("a part", text) {
        assert_harmless(&error.to_string());
    }
    match Manifest::parse("a manifest", text) {
        Err(error) => assert_harmless(&error.to_string()),
        Ok(manifest) => {
            let again = Manifest::parse("again", manifest.text().as_bytes());
            let again = again.expect("a parsed manifest can be written");
            assert_eq!(again.tensors, manifest.tensors);
            assert_eq!(again.shards, manifest.shards);
            // Numbers that a restore uses must not overflow.
            let _ = (manifest.bytes(), manifest.written_bytes(), manifest.referenced());
        }
    }
}

/// Any bytes as names in a store. A parsed name converts back to the same name.
pub(crate) fn tags(data: &[u8]) {
    for name in String::from_utf8_lossy(data).split(['/', '\n']) {
        if let Some(written) = canonical(name) {
            assert_eq!(written, name);
            assert_harmless(name);
        }
    }
}

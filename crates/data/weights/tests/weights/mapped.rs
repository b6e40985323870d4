//! Memory-mapped tensors.

use straightway_core::{ErrorKind, Leg, Reason, Route};
use straightway_weights::{Filters, Model, Selection, Slice};

use crate::fixture::{folder, loader, weights, write};

#[test]
fn whole_tensors_are_mapped_parts_are_read_and_one_receipt_has_both() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    write(&path, &weights(&[("a", &[64, 96]), ("b", &[30]), ("c", &[0])]));
    let model = Model::open(&path).unwrap();
    let mapped = loader().map(&model, &Selection::all(&model)).unwrap();
    assert_eq!(mapped.tensors.len(), 3);
    for tensor in &mapped.tensors {
        assert!(tensor.placed.at + tensor.placed.bytes <= tensor.pages.bytes());
    }
    let receipt = mapped.rest.run().unwrap().receipt;
    assert!(receipt.is_mapped());
    assert_eq!(
        (receipt.bytes, receipt.ios, receipt.rate_bytes_per_s),
        (model.bytes(), 0, 0.0)
    );
    assert_eq!(receipt.routes[0].reason, Reason::FilePages);

    let slices: [Slice; 1] = ["a@0:0..32".parse().unwrap()];
    let selection = Selection::new(&model, &Filters::default(), &slices).unwrap();
    let mapped = loader().map(&model, &selection).unwrap();
    assert_eq!(mapped.tensors.len(), 2);
    assert_eq!(mapped.rest.tensors().len(), 1);
    let receipt = mapped.rest.run().unwrap().receipt;
    assert_eq!(receipt.bytes_by(Leg::Read, Route::Mapped), 60);
    assert_eq!(receipt.bytes, 60 + 32 * 96 * 2);
    assert!(!receipt.is_mapped() && receipt.rate_bytes_per_s > 0.0);
}

#[test]
fn a_file_that_was_replaced_since_its_header_was_read_is_neither_mapped_nor_read() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    write(&path, &weights(&[("a", &[64, 96])]));
    let model = Model::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    write(&path, &weights(&[("b", &[64, 96])]));
    let error = model.shards[0].map().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
    let mapped = loader().map(&model, &Selection::all(&model)).unwrap();
    assert!(mapped.tensors.is_empty());
    let error = mapped.rest.run().unwrap_err();
    assert!(error.to_string().contains("replaced"), "{error}");
}

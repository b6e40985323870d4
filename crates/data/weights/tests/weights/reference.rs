//! Compares with the reference implementation: each reads the files of the other, and both accept the same damaged
//! files.

use std::{collections::BTreeMap, fs};

use proptest::prelude::*;
use safetensors::{Dtype as TheirDtype, SafeTensors};
use straightway_weights::{Dtype, FileSaver, Header, Held, Holding, Model, Shape};

use crate::fixture::{Weights, assert_loads, bytes_of, folder, loader, write};

const THEIRS: [TheirDtype; 22] = [
    TheirDtype::BOOL,
    TheirDtype::F4,
    TheirDtype::F6_E2M3,
    TheirDtype::F6_E3M2,
    TheirDtype::U8,
    TheirDtype::I8,
    TheirDtype::F8_E5M2,
    TheirDtype::F8_E4M3,
    TheirDtype::F8_E8M0,
    TheirDtype::F8_E4M3FNUZ,
    TheirDtype::F8_E5M2FNUZ,
    TheirDtype::I16,
    TheirDtype::U16,
    TheirDtype::F16,
    TheirDtype::BF16,
    TheirDtype::I32,
    TheirDtype::U32,
    TheirDtype::F32,
    TheirDtype::C64,
    TheirDtype::F64,
    TheirDtype::I64,
    TheirDtype::U64,
];

/// Errors for which the reference implementation accepts the file.
const STRICTER: [&str; 6] = [
    "does not begin with `{`",
    "is there twice",
    "invalid type: sequence, expected a map",
    "invalid type: map, expected the name of a dtype",
    "longer than 65536 bytes",
    "more than 64 dimensions",
];

fn tensors() -> impl Strategy<Value = Weights> {
    let name = prop_oneof!["[a-z.]{1,12}", any::<String>(), Just("\"quoted\\ \u{1}".to_owned())];
    let contents = (
        prop::sample::select(&THEIRS[..]),
        prop::collection::vec(0_usize..5, 0..5),
        0_usize..99,
    )
        .prop_map(|(dtype, mut shape, seed)| {
            // Elements of less than a byte come in whole bytes.
            if dtype.bitsize() < 8 {
                shape.push(4);
            }
            let len = shape.iter().product::<usize>() * dtype.bitsize() / 8;
            (dtype, shape, bytes_of(len, seed))
        });
    let is_name = |weights: &Weights| !weights.contains_key("__metadata__");
    prop::collection::btree_map(name, contents, 0..12).prop_filter("a tensor's name", is_name)
}

#[test]
fn dtypes_are_those_of_the_reference_in_its_order_and_as_wide() {
    assert!(THEIRS.is_sorted());
    for (theirs, ours) in THEIRS.iter().zip(Dtype::ALL) {
        assert_eq!(theirs.to_string(), ours.name());
        assert_eq!(theirs.bitsize() as u64, ours.bits());
    }
}

/// Asserts that both parse a file to the same tensors, or both refuse it.
fn compare(bytes: &[u8]) -> Result<(), TestCaseError> {
    let theirs = SafeTensors::deserialize(bytes);
    let ours = Header::parse("file", bytes, bytes.len() as u64);
    let (theirs, ours) = match (theirs, ours) {
        (Ok(theirs), Ok(ours)) => (theirs, ours),
        (Err(_), Err(_)) => return Ok(()),
        (Err(theirs), Ok(_)) => {
            return Err(TestCaseError::fail(format!("only they refuse it: {theirs}")));
        }
        (Ok(_), Err(ours)) => {
            let ours = ours.to_string();
            let is_known = STRICTER.iter().any(|rule| ours.contains(rule));
            prop_assert!(is_known, "only we refuse it: {}", ours);
            return Ok(());
        }
    };
    prop_assert_eq!(theirs.len(), ours.tensors.len());
    for tensor in &ours.tensors {
        let view = theirs.tensor(&tensor.name).unwrap();
        prop_assert_eq!(view.dtype().to_string(), tensor.dtype.name());
        let shape: Vec<_> = tensor.shape.iter().map(|n| *n as usize).collect();
        prop_assert_eq!(view.shape(), &shape);
        let at = tensor.extent.offset as usize;
        prop_assert!(view.data() == &bytes[at..at + tensor.extent.bytes as usize]);
    }
    let (_, theirs) = SafeTensors::read_metadata(bytes).unwrap();
    let theirs: BTreeMap<_, _> = theirs.metadata().clone().unwrap_or_default().into_iter().collect();
    prop_assert_eq!(theirs, ours.metadata);
    Ok(())
}

fn serialized(weights: &Weights) -> Vec<u8> {
    let folder = folder();
    let path = folder.path().join("file");
    write(&path, weights);
    fs::read(path).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn files_of_the_reference_are_loaded_byte_for_byte(weights in tensors()) {
        let folder = folder();
        let path = folder.path().join("model.safetensors");
        write(&path, &weights);
        assert_loads(&path, &weights);
    }

    #[test]
    fn the_reference_reads_our_files_whose_data_is_page_aligned(
        weights in tensors(),
        metadata in prop::collection::btree_map(any::<String>(), any::<String>(), 0..4),
    ) {
        let folder = folder();
        let path = folder.path().join("model.safetensors");
        let held: Vec<_> = weights.iter().map(|(name, (dtype, shape, bytes))| Held {
            name,
            dtype: dtype.to_string().parse().unwrap(),
            shape: shape.iter().map(|n| *n as u64).collect::<Shape>(),
            bytes: Holding::Host(bytes),
        }).collect();
        FileSaver::new(loader().executor).save_held(&path, &held, &metadata).unwrap();
        let bytes = fs::read(&path).unwrap();
        compare(&bytes)?;
        let theirs = SafeTensors::deserialize(&bytes).unwrap();
        prop_assert_eq!(theirs.len(), weights.len());
        for (name, (dtype, shape, bytes)) in &weights {
            let view = theirs.tensor(name).unwrap();
            prop_assert_eq!((view.dtype(), view.shape()), (*dtype, &shape[..]));
            prop_assert!(view.data() == bytes);
        }
        let model = Model::open(&path).unwrap();
        prop_assert_eq!(model.shards[0].data_offset % 4096, 0);
        prop_assert_eq!(&model.shards[0].metadata, &metadata);
    }

    #[test]
    fn a_damaged_file_is_accepted_by_both_or_by_neither(
        weights in tensors(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), damaged_byte()), 1..4),
        cut in prop_oneof![3 => Just(None), 1 => any::<prop::sample::Index>().prop_map(Some)],
    ) {
        let mut bytes = serialized(&weights);
        let header = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
        for (place, byte) in damage {
            bytes[place.index(header)] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        compare(&bytes)?;
    }

    #[test]
    fn a_header_with_any_numbers_is_accepted_by_both_or_by_neither(
        entries in prop::collection::vec(entry(), 0..4),
        data in 0_usize..40,
    ) {
        let mut header = format!("{{{}}}", entries.join(",")).into_bytes();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.append(&mut header);
        bytes.resize(bytes.len() + data, 0);
        compare(&bytes)?;
    }
}

/// Bytes that are frequent in JSON, and any others.
fn damaged_byte() -> impl Strategy<Value = u8> {
    prop_oneof![
        4 => prop::sample::select(&b"{}[]:,\"0123456789-.e abtx_\\"[..]),
        1 => any::<u8>(),
    ]
}

/// An entry of a header whose numbers may or may not be consistent.
fn entry() -> impl Strategy<Value = String> {
    let figure = prop_oneof![
        4 => (0_u64..5).prop_map(|n| n.to_string()),
        1 => prop::sample::select(&["-1", "1.5", "18446744073709551615", "1e3", "null", "\"2\""][..])
            .prop_map(str::to_owned),
    ];
    let offset = prop_oneof![
        6 => prop::sample::select(&["0", "4", "8", "16"][..]).prop_map(str::to_owned),
        1 => figure.clone(),
    ];
    let dtype = prop::sample::select(&["F32", "F32", "U8", "F4", "I64", "F5"][..]);
    let more = prop::sample::select(&["", "", "", ",\"x\":[1,{}]", ",\"dtype\":\"U8\""][..]);
    (
        "[abc]",
        dtype,
        prop::collection::vec(figure, 0..3),
        (offset.clone(), offset),
        more,
    )
        .prop_map(|(name, dtype, shape, (start, end), more)| {
            let shape = shape.join(",");
            format!("\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":[{shape}],\"data_offsets\":[{start},{end}]{more}}}")
        })
}

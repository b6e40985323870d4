//! The layout of tensors in a region, for models of any shape. The files are sparse.

use std::{fmt::Write as _, fs, path::Path};

use proptest::prelude::*;
use straightway_weights::{Dtype, Filters, LARGE_ALIGN_BYTES, LARGE_BYTES, Layout, Model, Phase, Selection};

use crate::fixture::folder;

/// Writes a file with tensors of these dtypes and lengths, whose data is a hole.
fn write(path: &Path, tensors: &[(Dtype, u64)], padding: usize) {
    let mut header = String::from("{");
    let mut end = 0;
    for (number, (dtype, len)) in tensors.iter().enumerate() {
        let start = end;
        end += len * dtype.bits() / 8;
        let comma = if number == 0 { "" } else { "," };
        write!(
            header,
            "{comma}\"t{number}\":{{\"dtype\":\"{dtype}\",\"shape\":[{len}],\"data_offsets\":[{start},{end}]}}"
        )
        .unwrap();
    }
    header.push('}');
    header.push_str(&" ".repeat(padding));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    fs::write(path, &bytes).unwrap();
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(bytes.len() as u64 + end).unwrap();
}

fn tensors() -> impl Strategy<Value = Vec<(Dtype, u64)>> {
    let dtypes = prop::sample::select(Dtype::ALL);
    let len = prop_oneof![Just(0_u64), 1_u64..100, 1_u64..100_000, (1_u64 << 17)..(1 << 22)];
    // Elements of less than a byte come in whole bytes.
    let one = (dtypes, len).prop_map(|(dtype, len)| (dtype, len.next_multiple_of(4)));
    prop::collection::vec(one, 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn tensors_are_aligned_apart_and_close_together(
        files in prop::collection::vec((tensors(), 0_usize..40), 1..3),
        phase in prop::sample::select(&[Phase::Free, Phase::OfFile][..]),
        wanted in prop_oneof![Just("*"), Just("t*[02468]")],
    ) {
        let folder = folder();
        for (number, (tensors, padding)) in files.iter().enumerate() {
            write(&folder.path().join(format!("{number}.safetensors")), tensors, *padding);
        }
        // The second file's tensors have the first one's names: it is opened alone.
        let path = folder.path().join(format!("{}.safetensors", files.len() - 1));
        let model = Model::open(&path).unwrap();
        let filters: Filters = [wanted.parse().unwrap()].into_iter().collect();
        let Ok(selection) = Selection::new(&model, &filters, &[]) else { return Ok(()) };
        let layout = Layout::new(&model, &selection, phase);

        let mut end = 0;
        for placed in &layout.tensors {
            prop_assert!(placed.at >= end, "tensors do not overlap");
            prop_assert!(placed.at.is_multiple_of(placed.dtype.align_bytes()));
            if phase == Phase::Free && placed.bytes >= LARGE_BYTES {
                prop_assert!(placed.at.is_multiple_of(LARGE_ALIGN_BYTES));
            }
            let tensor = model.tensor(&placed.name).unwrap();
            let aligned = tensor.extent.offset.is_multiple_of(placed.dtype.align_bytes());
            if phase == Phase::OfFile && placed.bytes >= LARGE_BYTES && aligned {
                prop_assert_eq!(placed.at % 4096, tensor.extent.offset % 4096);
            }
            end = placed.at + placed.bytes;
        }
        prop_assert_eq!(layout.bytes, end);
        prop_assert_eq!(layout.moves.iter().map(|m| m.extent.bytes).sum::<u64>(), selection.bytes());
        for m in &layout.moves {
            for placed in layout.tensors.iter().filter(|t| t.bytes > 0 && (m.at..m.at + m.extent.bytes).contains(&t.at)) {
                let tensor = model.tensor(&placed.name).unwrap();
                prop_assert_eq!(placed.at - m.at, tensor.extent.offset - m.extent.offset);
            }
        }
        let waste = layout.bytes - selection.bytes();
        let large = layout.moves.iter().filter(|m| m.extent.bytes >= LARGE_BYTES).count() as u64;
        prop_assert!(waste <= large * 4096 + layout.moves.len() as u64 * 8, "{} wasted", waste);
    }
}

#[test]
fn many_small_tensors_are_one_move() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let tensors: Vec<_> = (0..20_000_u64).map(|n| (Dtype::Bf16, 512 + n % 7)).collect();
    write(&path, &tensors, 0);
    let model = Model::open(&path).unwrap();
    for phase in [Phase::Free, Phase::OfFile] {
        let layout = Layout::new(&model, &Selection::all(&model), phase);
        assert!(layout.moves.len() <= 2, "{phase:?}: {}", layout.moves.len());
    }
}

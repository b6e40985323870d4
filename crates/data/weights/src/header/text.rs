//! Writes headers, padded so that the data begins on a page.

use std::{collections::BTreeMap, fmt::Write as _};

use straightway_core::{Alignment, Bytes, Error, ErrorKind, Result, extent::up};

use super::{HEADER_BYTES_MAX, PREFIX_BYTES, json::METADATA};
use crate::{Dtype, Shape};

/// The header of a file with these tensors, in this order and with this many bytes each. Errors call the file `name`.
///
/// The JSON is padded with spaces, which the format allows: data that begins on 4 KiB can be read by direct I/O.
pub(crate) fn compose<'a>(
    name: &str,
    tensors: impl Iterator<Item = (&'a str, Dtype, &'a Shape, u64)>,
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>> {
    let mut text = String::from("{");
    if !metadata.is_empty() {
        let map = serde_json::to_string(metadata).expect("strings are always JSON");
        write!(text, "\"{METADATA}\":{map},").expect("a string takes all");
    }
    let mut end = 0_u64;
    for (tensor, dtype, shape, bytes) in tensors {
        let start = end;
        end += bytes;
        let tensor = serde_json::to_string(tensor).expect("a string is always JSON");
        let shape = shape.iter().map(u64::to_string).collect::<Vec<_>>();
        let shape = shape.join(",");
        write!(
            text,
            "{tensor}:{{\"dtype\":\"{dtype}\",\"shape\":[{shape}],\"data_offsets\":[{start},{end}]}},"
        )
        .expect("a string takes all");
    }
    if text.ends_with(',') {
        text.pop();
    }
    text.push('}');
    let bytes = up(PREFIX_BYTES + text.len() as u64, Alignment::PAGE_BYTES);
    let json_bytes = bytes - PREFIX_BYTES;
    if json_bytes > HEADER_BYTES_MAX {
        let most = Bytes(HEADER_BYTES_MAX);
        let message = format!("its header would be longer than the {most} that the format allows");
        return Err(
            Error::new(ErrorKind::Invalid, "write", name, message).with_hint("divide the tensors among several files")
        );
    }
    let mut start = json_bytes.to_le_bytes().to_vec();
    start.extend_from_slice(text.as_bytes());
    start.resize(
        usize::try_from(bytes).expect("the limit fits every address space"),
        b' ',
    );
    Ok(start)
}

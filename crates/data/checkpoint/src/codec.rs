//! The encoding of a stored chunk: raw or compressed.

use serde::{Deserialize, Serialize};

/// The compression of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Codec {
    /// Not compressed.
    #[default]
    Raw,
    /// Zstandard, one frame.
    Zstd,
    /// LZ4, one block without a header.
    Lz4,
}

/// The level of Zstandard: its fastest positive one. Weights compress by redundancy in their exponents, and higher
/// levels find no more of it.
const ZSTD_LEVEL: i32 = 1;

/// The minimum gain of compression. Less is not worth the decompression.
const GAIN_BYTES_MIN: usize = 4096;

impl Codec {
    /// Compresses a chunk. `None` if that gains less than a page; the chunk is then stored raw.
    pub(crate) fn shrink(self, chunk: &[u8]) -> Option<Vec<u8>> {
        let room = chunk.len().checked_sub(GAIN_BYTES_MIN);
        let room = room.filter(|room| *room > 0)?;
        let mut small = match self {
            Self::Raw => return None,
            Self::Zstd => vec![0; room],
            // LZ4 always needs room for the worst case.
            Self::Lz4 => vec![0; lz4_flex::block::get_maximum_output_size(chunk.len())],
        };
        let bytes = match self {
            Self::Raw => return None,
            Self::Zstd => zstd::bulk::compress_to_buffer(chunk, &mut small, ZSTD_LEVEL).ok()?,
            Self::Lz4 => lz4_flex::block::compress_into(chunk, &mut small).ok()?,
        };
        if bytes > room {
            return None;
        }
        small.truncate(bytes);
        Some(small)
    }

    /// Decompresses a chunk into `chunk`, which has its original length. The error is the reason.
    pub(crate) fn restore(self, stored: &[u8], chunk: &mut [u8]) -> Result<(), String> {
        let made = match self {
            Self::Raw if stored.len() == chunk.len() => {
                chunk.copy_from_slice(stored);
                Ok(chunk.len())
            }
            Self::Raw => Ok(stored.len()),
            Self::Zstd => zstd::bulk::decompress_to_buffer(stored, chunk).map_err(|e| e.to_string()),
            Self::Lz4 => lz4_flex::block::decompress_into(stored, chunk).map_err(|e| e.to_string()),
        };
        let expected = chunk.len();
        match made {
            Ok(bytes) if bytes == expected => Ok(()),
            Ok(bytes) => Err(format!("it unpacks to {bytes} bytes, expected {expected}")),
            Err(why) => Err(format!("it cannot be unpacked: {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use straightway_core::random::Seed;

    use super::*;

    #[test]
    fn a_chunk_comes_back_and_one_that_does_not_shrink_is_left_alone() {
        let even: Vec<u8> = (0..100_u8).flat_map(|i| [i; 1000]).collect();
        let noise = Seed(1).bytes(even.len());
        for codec in [Codec::Zstd, Codec::Lz4] {
            let small = codec.shrink(&even).unwrap();
            assert!(small.len() < even.len() / 10);
            let mut back = vec![0; even.len()];
            codec.restore(&small, &mut back).unwrap();
            assert!(back == even);
            assert!(codec.restore(&small[1..], &mut back).is_err());
            let mut longer = vec![0; even.len() + 1];
            assert!(codec.restore(&small, &mut longer).is_err());
            assert_eq!(codec.shrink(&noise), None);
            assert_eq!(codec.shrink(&[]), None);
        }
    }
}

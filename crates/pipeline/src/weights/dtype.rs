//! What an element of a tensor is.

use std::{fmt, str::FromStr};

use straightway_core::{Error, Kind, Result};

/// The type of a tensor's elements.
///
/// In the order in which writers sort: a file has its widest elements first, so that each tensor is
/// aligned without gaps between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the format's own names say what they are")]
pub enum Dtype {
    Bool,
    F4,
    F6E2m3,
    F6E3m2,
    U8,
    I8,
    F8E5m2,
    F8E4m3,
    F8E8m0,
    F8E4m3fnuz,
    F8E5m2fnuz,
    I16,
    U16,
    F16,
    Bf16,
    I32,
    U32,
    F32,
    C64,
    F64,
    I64,
    U64,
}

impl Dtype {
    /// All there are.
    pub const ALL: [Self; 22] = [
        Self::Bool,
        Self::F4,
        Self::F6E2m3,
        Self::F6E3m2,
        Self::U8,
        Self::I8,
        Self::F8E5m2,
        Self::F8E4m3,
        Self::F8E8m0,
        Self::F8E4m3fnuz,
        Self::F8E5m2fnuz,
        Self::I16,
        Self::U16,
        Self::F16,
        Self::Bf16,
        Self::I32,
        Self::U32,
        Self::F32,
        Self::C64,
        Self::F64,
        Self::I64,
        Self::U64,
    ];

    /// How many bits an element has. Three have less than a byte.
    pub const fn bits(self) -> u64 {
        match self {
            Self::F4 => 4,
            Self::F6E2m3 | Self::F6E3m2 => 6,
            Self::Bool
            | Self::U8
            | Self::I8
            | Self::F8E5m2
            | Self::F8E4m3
            | Self::F8E8m0
            | Self::F8E4m3fnuz
            | Self::F8E5m2fnuz => 8,
            Self::I16 | Self::U16 | Self::F16 | Self::Bf16 => 16,
            Self::I32 | Self::U32 | Self::F32 => 32,
            Self::C64 | Self::F64 | Self::I64 | Self::U64 => 64,
        }
    }

    /// What the address of a tensor must be a multiple of.
    pub const fn align_bytes(self) -> u64 {
        match self.bits() / 8 {
            0 => 1,
            bytes => bytes,
        }
    }

    /// Its name in a header.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::F4 => "F4",
            Self::F6E2m3 => "F6_E2M3",
            Self::F6E3m2 => "F6_E3M2",
            Self::U8 => "U8",
            Self::I8 => "I8",
            Self::F8E5m2 => "F8_E5M2",
            Self::F8E4m3 => "F8_E4M3",
            Self::F8E8m0 => "F8_E8M0",
            Self::F8E4m3fnuz => "F8_E4M3FNUZ",
            Self::F8E5m2fnuz => "F8_E5M2FNUZ",
            Self::I16 => "I16",
            Self::U16 => "U16",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::I32 => "I32",
            Self::U32 => "U32",
            Self::F32 => "F32",
            Self::C64 => "C64",
            Self::F64 => "F64",
            Self::I64 => "I64",
            Self::U64 => "U64",
        }
    }

    /// The one with this name in a header.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }
}

impl FromStr for Dtype {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::named(name).ok_or_else(|| {
            let message = "no dtype of safetensors has that name";
            Error::new(Kind::Invalid, "find dtype", format!("`{name}`"), message)
                .with_hint("names are those of the format: F32, BF16, F8_E4M3, …")
        })
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_is_read_as_it_is_written_and_sorts_by_its_width() {
        for dtype in Dtype::ALL {
            assert_eq!(dtype.name().parse::<Dtype>().unwrap(), dtype);
        }
        assert!("f32".parse::<Dtype>().is_err());
        let wide = Dtype::ALL.iter().filter(|d| d.bits() >= 8);
        assert!(wide.is_sorted_by_key(|d| d.bits()));
        assert!(Dtype::ALL.is_sorted());
    }
}

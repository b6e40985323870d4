//! The type of a tensor's elements.

use std::{fmt, str::FromStr};

use straightway_core::{Error, ErrorKind, Result};

macro_rules! dtypes {
    ($( $dtype:ident = $name:literal $bits:literal; )*) => {
        /// The type of a tensor's elements.
        ///
        /// The order is the one in which writers sort: a file has its widest elements first, so that each tensor is
        /// aligned without gaps.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[expect(missing_docs, reason = "the format's own names say what they are")]
        pub enum Dtype {
            $( $dtype, )*
        }

        impl Dtype {
            /// All dtypes.
            pub const ALL: &[Self] = &[ $( Self::$dtype, )* ];

            /// The number of bits of an element. Three dtypes have less than 8.
            pub const fn bits(self) -> u64 {
                match self { $( Self::$dtype => $bits, )* }
            }

            /// Its name in a header.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$dtype => $name, )* }
            }
        }
    };
}

dtypes! {
    Bool = "BOOL" 8;
    F4 = "F4" 4;
    F6E2m3 = "F6_E2M3" 6;
    F6E3m2 = "F6_E3M2" 6;
    U8 = "U8" 8;
    I8 = "I8" 8;
    F8E5m2 = "F8_E5M2" 8;
    F8E4m3 = "F8_E4M3" 8;
    F8E8m0 = "F8_E8M0" 8;
    F8E4m3fnuz = "F8_E4M3FNUZ" 8;
    F8E5m2fnuz = "F8_E5M2FNUZ" 8;
    I16 = "I16" 16;
    U16 = "U16" 16;
    F16 = "F16" 16;
    Bf16 = "BF16" 16;
    I32 = "I32" 32;
    U32 = "U32" 32;
    F32 = "F32" 32;
    C64 = "C64" 64;
    F64 = "F64" 64;
    I64 = "I64" 64;
    U64 = "U64" 64;
}

impl Dtype {
    /// The alignment of a tensor's address in bytes.
    pub const fn align_bytes(self) -> u64 {
        match self.bits() / 8 {
            0 => 1,
            bytes => bytes,
        }
    }

    /// The dtype with this name in a header.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|dtype| dtype.name() == name)
    }
}

impl FromStr for Dtype {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::named(name).ok_or_else(|| {
            let message = "no dtype of safetensors has that name";
            Error::new(ErrorKind::Invalid, "find dtype", format!("`{name}`"), message)
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
            assert_eq!(dtype.name().parse::<Dtype>().unwrap(), *dtype);
        }
        assert!("f32".parse::<Dtype>().is_err());
        let wide = Dtype::ALL.iter().filter(|d| d.bits() >= 8);
        assert!(wide.is_sorted_by_key(|d| d.bits()));
        assert!(Dtype::ALL.is_sorted());
    }
}

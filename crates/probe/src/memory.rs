//! Memory that a command names: `host:` or `cuda:0`.

use std::{fmt, str::FromStr};

use straightway_core::{Error, Kind, Place, Result};
use straightway_io::Region;
use straightway_sys::cuda::Driver;

/// Memory by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory(pub Place);

impl Memory {
    /// A region of it.
    pub fn region(self, bytes: u64) -> Result<Region> {
        match self.0 {
            Place::Host => Region::host(bytes),
            Place::Gpu(number) => {
                Region::device(&Driver::load()?.device(number)?.context()?, bytes.max(1))
            }
        }
    }
}

impl FromStr for Memory {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let number = text.strip_prefix("cuda:").map(str::parse);
        match (text, number) {
            ("host:", _) => Ok(Self(Place::Host)),
            (_, Some(Ok(number))) => Ok(Self(Place::Gpu(number))),
            _ => {
                let message = "memory is `host:`, or `cuda:` and a number";
                Err(Error::new(Kind::Invalid, "find memory", text, message))
            }
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Place::Host => f.pad("host:"),
            Place::Gpu(number) => f.pad(&format!("cuda:{number}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_as_it_is_shown() {
        for text in ["host:", "cuda:0", "cuda:15"] {
            assert_eq!(text.parse::<Memory>().unwrap().to_string(), text);
        }
        for text in ["", "cuda:", "cuda:x", "cuda:-1", "gpu:0", "tpu"] {
            assert!(text.parse::<Memory>().is_err(), "{text}");
        }
    }
}

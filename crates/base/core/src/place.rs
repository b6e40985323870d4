//! The memory that bytes are moved into or out of, and how users name it.
//!
//! `host:` and `cuda:0` are also possible names of files. The target of a copy is a file or memory, so a misspelled name
//! of memory would become a file: [`Place::of_target`] refuses what looks like one.

use std::{ffi::OsStr, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, ErrorKind, Result},
    pci::PciAddress,
};

/// The memory that a region is in. As text: `host:`, `cuda:0`, `p2p:0000:04:00.0`.
///
/// Words that have only one meaning are accepted too, in any case: `host`, `cpu`, and for the first GPU `cuda` and `gpu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Host memory.
    Host,
    /// The memory of the GPU with this number.
    Gpu(u32),
    /// Memory in a BAR of this PCI device. Other devices access it by peer-to-peer DMA, the CPU by a mapping. It is
    /// the controller memory buffer of an NVMe drive, or GPU memory that its driver offers as `p2pmem`.
    P2p(PciAddress),
}

/// The words that begin a name of memory.
const WORDS: [&str; 5] = ["host", "cpu", "cuda", "gpu", "p2p"];

impl Place {
    /// The memory that the target of a copy names; `None` if it is the name of a file. A file with the name of memory is
    /// written with `./` in front.
    ///
    /// # Errors
    ///
    /// If it looks like memory and is not: `cuda0`, `cuda:x`, `p2p:04:00.0`.
    pub fn of_target(name: &OsStr) -> Result<Option<Self>> {
        let Some(text) = name.to_str() else {
            return Ok(None);
        };
        let lower = text.to_ascii_lowercase();
        let rest = WORDS.iter().find_map(|word| lower.strip_prefix(word));
        let looks_like_memory = rest.is_some_and(|rest| {
            let is_number = rest.bytes().all(|byte| byte.is_ascii_digit());
            !rest.contains('/') && (is_number || rest.starts_with(':'))
        });
        if !looks_like_memory {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|error: Error| {
            let hint = error
                .hint()
                .unwrap_or("memory is `host:`, `cuda:0` or `p2p:0000:04:00.0`")
                .to_owned();
            error.with_hint(format!("{hint}; a file of that name is ./{text}"))
        })
    }
}

impl Place {
    /// The place inside a sentence: `host memory` or `cuda:0`. [`Display`](fmt::Display) is the form to type, `host:`.
    pub fn in_words(&self) -> String {
        match self {
            Self::Host => "host memory".to_owned(),
            other => other.to_string(),
        }
    }
}

impl FromStr for Place {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let lower = text.to_ascii_lowercase();
        let gpu = lower.strip_prefix("cuda").or_else(|| lower.strip_prefix("gpu"));
        let number = gpu.and_then(|rest| rest.strip_prefix(':')).and_then(digits);
        let address = lower.strip_prefix("p2p:").and_then(|address| address.parse().ok());
        match (&*lower, gpu, number, address) {
            ("host" | "host:" | "cpu" | "cpu:", ..) => Ok(Self::Host),
            (_, Some(""), ..) => Ok(Self::Gpu(0)),
            (_, _, Some(number), _) => Ok(Self::Gpu(number)),
            (_, _, _, Some(address)) => Ok(Self::P2p(address)),
            _ => {
                let message = "memory is `host:`, `cuda:` and a number, or `p2p:` and a PCI address";
                let error = Error::new(ErrorKind::Invalid, "find memory", text, message);
                Err(match meant(&lower) {
                    Some(place) => error.with_hint(format!("did you mean {place}?")),
                    None => error,
                })
            }
        }
    }
}

/// A number of digits only.
fn digits(text: &str) -> Option<u32> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

/// The memory that a misspelled name probably means.
fn meant(lower: &str) -> Option<Place> {
    let gpu = lower.strip_prefix("cuda").or_else(|| lower.strip_prefix("gpu"));
    let gpu = gpu.and_then(digits).map(Place::Gpu);
    let short = lower.strip_prefix("p2p:").map(|rest| format!("0000:{rest}"));
    gpu.or_else(|| short?.parse().ok().map(Place::P2p))
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.pad("host:"),
            Self::Gpu(number) => f.pad(&format!("cuda:{number}")),
            Self::P2p(address) => f.pad(&format!("p2p:{address}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_is_shown() {
        for text in ["host:", "cuda:0", "cuda:15", "p2p:0000:04:00.0"] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "cuda:",
            "cuda:x",
            "cuda:-1",
            "cuda:+1",
            "gpu:",
            "tpu",
            "p2p:",
            "p2p",
            "p2p:04:00.0",
            "p2p:0000:04:20.0",
            "host:0",
            "cuda:99999999999",
        ] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }

    #[test]
    fn words_with_one_meaning_are_accepted() {
        for (text, shown) in [
            ("host", "host:"),
            ("HOST:", "host:"),
            ("cpu", "host:"),
            ("cuda", "cuda:0"),
            ("Cuda:3", "cuda:3"),
            ("gpu", "cuda:0"),
            ("gpu:2", "cuda:2"),
        ] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn a_target_that_looks_like_memory_is_memory_or_refused() {
        let target = |text: &str| Place::of_target(OsStr::new(text));
        for text in ["host", "cpu", "cuda", "cuda:0", "gpu:1", "HOST:", "p2p:0000:04:00.0"] {
            assert!(target(text).unwrap().is_some(), "{text}");
        }
        for (text, meant) in [
            ("cuda0", "cuda:0"),
            ("GPU7", "cuda:7"),
            ("p2p:04:00.0", "p2p:0000:04:00.0"),
            ("cuda:", "cuda:0"),
            ("cuda:x", "cuda:0"),
            ("p2p:", "p2p:0000:04:00.0"),
            ("p2p", "p2p:0000:04:00.0"),
        ] {
            let error = target(text).unwrap_err();
            let hint = error.hint().unwrap();
            assert!(
                hint.contains(meant) && hint.contains(&format!("./{text}")),
                "{text}: {hint}"
            );
        }
        for text in [
            "./cuda",
            "hosts",
            "host.toml",
            "cuda/x",
            "cuda:0/x",
            "gpu-report",
            "a",
            "cudart",
            "p2p-notes",
        ] {
            assert_eq!(target(text).unwrap(), None, "{text}");
        }
    }
}

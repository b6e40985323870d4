//! NVMe qualified names (NQNs) of subsystems and hosts.

use std::fmt::{self, Write as _};

use straightway_core::text::is_unsafe;

use crate::{Malformed, wire};

/// The longest NQN in bytes.
pub const NQN_BYTES_MAX: usize = 223;

/// The width of an NQN in commands and pages, with its terminating zeros.
pub const NQN_FIELD_BYTES: usize = 256;

/// The NQN of every discovery subsystem.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// The NVMe qualified name of a subsystem or a host.
///
/// The specification requires `nqn.YYYY-MM.DOMAIN:NAME`. Linux targets accept any name and such names are in use, so
/// only the length and the characters are checked here.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nqn(String);

impl Nqn {
    /// Checks a name: 1 to 223 bytes, no spaces, no control characters.
    pub fn new(text: &str) -> Result<Self, Malformed> {
        if text.is_empty() {
            return Err(Malformed("the NQN is empty"));
        }
        if text.len() > NQN_BYTES_MAX {
            return Err(Malformed("the NQN is longer than 223 bytes"));
        }
        if text.contains(|c: char| c.is_whitespace() || c.is_control() || is_unsafe(c)) {
            return Err(Malformed("the NQN has spaces or control characters"));
        }
        Ok(Self(text.to_owned()))
    }

    /// The well-known discovery NQN.
    pub fn discovery() -> Self {
        Self(DISCOVERY_NQN.to_owned())
    }

    /// The NQN of a host with this identifier, in the form that Linux uses.
    pub fn of_host(id: &[u8; 16]) -> Self {
        let mut text = "nqn.2014-08.org.nvmexpress:uuid:".to_owned();
        for (index, byte) in id.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            write!(text, "{byte:02x}").expect("a string takes all text");
        }
        Self(text)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the discovery NQN.
    pub fn is_discovery(&self) -> bool {
        self.0 == DISCOVERY_NQN
    }

    /// Reads the name in a field of 256 bytes at `at`.
    pub(crate) fn at(bytes: &[u8], at: usize) -> Result<Self, Malformed> {
        let text = wire::terminated_at(bytes, at, NQN_FIELD_BYTES);
        Self::new(text.ok_or(Malformed("the NQN is not UTF-8"))?)
    }

    /// Writes the name into a field of 256 zeros at `at`.
    pub(crate) fn put(&self, bytes: &mut [u8], at: usize) {
        wire::put(bytes, at, self.0.as_bytes());
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert!(Nqn::new(DISCOVERY_NQN).unwrap().is_discovery());
        assert!(Nqn::new("blktests-subsystem-1").is_ok());
        assert!(Nqn::new(&"n".repeat(NQN_BYTES_MAX)).is_ok());
        for bad in ["", "a b", "a\nb", "a\u{202e}b", &"n".repeat(224)] {
            assert!(Nqn::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_name_of_a_host_is_its_uuid() {
        let id = *b"0123456789abcdef";
        let text = "nqn.2014-08.org.nvmexpress:uuid:30313233-3435-3637-3839-616263646566";
        assert_eq!(Nqn::of_host(&id).as_str(), text);
    }
}

//! The library before it is opened: found, its version known, its parameters set.

use std::error;
use std::fmt;
use std::mem;
use std::path::PathBuf;

use straightway_core::{Error, Kind, Result};

use super::api::Api;
use crate::cuda::Version;

/// The names a machine's own library goes by.
const NAMES: [&str; 2] = ["libcufile.so.0", "libcufile.so"];

/// A yes-or-no parameter of cuFile's configuration, by its number in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Parameter {
    /// Whether a transfer that cannot go direct goes through host memory instead of failing.
    AllowCompatMode = 1,
    /// Whether every transfer goes through host memory.
    ForceCompatMode = 2,
    /// Whether PCI peer-to-peer DMA of the kernel is used, which needs no nvidia-fs.
    UsePciP2pDma = 7,
}

/// A libcufile that has been loaded, for good, and not opened.
pub struct Library {
    pub(super) api: Api,
    found_as: PathBuf,
}

impl Library {
    /// Loads the library: the machine's own, then each of `candidates`.
    pub fn load(candidates: &[PathBuf]) -> Result<Self> {
        let names = NAMES.iter().map(PathBuf::from);
        Self::first_of(names.chain(candidates.iter().cloned()))
    }

    fn first_of(names: impl Iterator<Item = PathBuf>) -> Result<Self> {
        let mut tried = Vec::new();
        for name in names {
            // SAFETY: the initialisers of libcufile set up its own state only. What they must not
            // do without a driver, open it, is not done here.
            match unsafe { libloading::Library::new(&name) } {
                Ok(library) => {
                    let api = Api::resolve(&library);
                    api.driver_open()?;
                    // It starts threads of its own: unloading would pull the code from under them.
                    mem::forget(library);
                    return Ok(Self {
                        api,
                        found_as: name,
                    });
                }
                Err(error) => {
                    let cause = error::Error::source(&error).map(ToString::to_string);
                    let cause = cause.unwrap_or_else(|| error.to_string());
                    tried.push(format!("{}: {cause}", name.display()));
                }
            }
        }
        let error = Error::new(Kind::Unsupported, "load", "libcufile", tried.join("; "));
        Err(error.with_hint("install it with CUDA, or `pip install nvidia-cufile`"))
    }

    /// Its version; libraries before CUDA 12.3 cannot tell.
    pub fn version(&self) -> Option<Version> {
        let ask = self.api.get_version().ok()?;
        let mut number = 0;
        // SAFETY: `number` is a valid place for the answer.
        unsafe { ask(&raw mut number) }
            .ok("ask the version of", "libcufile")
            .ok()?;
        u32::try_from(number).ok().map(Version)
    }

    /// Sets a parameter. It outranks the environment and the file, if done before `open`.
    pub fn set_parameter(&self, parameter: Parameter, value: bool) -> Result<()> {
        let set = self.api.set_parameter_bool()?;
        // SAFETY: the number is one the header defines.
        unsafe { set(parameter as u32, value) }
            .ok("set", format_args!("cuFile's parameter {parameter:?}"))
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Library({})", self.found_as.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_none_is_unsupported_and_names_what_was_tried() {
        let error =
            Library::first_of([PathBuf::from("/nowhere/libcufile.so")].into_iter()).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(
            error.to_string().contains("/nowhere/libcufile.so"),
            "{error}"
        );
        assert!(error.hint().is_some());
    }
}

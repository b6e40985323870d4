//! The loaded libcufile before its driver is opened: its version and its parameters.

use std::error;
use std::fmt;
use std::mem;

use straightway_core::{Error, ErrorKind, Result};

use super::api::Api;
use crate::cuda::Version;

/// The names of the library on the library path, then the CUDA toolkit's locations of it.
const NAMES: [&str; 4] = [
    "libcufile.so.0",
    "libcufile.so",
    "/usr/local/cuda/lib64/libcufile.so.0",
    "/usr/local/cuda/targets/x86_64-linux/lib/libcufile.so.0",
];

/// A boolean parameter of cuFile's configuration, with its number in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Parameter {
    /// Whether a transfer that cannot be direct goes through host memory instead of failing.
    AllowCompatMode = 1,
    /// Whether every transfer goes through host memory.
    ForceCompatMode = 2,
    /// Whether PCI peer-to-peer DMA of the kernel is used, which needs no nvidia-fs.
    UsePciP2pDma = 7,
}

/// A loaded libcufile whose driver is not open. It is never unloaded.
pub struct Library {
    pub(super) api: Api,
    found_as: String,
}

impl Library {
    /// Loads the library that is installed.
    pub fn load() -> Result<Self> {
        // SAFETY: the names are those of libcufile, whose initialisers only set up its state. Its driver, which must not
        // be opened without a CUDA driver, is not opened here.
        unsafe { Self::first_of(&NAMES) }
    }

    /// Loads the first of these libraries that can be loaded.
    ///
    /// # Safety
    ///
    /// The initialisers of each can run now.
    unsafe fn first_of(names: &[&str]) -> Result<Self> {
        let mut tried = Vec::new();
        for name in names {
            // SAFETY: what the caller promised.
            match unsafe { libloading::Library::new(*name) } {
                Ok(library) => {
                    let api = Api::resolve(&library);
                    api.driver_open()?;
                    // It starts threads, so its code must never be unloaded.
                    mem::forget(library);
                    return Ok(Self {
                        api,
                        found_as: (*name).to_owned(),
                    });
                }
                Err(error) => {
                    let cause = error::Error::source(&error).map(ToString::to_string);
                    let cause = cause.unwrap_or_else(|| error.to_string());
                    tried.push(format!("{name}: {cause}"));
                }
            }
        }
        let error = Error::new(ErrorKind::Unsupported, "load", "libcufile", tried.join("; "));
        Err(error.with_hint("install it with CUDA, or `pip install nvidia-cufile`"))
    }

    /// Its version; `None` before CUDA 12.3, which cannot report it.
    pub fn version(&self) -> Option<Version> {
        let ask = self.api.get_version().ok()?;
        let mut number = 0;
        // SAFETY: `number` is a valid place for the answer.
        unsafe { ask(&raw mut number) }
            .ok("query the version of", "libcufile")
            .ok()?;
        u32::try_from(number).ok().map(Version)
    }

    /// Sets a parameter. Before `open` it takes precedence over the environment and the configuration file.
    pub fn set_parameter(&self, parameter: Parameter, value: bool) -> Result<()> {
        let set = self.api.set_parameter_bool()?;
        // SAFETY: the number is one the header defines.
        unsafe { set(parameter as u32, value) }.ok("set", format_args!("cuFile's parameter {parameter:?}"))
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Library({})", self.found_as)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_unsupported_and_the_error_names_the_attempts() {
        // SAFETY: there is no such library.
        let error = unsafe { Library::first_of(&["/nowhere/libcufile.so"]) }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("/nowhere/libcufile.so"), "{error}");
        assert!(error.hint().is_some());
    }
}

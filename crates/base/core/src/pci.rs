//! The address of a PCI device.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// The address of a PCI function, such as `0000:19:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PciAddress {
    /// The domain (or segment).
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The device on the bus, up to 31.
    pub device: u8,
    /// The function of the device, up to 7.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (device, function) = (self.device, self.function);
        write!(f, "{:04x}:{:02x}:{device:02x}.{function}", self.domain, self.bus)
    }
}

impl FromStr for PciAddress {
    type Err = Error;

    /// Also accepts the long domain that NVIDIA's tools print: `00000000:19:00.0`.
    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (domain, rest) = text.split_once(':')?;
            let (bus, rest) = rest.split_once(':')?;
            let (device, function) = rest.split_once('.')?;
            let exact = bus.len() == 2 && device.len() == 2 && function.len() == 1;
            let address = Self {
                domain: u32::from_str_radix(domain, 16).ok()?,
                bus: u8::from_str_radix(bus, 16).ok()?,
                device: u8::from_str_radix(device, 16).ok()?,
                function: function.parse().ok()?,
            };
            let valid = exact && domain.len() >= 4 && address.device < 32 && address.function < 8;
            valid.then_some(address)
        };
        let message = "expected a PCI address such as 0000:19:00.0";
        parse().ok_or_else(|| Error::new(ErrorKind::Invalid, "read", format!("{text:?}"), message))
    }
}

//! One GPU: what it is called, where it sits, how much it holds, and who may use it.

use std::ffi::{c_char, c_int, c_uint};
use std::fmt;

use cudarc::driver::sys::{CUdevice, CUdevice_attribute_enum as Attribute, CUuuid};
use straightway_core::{Bytes, Result};

use super::api::Api;

/// The longest device name asked for; the driver cuts longer ones.
const NAME_BYTES_MAX: usize = 256;

/// Who may make a context on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ComputeMode {
    /// Any process.
    Default,
    /// One process at a time.
    Exclusive,
    /// None.
    Prohibited,
    /// A mode this crate has not heard of.
    Other(i32),
}

/// One GPU of this machine. Looking at it makes no context and takes no memory of it.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    pub(super) api: &'static Api,
    pub(super) raw: CUdevice,
    ordinal: u32,
}

impl Device {
    pub(super) fn find(api: &'static Api, ordinal: u32) -> Result<Self> {
        let mut raw = 0;
        let number = c_int::try_from(ordinal).expect("the driver counted at least this many");
        // SAFETY: `raw` is a valid place for the answer, and the driver is initialised.
        let code = unsafe { (api.device_get)(&raw mut raw, number) };
        code.ok()
            .map_err(|code| api.error(code, "find", format_args!("cuda:{ordinal}")))?;
        Ok(Self { api, raw, ordinal })
    }

    /// Its number, as the driver counts them.
    pub fn ordinal(self) -> u32 {
        self.ordinal
    }

    /// What its maker calls it.
    pub fn name(self) -> Result<String> {
        self.text("ask the name of", self.api.device_get_name)
    }

    /// Its address on the PCI bus as sysfs spells it, such as `0000:1b:00.0`.
    pub fn pci_address(self) -> Result<String> {
        let address = self.text("ask the PCI address of", self.api.device_get_pci_bus_id)?;
        Ok(address.to_lowercase())
    }

    /// The identity cuFile's counters are keyed by.
    pub fn uuid(self) -> Result<[u8; 16]> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: `uuid` is a valid place for the answer, and `raw` a device.
        let code = unsafe { (self.api.device_get_uuid)(&raw mut uuid, self.raw) };
        code.ok()
            .map_err(|code| self.api.error(code, "ask the UUID of", self))?;
        // A `c_char` is signed on x86-64, and not on aarch64.
        Ok(uuid.bytes.map(|byte| c_char::to_ne_bytes(byte)[0]))
    }

    /// How much memory it has.
    pub fn memory_total(self) -> Result<Bytes> {
        let mut bytes = 0;
        // SAFETY: `bytes` is a valid place for the answer, and `raw` a device.
        let code = unsafe { (self.api.device_total_mem)(&raw mut bytes, self.raw) };
        code.ok()
            .map_err(|code| self.api.error(code, "ask the memory of", self))?;
        Ok(Bytes(bytes as u64))
    }

    /// Who may use it.
    pub fn compute_mode(self) -> Result<ComputeMode> {
        Ok(
            match self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)? {
                0 => ComputeMode::Default,
                2 => ComputeMode::Prohibited,
                3 => ComputeMode::Exclusive,
                other => ComputeMode::Other(other),
            },
        )
    }

    /// The NUMA node it hangs off, where the driver knows; sysfs may know when it does not.
    pub fn numa_node(self) -> Option<u32> {
        let node = self
            .attribute(Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)
            .ok()?;
        u32::try_from(node).ok()
    }

    fn attribute(self, attribute: Attribute) -> Result<c_int> {
        let mut value = 0;
        // SAFETY: `value` is a valid place for the answer; an attribute the driver does not know
        // is an error code.
        let code = unsafe {
            (self.api.device_get_attribute)(&raw mut value, attribute as c_uint, self.raw)
        };
        code.ok()
            .map_err(|code| self.api.error(code, "ask an attribute of", self))?;
        Ok(value)
    }

    fn text(
        self,
        operation: &'static str,
        ask: unsafe extern "C" fn(*mut c_char, c_int, CUdevice) -> super::Code,
    ) -> Result<String> {
        let mut text = [0u8; NAME_BYTES_MAX];
        let room = c_int::try_from(NAME_BYTES_MAX).expect("a small constant");
        // SAFETY: the driver writes at most `room` bytes, all of which are ours.
        let code = unsafe { ask(text.as_mut_ptr().cast(), room, self.raw) };
        code.ok()
            .map_err(|code| self.api.error(code, operation, self))?;
        let end = text
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuda:{}", self.ordinal)
    }
}

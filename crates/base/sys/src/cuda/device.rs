//! A GPU: its name, PCI address, memory size and compute mode.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::fmt;

use cudarc::driver::sys::{CUdevice, CUuuid};
use straightway_core::{Bytes, Result};

use super::api::Api;

/// The maximum length of a device name; the driver truncates longer ones.
const NAME_BYTES_MAX: usize = 256;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_MODE`, and `CU_COMPUTEMODE_PROHIBITED` among its answers.
const COMPUTE_MODE: c_uint = 20;
const PROHIBITED: c_int = 2;

/// A GPU of this machine. Querying it creates no context and uses none of its memory.
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
        api.check(code, "find", format_args!("cuda:{ordinal}"))?;
        Ok(Self { api, raw, ordinal })
    }

    /// Its ordinal in the driver.
    pub fn ordinal(self) -> u32 {
        self.ordinal
    }

    /// Its product name.
    pub fn name(self) -> Result<String> {
        self.text("query the name of", self.api.device_get_name)
    }

    /// Its PCI address in the form of sysfs, such as `0000:1b:00.0`.
    pub fn pci_address(self) -> Result<String> {
        let address = self.text("query the PCI address of", self.api.device_get_pci_bus_id)?;
        Ok(address.to_lowercase())
    }

    /// Its UUID, which is the key of cuFile's counters.
    pub fn uuid(self) -> Result<[u8; 16]> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: `uuid` is a valid place for the answer, and `raw` a device.
        let code = unsafe { (self.api.device_get_uuid)(&raw mut uuid, self.raw) };
        self.api.check(code, "query the UUID of", self)?;
        // `c_char` is signed on x86-64, but not on aarch64.
        Ok(uuid.bytes.map(|byte| c_char::to_ne_bytes(byte)[0]))
    }

    /// The size of its memory.
    pub fn memory_total(self) -> Result<Bytes> {
        let mut bytes = 0;
        // SAFETY: `bytes` is a valid place for the answer, and `raw` a device.
        let code = unsafe { (self.api.device_total_mem)(&raw mut bytes, self.raw) };
        self.api.check(code, "query the memory of", self)?;
        Ok(Bytes(bytes as u64))
    }

    /// Whether its compute mode is prohibited, so that no process may use it.
    pub(super) fn is_prohibited(self) -> Result<bool> {
        let mut mode = 0;
        // SAFETY: `mode` is a valid place for the answer, and `raw` a device.
        let code = unsafe { (self.api.device_get_attribute)(&raw mut mode, COMPUTE_MODE, self.raw) };
        self.api.check(code, "query the compute mode of", self)?;
        Ok(mode == PROHIBITED)
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
        self.api.check(code, operation, self)?;
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuda:{}", self.ordinal)
    }
}

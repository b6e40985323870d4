//! One GPU: what it is called, where it sits, how much it holds, and who may use it.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::fmt;

use cudarc::driver::sys::{CUdevice, CUuuid};
use straightway_core::{Bytes, Result};

use super::api::Api;

/// The longest device name asked for; the driver cuts longer ones.
const NAME_BYTES_MAX: usize = 256;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_MODE`, and `CU_COMPUTEMODE_PROHIBITED` among its answers.
const COMPUTE_MODE: c_uint = 20;
const PROHIBITED: c_int = 2;

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
        api.check(code, "find", format_args!("cuda:{ordinal}"))?;
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
        self.api.check(code, "ask the UUID of", self)?;
        // A `c_char` is signed on x86-64, and not on aarch64.
        Ok(uuid.bytes.map(|byte| c_char::to_ne_bytes(byte)[0]))
    }

    /// How much memory it has.
    pub fn memory_total(self) -> Result<Bytes> {
        let mut bytes = 0;
        // SAFETY: `bytes` is a valid place for the answer, and `raw` a device.
        let code = unsafe { (self.api.device_total_mem)(&raw mut bytes, self.raw) };
        self.api.check(code, "ask the memory of", self)?;
        Ok(Bytes(bytes as u64))
    }

    /// Whether no process may use it.
    pub(super) fn is_prohibited(self) -> Result<bool> {
        let mut mode = 0;
        // SAFETY: `mode` is a valid place for the answer, and `raw` a device.
        let code =
            unsafe { (self.api.device_get_attribute)(&raw mut mode, COMPUTE_MODE, self.raw) };
        self.api.check(code, "ask the compute mode of", self)?;
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

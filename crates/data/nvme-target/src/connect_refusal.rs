//! The refusal of a Connect command, with the field that is wrong.

use straightway_nvme::{Status, fabrics::invalid_parameter};

/// Offsets of Connect fields in errors.
pub(crate) const QUEUE_AT: u16 = 42;
pub(crate) const SIZE_AT: u16 = 44;
pub(crate) const CONTROLLER_AT: u16 = 16;
pub(crate) const SUBSYSTEM_AT: u16 = 256;
pub(crate) const HOST_AT: u16 = 512;

/// The status and dword 0 of a refused Connect.
pub(crate) type Refusal = (Status, u64);

/// A field of the data of Connect is wrong.
pub(crate) fn in_data(offset: u16) -> Refusal {
    let status = Status::CONNECT_INVALID_PARAM.dnr();
    (status, invalid_parameter(offset, true))
}

/// A field of the command is wrong.
pub(crate) fn in_command(offset: u16) -> Refusal {
    let status = Status::CONNECT_INVALID_PARAM.dnr();
    (status, invalid_parameter(offset, false))
}

//! Completion status codes and retry rules.

use std::fmt;

/// The status of a completion, without the phase bit: code, type, retry delay, More and Do Not Retry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Status(pub u16);

/// Do Not Retry.
const DNR: u16 = 0x4000;

/// Defines the status codes: the constant, its number (type and code), and its description.
macro_rules! statuses {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        impl Status {
            $(#[doc = $text] pub const $name: Self = Self($code);)*

            /// The description of the code, if it is known.
            pub fn description(self) -> Option<&'static str> {
                match self.code() {
                    $($code => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    SUCCESS = 0x000, "success";
    INVALID_OPCODE = 0x001, "invalid opcode";
    INVALID_FIELD = 0x002, "invalid field in the command";
    CID_CONFLICT = 0x003, "command identifier conflict";
    DATA_TRANSFER = 0x004, "data transfer error";
    POWER_LOSS = 0x005, "aborted by power loss";
    INTERNAL = 0x006, "internal error";
    ABORT_REQUESTED = 0x007, "abort requested";
    ABORT_QUEUE = 0x008, "aborted: the queue was deleted";
    INVALID_NAMESPACE = 0x00b, "invalid namespace or format";
    COMMAND_SEQUENCE = 0x00c, "command sequence error";
    INVALID_SGL_COUNT = 0x00e, "invalid number of SGL descriptors";
    SGL_DATA_LENGTH = 0x00f, "SGL data length invalid";
    INVALID_SGL_TYPE = 0x011, "SGL descriptor type invalid";
    SGL_OFFSET = 0x016, "SGL offset invalid";
    HOST_ID_INCONSISTENT = 0x018, "host identifier inconsistent format";
    KEEP_ALIVE_EXPIRED = 0x019, "keep-alive timer expired";
    KEEP_ALIVE_INVALID = 0x01a, "keep-alive time-out invalid";
    WRITE_PROTECTED = 0x020, "namespace is write protected";
    INTERRUPTED = 0x021, "command interrupted";
    TRANSIENT_TRANSPORT = 0x022, "transient transport error";
    LBA_RANGE = 0x080, "LBA out of range";
    CAPACITY = 0x081, "capacity exceeded";
    NOT_READY = 0x082, "namespace not ready";
    RESERVATION_CONFLICT = 0x083, "reservation conflict";
    INVALID_QUEUE_ID = 0x101, "invalid queue identifier";
    INVALID_QUEUE_SIZE = 0x102, "invalid queue size";
    AER_LIMIT = 0x105, "asynchronous event request limit exceeded";
    INVALID_LOG_PAGE = 0x109, "invalid log page";
    FEATURE_NOT_CHANGEABLE = 0x10e, "feature not changeable";
    CONNECT_FORMAT = 0x180, "incompatible connect format";
    CONNECT_BUSY = 0x181, "controller busy";
    CONNECT_INVALID_PARAM = 0x182, "connect invalid parameters (is there such a subsystem?)";
    CONNECT_RESTART_DISCOVERY = 0x183, "restart discovery";
    CONNECT_INVALID_HOST = 0x184, "the host is not allowed to connect";
    DISCOVERY_RESTART = 0x190, "discovery restart";
    AUTH_REQUIRED = 0x191, "authentication required";
    WRITE_FAULT = 0x280, "write fault";
    READ_ERROR = 0x281, "unrecovered read error";
    GUARD_CHECK = 0x282, "end-to-end guard check error";
    COMPARE_FAILED = 0x285, "compare failure";
    ACCESS_DENIED = 0x286, "access denied";
    UNWRITTEN = 0x287, "deallocated or unwritten block";
    PATH_INTERNAL = 0x300, "internal path error";
    ANA_LOST = 0x301, "asymmetric access persistent loss";
    ANA_INACCESSIBLE = 0x302, "asymmetric access inaccessible";
    ANA_TRANSITION = 0x303, "asymmetric access transition";
    PATH_CONTROLLER = 0x360, "controller pathing error";
    PATH_HOST = 0x370, "host pathing error";
    PATH_ABORTED = 0x371, "command aborted by the host";
}

impl Status {
    /// The same status with Do Not Retry.
    #[must_use]
    pub const fn dnr(self) -> Self {
        Self(self.0 | DNR)
    }

    /// Type and code, as in the constants.
    pub const fn code(self) -> u16 {
        self.0 & 0x7ff
    }

    /// The status code type: 0 generic, 1 command specific, 2 media, 3 path, 7 vendor specific.
    pub const fn kind(self) -> u8 {
        ((self.0 >> 8) & 7) as u8
    }

    /// Whether the command succeeded.
    pub const fn is_success(self) -> bool {
        self.code() == 0
    }

    /// Whether Do Not Retry is set.
    pub const fn is_final(self) -> bool {
        self.0 & DNR != 0
    }

    /// Whether the path failed and not the command. Another path may succeed.
    pub const fn is_path(self) -> bool {
        self.kind() == 3
    }

    /// Whether the ANA log has to be read again.
    pub const fn is_ana(self) -> bool {
        matches!(self.code(), 0x301..=0x303)
    }

    /// Whether the same command may be retried, on this path or another.
    pub const fn is_retryable(self) -> bool {
        !self.is_success() && !self.is_final()
    }

    /// The index of the command retry delay: 1 to 3, 0 for none.
    pub const fn delay(self) -> usize {
        ((self.0 >> 11) & 3) as usize
    }

    /// The status field of a completion. Its lowest bit is the phase, which is always 0 over fabrics.
    pub(crate) const fn to_wire(self) -> u16 {
        self.0 << 1
    }

    pub(crate) const fn from_wire(field: u16) -> Self {
        Self(field >> 1)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.description().unwrap_or("unknown status");
        write!(f, "{text} (status {:x}/{:02x}", self.kind(), self.0 & 0xff)?;
        f.write_str(if self.is_final() { ", do not retry)" } else { ")" })
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({:#06x}: {self})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_tells_whether_to_retry() {
        assert!(Status::SUCCESS.is_success() && !Status::SUCCESS.is_retryable());
        assert!(Status::INTERRUPTED.is_retryable());
        assert!(!Status::INVALID_FIELD.dnr().is_retryable());
        assert!(Status::ANA_TRANSITION.is_path() && Status::ANA_TRANSITION.is_ana());
        assert!(Status::PATH_HOST.is_path() && !Status::PATH_HOST.is_ana());
        assert_eq!(Status(0x1000).delay(), 2);
        let shown = Status::LBA_RANGE.dnr().to_string();
        assert_eq!(shown, "LBA out of range (status 0/80, do not retry)");
        assert_eq!(
            Status::from_wire(Status::LBA_RANGE.dnr().to_wire()),
            Status::LBA_RANGE.dnr()
        );
    }
}

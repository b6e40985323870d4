//! The causes of failed commands and of failed connection attempts.

use std::fmt;

use straightway_core::ErrorKind;
use straightway_nvme::Status;

/// The cause of a failed command.
#[derive(Debug)]
pub(crate) enum LinkError {
    /// The connection is no longer usable.
    Broken(String),
    /// The target failed the command with a status. The second field is the result.
    Refused(Status, u64),
}

impl LinkError {
    /// Whether the target answered with a status that permits no retry.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Refused(status, _) if !status.is_retryable())
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(why) => f.write_str(why),
            Self::Refused(status, _) => write!(f, "{status}"),
        }
    }
}

/// The cause of a failed connection attempt.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) why: String,
    /// Whether a retry would fail in the same way.
    pub(crate) is_final: bool,
    /// The remedy, if it differs from that of other failed connections.
    pub(crate) hint: Option<&'static str>,
}

impl Refusal {
    pub(crate) fn transient(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            is_final: false,
            hint: None,
        }
    }

    pub(crate) fn permanent(why: impl Into<String>) -> Self {
        Self {
            is_final: true,
            ..Self::transient(why)
        }
    }

    /// The same cause with a remedy.
    pub(crate) fn with_hint(self, hint: &'static str) -> Self {
        Self {
            hint: Some(hint),
            ..self
        }
    }

    /// The failure of a command during the setup.
    pub(crate) fn of(doing: &str, error: &LinkError) -> Self {
        Self {
            is_final: error.is_final(),
            ..Self::transient(format!("{doing}: {error}"))
        }
    }
}

/// The error kind of a status.
pub(crate) fn kind_of(status: Status) -> ErrorKind {
    match status.code() {
        code if code == Status::INVALID_NAMESPACE.code() => ErrorKind::NotFound,
        code if code == Status::WRITE_PROTECTED.code() => ErrorKind::Invalid,
        code if code == Status::LBA_RANGE.code() => ErrorKind::Corrupt,
        _ if status.kind() == 2 => ErrorKind::Corrupt,
        _ if status.is_final() => ErrorKind::Invalid,
        _ => ErrorKind::Transient,
    }
}

/// The remedy for a status that fails an I/O.
pub(crate) fn remedy(status: Status) -> &'static str {
    match status.code() {
        code if code == Status::WRITE_PROTECTED.code() => "serve it writable: `straightway target --writable`",
        code if code == Status::CAPACITY.code() => "free space on the target",
        code if [Status::INVALID_NAMESPACE.code(), Status::LBA_RANGE.code()].contains(&code) => {
            "it may have been removed or resized: open it again"
        }
        _ => "check the target and its log, and try again",
    }
}

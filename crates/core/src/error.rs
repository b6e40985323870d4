//! The one error type of every room.
//!
//! An error says four things: its [`Kind`] (what the caller can do about it), the operation, the
//! object it happened to, and the cause. All rooms share the type, because a read that fails in
//! `sys` is still the same failure three rooms up: wrapping it again on each floor would add words
//! and lose the kind.
//!
//! Names in an error may come from a stranger's file, so every text of one is escaped when it is made
//! (see [`text`](crate::text)): an error is one line that a terminal can show.

use std::{error, fmt, io};

use crate::text::shown;

/// The result every room returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The object is not there.
    NotFound,
    /// The bytes are not what they should be: truncated, damaged, of another length.
    Corrupt,
    /// The same call may work later: a full disk, an I/O error, a time-out.
    Transient,
    /// This machine, file system or driver cannot do it.
    Unsupported,
    /// The request makes no sense, or is not permitted.
    Invalid,
    /// The user asked to stop.
    Cancelled,
}

/// What went wrong, with which object, while doing what.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    operation: &'static str,
    target: String,
    message: String,
    hint: Option<String>,
    source: Option<io::Error>,
}

impl Error {
    /// An error of `kind` that happened to `target` during `operation`.
    pub fn new(
        kind: Kind,
        operation: &'static str,
        target: impl fmt::Display,
        message: impl Into<String>,
    ) -> Self {
        let (target, message) = (target.to_string(), message.into());
        Self {
            kind,
            operation,
            target: shown(&target).into_owned(),
            message: shown(&message).into_owned(),
            hint: None,
            source: None,
        }
    }

    /// An error of the operating system; its kind follows from the cause.
    pub fn os(operation: &'static str, target: impl fmt::Display, source: io::Error) -> Self {
        let kind = match source.kind() {
            io::ErrorKind::NotFound => Kind::NotFound,
            io::ErrorKind::PermissionDenied
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::AlreadyExists
            | io::ErrorKind::InvalidInput => Kind::Invalid,
            io::ErrorKind::Unsupported => Kind::Unsupported,
            io::ErrorKind::UnexpectedEof => Kind::Corrupt,
            _ => Kind::Transient,
        };
        let message = source.to_string();
        Self {
            source: Some(source),
            ..Self::new(kind, operation, target, message)
        }
    }

    /// The same error, for another who has to be told.
    #[must_use]
    pub fn again(&self) -> Self {
        Self {
            target: self.target.clone(),
            message: self.message.clone(),
            hint: self.hint.clone(),
            source: self.os_code().map(io::Error::from_raw_os_error),
            ..*self
        }
    }

    /// Adds what the user can do: a flag, a command, a setting.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(shown(&hint.into()).into_owned());
        self
    }

    /// What the caller can do about it.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The flag or command that mends it, where one is known.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The operating system's error number, where it came from there.
    pub fn os_code(&self) -> Option<i32> {
        self.source.as_ref().and_then(io::Error::raw_os_error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cannot {} {}: {}",
            self.operation, self.target, self.message
        )
    }
}

// The message has the cause in it already; as a source too, it would be printed twice.
impl error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_operation_the_object_and_the_cause() {
        let error = Error::new(Kind::Corrupt, "read", "model.bin", "it ends at byte 7 of 9");
        assert_eq!(
            error.to_string(),
            "cannot read model.bin: it ends at byte 7 of 9"
        );
        assert_eq!(error.kind(), Kind::Corrupt);
    }

    #[test]
    fn no_name_in_an_error_reaches_a_terminal_as_it_is() {
        let name = "w\x1b]0;owned\x07\nhint: run this\u{202e}";
        let error = Error::new(Kind::Invalid, "read", name, name).with_hint(name);
        let told = format!("{error}{}", error.hint().unwrap_or_default());
        assert!(!told.contains(crate::text::is_unsafe), "{told:?}");
    }

    #[test]
    fn the_kind_of_an_os_error_follows_from_its_cause() {
        let missing = Error::os("open", "x", io::Error::from_raw_os_error(2));
        assert_eq!(
            (missing.kind(), missing.os_code()),
            (Kind::NotFound, Some(2))
        );
        let full = Error::os("write", "x", io::Error::from_raw_os_error(28));
        assert_eq!(full.kind(), Kind::Transient);
    }
}

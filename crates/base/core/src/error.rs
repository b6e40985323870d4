//! The error type of all crates.
//!
//! An error has four parts: its [`ErrorKind`] (what the caller can do about it), the operation, the
//! object, and the cause. All crates share the type. A read that fails in `sys` is the same failure
//! three crates up: wrapping it in each crate would add words and lose the kind.
//!
//! Names in an error may come from untrusted files. Every text is therefore escaped when the error is
//! made (see [`text`](crate::text)), so that an error is one line that is safe to print on a terminal.

use std::{borrow::Cow, error, fmt, io, ops::Range};

use crate::{
    hint::{Hint, Setting},
    text::shown,
};

/// The result type of all crates.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The class of an error, by what the caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The object does not exist.
    NotFound,
    /// The name to be written is taken.
    AlreadyExists,
    /// The object is not the version that was asked for: it changed while it was read, or since it was opened or listed.
    Precondition,
    /// The data is truncated, damaged or of the wrong length.
    Corrupt,
    /// The same call may work later: a full disk, an I/O error, a timeout.
    Transient,
    /// Another job, or an earlier call, is using the object.
    Busy,
    /// The file system or the service does not permit it.
    Denied,
    /// It is an object, not a folder.
    NotFolder,
    /// This machine, file system or driver cannot do it.
    Unsupported,
    /// The request makes no sense.
    Invalid,
    /// The user cancelled the operation.
    Cancelled,
}

impl ErrorKind {
    /// The name in machine-readable output.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::Precondition => "precondition",
            Self::Corrupt => "corrupt",
            Self::Transient => "transient",
            Self::Busy => "busy",
            Self::Denied => "denied",
            Self::NotFolder => "not_folder",
            Self::Unsupported => "unsupported",
            Self::Invalid => "invalid",
            Self::Cancelled => "cancelled",
        }
    }
}

/// An error: an operation on an object failed, and why.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    operation: &'static str,
    target: String,
    message: String,
    hint: Option<Box<Hint>>,
    source: Option<io::Error>,
}

impl Error {
    /// An error of `kind`: `operation` failed on `target`.
    pub fn new(
        kind: ErrorKind,
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

    /// An error of the operating system. Its kind is derived from `source`.
    pub fn os(operation: &'static str, target: impl fmt::Display, source: io::Error) -> Self {
        let kind = match source.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::AlreadyExists => ErrorKind::AlreadyExists,
            io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidInput => {
                ErrorKind::Invalid
            }
            io::ErrorKind::Unsupported => ErrorKind::Unsupported,
            io::ErrorKind::UnexpectedEof => ErrorKind::Corrupt,
            _ => ErrorKind::Transient,
        };
        // Users read the text; programs read the number with `os_code`.
        let message = source.to_string();
        let message = message.split(" (os error ").next().unwrap_or_default();
        Self {
            source: Some(source),
            ..Self::new(kind, operation, target, message)
        }
    }

    /// A copy of the error, for another recipient. The source keeps only its OS error number.
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

    /// Adds to its message which bytes of the object it is about.
    #[must_use]
    pub fn in_bytes(mut self, bytes: Range<u64>) -> Self {
        if !bytes.is_empty() {
            let (first, last) = (bytes.start, bytes.end - 1);
            self.message = format!("{}, in bytes {first} to {last}", self.message);
        }
        self
    }

    /// Adds a hint: the flag, command or setting that helps.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(Box::new(Hint::new(shown(&hint.into()).into_owned())));
        self
    }

    /// The class of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The hint, if there is one.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref().map(Hint::plain)
    }

    /// The hint for the users of one interface. `word` names a setting as that interface does.
    pub fn hint_worded(&self, word: impl Fn(Setting<'_>) -> String) -> Option<Cow<'_, str>> {
        self.hint.as_ref().map(|hint| hint.worded(word))
    }

    /// The OS error number, if the operating system reported the error.
    pub fn os_code(&self) -> Option<i32> {
        self.source.as_ref().and_then(io::Error::raw_os_error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: {}", self.operation, self.target, self.message)
    }
}

// `source()` stays empty: the message already contains the cause, which would be printed twice.
impl error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_operation_the_object_and_the_cause() {
        let error = Error::new(ErrorKind::Corrupt, "read", "model.bin", "it ends at byte 7 of 9");
        assert_eq!(error.to_string(), "cannot read model.bin: it ends at byte 7 of 9");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn an_error_names_the_bytes_that_it_is_about() {
        let error = || Error::os("read", "x", io::Error::from_raw_os_error(5));
        let text = error().in_bytes(4096..12_288).to_string();
        assert!(text.ends_with("output error, in bytes 4096 to 12287"), "{text}");
        assert_eq!(error().in_bytes(7..7).to_string(), error().to_string());
    }

    #[test]
    fn a_copy_has_the_kind_and_the_hint() {
        let error = Error::new(ErrorKind::Precondition, "read", "x", "it changed");
        let copy = error.with_hint("read it again").again();
        assert_eq!(copy.kind(), ErrorKind::Precondition);
        assert_eq!(copy.hint(), Some("read it again"));
    }

    #[test]
    fn names_in_an_error_are_escaped() {
        let name = "w\x1b]0;owned\x07\nhint: run this\u{202e}";
        let error = Error::new(ErrorKind::Invalid, "read", name, name).with_hint(name);
        let told = format!("{error}{}", error.hint().unwrap_or_default());
        assert!(!told.contains(crate::text::is_unsafe), "{told:?}");
    }

    #[test]
    fn the_kind_of_an_os_error_follows_from_its_cause() {
        let missing = Error::os("open", "x", io::Error::from_raw_os_error(2));
        assert_eq!((missing.kind(), missing.os_code()), (ErrorKind::NotFound, Some(2)));
        let kind = |code| Error::os("write", "x", io::Error::from_raw_os_error(code)).kind();
        assert_eq!(kind(28), ErrorKind::Transient, "a full disk");
        assert_eq!((kind(1), kind(13)), (ErrorKind::Denied, ErrorKind::Denied));
        assert_eq!(kind(17), ErrorKind::AlreadyExists);
    }
}

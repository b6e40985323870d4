//! The cause of a failed connection attempt.

use crate::link::LinkError;

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
        let is_final = matches!(error, LinkError::Refused(status, _) if !status.is_retryable());
        Self {
            is_final,
            ..Self::transient(format!("{doing}: {error}"))
        }
    }
}

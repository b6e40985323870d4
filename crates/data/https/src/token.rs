//! A bearer token. `Debug` and errors do not show it.

use std::fmt;

use straightway_core::{Error, ErrorKind, Result};

/// A bearer token.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token; fails if it cannot be sent in a header.
    pub fn new(token: impl Into<String>) -> Result<Self> {
        let token = token.into();
        let fits = |byte: u8| byte.is_ascii_graphic();
        if token.is_empty() || !token.bytes().all(fits) {
            let why = "it is empty, or has blanks, control characters or letters beyond ASCII";
            return Err(Error::new(ErrorKind::Invalid, "use", "the token", why));
        }
        Ok(Self(token))
    }

    /// Appends the header line.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        for part in ["Authorization: Bearer ", &self.0, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_never_shown_and_cannot_contain_a_line_break() {
        assert_eq!(format!("{:?}", Token::new("secret").unwrap()), "Token(…)");
        for bad in ["", "a b", "secret\r\nX: y", "sécret"] {
            let error = Token::new(bad).unwrap_err();
            assert!(!error.to_string().contains("cret"), "{error}");
        }
    }
}

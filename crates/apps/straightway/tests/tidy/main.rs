//! Rules of the repository that the compiler does not check.

#![expect(clippy::unwrap_used, reason = "a test")]

mod code;
mod configuration;
mod dependencies;
mod documents;
mod dtypes;
mod files;
mod licences;
mod wings;

pub(crate) fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

//! Lists of scenarios compiled into the program.

/// A scenario's name and text.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The file's name without the prefix of its simulator.
    pub name: &'static str,
    /// The file's content.
    pub text: &'static str,
}

/// The files `scenarios/PREFIX…NAME.toml` of the workspace, as entries.
#[macro_export]
macro_rules! entries {
    ($prefix:literal: $($name:literal),* $(,)?) => {
        &[$($crate::library::Entry {
            name: $name,
            text: include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"), "/../../../scenarios/", $prefix, $name, ".toml"
            )),
        }),*]
    };
}

/// Finds the entry called `name`, with or without the prefix of its file.
pub fn find_in<'a>(entries: &'a [Entry], prefix: &str, name: &str) -> Option<&'a Entry> {
    let name = name.strip_prefix(prefix).unwrap_or(name);
    entries.iter().find(|entry| entry.name == name)
}

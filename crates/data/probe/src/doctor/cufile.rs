//! cuFile's library and configuration, as a process started now would find them.
//!
//! The configuration is JSON with comments, and precedence is environment over file over default.
//! The library is found by looking where the loader and CUDA put it, never by loading it: opening
//! cuFile on a broken machine can hang.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::Value;
use straightway_sys::root::Root;

/// The default path of the configuration.
const CONFIG_PATH: &str = "/etc/cufile.json";

/// cuFile as installed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cufile {
    pub(super) library: Option<Library>,
    pub(super) config: Config,
}

/// The shared library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Library {
    pub(super) path: PathBuf,
    /// The version in the name of the resolved file.
    pub(super) version: Option<String>,
}

/// The configuration file and the environment variables that override it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Config {
    pub(super) path: PathBuf,
    pub(super) content: Content,
    /// The variables that begin with `CUFILE_`.
    pub(super) variables: BTreeMap<String, String>,
}

/// The content of the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content {
    /// The file is missing: cuFile uses its defaults.
    Missing,
    /// The file cannot be read or parsed, and why.
    Broken(String),
    /// The settings.
    Settings(Value),
}

impl Cufile {
    pub(super) fn read(root: &Root, environment: &BTreeMap<String, String>) -> Self {
        Self {
            library: Library::find(root, environment),
            config: Config::read(root, environment),
        }
    }
}

impl Library {
    fn find(root: &Root, environment: &BTreeMap<String, String>) -> Option<Self> {
        let path = folders(root, environment)
            .into_iter()
            .flat_map(|folder| [folder.join("libcufile.so.0"), folder.join("libcufile.so")])
            .find(|path| root.exists(path))?;
        let file = root.resolve(&path).unwrap_or_else(|| path.clone());
        let name = file.file_name()?.to_string_lossy().into_owned();
        let version = name.strip_prefix("libcufile.so.").map(str::to_owned);
        let version = version.filter(|version| version.contains('.'));
        Some(Self { path, version })
    }
}

/// The folders of the loader, then those of CUDA installations.
fn folders(root: &Root, environment: &BTreeMap<String, String>) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = environment
        .get("LD_LIBRARY_PATH")
        .map(|paths| paths.split(':').filter(|path| !path.is_empty()))
        .into_iter()
        .flatten()
        .map(PathBuf::from)
        .collect();
    for multiarch in ["x86_64-linux-gnu", "aarch64-linux-gnu"] {
        folders.push(Path::new("/usr/lib").join(multiarch));
        folders.push(Path::new("/lib").join(multiarch));
    }
    folders.extend(["/usr/lib64", "/usr/lib", "/usr/local/lib"].map(PathBuf::from));
    let toolkits = root.list("/usr/local").into_iter();
    for toolkit in toolkits.filter(|name| name.starts_with("cuda")).rev() {
        let toolkit = Path::new("/usr/local").join(toolkit);
        folders.push(toolkit.join("lib64"));
        let targets = toolkit.join("targets");
        for target in root.list(&targets) {
            folders.push(targets.join(target).join("lib"));
        }
    }
    folders
}

impl Config {
    fn read(root: &Root, environment: &BTreeMap<String, String>) -> Self {
        let named = environment.get("CUFILE_ENV_PATH_JSON").map(PathBuf::from);
        let path = named.clone().unwrap_or_else(|| CONFIG_PATH.into());
        let content = if root.exists(&path) {
            match root.read(&path) {
                Ok(bytes) => parse(&String::from_utf8_lossy(&bytes)),
                Err(e) => Content::Broken(e.to_string()),
            }
        } else if named.is_some() {
            let path = path.display();
            Content::Broken(format!("CUFILE_ENV_PATH_JSON names {path}, which is missing"))
        } else {
            Content::Missing
        };
        let variables = environment
            .iter()
            .filter(|(name, _)| name.starts_with("CUFILE_"))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        Self {
            path,
            content,
            variables,
        }
    }

    /// A setting such as `properties.use_pci_p2pdma`.
    pub(super) fn setting(&self, name: &str) -> Option<&Value> {
        let Content::Settings(settings) = &self.content else {
            return None;
        };
        name.split('.').try_fold(settings, |value, key| value.get(key))
    }

    /// A boolean: the environment variable if it is set, else the setting.
    pub(super) fn switch(&self, variable: &str, setting: &str) -> Option<bool> {
        match self.variables.get(variable).map(|value| value.to_lowercase()) {
            Some(value) => Some(matches!(value.as_str(), "true" | "1" | "yes" | "on")),
            None => self.setting(setting).and_then(Value::as_bool),
        }
    }

    /// A number, or cuFile's default for it.
    pub(super) fn number(&self, setting: &str, default: u64) -> u64 {
        let value = self.setting(setting).and_then(Value::as_u64);
        value.unwrap_or(default)
    }

    /// A list of numbers, or cuFile's default for it.
    pub(super) fn numbers(&self, setting: &str, default: &[u64]) -> Vec<u64> {
        let list = self.setting(setting).and_then(Value::as_array);
        match list {
            Some(list) => list.iter().filter_map(Value::as_u64).collect(),
            None => default.to_vec(),
        }
    }

    /// A list of words.
    pub(super) fn words(&self, setting: &str) -> Vec<&str> {
        let list = self.setting(setting).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).collect()
    }
}

fn parse(text: &str) -> Content {
    match serde_json::from_str(&without_comments(text)) {
        Ok(settings @ Value::Object(_)) => Content::Settings(settings),
        Ok(_) => Content::Broken("not a JSON object".to_owned()),
        Err(e) => Content::Broken(e.to_string()),
    }
}

/// Replaces comments and trailing commas by spaces, so that lines and columns stay the same.
fn without_comments(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = bytes.to_vec();
    let (mut at, mut comma) = (0, None);
    while at < bytes.len() {
        let end = match (bytes[at], bytes.get(at + 1)) {
            (b'"', _) => {
                comma = None;
                at = string_end(bytes, at);
                continue;
            }
            (b'/', Some(b'/')) => find(bytes, at, b"\n").unwrap_or(bytes.len()),
            (b'/', Some(b'*')) => find(bytes, at + 2, b"*/").map_or(bytes.len(), |end| end + 2),
            (byte, _) => {
                match byte {
                    b',' => comma = Some(at),
                    b'}' | b']' => {
                        if let Some(comma) = comma.take() {
                            plain[comma] = b' ';
                        }
                    }
                    byte if byte.is_ascii_whitespace() => {}
                    _ => comma = None,
                }
                at += 1;
                continue;
            }
        };
        for byte in &mut plain[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    String::from_utf8_lossy(&plain).into_owned()
}

/// The byte after the string that starts at `start`.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    let rest = bytes.get(from..)?;
    let at = rest.windows(what.len()).position(|seen| seen == what)?;
    Some(from + at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn comments_and_trailing_commas_are_accepted() {
        let text = r#"{
            // "use_pci_p2pdma": false,
            "properties": { /* of the driver */
                "use_pci_p2pdma": true,   // on
                "rdma_dev_addr_list": [ "10.0.0.1//24", "a\"//b", ],
            },
        }"#;
        let config = Config {
            path: CONFIG_PATH.into(),
            content: parse(text),
            variables: BTreeMap::new(),
        };
        assert_eq!(
            config.switch("CUFILE_USE_PCIP2PDMA", "properties.use_pci_p2pdma"),
            Some(true)
        );
        let list = config.words("properties.rdma_dev_addr_list");
        assert_eq!(list, ["10.0.0.1//24", "a\"//b"]);
    }

    #[test]
    fn an_error_names_the_line_of_the_file_as_written() {
        let Content::Broken(why) = parse("{\n// one\n/* two\nthree */\n  \"a\" 1\n}") else {
            panic!("it was read");
        };
        assert!(why.contains("line 5"), "{why}");
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_rejected(text in "\\PC*|[\\[\\]{},:\"/*\\\\a1 \n]*") {
            let _ = parse(&text);
        }

        #[test]
        fn plain_json_is_unchanged(words in proptest::collection::vec("[a-z/*,\\]} ]*", 0..5)) {
            let value = serde_json::json!({ "words": words, "more": [1, { "x": null }] });
            prop_assert_eq!(parse(&value.to_string()), Content::Settings(value));
        }
    }
}

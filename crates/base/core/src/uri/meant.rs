//! What was probably meant by a URI that is refused, or by a path that does not exist.

use std::{ffi::OsStr, path::Path};

use super::Scheme;
use crate::nearest::nearest;

/// Names of other tools for the schemes here.
const SYNONYMS: [(&str, &str); 5] = [
    ("s3a", "s3"),
    ("s3n", "s3"),
    ("nvme", "nvme-tcp"),
    ("nvmf", "nvme-tcp"),
    ("nvme+tcp", "nvme-tcp"),
];

/// How to name a model of the Hugging Face hub.
const HUB: &str = "download a model of the hub with `hf download ORG/NAME` and name its folder, or name one file: \
                   https://huggingface.co/ORG/NAME/resolve/main/FILE";

/// The hint for a URI whose scheme is not supported. `rest` follows `://`.
pub(super) fn hint(scheme: &str, rest: &str) -> String {
    if matches!(scheme, "hf" | "huggingface") {
        return HUB.to_owned();
    }
    let known = Scheme::FORMS.iter().map(|(name, ..)| *name);
    let synonym = SYNONYMS
        .iter()
        .find(|(name, _)| *name == scheme)
        .map(|(_, known)| *known);
    match synonym.or_else(|| nearest(scheme, known)) {
        // A URI with `@` may have a password.
        Some(known) if !rest.contains(['@', '?']) => format!("did you mean {known}://{rest}?"),
        Some(known) => format!("did you mean {known}://?"),
        None => "write `./` in front of a path that looks like a URI".to_owned(),
    }
}

/// The hint for a path that does not exist, if it looks like a URI or like a model of the Hugging Face hub.
///
/// `s3:/bucket/x` and `s3:x` are paths by the rules of [`Uri`](super::Uri). So is `meta-llama/Llama-3-8B`; `has_folder`
/// tells whether its first part is a folder here.
pub fn hint_for_missing(path: &OsStr, has_folder: bool) -> Option<String> {
    let text = path.to_str()?;
    if let Some((scheme, rest)) = text.split_once(':') {
        let scheme = scheme.to_ascii_lowercase();
        let rest = rest.trim_start_matches('/');
        let is_known = Scheme::FORMS.iter().any(|(name, ..)| *name == scheme) && scheme != "memory";
        let is_plain = !rest.is_empty() && !rest.contains(['@', '?']);
        return (is_known && is_plain).then(|| format!("did you mean {scheme}://{rest}?"));
    }
    let fits = |part: &str| {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(is_name)
    };
    let is_repository = text.split('/').count() == 2 && text.split('/').all(fits);
    let ending = Path::new(text).extension();
    let is_file = ending.is_some_and(|ending| ending == "safetensors" || ending == "json");
    (is_repository && !has_folder && !is_file).then(|| HUB.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Uri;

    #[test]
    fn schemes_of_other_tools_and_mistyped_ones_are_suggested() {
        for (text, meant) in [
            ("s4://bucket/x", "did you mean s3://bucket/x?"),
            ("s3a://bucket/x", "did you mean s3://bucket/x?"),
            ("htps://host/x", "did you mean https://host/x?"),
            ("nvme://host/nqn.x", "did you mean nvme-tcp://host/nqn.x?"),
            ("htps://user:pw@host/x", "did you mean https://?"),
            ("hf://meta-llama/Llama-3-8B", "hf download ORG/NAME"),
            ("gs://bucket/x", "write `./` in front"),
        ] {
            let error = Uri::parse(text).unwrap_err();
            assert!(error.hint().unwrap().contains(meant), "{text}: {:?}", error.hint());
        }
    }

    #[test]
    fn a_missing_path_may_be_meant_as_a_uri_or_a_model_of_the_hub() {
        let hint = |text: &str| hint_for_missing(text.as_ref(), false).unwrap_or_default();
        assert_eq!(hint("s3:/bucket/x"), "did you mean s3://bucket/x?");
        assert_eq!(hint("S3:bucket/x"), "did you mean s3://bucket/x?");
        assert_eq!(hint("https:/host/x"), "did you mean https://host/x?");
        assert!(hint("meta-llama/Llama-3-8B").contains("hf download"));
        for path in [
            "model",
            "./a/b",
            "a/b/c",
            "/a/b",
            "a/",
            "a/model.safetensors",
            "host:",
            "s3:",
            "https:/u:p@h",
        ] {
            assert_eq!(hint(path), "", "{path}");
        }
        assert_eq!(hint_for_missing("runs/demo".as_ref(), true), None);
    }
}

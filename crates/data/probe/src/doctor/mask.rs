//! Masks secrets and names in text that leaves the machine.
//!
//! Secrets are recognised by the name in front of them (`token = …`), by their shape (`AKIA…`, `hf_…`, long random
//! words) and by their place (the password and the query of an address, private keys). Host and user names are those
//! that the machine knows. Masking errs on the side of too much: a masked word costs a question, a secret cannot be
//! taken back.

use std::collections::BTreeMap;

use straightway_sys::root::Root;

/// Replaces a secret.
const MASKED: &str = "[masked]";
/// Parts of the names of secret settings. A value behind such a name is masked.
const SECRET_WORDS: &[&str] = &[
    "secret",
    "password",
    "passwd",
    "token",
    "credential",
    "access_key",
    "accesskey",
    "api_key",
    "apikey",
    "private_key",
    "customer_key",
    "authorization",
    "bearer",
    "signature",
    "dhchap",
    "passphrase",
];
/// Beginnings of secrets that are recognised without a name.
const SECRET_PREFIXES: &[&str] = &[
    "AKIA",
    "ASIA",
    "hf_",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "sk-",
    "xoxb-",
    "xoxp-",
    "nvapi-",
    "eyJ",
    "DHHC-1:",
    "NVMeTLSkey-1:",
];
/// A word with one of these beginnings is a secret if it is at least this long.
const PREFIXED_LENGTH_MIN: usize = 16;
/// A random word of at least this length is taken for a secret: AWS's have 40 characters.
const RANDOM_LENGTH_MIN: usize = 32;
/// The length of a secret key of AWS, which may contain slashes.
const AWS_SECRET_LENGTH: usize = 40;
/// Names that identify nobody.
const NEUTRAL: &[&str] = &[
    "root",
    "nobody",
    "localhost",
    "localhost4",
    "localhost6",
    "localdomain",
    "ubuntu",
    "debian",
    "admin",
    "user",
    "ec2-user",
    "centos",
    "rocky",
    "fedora",
    "local",
    "broadcasthost",
];

/// What is masked in text that leaves the machine.
#[derive(Debug, Default)]
pub(super) struct Mask {
    /// Names and their replacements, longest first.
    hosts: Vec<(String, String)>,
    users: Vec<(String, String)>,
    /// IPv4 addresses and their replacements; `None` keeps addresses.
    addresses: Option<BTreeMap<String, String>>,
}

impl Mask {
    /// Masks only secrets.
    pub(super) fn secrets() -> Self {
        Self::default()
    }

    /// Masks secrets, and the host names, user names and addresses that this machine knows.
    pub(super) fn of(root: &Root, environment: &BTreeMap<String, String>) -> Self {
        Self {
            hosts: numbered(host_names(root), "host"),
            users: numbered(user_names(root, environment), "user"),
            addresses: Some(BTreeMap::new()),
        }
    }

    /// The text without secrets and names.
    pub(super) fn apply(&mut self, text: &str) -> String {
        let mut masked = String::with_capacity(text.len());
        // The text that ends a secret of several lines.
        let mut until: Option<&str> = None;
        for line in text.split_inclusive('\n') {
            let body = line.trim_end_matches('\n');
            let shown = match until {
                Some(end) => {
                    if body.contains(end) {
                        until = None;
                    }
                    MASKED.to_owned()
                }
                None => self.line(body, &mut until),
            };
            masked.push_str(&shown);
            masked.push_str(&line[body.len()..]);
        }
        masked
    }

    fn line(&mut self, line: &str, until: &mut Option<&str>) -> String {
        if line.contains("-----BEGIN") && line.contains("PRIVATE KEY") {
            *until = (!line.contains("-----END")).then_some("-----END");
            return MASKED.to_owned();
        }
        let (line, is_list) = mask_values(line);
        *until = is_list.then_some("]");
        let line = mask_words(&mask_addresses_of_servers(&line));
        let line = self.hosts.iter().fold(line, |line, (name, with)| {
            replace_word(&line, name, with, |c| c.is_ascii_alphanumeric() || c == '_')
        });
        let line = self.users.iter().fold(line, |line, (name, with)| {
            replace_word(&line, name, with, |c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        });
        match &mut self.addresses {
            Some(known) => mask_ipv4(&line, known),
            None => line,
        }
    }
}

/// Masks the values of settings with secret names: `name = value`, `"name": "value"`, `name=value&…`. Also returns
/// whether the value is a list that goes on in the next line.
fn mask_values(line: &str) -> (String, bool) {
    let lower = line.to_ascii_lowercase();
    let mut masked = String::with_capacity(line.len());
    let mut from = 0;
    while let Some((separator, is_colon)) = next_secret(&lower, from) {
        let rest = &line[separator + 1..];
        let value = rest.trim_start_matches([' ', '\t']);
        let start = line.len() - value.len();
        masked.push_str(&line[from..start]);
        let length = match value.chars().next() {
            Some(quote @ ('"' | '\'')) => quoted_length(value, quote),
            Some('[') => match value.find(']') {
                Some(end) => end + 1,
                None => return (masked + MASKED, true),
            },
            Some('{') | None => 0,
            // A header or a message: the value may have several words.
            Some(_) if is_colon => value.len(),
            Some(_) => value.find([' ', '\t', ',', ';', '&']).unwrap_or(value.len()),
        };
        if length > 0 {
            masked.push_str(MASKED);
        }
        from = start + length;
        if from >= line.len() {
            break;
        }
    }
    masked.push_str(&line[from.min(line.len())..]);
    (masked, false)
}

/// The length of a quoted value, with its quotes. A quote behind a backslash does not end it.
fn quoted_length(value: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, letter) in value.char_indices().skip(1) {
        if letter == quote && !is_escaped {
            return at + 1;
        }
        is_escaped = letter == '\\' && !is_escaped;
    }
    value.len()
}

/// The place of the `=` or `:` behind the next secret name, and whether it is a colon.
fn next_secret(lower: &str, from: usize) -> Option<(usize, bool)> {
    let mut at = from;
    loop {
        let found = SECRET_WORDS
            .iter()
            .filter_map(|word| Some(at + lower.get(at..)?.find(word)? + word.len()));
        let end = found.min()?;
        // The rest of the name, then a quote and blanks.
        let rest = &lower[end..];
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        let rest = rest.trim_start_matches(['"', '\'']).trim_start_matches([' ', '\t']);
        let place = lower.len() - rest.len();
        match rest.chars().next() {
            Some('=') => return Some((place, false)),
            Some(':') => return Some((place, true)),
            _ => at = end,
        }
    }
}

/// Masks the user, the password and the query of addresses (`https://user:password@host/path?query`).
fn mask_addresses_of_servers(line: &str) -> String {
    let mut masked = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("://") {
        let (before, address) = rest.split_at(at + 3);
        masked.push_str(before);
        let end = address.find([' ', '\t', '"', '\'', ',', '>']).unwrap_or(address.len());
        let (address, after) = address.split_at(end);
        let host = address.find('/').unwrap_or(address.len());
        let address = match address[..host].rfind('@') {
            Some(user) => {
                masked.push_str(MASKED);
                &address[user..]
            }
            None => address,
        };
        match address.split_once('?') {
            Some((place, _)) => {
                masked.push_str(place);
                masked.push('?');
                masked.push_str(MASKED);
            }
            None => masked.push_str(address),
        }
        rest = after;
    }
    masked + rest
}

/// Masks words that look like secrets.
fn mask_words(line: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_-+/=.:".contains(c);
    let mut masked = String::with_capacity(line.len());
    let mut rest = line;
    while !rest.is_empty() {
        let gap = rest.find(is_word).unwrap_or(rest.len());
        masked.push_str(&rest[..gap]);
        rest = &rest[gap..];
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        masked.push_str(&mask_word(word));
        rest = after;
    }
    masked
}

fn mask_word(word: &str) -> String {
    if let Some(at) = SECRET_PREFIXES
        .iter()
        .filter_map(|prefix| prefix_at(word, prefix))
        .min()
        && word.len() - at >= PREFIXED_LENGTH_MIN
    {
        return format!("{}{MASKED}", &word[..at]);
    }
    let body = word.trim_matches(['=', '.', ':']);
    if body.len() == AWS_SECRET_LENGTH && is_random(body) {
        return word.replace(body, MASKED);
    }
    let parts = word.split_inclusive(['/', '=', '.', ':']);
    let part = |part: &str| {
        let body = part.trim_end_matches(['/', '=', '.', ':']);
        if body.len() >= RANDOM_LENGTH_MIN && is_random(body) {
            part.replace(body, MASKED)
        } else {
            part.to_owned()
        }
    };
    parts.map(part).collect()
}

/// Where a word, or a part of it behind a separator, begins with `prefix`.
fn prefix_at(word: &str, prefix: &str) -> Option<usize> {
    word.match_indices(prefix)
        .map(|(at, _)| at)
        .find(|at| *at == 0 || word[..*at].ends_with(['=', ':', '/']))
}

/// Whether a word has upper-case letters, lower-case letters and digits, and no dot: names and versions rarely do.
fn is_random(word: &str) -> bool {
    let has = |test: fn(&u8) -> bool| word.as_bytes().iter().any(test);
    has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase) && has(u8::is_ascii_digit) && !word.contains('.')
}

/// Replaces `name`, in any case, where no character of a word is next to it.
fn replace_word(text: &str, name: &str, with: &str, is_word: fn(char) -> bool) -> String {
    let lower = text.to_ascii_lowercase();
    let mut replaced = String::with_capacity(text.len());
    let mut from = 0;
    for (at, found) in lower.match_indices(&name.to_ascii_lowercase()) {
        let end = at + found.len();
        let is_inside = text[..at].ends_with(is_word) || text[end..].starts_with(is_word);
        if at >= from && !is_inside {
            replaced.push_str(&text[from..at]);
            replaced.push_str(with);
            from = end;
        }
    }
    replaced + &text[from..]
}

/// Replaces IPv4 addresses other than those of loopback. A version has four numbers too, so only words are replaced
/// whose first number is at least 10: versions of cuFile and of drivers' libraries begin with less.
fn mask_ipv4(line: &str, known: &mut BTreeMap<String, String>) -> String {
    let is_part = |c: char| c.is_ascii_digit() || c == '.';
    let mut masked = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        masked.push_str(&rest[..start]);
        let is_fresh = !rest[..start].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-');
        rest = &rest[start..];
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        let word = run.trim_end_matches('.');
        match word.parse::<std::net::Ipv4Addr>() {
            Ok(address) if is_fresh && !address.is_loopback() && address.octets()[0] >= 10 => {
                let next = format!("address-{}", known.len() + 1);
                masked.push_str(known.entry(word.to_owned()).or_insert(next));
                masked.push_str(&run[word.len()..]);
            }
            _ => masked.push_str(run),
        }
        rest = after;
    }
    masked + rest
}

/// Names with numbered replacements, longest first, so that a name inside another is found in it last.
fn numbered(mut names: Vec<String>, kind: &str) -> Vec<(String, String)> {
    names.retain(|name| {
        name.len() > 1 && !NEUTRAL.contains(&name.as_str()) && !name.bytes().all(|c| c.is_ascii_digit())
    });
    names.sort();
    names.dedup();
    let mut masks: Vec<_> = (1..)
        .zip(names)
        .map(|(n, name)| (name, format!("{kind}-{n}")))
        .collect();
    masks.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    masks
}

/// The names of this machine, of its domain, of known machines and of file servers.
fn host_names(root: &Root) -> Vec<String> {
    let mut names = Vec::new();
    for file in ["/proc/sys/kernel/hostname", "/etc/hostname"] {
        names.extend(root.text(file).map(|text| text.trim().to_owned()));
    }
    for line in root.text("/etc/hosts").unwrap_or_default().lines() {
        let line = line.split('#').next().unwrap_or_default();
        let known = line.split_whitespace().skip(1);
        names.extend(known.filter(|name| !name.starts_with("ip6-")).map(str::to_owned));
    }
    for line in root.text("/etc/resolv.conf").unwrap_or_default().lines() {
        let mut words = line.split_whitespace();
        if matches!(words.next(), Some("search" | "domain")) {
            names.extend(words.map(str::to_owned));
        }
    }
    for line in root.text("/proc/self/mounts").unwrap_or_default().lines() {
        names.extend(line.split_whitespace().next().and_then(server).map(str::to_owned));
    }
    // The first label alone is the name that most programs print.
    let labels: Vec<_> = names
        .iter()
        .filter_map(|name| Some(name.split_once('.')?.0.to_owned()))
        .collect();
    names.extend(labels.into_iter().filter(|label| label.len() > 2));
    // Numbers are masked as addresses.
    names.retain(|name| name.parse::<std::net::Ipv4Addr>().is_err());
    names
}

/// The server in the source of a network mount: `HOST:/export`, `//HOST/share`, `10.0.0.1@o2ib:/fs`.
fn server(source: &str) -> Option<&str> {
    let name = match source.strip_prefix("//") {
        Some(rest) => rest.split('/').next()?,
        None => source.split_once(":/")?.0,
    };
    name.split('@')
        .next()
        .filter(|name| !name.is_empty() && !name.contains('/'))
}

/// The people who use this machine: accounts from 1000, and the user of this process.
fn user_names(root: &Root, environment: &BTreeMap<String, String>) -> Vec<String> {
    let mut names = Vec::new();
    for line in root.text("/etc/passwd").unwrap_or_default().lines() {
        let fields: Vec<_> = line.split(':').collect();
        let number = fields.get(2).and_then(|number| number.parse::<u32>().ok());
        if number.is_some_and(|number| (1000..65_534).contains(&number)) {
            names.push(fields[0].to_owned());
        }
    }
    for variable in ["USER", "LOGNAME", "SUDO_USER"] {
        names.extend(environment.get(variable).cloned());
    }
    let home = environment.get("HOME").and_then(|home| home.rsplit('/').next());
    names.extend(home.map(str::to_owned));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(text: &str) -> String {
        Mask::secrets().apply(text)
    }

    #[test]
    fn secrets_are_masked_by_name_shape_and_place() {
        for (text, expected) in [
            ("aws_secret_access_key = abc/def", "aws_secret_access_key = [masked]"),
            (
                r#"  "api_token": "s3\"cr", "x": 1"#,
                r#"  "api_token": [masked], "x": 1"#,
            ),
            ("AWS_SESSION_TOKEN=abc rest", "AWS_SESSION_TOKEN=[masked] rest"),
            ("Authorization: Bearer abc def", "Authorization: [masked]"),
            ("key AKIAIOSFODNN7EXAMPLE was used", "key [masked] was used"),
            ("hf_abcdefghijklmnopqrstuv", "[masked]"),
            ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "[masked]"),
            (
                "https://me:pw@host/a?X-Amz-Signature=1 x",
                "https://[masked]@host/a?[masked] x",
            ),
            ("secret=DHHC-1:00:AAECAwQF:", "secret=[masked]"),
            (
                "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
                "[masked]",
            ),
            (
                "-----BEGIN PRIVATE KEY-----\nMIIB\nx\n-----END PRIVATE KEY-----\nafter",
                "[masked]\n[masked]\n[masked]\n[masked]\nafter",
            ),
            (
                "\"tokens\": [\n \"a\",\n \"b\" ],\n\"x\": 1",
                "\"tokens\": [masked]\n[masked]\n[masked]\n\"x\": 1",
            ),
        ] {
            assert_eq!(masked(text), expected);
        }
    }

    #[test]
    fn facts_are_kept() {
        for text in [
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build",
            "1.15.1 at /usr/local/cuda-13.0/targets/x86_64-linux/lib/libcufile.so.0",
            "Ops : Read=0 Write=0 BatchIO=0",
            r#"    "posix_pool_slab_size_kb" : [4, 1024, 16384],"#,
            "BOOT_IMAGE=/boot/vmlinuz-6.18.44 root=UUID=7f0c81e5-3b2d-4c8e-9b1f-6f2d3c4b5a69 ro",
            "CONFIG_PCI_P2PDMA is not set",
        ] {
            assert_eq!(masked(text), text);
        }
    }

    #[test]
    fn names_of_the_machine_are_replaced_by_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("etc/hostname", "trainer7\n");
        write("etc/hosts", "127.0.0.1 localhost\n10.1.2.3 filer.corp.example filer\n");
        write(
            "etc/passwd",
            "root:x:0:0::/root:/bin/sh\nalice:x:1001:1001::/home/alice:/bin/sh\n",
        );
        write("proc/self/mounts", "vault.corp.example:/models /models nfs4 rw 0 0\n");
        let environment = BTreeMap::from([("HOME".to_owned(), "/srv/bob".to_owned())]);
        let mut mask = Mask::of(&Root::at(folder.path()), &environment);
        let text = "TRAINER7: /home/alice and /srv/bob on vault.corp.example:/models by 10.1.2.3 and 10.1.2.3, \
                    malice, 127.0.0.1, cuFile 1.15.1.6, root";
        let masked = mask.apply(text);
        for name in ["TRAINER7", "/alice", "/bob", "vault", "corp", "10.1.2.3"] {
            assert!(!masked.contains(name), "{name} in {masked}");
        }
        for kept in ["malice", "127.0.0.1", "1.15.1.6", "root", ":/models"] {
            assert!(masked.contains(kept), "{kept} not in {masked}");
        }
        assert_eq!(masked.matches("address-1").count(), 2);
    }
}

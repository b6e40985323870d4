//! The environment of credential providers: files, variables and HTTP, on the caller's thread and with limits.

use std::{
    collections::HashMap,
    fmt,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use reqsign_core::{Context, Env, Error, FileRead, HttpSend, Result};

use crate::access::Environment;

/// The longest configuration file, token or output of a command.
pub(super) const TEXT_BYTES_MAX: u64 = 1 << 20;

/// Sends a request and waits for its response.
pub(crate) type Http =
    Arc<dyn Fn(http::Request<Vec<u8>>) -> straightway_core::Result<http::Response<Vec<u8>>> + Send + Sync>;

/// The context of providers.
pub(crate) fn context(environment: &Environment, http: Http) -> Context {
    Context::new()
        .with_env(Variables(environment.clone()))
        .with_file_read(Files)
        .with_http_send(Sender(http))
}

/// Whether this machine has an instance metadata service. On others a request to its address may hang.
pub(super) fn has_instance_metadata(environment: &Environment) -> bool {
    let vendor = |path: &str| std::fs::read_to_string(path).is_ok_and(|v| v.starts_with("Amazon"));
    environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT").is_some()
        || vendor("/sys/class/dmi/id/sys_vendor")
        || vendor("/sys/class/dmi/id/bios_vendor")
}

/// A value of the profile in AWS's configuration files. The credentials file takes precedence, as in AWS's clients.
pub(crate) fn config_value(environment: &Environment, profile: &str, name: &str) -> Option<String> {
    value_in(environment, profile, name, ini::Ini::load_from_str)
}

/// The same with its quotes and backslashes, as AWS's clients read it.
pub(super) fn raw_config_value(environment: &Environment, profile: &str, name: &str) -> Option<String> {
    value_in(environment, profile, name, |text| {
        let options = ini::ParseOption {
            enabled_quote: false,
            enabled_escape: false,
            ..ini::ParseOption::default()
        };
        ini::Ini::load_from_str_opt(text, options)
    })
}

fn value_in(
    environment: &Environment,
    profile: &str,
    name: &str,
    parse: impl Fn(&str) -> std::result::Result<ini::Ini, ini::ParseError>,
) -> Option<String> {
    let section = match profile {
        "default" => profile.to_owned(),
        other => format!("profile {other}"),
    };
    let value = |variable: &str, usual: &str, section: &str| {
        let path = match (environment.get(variable), &environment.home) {
            (Some(path), _) => PathBuf::from(path),
            (None, Some(home)) => home.join(usual),
            (None, None) => return None,
        };
        let text = String::from_utf8(read(&path).ok()?).ok()?;
        let file = parse(&text).ok()?;
        let value = file.section(Some(section))?.get(name)?.trim();
        (!value.is_empty()).then(|| value.to_owned())
    };
    value("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials", profile)
        .or_else(|| value("AWS_CONFIG_FILE", ".aws/config", &section))
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let bytes = File::open(path)?.take(TEXT_BYTES_MAX + 1).read_to_end(&mut content)? as u64;
    if bytes > TEXT_BYTES_MAX {
        return Err(std::io::Error::other("it is too long for a configuration file"));
    }
    Ok(content)
}

#[derive(Debug)]
struct Variables(Environment);

impl Env for Variables {
    fn var(&self, key: &str) -> Option<String> {
        self.0.get(key).map(str::to_owned)
    }

    fn vars(&self) -> HashMap<String, String> {
        let set = self.0.variables.iter().filter(|(_, value)| !value.is_empty());
        set.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    fn home_dir(&self) -> Option<PathBuf> {
        self.0.home.clone()
    }
}

#[derive(Debug)]
struct Files;

impl FileRead for Files {
    async fn file_read(&self, path: &str) -> Result<Vec<u8>> {
        read(Path::new(path)).map_err(|e| Error::unexpected(format!("cannot read {path}: {e}")))
    }
}

struct Sender(Http);

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl HttpSend for Sender {
    async fn http_send(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>> {
        let response = (self.0)(request.map(|body| body.to_vec()));
        match response {
            Ok(response) => Ok(response.map(Bytes::from)),
            // The error of the client is dropped: it only names the address.
            Err(_) => Err(Error::unexpected("the request failed")),
        }
    }
}

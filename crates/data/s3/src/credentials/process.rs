//! Credentials from the command that a profile names as `credential_process`.
//!
//! The command prints a JSON object with the keys. Its output is never shown. Its exit code and what it writes to
//! stderr are: they say why it failed.

use std::{
    fmt,
    io::{self, Read},
    process::{Command, ExitStatus, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use reqsign_aws_v4::Credential;
use reqsign_core::{Context, Error, ProvideCredential};
use serde_json::{Map, Value};
use straightway_core::Lock;

use super::{
    context::{TEXT_BYTES_MAX, raw_config_value},
    words::words,
};
use crate::access::Environment;

/// The longest run time of a command, and the interval of checks.
const COMMAND_TIME_MAX: Duration = Duration::from_mins(1);
const COMMAND_STEP: Duration = Duration::from_millis(10);

/// The most characters of stderr that an error shows.
const STDERR_SHOWN_MAX: usize = 300;

/// Why a process failed the last time. A provider that uses its credentials shows it: reqsign's own errors do not.
#[derive(Clone, Debug, Default)]
pub(super) struct LastFailure(Arc<Lock<Option<String>>>);

impl LastFailure {
    /// The last failure, if the last run failed.
    pub(super) fn get(&self) -> Option<String> {
        self.0.lock().clone()
    }

    fn set(&self, failure: Option<String>) {
        *self.0.lock() = failure;
    }
}

/// The provider of a profile's process.
pub(super) struct Process {
    environment: Environment,
    profile: String,
    failure: LastFailure,
}

impl Process {
    /// The process of a profile. Its failures are recorded in `failure`.
    pub(super) fn new(environment: &Environment, profile: &str, failure: &LastFailure) -> Self {
        Self {
            environment: environment.clone(),
            profile: profile.to_owned(),
            failure: failure.clone(),
        }
    }

    /// Runs the process; `None` if the profile has none.
    fn ask(&self) -> Result<Option<Credential>, String> {
        let Some(line) = raw_config_value(&self.environment, &self.profile, "credential_process") else {
            return Ok(None);
        };
        let words = words(&line).ok_or("a quote in it is not closed")?;
        let (program, args) = words.split_first().ok_or("it is empty")?;
        let ran = run(program, args).map_err(|error| format!("cannot run {program}: {error}"))?;
        if !ran.status.success() {
            let stderr = ran.stderr_shown();
            let stderr = if stderr.is_empty() {
                "nothing".to_owned()
            } else {
                format!("`{stderr}`")
            };
            return Err(format!(
                "{program} ended with {}, and wrote {stderr} to stderr",
                ran.status
            ));
        }
        credential(&ran.stdout)
            .map(Some)
            .map_err(|why| format!("{program} {why}"))
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Process({})", self.profile)
    }
}

impl ProvideCredential for Process {
    type Credential = Credential;

    async fn provide_credential(&self, _: &Context) -> reqsign_core::Result<Option<Credential>> {
        let asked = self.ask().map_err(|why| format!("credential_process: {why}"));
        self.failure.set(asked.as_ref().err().cloned());
        asked.map_err(Error::config_invalid)
    }
}

/// The credentials in the output of a process. Errors do not quote the output.
fn credential(stdout: &[u8]) -> Result<Credential, String> {
    let Ok(Value::Object(fields)) = serde_json::from_slice(stdout) else {
        return Err("did not print a JSON object".to_owned());
    };
    match fields.get("Version").map(Value::as_u64) {
        Some(Some(1)) => {}
        Some(Some(version)) => return Err(format!("printed version {version} of the format, and 1 is known")),
        _ => return Err("printed JSON without `\"Version\": 1`".to_owned()),
    }
    let text = |name: &str| text(&fields, name);
    let needed = |name: &str| text(name)?.ok_or_else(|| format!("printed JSON without `{name}`"));
    let expiration = text("Expiration")?.map(|time| time.parse());
    let expires_in = expiration.transpose();
    Ok(Credential {
        access_key_id: needed("AccessKeyId")?,
        secret_access_key: needed("SecretAccessKey")?,
        session_token: text("SessionToken")?,
        expires_in: expires_in.map_err(|_| "printed an `Expiration` that is not a time in ISO 8601".to_owned())?,
    })
}

/// A field of text that is not empty; `None` if it is missing or null.
fn text(fields: &Map<String, Value>, name: &str) -> Result<Option<String>, String> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(_) => Err(format!("printed JSON whose `{name}` is not text")),
    }
}

/// A command that has ended.
struct Ran {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Ran {
    /// What it wrote to stderr, in one line. The end of a long text tells the cause.
    fn stderr_shown(&self) -> String {
        let text = String::from_utf8_lossy(&self.stderr);
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let line = lines.join(" / ");
        match line.char_indices().rev().nth(STDERR_SHOWN_MAX - 1) {
            Some((start, _)) if start > 0 => format!("…{}", &line[start..]),
            _ => line,
        }
    }
}

/// Runs a command and reads its output. A command that takes too long is killed.
fn run(program: &str, args: &[String]) -> io::Result<Ran> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let stdout = read_all(child.stdout.take().expect("its output is a pipe"));
    let stderr = read_all(child.stderr.take().expect("its errors go to a pipe"));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > COMMAND_TIME_MAX {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other("it took more than a minute"));
        }
        thread::sleep(COMMAND_STEP);
    };
    // A child of the command may still hold the pipes.
    let left = || COMMAND_TIME_MAX.saturating_sub(start.elapsed());
    let closed = "its output was not closed within a minute";
    Ok(Ran {
        status,
        stdout: stdout.recv_timeout(left()).map_err(|_| io::Error::other(closed))??,
        stderr: stderr
            .recv_timeout(left().min(Duration::from_secs(1)))
            .unwrap_or(Ok(Vec::new()))?,
    })
}

/// Reads a pipe on a thread, so that a full pipe does not block the command.
fn read_all(pipe: impl Read + Send + 'static) -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = pipe.take(TEXT_BYTES_MAX).read_to_end(&mut bytes);
        let _ = sender.send(read.map(|_| bytes));
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_that_is_not_the_format_is_refused_without_being_shown() {
        let whole = |version: &str, expiration: &str| {
            format!(
                r#"{{"Version": {version}, "AccessKeyId": "id", "SecretAccessKey": "hush", "SessionToken": null,
                    "Expiration": {expiration}}}"#
            )
        };
        let good = credential(whole("1", "\"2099-01-01T00:00:00Z\"").as_bytes()).unwrap();
        assert_eq!((good.access_key_id.as_str(), good.session_token), ("id", None));
        assert!(good.expires_in.is_some());
        assert!(credential(whole("1", "null").as_bytes()).unwrap().expires_in.is_none());
        for (output, why) in [
            ("hush".to_owned(), "JSON object"),
            (String::new(), "JSON object"),
            ("[\"hush\"]".to_owned(), "JSON object"),
            ("{\"AccessKeyId\": \"hush\"}".to_owned(), "Version"),
            (whole("\"hush\"", "null"), "Version"),
            (whole("2", "null"), "version 2"),
            (whole("1", "\"hush\""), "Expiration"),
            (whole("1", "7"), "`Expiration` is not text"),
            (
                "{\"Version\": 1, \"AccessKeyId\": \"hush\"}".to_owned(),
                "`SecretAccessKey`",
            ),
            (
                "{\"Version\": 1, \"AccessKeyId\": \"\", \"SecretAccessKey\": \"hush\"}".to_owned(),
                "`AccessKeyId`",
            ),
        ] {
            let error = credential(output.as_bytes()).unwrap_err();
            assert!(error.contains(why) && !error.contains("hush"), "{output}: {error}");
        }
    }

    #[test]
    fn a_long_text_of_stderr_is_cut_at_its_start() {
        let ran = |stderr: String| Ran {
            status: ExitStatus::default(),
            stdout: Vec::new(),
            stderr: stderr.into_bytes(),
        };
        assert_eq!(ran("  a\n\n b \n".to_owned()).stderr_shown(), "a / b");
        let long = ran(format!("{}end", "é".repeat(1000))).stderr_shown();
        assert_eq!(long.chars().count(), STDERR_SHOWN_MAX + 1);
        assert!(long.starts_with('…') && long.ends_with("éend"));
    }
}

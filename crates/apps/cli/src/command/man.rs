//! `straightway man`: the man pages, from the definitions of the commands, their examples, and the tables here.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::CommandFactory;
use clap_mangen::Man;
use roff::{Roff, bold, roman};
use straightway_core::Error;
use straightway_io::ReportFile;

use crate::examples;

/// The beginning of every man page: roff's definition of quotes.
const MARK: &str = ".ie \\n(.g .ds Aq ";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder; it is created if it is missing.
    folder: PathBuf,
}

/// What an entry of a table is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum About {
    /// All commands.
    All,
    /// Commands that take URIs.
    Stores,
}

/// The environment variables that the program reads.
const VARIABLES: &[(&str, About, &str)] = &[
    (
        "STRAIGHTWAY_LOG",
        About::All,
        "The filter of log messages on stderr, such as `debug` or `straightway_s3=trace`. -v has precedence.",
    ),
    (
        "XDG_STATE_HOME",
        About::All,
        "The folder of the state files; without it, ~/.local/state.",
    ),
    (
        "HOME",
        About::All,
        "The home folder, for the state files and the configuration of AWS.",
    ),
    ("NO_COLOR", About::All, "If it is not empty, output has no colours."),
    (
        "AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL",
        About::Stores,
        "The S3 service; without them, that of AWS. AWS_IGNORE_CONFIGURED_ENDPOINT_URLS ignores both.",
    ),
    (
        "AWS_REGION, AWS_DEFAULT_REGION",
        About::Stores,
        "The region that requests are signed for.",
    ),
    (
        "AWS_PROFILE, AWS_CONFIG_FILE, AWS_SHARED_CREDENTIALS_FILE",
        About::Stores,
        "The profile in the AWS configuration files, and these files.",
    ),
    (
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN",
        About::Stores,
        "The credentials of S3.",
    ),
    (
        "AWS_ROLE_ARN, AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ENDPOINT_URL_STS",
        About::Stores,
        "The role of a Kubernetes service account, its token, and the service that exchanges it.",
    ),
    (
        "AWS_CONTAINER_CREDENTIALS_FULL_URI, AWS_CONTAINER_AUTHORIZATION_TOKEN",
        About::Stores,
        "The source of a container's credentials.",
    ),
    (
        "AWS_EC2_METADATA_DISABLED, AWS_EC2_METADATA_SERVICE_ENDPOINT",
        About::Stores,
        "The credentials of an EC2 instance: whether and where they are asked for.",
    ),
    (
        "AWS_SKIP_SIGNATURE, AWS_REQUEST_PAYER",
        About::Stores,
        "As --anonymous and --requester-pays.",
    ),
    (
        "AWS_CA_BUNDLE, SSL_CERT_FILE, SSL_CERT_DIR",
        About::Stores,
        "The certificates to trust.",
    ),
    (
        "HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY",
        About::Stores,
        "The proxy of requests, and the hosts without one. Lower case works too.",
    ),
    ("HF_TOKEN", About::Stores, "The token for huggingface.co."),
];

/// The files that the program reads and writes.
const FILES: &[(&str, About, &str)] = &[
    (
        "~/.local/state/straightway/profile.toml",
        About::All,
        "What `straightway bench` measured on the drives of this machine. It provides the defaults of reads.",
    ),
    (
        "~/.local/state/straightway/learned.toml",
        About::All,
        "What transfers learned about the drives of this machine.",
    ),
    (
        "/run/straightway/p2p-proofs",
        About::All,
        "Which devices were proven to exchange bytes by peer-to-peer DMA, until the next boot.",
    ),
    (
        "~/.aws/config, ~/.aws/credentials",
        About::Stores,
        "The configuration and the credentials of AWS.",
    ),
    ("/etc/nvme/hostnqn", About::Stores, "The NQN of this host for NVMe/TCP."),
];

/// The meaning of exit code 1, by page.
const NO: &[(&str, &str)] = &[
    ("doctor", "The direct route is not proven, or a check of a URI failed."),
    ("checkpoint ls", "A step has a damaged manifest or tags."),
    ("checkpoint verify", "The step is damaged."),
    ("checkpoint diff", "The steps differ."),
    ("kv verify", "A chunk is damaged."),
    ("plan claims", "A computed verdict differs from the recorded one."),
    ("plan compare", "A calibrated prediction misses its measurement."),
    (
        "sim fabric",
        "The fabric deadlocked, or lost packets although it is lossless.",
    ),
];

pub(crate) fn run<C: CommandFactory>(args: &Args) -> anyhow::Result<ExitCode> {
    let failed = |e| Error::os("write the man pages to", args.folder.display(), e);
    fs::create_dir_all(&args.folder).map_err(failed)?;
    let mut command = C::command().disable_help_subcommand(true);
    command.build();
    write_pages(command, "", &args.folder)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the pages of a command and its subcommands. A page replaces only an older man page.
fn write_pages(command: clap::Command, page: &str, folder: &Path) -> anyhow::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        let page = format!("{page} {}", below.get_name());
        write_pages(below.clone(), page.trim(), folder)?;
    }
    let has_subcommands = command.has_subcommands();
    let more = more_sections(&command, page);
    let man = Man::new(command);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if has_subcommands {
        man.render_subcommands_section(&mut text)?;
    }
    more.to_writer(&mut text)?;
    if page.is_empty() {
        man.render_version_section(&mut text)?;
    }
    let file = ReportFile::begin(&folder.join(man.get_filename()), MARK)?;
    Ok(file.finish(&String::from_utf8(text)?)?)
}

/// The sections that clap does not know.
fn more_sections(command: &clap::Command, page: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXAMPLES"]);
    for example in examples::of(page) {
        roff.control("TP", [])
            .text([roman(example.does)])
            .text([bold(example.line)]);
    }
    roff.control("SH", ["EXIT STATUS"]);
    let no = NO.iter().filter(|(of, _)| *of == page).map(|(_, why)| *why);
    let codes = [
        ("0", "It succeeded."),
        ("2", "An error: the message on stderr names the object and the cause."),
    ];
    let codes = codes.into_iter().chain(no.map(|why| ("1", why)));
    let codes = codes.chain([("130", "It was interrupted.")]);
    let mut codes: Vec<_> = codes.collect();
    codes.sort_by_key(|(code, _)| code.parse::<u8>().unwrap_or_default());
    for (code, meaning) in codes {
        entry(&mut roff, code, meaning);
    }
    let takes_uris = command.get_arguments().any(|arg| arg.get_id() == "endpoint");
    let applies = |about: About| about == About::All || takes_uris || page.is_empty();
    for (title, table) in [("ENVIRONMENT", VARIABLES), ("FILES", FILES)] {
        roff.control("SH", [title]);
        for (name, _, meaning) in table.iter().filter(|(_, about, _)| applies(*about)) {
            entry(&mut roff, name, meaning);
        }
    }
    roff
}

fn entry(roff: &mut Roff, name: &str, meaning: &str) {
    roff.control("TP", []).text([bold(name)]).text([roman(meaning)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of variables in double quotes in the sources of a crate.
    fn variables(folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                variables(&path, found);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            // Tests set variables of their own.
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            let quoted = text.split('"').skip(1).step_by(2);
            let is_variable = |name: &&str| {
                let starts = ["AWS_", "HF_", "XDG_", "SSL_", "STRAIGHTWAY_", "HTTPS_", "ALL_"];
                let has_start = starts.iter().any(|start| name.starts_with(start) && name != start);
                has_start
                    && name
                        .chars()
                        .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
            };
            found.extend(quoted.filter(is_variable).map(str::to_owned));
        }
    }

    #[test]
    fn every_variable_that_the_program_reads_is_in_the_man_pages() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut found = Vec::new();
        for of in [
            "apps/cli",
            "data/s3",
            "data/https",
            "data/net",
            "data/stores",
            "data/probe",
            "data/nvme-host",
        ] {
            variables(&crates.join(of).join("src"), &mut found);
        }
        assert!(found.len() > 20, "{found:?}");
        let known: Vec<_> = VARIABLES.iter().flat_map(|(names, ..)| names.split(", ")).collect();
        found.retain(|name| !known.contains(&name.as_str()) && name != "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
        assert!(found.is_empty(), "add these to VARIABLES: {found:?}");
    }
}

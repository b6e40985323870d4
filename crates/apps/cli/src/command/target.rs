//! `straightway target`: serves this machine's files over NVMe/TCP.

use std::{
    fmt::Write as _,
    net::{SocketAddr, ToSocketAddrs},
    path::PathBuf,
    process::ExitCode,
    sync::mpsc::{RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use anyhow::Context;
use serde_json::json;
use straightway_core::{
    Bytes, Error, ErrorKind, Seconds,
    text::{counted, shown},
};
use straightway_nvme::{IO_PORT, Nqn, log::AnaState};
use straightway_nvme_target::{Config, HostPolicy, HostReceipt, HostRule, Links, Listen, NamespaceSource, Target};

use super::{
    interrupt::on_interrupt,
    output::{print, print_json, say},
    words::whole,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files, folders (a namespace for each file below) and block devices to serve.
    #[arg(value_name = "PATH", required_unless_present = "memory")]
    paths: Vec<PathBuf>,

    /// Serve zeroed memory of this size under a name, as `NAME=SIZE`; it is lost at the end.
    #[arg(long, value_name = "NAME=SIZE", value_parser = memory)]
    memory: Vec<(String, Bytes)>,

    /// The address to listen on, as `ADDRESS[:PORT]`; a suffix `=non-optimized` or `=inaccessible` sets the state of
    /// the path, and `=2:non-optimized` that of the second PATH only.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4420", value_parser = listen)]
    listen: Vec<Listen>,

    /// The name of the subsystem.
    #[arg(long, default_value = "nqn.2026-11.straightway:models", value_parser = nqn)]
    nqn: Nqn,

    /// Allow hosts to write. Files whose size is not a multiple of the block size stay read-only.
    #[arg(long)]
    writable: bool,

    /// The size of a block: 512 to 4096 bytes.
    #[arg(long, value_name = "SIZE", default_value = "512")]
    block: Bytes,

    /// Admit only this host; may be given several times.
    #[arg(long, value_name = "NQN", value_parser = nqn)]
    allow: Vec<Nqn>,

    /// Admit only the hosts of this file, with their secrets and shares.
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,

    /// Tell hosts of another discovery controller.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    referral: Vec<SocketAddr>,

    /// The links below served folders that are followed: all, those that stay inside the folder, or none. A link in a
    /// PATH itself is always followed.
    #[arg(long, value_enum, default_value = "any")]
    links: LinksArg,

    /// The most connections from one address.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = whole(1..=usize::MAX))]
    address_connections: usize,

    /// The interval between scans for changed files; 0 for never.
    #[arg(long, value_name = "TIME", default_value = "2s")]
    rescan: Seconds,

    /// Stop after this time.
    #[arg(long = "for", value_name = "TIME")]
    duration: Option<Seconds>,

    /// Write what each host did as JSON.
    #[arg(long)]
    json: bool,
}

/// The links that are followed.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum LinksArg {
    Any,
    Inside,
    None,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = config(args)?;
    let target = Target::start(&config)?;
    let (count, bytes) = target.served();
    let addresses = target.addresses();
    let shown_addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    say(&format!(
        "serving {}, {}, as {} on {}",
        counted(count as u64, "namespace"),
        Bytes(bytes),
        config.nqn,
        shown_addresses.join(", ")
    ));
    for address in &addresses {
        for name in served_names(args) {
            say(&format!("  nvme-tcp://{}/{}/{name}", reachable(*address), config.nqn));
        }
    }
    warn_if_open(&config, &addresses);
    let start = Instant::now();
    wait(args, &target)?;
    let receipts = target.stop();
    let seconds = start.elapsed().as_secs_f64();
    if args.json {
        print_json(&json!({
            "nqn": config.nqn.as_str(),
            "addresses": shown_addresses,
            "seconds": seconds,
            "hosts": receipts,
        }))?;
    } else {
        for receipt in &receipts {
            print(&receipt_line(receipt))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The most names of which an address is printed.
const NAMES_SHOWN: usize = 4;

/// The first names below the subsystem: those of the paths and memories that are served. The names of a folder's files
/// begin with the name of the folder.
fn served_names(args: &Args) -> Vec<String> {
    let path = |path: &PathBuf| {
        let whole = path.canonicalize().unwrap_or_else(|_| path.clone());
        let name = path.file_name().or(whole.file_name())?.to_str()?.to_owned();
        Some(if path.is_dir() { name + "/" } else { name })
    };
    let memory = args.memory.iter().map(|(name, _)| name.clone());
    let names: Vec<_> = args.paths.iter().filter_map(path).chain(memory).collect();
    match names.len() {
        // Everything that is served is below the subsystem.
        count if count > NAMES_SHOWN => vec![String::new()],
        _ => names,
    }
}

/// An address that a host can connect to. For all addresses of this machine it is its name.
fn reachable(address: SocketAddr) -> String {
    if !address.ip().is_unspecified() {
        return address.to_string();
    }
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = name.as_deref().map(str::trim).filter(|name| !name.is_empty());
    format!("{}:{}", name.unwrap_or("HOST"), address.port())
}

/// Warns if hosts beyond this machine can connect without being listed.
fn warn_if_open(config: &Config, addresses: &[SocketAddr]) {
    let open = addresses.iter().find(|address| !address.ip().is_loopback());
    let Some(open) = open.filter(|_| !config.policy.is_closed) else {
        return;
    };
    let verb = if config.is_writable { "read and write" } else { "read" };
    say(&format!(
        "warning: everybody who can reach {open} can {verb} what is served"
    ));
    say("hint: admit only known hosts with --allow NQN, or with --hosts FILE, which may have secrets");
}

/// Scans for changes until the end.
fn wait(args: &Args, target: &Target) -> anyhow::Result<()> {
    let (stop, stopped) = channel();
    on_interrupt(move || {
        let _ = stop.send(());
    });
    let span = |seconds: Seconds| Duration::try_from_secs_f64(seconds.0).context("a time is out of range");
    let end = args.duration.map(span).transpose()?;
    let end = end.map(|after| Instant::now() + after);
    let pause = match span(args.rescan)? {
        Duration::ZERO => Duration::from_hours(1),
        pause => pause,
    };
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ok(());
        }
        match stopped.recv_timeout(left.map_or(pause, |left| left.min(pause))) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if args.rescan.0 == 0.0 {
            continue;
        }
        match target.rescan() {
            Ok(changed) if changed.is_empty() => {}
            Ok(changed) => say(&format!("{} changed", counted(changed.len() as u64, "namespace"))),
            // A folder may be missing for a moment while it is replaced. Its files stay served.
            Err(error) => say(&format!("warning: {}", shown(&error.to_string()))),
        }
    }
}

fn config(args: &Args) -> anyhow::Result<Config> {
    let paths = args.paths.iter().cloned().map(NamespaceSource::Path);
    let memory = args.memory.iter().map(|(name, bytes)| NamespaceSource::Memory {
        name: name.clone(),
        bytes: bytes.0,
    });
    let first = args.listen[0].address;
    let mut config = Config::new(args.nqn.clone(), first, paths.chain(memory).collect());
    config.ports.clone_from(&args.listen);
    config.is_writable = args.writable;
    config.links = match args.links {
        LinksArg::Any => Links::Any,
        LinksArg::Inside => Links::Inside,
        LinksArg::None => Links::None,
    };
    config.address_connections_max = args.address_connections;
    config.referrals.clone_from(&args.referral);
    config.block_shift = match args.block.0 {
        512 => 9,
        1024 => 10,
        2048 => 11,
        4096 => 12,
        _ => {
            let why = "a block has 512, 1024, 2048 or 4096 bytes";
            return Err(Error::new(ErrorKind::Invalid, "serve", &args.nqn, why).into());
        }
    };
    if let Some(path) = &args.hosts {
        config.policy = HostPolicy::read(path)?;
    }
    for host in &args.allow {
        config.policy.is_closed = true;
        config.policy.add(HostRule {
            nqn: host.clone(),
            keys: None,
            share: None,
        })?;
    }
    Ok(config)
}

/// The receipt of a host as a line.
fn receipt_line(receipt: &HostReceipt) -> String {
    let HostReceipt {
        host,
        queues,
        reads,
        writes,
        errors,
        refused,
        faults,
        ..
    } = receipt;
    let (read, written) = (Bytes(receipt.read_bytes), Bytes(receipt.written_bytes));
    let (reads, queues) = (counted(*reads, "command"), counted(*queues, "queue"));
    let mut line = format!("{host}: read {read} in {reads}, wrote {written} in {writes}, {queues}");
    for (count, what) in [(errors, "error"), (refused, "refused connection"), (faults, "fault")] {
        if *count > 0 {
            write!(line, ", {}", counted(*count, what)).expect("writing to a string does not fail");
        }
    }
    line.push('\n');
    line
}

fn nqn(text: &str) -> Result<Nqn, String> {
    if !text.starts_with("nqn.") {
        return Err("an NQN begins with `nqn.`, such as nqn.2026-11.example:models".to_owned());
    }
    Nqn::new(text).map_err(|error| error.to_string())
}

fn memory(text: &str) -> Result<(String, Bytes), String> {
    let form = "the form is NAME=SIZE, such as scratch=1GiB";
    let (name, size) = text.split_once('=').ok_or(form)?;
    let bytes: Bytes = size.parse().map_err(|error| format!("{error}"))?;
    Ok((name.to_owned(), bytes))
}

fn listen(text: &str) -> Result<Listen, String> {
    let (place, states) = text.split_once('=').unwrap_or((text, ""));
    let mut listen = Listen::new(address(place)?);
    for word in states.split(',').filter(|word| !word.is_empty()) {
        let (group, name) = match word.split_once(':') {
            Some((group, name)) => (Some(group), name),
            None => (None, word),
        };
        let state = match name {
            "optimized" => AnaState::Optimized,
            "non-optimized" => AnaState::NonOptimized,
            "inaccessible" => AnaState::Inaccessible,
            _ => return Err("a state is optimized, non-optimized or inaccessible".to_owned()),
        };
        match group.map(str::parse) {
            None => listen.state = state,
            Some(Ok(group)) => drop(listen.groups.insert(group, state)),
            Some(Err(_)) => return Err("the number of a PATH must precede `:`".to_owned()),
        }
    }
    Ok(listen)
}

/// Parses an address. The default port is that of NVMe/TCP; without a host, it is every address of this machine.
fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    // `fe80::1` has no port, and `[fe80::1]:4420` was parsed above.
    let (host, port) = match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => (host, Some(port)),
        _ => (text, None),
    };
    let port = match port {
        None => IO_PORT,
        Some(port) => port
            .parse()
            .map_err(|_| format!("`{port}` is not a port: it must be 0 to 65535"))?,
    };
    let host = if host.is_empty() {
        "0.0.0.0"
    } else {
        host.trim_matches(['[', ']'])
    };
    let mut found = (host, port)
        .to_socket_addrs()
        .map_err(|_| format!("`{host}` is neither an address nor the name of a machine"))?;
    found.next().ok_or_else(|| "it has no address".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_a_host_or_a_port() {
        for (text, read) in [
            (":4420", "0.0.0.0:4420"),
            ("127.0.0.1", "127.0.0.1:4420"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("::1", "[::1]:4420"),
            ("[::1]", "[::1]:4420"),
            ("[::1]:5000", "[::1]:5000"),
        ] {
            assert_eq!(address(text).unwrap().to_string(), read, "{text}");
        }
        for text in ["127.0.0.1:22222222", ":80a", "127.0.0.1:"] {
            assert!(
                address(text)
                    .unwrap_err()
                    .contains("is not a port: it must be 0 to 65535"),
                "{text}"
            );
        }
        assert!(
            address("no such machine")
                .unwrap_err()
                .contains("neither an address nor")
        );
    }

    #[test]
    fn the_name_of_a_subsystem_begins_as_hosts_expect_it() {
        assert!(nqn("foo").unwrap_err().contains("begins with `nqn.`"));
        assert_eq!(nqn("nqn.2026-11.example:m").unwrap().as_str(), "nqn.2026-11.example:m");
    }
}

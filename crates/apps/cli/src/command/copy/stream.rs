//! `copy - TARGET` and `copy SOURCE -`: standard input and output.

use std::{
    io::{self, Read},
    os::fd::AsFd,
    process::ExitCode,
    sync::Arc,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use straightway_copy::{Copier, STREAM_BYTES_MAX};
use straightway_core::{Error, ErrorKind, Receipt};
use straightway_io::{Progress, store::Location};

use super::Args;
use crate::command::output::{RawStdout, say};

/// The name of standard input and output.
pub(crate) const STREAM: &str = "-";

/// The exit code of a program that a closed pipe ended: 128 + SIGPIPE.
const PIPE_CLOSED: u8 = 141;

/// The interval between checks for Ctrl-C while there is no input.
const CHECK_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

impl Args {
    /// Checks that the options fit a stream, which can be read or written only once.
    pub(crate) fn check_stream(&self) -> Result<(), Error> {
        let refuse = |what: &str, message: &str| Err(Error::new(ErrorKind::Invalid, "use", what, message));
        if self.verify {
            return refuse("--verify", "standard input and output cannot be read again");
        }
        if self.to_device || self.through.is_some() || self.trace.is_some() {
            return refuse(
                "-",
                "--to-device, --through and --trace are not for standard input and output",
            );
        }
        Ok(())
    }
}

/// Checks that a stream has a target with a name.
pub(crate) fn check_target(args: &Args, target: &Location) -> Result<(), Error> {
    let name = target.name.as_os_str();
    let is_prefix = name.is_empty() || name.as_encoded_bytes().ends_with(b"/");
    if is_prefix || target.path().is_some() && target.is_folder(false) {
        let message = "it is a folder, and standard input has no name";
        return Err(target
            .error(ErrorKind::Invalid, "copy into", message)
            .with_hint("name the new file or object"));
    }
    let is_tuned = args.tuning.limit().is_some() || !matches!(args.route, straightway_core::Choice::Auto);
    if is_tuned && target.path().is_some() {
        let message = "standard input is written to a file through the page cache, without a limit";
        return Err(Error::new(ErrorKind::Invalid, "use", "--route or --limit", message));
    }
    Ok(())
}

/// Copies standard input to `target`.
pub(crate) fn receive(args: &Args, copier: &Copier<'_>, target: &Location) -> Result<Receipt, Error> {
    let _watch = super::Watch::hidden(&copier.progress, Some(target));
    let mut input = Input {
        progress: Arc::clone(&copier.progress),
    };
    let bytes_max = args.expected_size.map_or(STREAM_BYTES_MAX, |size| size.0);
    copier.receive(&mut input, target, bytes_max)
}

/// Copies `source` to standard output. The receipt goes to stderr. Returns the exit code.
pub(crate) fn send(args: &Args, copier: &Copier<'_>, source: &Location) -> anyhow::Result<ExitCode> {
    if RawStdout::is_terminal() {
        let message = "it is a terminal, which the bytes of a file could control";
        return Err(Error::new(ErrorKind::Invalid, "write to", "standard output", message)
            .with_hint("write them to a pipe or to a file: `straightway copy … - | less`")
            .into());
    }
    let bytes = source.open()?.object().bytes;
    let watch = args.watch(&copier.progress, bytes, None);
    let sent = copier.send(source, &mut RawStdout::new());
    drop(watch);
    match sent {
        Ok(receipt) => {
            if args.json {
                say(&serde_json::to_string_pretty(&receipt)?);
            } else if !args.quiet {
                say(&receipt.to_string());
            }
            Ok(ExitCode::SUCCESS)
        }
        // The reader has seen enough, as with `| head`. It ended the copy, and not an error.
        Err(error) if error.os_code() == Some(Errno::PIPE.raw_os_error()) => Ok(ExitCode::from(PIPE_CLOSED)),
        Err(error) => Err(error.into()),
    }
}

/// Standard input. A read that waits ends when the transfer is cancelled.
struct Input {
    progress: Arc<Progress>,
}

impl Read for Input {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let stdin = io::stdin();
        let stdin = stdin.as_fd();
        loop {
            if self.progress.is_cancelled() {
                return Err(Errno::CANCELED.into());
            }
            match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&CHECK_INTERVAL)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => match rustix::io::read(stdin, &mut *bytes) {
                    // Another program has made the pipe non-blocking.
                    Err(Errno::INTR | Errno::AGAIN) => {}
                    read => return Ok(read?),
                },
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

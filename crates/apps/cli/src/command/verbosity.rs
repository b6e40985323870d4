//! The log output on stderr.

use straightway_core::{Result, text::shown};
use straightway_nvme_target::HOSTS;
use straightway_stores::log::{self, Level, LogFilter};

use super::output::say_above_bar;

/// The environment variable with the filter, used without `-v`.
const VARIABLE: &str = "STRAIGHTWAY_LOG";

/// The source of records about waits before retries.
const WAITS: &str = "straightway_net::waits";

/// Prints log records of the library to stderr: up to info with one `-v`, debug with two, trace with three. Without
/// `-v`, the filter is `STRAIGHTWAY_LOG`, or errors, long waits for a server, and the hosts of a target: a command that
/// waits without a word looks like one that hangs.
pub(crate) fn listen(verbose: u8) -> Result<()> {
    let asked = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let filter = match (verbose, asked) {
        (0, Some(text)) => text.parse()?,
        (0, None) => LogFilter::from_level(Level::ERROR)
            .with(WAITS, Level::WARN)
            .with(HOSTS, Level::INFO),
        (1, _) => LogFilter::from_level(Level::INFO),
        (2, _) => LogFilter::from_level(Level::DEBUG),
        _ => LogFilter::from_level(Level::TRACE),
    };
    log::listen(filter, |record| {
        let level = match record.level {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        say_above_bar(&format!("{level}: {}", shown(record.text)));
    });
    Ok(())
}

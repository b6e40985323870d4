//! What the program says on stderr beside errors.

use straightway_core::{Result, text::shown};

use super::output::say;
use crate::log::{self, Filter, Level};

/// The environment: which records are shown where no `-v` says so.
const VARIABLE: &str = "STRAIGHTWAY_LOG";

/// Shows records of the library on stderr: warnings and what is of interest with one `-v`, details with two, all
/// with three; without, what `STRAIGHTWAY_LOG` asks for, or errors.
pub(crate) fn listen(verbose: u8) -> Result<()> {
    let asked = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let filter = match (verbose, asked) {
        (0, Some(text)) => text.parse()?,
        (0, None) => Filter::from_level(Level::ERROR),
        (1, _) => Filter::from_level(Level::INFO),
        (2, _) => Filter::from_level(Level::DEBUG),
        _ => Filter::from_level(Level::TRACE),
    };
    log::listen(filter, |record| {
        let level = match record.level {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        say(&format!("{level}: {}", shown(record.text)));
    });
    Ok(())
}

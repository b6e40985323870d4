//! Log records of the library: filtered by level and source, and passed to one sink.
//!
//! The library logs with `tracing`. The program writes the records to stderr, and the Python package passes them to
//! `logging`. Records are rare (a fallback, a resource that could not be freed); no record belongs to a single I/O.

use std::{
    fmt::{self, Write as _},
    str::FromStr,
};

use straightway_core::{Error, ErrorKind, Result};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
};

pub use tracing::Level;

/// The maximum length of a record. Longer ones are truncated.
const RECORD_BYTES_MAX: usize = 4096;

/// A filter of records: a default level, and levels for sources that begin with a name.
///
/// As text: `warn`, `info,straightway_sys=debug`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter {
    all: LevelFilter,
    sources: Vec<(String, LevelFilter)>,
}

/// A record.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The level.
    pub level: Level,
    /// The source, such as `straightway_io::settings`.
    pub source: &'a str,
    /// The message.
    pub text: &'a str,
}

/// Passes records that match `filter` to `sink`, for the whole process. Returns whether the listener was installed: a
/// process keeps its first one.
pub fn listen(filter: LogFilter, sink: impl Fn(Record<'_>) + Send + Sync + 'static) -> bool {
    tracing::subscriber::set_global_default(Listener { filter, sink }).is_ok()
}

impl LogFilter {
    /// All records of this level and of more severe ones.
    pub fn from_level(level: Level) -> Self {
        Self {
            all: LevelFilter::from_level(level),
            sources: Vec::new(),
        }
    }

    /// The same, with another level for sources that begin with a name.
    #[must_use]
    pub fn with(mut self, source: &str, level: Level) -> Self {
        self.sources.push((source.to_owned(), LevelFilter::from_level(level)));
        self
    }

    fn level_of(&self, source: &str) -> LevelFilter {
        let sources = self.sources.iter();
        let named = sources.filter(|(name, _)| source.starts_with(name.as_str()));
        let longest = named.max_by_key(|(name, _)| name.len());
        longest.map_or(self.all, |(_, level)| *level)
    }
}

impl FromStr for LogFilter {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let level = |word: &str| {
            let named = Some(word.trim()).filter(|word| !word.is_empty());
            named.and_then(|word| word.parse().ok()).ok_or_else(|| {
                let message = "a level is off, error, warn, info, debug or trace; a source may precede it: \
                               `straightway_io=debug`";
                Error::new(ErrorKind::Invalid, "read log filter", format!("`{text}`"), message)
            })
        };
        let mut filter = Self {
            all: LevelFilter::OFF,
            sources: Vec::new(),
        };
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            match part.split_once('=') {
                Some((source, word)) => {
                    filter.sources.push((source.trim().to_owned(), level(word)?));
                }
                None => filter.all = level(part)?,
            }
        }
        Ok(filter)
    }
}

/// The subscriber of `tracing`.
struct Listener<S> {
    filter: LogFilter,
    sink: S,
}

impl<S: Fn(Record<'_>) + Send + Sync + 'static> Subscriber for Listener<S> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.filter.level_of(metadata.target())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let sources = self.filter.sources.iter().map(|(_, level)| *level);
        sources.chain([self.filter.all]).max()
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let metadata = event.metadata();
        (self.sink)(Record {
            level: *metadata.level(),
            source: metadata.target(),
            text: &text.finish(),
        });
    }

    // All spans have the same id: spans are not used.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// A record's message, followed by its other fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Text {
    fn finish(self) -> String {
        let mut text = self.message + &self.fields;
        if text.len() > RECORD_BYTES_MAX {
            text.truncate(text.floor_char_boundary(RECORD_BYTES_MAX));
        }
        text
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            "error" => write!(self.fields, ": {value:?}"),
            name => write!(self.fields, " ({name}: {value:?})"),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn a_filter_is_read_and_the_longest_source_decides() {
        let filter: LogFilter = "warn,straightway_io=debug, straightway_io::gds=off".parse().unwrap();
        assert_eq!(filter.level_of("straightway_sys::slot"), LevelFilter::WARN);
        assert_eq!(filter.level_of("straightway_io::settings"), LevelFilter::DEBUG);
        assert_eq!(filter.level_of("straightway_io::gds::session"), LevelFilter::OFF);
        for text in ["loud", "a=b", "warn=", "=", "warn;info"] {
            assert!(text.parse::<LogFilter>().is_err(), "{text}");
        }
        assert_eq!("".parse::<LogFilter>().unwrap().all, LevelFilter::OFF);
    }

    #[test]
    fn a_record_says_what_happened_and_why() {
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = Arc::clone(&heard);
        let listener = Listener {
            filter: LogFilter::from_level(Level::WARN),
            sink: move |record: Record<'_>| {
                kept.lock().unwrap().push(format!("{} {}", record.level, record.text));
            },
        };
        tracing::subscriber::with_default(listener, || {
            let error = "no memory";
            tracing::warn!(%error, slots = 3, "half the ring");
            tracing::info!("not wanted");
            tracing::error!("{}", "x".repeat(9000));
        });
        let heard = heard.lock().unwrap();
        assert_eq!(heard.len(), 2);
        assert_eq!(heard[0], "WARN half the ring: no memory (slots: 3)");
        assert_eq!(heard[1].len(), "ERROR ".len() + RECORD_BYTES_MAX);
    }
}

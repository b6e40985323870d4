//! Heads of requests and answers as they come from a socket.

use std::io::{self, Read};

/// The longest head.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// A head: its first line and its headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The first line, without its end.
    pub(crate) line: String,
    /// Names and values, in order.
    pub(crate) headers: Vec<(String, String)>,
}

impl Head {
    /// The value of a header.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(own, _)| own.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Gives a header another value, or adds it.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<String>) {
        self.remove(name);
        self.headers.push((name.to_owned(), value.into()));
    }

    /// Leaves a header out.
    pub(crate) fn remove(&mut self, name: &str) {
        self.headers
            .retain(|(own, _)| !own.eq_ignore_ascii_case(name));
    }

    /// The length of the body that follows.
    pub(crate) fn content_length(&self) -> u64 {
        self.get("content-length")
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    }

    /// The method of a request.
    pub(crate) fn method(&self) -> &str {
        self.line.split(' ').next().unwrap_or_default()
    }

    /// The target of a request: its path and query.
    pub(crate) fn target(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }

    /// The range of a request: its first and last byte, which may lie behind the end.
    pub(crate) fn range(&self) -> Option<(u64, u64)> {
        let (first, last) = self.get("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().unwrap_or(u64::MAX)))
    }

    /// The head as it is sent.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let headers = self.headers.iter();
        let headers: Vec<_> = headers
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        format!("{}\r\n{}\r\n", self.line, headers.concat()).into_bytes()
    }
}

/// Reads heads and bodies from a stream, whose bytes come in any pieces.
#[derive(Debug)]
pub(crate) struct Reader<R> {
    stream: R,
    buffer: Vec<u8>,
}

impl<R: Read> Reader<R> {
    /// A reader of a stream.
    pub(crate) fn new(stream: R) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
        }
    }

    /// The next head; `None` where the stream has ended.
    pub(crate) fn head(&mut self) -> io::Result<Option<Head>> {
        let mut chunk = [0; 16 << 10];
        loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                let rest = self.buffer.split_off(end + 4);
                let head = std::mem::replace(&mut self.buffer, rest);
                return Ok(Some(parse(&head)));
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(io::Error::other("the head is too long"));
            }
            match self.stream.read(&mut chunk)? {
                0 => return Ok(None),
                read => self.buffer.extend_from_slice(&chunk[..read]),
            }
        }
    }

    /// The next bytes of a body, at most as many as fit; none at the end.
    pub(crate) fn body(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.buffer.is_empty() {
            return self.stream.read(into);
        }
        let taken = self.buffer.len().min(into.len());
        into[..taken].copy_from_slice(&self.buffer[..taken]);
        self.buffer.drain(..taken);
        Ok(taken)
    }
}

fn parse(head: &[u8]) -> Head {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.split("\r\n");
    let line = lines.next().unwrap_or_default().to_owned();
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_owned(), value.trim().to_owned()))
    };
    Head {
        line,
        headers: lines.filter_map(header).collect(),
    }
}

//! HTTP requests and responses, read from a socket.

use std::io::{self, Read};

/// The maximum length of a head.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// The maximum length of a body without a content length.
const UNTOLD_BYTES_MAX: usize = 64 << 20;

/// A head: its first line and its headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageHead {
    /// The first line, without its line end.
    pub line: String,
    /// Names and values, in order.
    pub headers: Vec<(String, String)>,
}

impl MessageHead {
    /// The value of a header.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Sets or adds a header.
    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        self.remove(name);
        self.headers.push((name.to_owned(), value.into()));
    }

    /// Removes a header.
    pub fn remove(&mut self, name: &str) {
        self.headers.retain(|(own, _)| !own.eq_ignore_ascii_case(name));
    }

    /// The length of the body that follows.
    pub fn content_length(&self) -> u64 {
        self.get("content-length")
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    }

    /// The status of a response.
    pub fn status(&self) -> u16 {
        let status = self.line.split(' ').nth(1);
        status.and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    /// Whether the body has chunked transfer encoding.
    fn is_chunked(&self) -> bool {
        let coding = self.get("transfer-encoding").unwrap_or_default();
        coding.to_ascii_lowercase().contains("chunked")
    }

    /// Whether the body of a response ends with the connection.
    fn ends_with_connection(&self) -> bool {
        let closes = |value: &str| value.eq_ignore_ascii_case("close");
        self.line.starts_with("HTTP/")
            && self.get("content-length").is_none()
            && !self.is_chunked()
            && (self.line.starts_with("HTTP/1.0") || self.get("connection").is_some_and(closes))
    }

    /// The method of a request.
    pub fn method(&self) -> &str {
        self.line.split(' ').next().unwrap_or_default()
    }

    /// The target of a request: its path and query.
    pub fn target(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }

    /// The range of a request: its first and last byte, which may lie past the end.
    pub fn range(&self) -> Option<(u64, u64)> {
        let (first, last) = self.get("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().unwrap_or(u64::MAX)))
    }

    /// The encoded head.
    pub fn to_bytes(&self) -> Vec<u8> {
        let headers = self.headers.iter();
        let headers: Vec<_> = headers.map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        format!("{}\r\n{}\r\n", self.line, headers.concat()).into_bytes()
    }
}

/// Reads heads and bodies from a stream.
#[derive(Debug)]
pub struct Reader<R> {
    stream: R,
    buffer: Vec<u8>,
}

impl<R: Read> Reader<R> {
    /// A reader of a stream.
    pub fn new(stream: R) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
        }
    }

    /// The stream, for responses.
    pub fn stream(&mut self) -> &mut R {
        &mut self.stream
    }

    /// The next head; `None` at the end of the stream.
    pub fn head(&mut self) -> io::Result<Option<MessageHead>> {
        loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                let rest = self.buffer.split_off(end + 4);
                let head = std::mem::replace(&mut self.buffer, rest);
                return Ok(Some(parse(&head)));
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(io::Error::other("the head is too long"));
            }
            if self.more()? == 0 {
                return Ok(None);
            }
        }
    }

    /// The head of the next response; `None` at the end of the stream. Interim responses (1xx) are skipped. A body
    /// without a content length is read completely, so that it can be forwarded with one.
    pub fn answer(&mut self, has_body: bool) -> io::Result<Option<MessageHead>> {
        let mut head = loop {
            match self.head()? {
                Some(head) if (100..200).contains(&head.status()) => {}
                Some(head) => break head,
                None => return Ok(None),
            }
        };
        if has_body && !matches!(head.status(), 204 | 304) {
            self.tell_length(&mut head)?;
        }
        Ok(Some(head))
    }

    /// Adds the content length to a head without one: for a chunked body, or one that ends with the connection.
    pub fn tell_length(&mut self, head: &mut MessageHead) -> io::Result<()> {
        let body = if head.is_chunked() {
            self.chunks()?
        } else if head.ends_with_connection() {
            while self.more()? > 0 {}
            std::mem::take(&mut self.buffer)
        } else {
            return Ok(());
        };
        head.remove("transfer-encoding");
        head.set("Content-Length", body.len().to_string());
        self.buffer.splice(..0, body);
        Ok(())
    }

    /// Decodes a chunked body.
    fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let wrong = || io::Error::other("cannot decode a chunked body");
        let mut body = Vec::new();
        loop {
            let line = self.line()?;
            let length = line.split(';').next().unwrap_or_default().trim();
            let length = usize::from_str_radix(length, 16).map_err(|_| wrong())?;
            if length == 0 {
                // The trailers are not needed.
                while !self.line()?.is_empty() {}
                return Ok(body);
            }
            while self.buffer.len() < length + 2 {
                if body.len() + length > UNTOLD_BYTES_MAX || self.more()? == 0 {
                    return Err(wrong());
                }
            }
            body.extend(self.buffer.drain(..length));
            if !self.buffer.starts_with(b"\r\n") {
                return Err(wrong());
            }
            self.buffer.drain(..2);
        }
    }

    /// The next line, without its line end.
    fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                let line = self.buffer.drain(..end + 2);
                let line: Vec<u8> = line.take(end).collect();
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            if self.buffer.len() > HEAD_BYTES_MAX || self.more()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Reads more. Returns the number of bytes.
    fn more(&mut self) -> io::Result<usize> {
        let mut chunk = [0; 16 << 10];
        let read = self.stream.read(&mut chunk)?;
        if self.buffer.len() + read > UNTOLD_BYTES_MAX {
            return Err(io::Error::other("a body without a length is too long"));
        }
        self.buffer.extend_from_slice(&chunk[..read]);
        Ok(read)
    }

    /// The next bytes of a body, at most as many as fit; none at the end.
    pub fn body(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.buffer.is_empty() {
            return self.stream.read(into);
        }
        let taken = self.buffer.len().min(into.len());
        into[..taken].copy_from_slice(&self.buffer[..taken]);
        self.buffer.drain(..taken);
        Ok(taken)
    }

    /// Fills `into` with the next bytes of a body.
    pub fn body_exact(&mut self, into: &mut [u8]) -> io::Result<()> {
        let mut at = 0;
        while at < into.len() {
            match self.body(&mut into[at..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => at += read,
            }
        }
        Ok(())
    }
}

fn parse(head: &[u8]) -> MessageHead {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.split("\r\n");
    let line = lines.next().unwrap_or_default().to_owned();
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_owned(), value.trim().to_owned()))
    };
    MessageHead {
        line,
        headers: lines.filter_map(header).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_without_a_length_gets_one() {
        let chunked = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
            4;x=1\r\nabcd\r\n2\r\nef\r\n0\r\nX: y\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n";
        let closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabcdef";
        for answers in [&chunked[..], closing] {
            let mut reader = Reader::new(answers);
            let head = reader.answer(true).unwrap().unwrap();
            assert_eq!((head.status(), head.content_length()), (200, 6));
            assert_eq!(head.get("transfer-encoding"), None);
            let mut body = [0; 6];
            assert_eq!(reader.body(&mut body).unwrap(), 6);
            assert_eq!(&body, b"abcdef");
            let next = reader.answer(true).unwrap().map(|head| head.status());
            assert_eq!(next, (answers.len() == chunked.len()).then_some(204));
        }
    }

    #[test]
    fn invalid_chunks_are_an_error() {
        for body in [&b"x\r\n"[..], b"2\r\nabc\r\n0\r\n\r\n", b"2\r\na"] {
            let answer = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", body].concat();
            assert!(Reader::new(&*answer).answer(true).is_err(), "{body:?}");
        }
    }
}

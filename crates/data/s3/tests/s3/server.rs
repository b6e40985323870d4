//! A server with scripted responses in the form of S3.

use straightway_webserver::{ReceivedRequest, ServerStep, head};

/// The response to a request.
pub(crate) struct Reply {
    status: u16,
    pub(crate) headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Reply {
    /// A response with a body.
    pub(crate) fn new(status: u16, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Self {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self {
            status,
            headers: headers.iter().map(own).collect(),
            body: body.into(),
        }
    }

    /// An error of S3.
    pub(crate) fn error(status: u16, code: &str) -> Self {
        let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>It is so.</Message></Error>");
        Self::new(status, &[("x-amz-request-id", "1")], body)
    }

    /// The requested range of an object. `content` returns the bytes from one offset to another.
    pub(crate) fn of_object(
        request: &ReceivedRequest,
        bytes: u64,
        etag: &str,
        content: impl FnOnce(u64, u64) -> Vec<u8>,
    ) -> Self {
        if request.header("if-match").is_some_and(|tag| tag != etag) {
            return Self::error(412, "PreconditionFailed");
        }
        let range = request.header("range").and_then(|range| range.strip_prefix("bytes="));
        let range = range.and_then(|range| range.split_once('-'));
        let Some((first, last)) = range.map(|(first, last)| (first.parse().unwrap(), last.parse().unwrap())) else {
            return Self::new(200, &[("ETag", etag)], content(0, bytes));
        };
        let (first, last): (u64, u64) = (first, last);
        if first >= bytes {
            let mut reply = Self::error(416, "InvalidRange");
            reply
                .headers
                .push(("Content-Range".to_owned(), format!("bytes */{bytes}")));
            return reply;
        }
        let end = bytes.min(last + 1);
        let content_range = format!("bytes {first}-{}/{bytes}", end - 1);
        Self::new(
            206,
            &[("ETag", etag), ("Content-Range", &content_range)],
            content(first, end),
        )
    }
}

/// A server with scripted responses.
pub(crate) struct Server(straightway_webserver::Server);

impl Server {
    /// Starts a server. `handler` gets the number of each request.
    pub(crate) fn start(handler: impl Fn(usize, &ReceivedRequest) -> Reply + Send + Sync + 'static) -> Self {
        Self(straightway_webserver::Server::start(move |request| {
            let Reply {
                status,
                mut headers,
                body,
            } = handler(request.number, request);
            headers.push(("Content-Length".to_owned(), body.len().to_string()));
            let headers: Vec<_> = headers
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()))
                .collect();
            let mut bytes = head(&format!("{status} Some words"), &headers);
            bytes.extend(body);
            vec![ServerStep::Bytes(bytes)]
        }))
    }

    pub(crate) fn url(&self) -> String {
        self.0.url("")
    }

    pub(crate) fn requests(&self) -> usize {
        self.0.requests()
    }
}

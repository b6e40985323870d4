//! A bucket: its endpoint, its credentials, and requests to it.

use std::{cell::Cell, fmt, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, request::Parts};
use reqsign_aws_v4::RequestSigner;
use reqsign_core::{Context, SignRequest};
use straightway_core::{Error, ErrorKind, Result};
use straightway_net::{Client, HttpResponse, Judgement, Network, Next, Origin, Site, WorkTime, persist};

use crate::{
    access::{REGION_DEFAULT, S3Access},
    credentials::{Credentials, Http, KnownCredentials, block_on, config_value, context},
    endpoint::Endpoint,
    own_uploads::OwnUploads,
    refusal::{Refusal, RequestContext},
    write_support::WriteSupport,
};

/// A bucket.
pub(crate) struct Bucket {
    pub(crate) name: String,
    pub(crate) endpoint: Endpoint,
    pub(crate) region: String,
    pub(crate) client: Client,
    /// The server that requests go to.
    pub(crate) origin: Arc<Origin>,
    pub(crate) credentials: Credentials,
    signer: RequestSigner,
    /// The headers of every request.
    common: HeaderMap,
    /// The additional headers of requests for an object.
    object: HeaderMap,
    /// The known features of the service for writes.
    pub(crate) write_support: WriteSupport,
    /// The uploads of this process.
    pub(crate) own_uploads: OwnUploads,
}

impl Bucket {
    /// A bucket with these settings. No request is sent yet.
    pub(crate) fn new(name: &str, access: &S3Access, network: &Arc<Network>) -> Result<Self> {
        access.check()?;
        let configured = |value: &str| config_value(&access.environment, access.profile(), value);
        let region = access.region.clone().or_else(|| configured("region"));
        let region = region.unwrap_or_else(|| REGION_DEFAULT.to_owned());
        let service = access.endpoint.clone().or_else(|| configured("endpoint_url"));
        let endpoint = Endpoint::new(service.as_deref(), &region, name, access.addressing)?;
        let url = endpoint.origin.parse().map_err(|_| {
            let message = "it is not a URL";
            Error::new(ErrorKind::Invalid, "use the endpoint", &endpoint.origin, message)
        })?;
        let origin = network.origin(&Site::of(&url)?)?;
        let client = Client::new(network);
        let sender = client.clone();
        let http: Http = Arc::new(move |request| sender.send(request));
        let (common, object) = headers(access)?;
        Ok(Self {
            name: name.to_owned(),
            credentials: Credentials::new(access, context(&access.environment, http)),
            signer: RequestSigner::new("s3", &region).with_standard_session_token(),
            endpoint,
            region,
            client,
            origin,
            common,
            object,
            write_support: WriteSupport::default(),
            own_uploads: OwnUploads::default(),
        })
    }

    /// The name of a key in messages.
    pub(crate) fn describe(&self, key: &str) -> String {
        format!("s3://{}/{key}", self.name)
    }

    /// Sends a request for a key, or with an empty key for the bucket, and waits for the response. Transient failures
    /// are retried. A status that is not in `expected` is an error.
    pub(crate) fn request(&self, request: &BucketRequest<'_>) -> Result<Response<Vec<u8>>> {
        self.send(request, &RequestContent::default())
    }

    /// The same without retries.
    pub(crate) fn request_once(&self, request: &BucketRequest<'_>) -> Result<Response<Vec<u8>>> {
        let known = self.credentials.get()?;
        let sent = self.send_once(request, &RequestContent::default(), &known);
        sent.map_err(|judgement| judgement.error)
    }

    /// Requests a page of a listing of the bucket. Errors call it `name`.
    pub(crate) fn list_page(&self, name: &str, query: &[(&str, &str)]) -> Result<Response<Vec<u8>>> {
        self.request(&BucketRequest {
            query,
            ..BucketRequest::new(Method::GET, "list", name, "")
        })
    }

    /// As [`request`](Self::request), with a body and additional signed headers.
    pub(crate) fn send(&self, request: &BucketRequest<'_>, content: &RequestContent<'_>) -> Result<Response<Vec<u8>>> {
        let generation = Cell::new(None);
        let renew = || self.credentials.renew(generation.get()).map(drop);
        let attempt = |_: &mut _| {
            let known = self.credentials.get().map_err(Judgement::fail)?;
            generation.set(Some(known.generation));
            self.send_once(request, content, &known)
        };
        persist(&self.origin, renew, attempt).map(|(response, _)| response)
    }

    fn send_once(
        &self,
        request: &BucketRequest<'_>,
        content: &RequestContent<'_>,
        known: &KnownCredentials,
    ) -> Result<Response<Vec<u8>>, Judgement> {
        let parts = self.signed(request, content.headers, known);
        let mut sent = Request::from_parts(parts.map_err(Judgement::of)?, content.body.to_vec());
        sent.extensions_mut().insert(WorkTime(content.work_time));
        self.origin.wait_turn();
        match self.client.send(sent) {
            Ok(response) => {
                let refusal = Refusal::of(&HttpResponse::of(&response));
                // A service may send the status early to keep the connection alive, and an error after it.
                if request.expected.contains(&response.status().as_u16()) && !refusal.is_late() {
                    self.origin.pace().note_good();
                    return Ok(response);
                }
                let asked = self.request_context(request.operation, request.name, known.source);
                let judgement = refusal.judge(&asked);
                if judgement.next == Next::Retry {
                    content.note_unanswered();
                }
                Err(judgement)
            }
            Err(error) => {
                content.note_unanswered();
                Err(Judgement::of(unreachable(request, &error)))
            }
        }
    }

    pub(crate) fn request_context<'a>(
        &'a self,
        operation: &'static str,
        name: &'a str,
        source: &'a str,
    ) -> RequestContext<'a> {
        RequestContext {
            operation,
            name,
            service: &self.endpoint.service,
            bucket: &self.name,
            region: &self.region,
            source,
            has_customer_key: self.has_customer_key(),
        }
    }

    /// Whether requests are sent over TLS, which detects damage.
    pub(crate) fn has_tls(&self) -> bool {
        self.endpoint.origin.starts_with("https:")
    }

    /// Whether its objects are encrypted with a customer's key.
    pub(crate) fn has_customer_key(&self) -> bool {
        self.object.contains_key(CUSTOMER_KEY)
    }

    /// A signed request with all its headers. `headers` are signed too.
    pub(crate) fn signed(
        &self,
        request: &BucketRequest<'_>,
        headers: &[(&'static str, &str)],
        known: &KnownCredentials,
    ) -> Result<Parts> {
        let target = self.endpoint.target(request.key, request.query);
        let uri = format!("{}{target}", self.endpoint.origin);
        let made = Request::builder().method(&request.method).uri(uri).body(());
        let failed = |why: &str| Error::new(ErrorKind::Invalid, "sign a request for", request.name, why);
        let (mut parts, ()) = made
            .map_err(|_| failed("its name does not fit a request"))?
            .into_parts();
        parts.headers = self.common.clone();
        if !request.key.is_empty() {
            parts.headers.extend(self.object.clone());
        }
        if !matches!(request.method, Method::GET | Method::HEAD) {
            parts.headers.remove(CHECKSUM_MODE);
        }
        for (name, value) in headers {
            let value = HeaderValue::from_str(value).map_err(|_| failed("a header has odd characters"))?;
            parts.headers.insert(*name, value);
        }
        if let Some(credential) = &known.credential {
            let context = Context::new();
            let signed = self.signer.sign_request(&context, &mut parts, Some(credential), None);
            block_on(signed).map_err(|_| failed("the credentials cannot sign it"))?;
        }
        for (name, value) in request.unsigned {
            let value = HeaderValue::from_str(value).map_err(|_| failed("a tag has odd characters"))?;
            parts.headers.insert(name, value);
        }
        Ok(parts)
    }
}

impl Bucket {
    /// Appends the head of a request for lanes, without the blank line.
    pub(crate) fn write_head(&self, parts: &Parts, head: &mut Vec<u8>) {
        let target = parts.uri.path_and_query();
        let target = target.map_or("/", |target| target.as_str());
        for part in [parts.method.as_str(), " ", target, " HTTP/1.1\r\n"] {
            head.extend_from_slice(part.as_bytes());
        }
        if !parts.headers.contains_key(http::header::HOST) {
            for part in ["host: ", &self.endpoint.authority, "\r\n"] {
                head.extend_from_slice(part.as_bytes());
            }
        }
        for (name, value) in &parts.headers {
            for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                head.extend_from_slice(part);
            }
        }
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bucket")
            .field("name", &self.name)
            .field("service", &self.endpoint.service)
            .field("region", &self.region)
            .field("credentials", &self.credentials)
            .finish_non_exhaustive()
    }
}

/// The body and additional headers of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestContent<'a> {
    /// Headers that are signed.
    pub(crate) headers: &'a [(&'static str, &'a str)],
    pub(crate) body: &'a [u8],
    /// The time that the service may need for the request before it responds.
    pub(crate) work_time: Duration,
    /// Counts the attempts that got no response, or the error of a server that failed. The service may have carried them
    /// out.
    pub(crate) unanswered: Option<&'a Cell<u32>>,
}

impl RequestContent<'_> {
    fn note_unanswered(&self) {
        if let Some(count) = self.unanswered {
            count.set(count.get() + 1);
        }
    }
}

/// A request to a bucket.
#[derive(Clone, Debug)]
pub(crate) struct BucketRequest<'a> {
    pub(crate) method: Method,
    pub(crate) operation: &'static str,
    /// The name of its object in errors.
    pub(crate) name: &'a str,
    pub(crate) key: &'a str,
    pub(crate) query: &'a [(&'a str, &'a str)],
    /// Headers that are not signed.
    pub(crate) unsigned: &'a [(HeaderName, &'a str)],
    /// The statuses that are not errors.
    pub(crate) expected: &'a [u16],
}

impl<'a> BucketRequest<'a> {
    /// A request without a query, whose only good status is 200.
    pub(crate) fn new(method: Method, operation: &'static str, name: &'a str, key: &'a str) -> Self {
        Self {
            method,
            operation,
            name,
            key,
            query: &[],
            unsigned: &[],
            expected: &[200],
        }
    }
}

/// Turns an error of the connection into one of the object.
fn unreachable(request: &BucketRequest<'_>, error: &Error) -> Error {
    let message = format!("the service cannot be reached: {error}");
    let hint = error.hint().unwrap_or("check the network");
    let hint = format!("{hint}; ⟦endpoint⟧ or AWS_ENDPOINT_URL_S3 sets the address of the service");
    Error::new(error.kind(), request.operation, request.name, message).with_hint(hint)
}

const CHECKSUM_MODE: &str = "x-amz-checksum-mode";

const CUSTOMER_KEY: &str = "x-amz-server-side-encryption-customer-key";

/// The headers of every request, and the additional headers of requests for an object.
fn headers(access: &S3Access) -> Result<(HeaderMap, HeaderMap)> {
    let (mut common, mut object) = (HeaderMap::new(), HeaderMap::new());
    if access.requester_pays {
        common.insert("x-amz-request-payer", HeaderValue::from_static("requester"));
    }
    // Requests the stored checksum with whole objects, and with ranges that are one part.
    object.insert(CHECKSUM_MODE, HeaderValue::from_static("ENABLED"));
    if let Some(key) = &access.customer_key {
        let secret = |text: &str| {
            let mut value = HeaderValue::from_str(text).map_err(|_| {
                let message = "it does not fit a header";
                Error::new(ErrorKind::Invalid, "use", "the SSE customer key", message)
            })?;
            value.set_sensitive(true);
            Ok::<_, Error>(value)
        };
        let aes = HeaderValue::from_static("AES256");
        object.insert("x-amz-server-side-encryption-customer-algorithm", aes);
        object.insert(CUSTOMER_KEY, secret(&key.key)?);
        object.insert("x-amz-server-side-encryption-customer-key-md5", secret(&key.digest)?);
    }
    Ok((common, object))
}

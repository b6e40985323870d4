//! A bucket: its endpoint, its credentials, and requests to it.
//!
//! A request is signed without `Range` and `If-Match`, which `SigV4` does not require. So all ranges of an object share
//! one signature for some minutes, and a range costs no hash.

use std::{
    cell::Cell,
    fmt,
    sync::{Arc, RwLock},
    time::{Duration, Instant},
};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, request::Parts};
use reqsign_aws_v4::RequestSigner;
use reqsign_core::{Context, SignRequest};
use straightway_core::{Error, ErrorKind, Result};
use straightway_net::{
    Backoff, Checksum, Client, Head, HttpResponse, Judgement, Network, Next, Retry, Service, WorkTime,
};

use crate::{
    access::{REGION_DEFAULT, S3Access},
    credentials::{Credentials, Http, KnownCredentials, block_on, config_value, context},
    endpoint::Endpoint,
    part_sum::part_checksum,
    refusal::{Refusal, RequestContext},
    starting::OwnUploads,
    sum::checksum,
    write_support::WriteSupport,
};

/// The longest page of a listing: 1,000 keys of 1,024 bytes, each of which may be escaped, and their metadata.
pub(crate) const PAGE_BYTES_MAX: u64 = 16 << 20;

/// How long a signature is used. Services accept one for 15 minutes, and clocks differ.
const SIGNATURE_TIME: Duration = Duration::from_mins(5);

/// A bucket.
pub(crate) struct Bucket {
    pub(crate) name: String,
    pub(crate) endpoint: Endpoint,
    pub(crate) region: String,
    pub(crate) client: Client,
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
            method: Method::GET,
            operation: "list",
            name,
            key: "",
            query,
            unsigned: &[],
            expected: &[200],
            body_bytes_max: PAGE_BYTES_MAX,
        })
    }

    /// As [`request`](Self::request), with a body and additional signed headers.
    pub(crate) fn send(&self, request: &BucketRequest<'_>, content: &RequestContent<'_>) -> Result<Response<Vec<u8>>> {
        let mut backoff = Backoff::unique(self.client.network().settings());
        let mut renewed = false;
        loop {
            let known = self.credentials.get()?;
            let since = Instant::now();
            let Judgement { next, error } = match self.send_once(request, content, &known) {
                Ok(response) => return Ok(response),
                Err(judgement) => judgement,
            };
            let wait = match next {
                Next::Renew if !renewed => {
                    renewed = true;
                    self.credentials.renew(Some(known.generation))?;
                    continue;
                }
                Next::Renew | Next::Fail => return Err(error),
                Next::Retry => backoff.next_wait(Instant::now()),
                Next::SlowDown(least) => {
                    let wait = backoff.next_asked_wait();
                    wait.map(|wait| wait.max(least.unwrap_or_default()))
                }
            };
            let Some(wait) = wait else {
                return Err(error);
            };
            self.client.network().waits().show(&Retry {
                server: &self.endpoint.origin,
                error: &error,
                since,
                wait,
                backoff: &backoff,
            });
            std::thread::sleep(wait);
        }
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
        match self.client.send_bounded(sent, request.body_bytes_max) {
            Ok(response) => {
                let refusal = Refusal::of_response(&response);
                // A service may send the status early to keep the connection alive, and an error after it.
                if request.expected.contains(&response.status().as_u16()) && !refusal.is_late() {
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
                let is_transient = error.kind() == ErrorKind::Transient;
                let next = if is_transient { Next::Retry } else { Next::Fail };
                Err(Judgement::new(next, unreachable(request, &error)))
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
    pub(crate) body_bytes_max: u64,
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

/// The service of lanes that read one object.
pub(crate) struct KeyService {
    pub(crate) bucket: Arc<Bucket>,
    pub(crate) key: String,
    pub(crate) version: Option<String>,
    signed: RwLock<Option<SignedHead>>,
}

/// A signed request head.
struct SignedHead {
    head: Vec<u8>,
    generation: u64,
    until: Instant,
}

impl KeyService {
    pub(crate) fn new(bucket: &Arc<Bucket>, key: String, version: Option<String>) -> Self {
        Self {
            bucket: Arc::clone(bucket),
            key,
            version,
            signed: RwLock::new(None),
        }
    }

    /// The query that selects its version.
    pub(crate) fn query(&self) -> Vec<(&str, &str)> {
        self.version.iter().map(|id| ("versionId", id.as_str())).collect()
    }

    fn sign(&self, known: &KnownCredentials) -> Result<SignedHead> {
        let name = self.bucket.describe(&self.key);
        let request = BucketRequest {
            method: Method::GET,
            operation: "read",
            name: &name,
            key: &self.key,
            query: &self.query(),
            unsigned: &[],
            expected: &[],
            body_bytes_max: 0,
        };
        let parts = self.bucket.signed(&request, &[], known)?;
        let mut head = Vec::with_capacity(1024);
        self.bucket.write_head(&parts, &mut head);
        Ok(SignedHead {
            head,
            generation: known.generation,
            until: Instant::now() + SIGNATURE_TIME,
        })
    }
}

impl Service for KeyService {
    fn head(&self, out: &mut Vec<u8>) -> Result<Head> {
        let Some(known) = self.bucket.credentials.ready() else {
            return Ok(Head::Renew);
        };
        let fits = |signed: &&SignedHead| signed.generation == known.generation && signed.until > Instant::now();
        // A lane never blocks: if another one holds the lock, it signs by itself.
        if let Ok(signed) = self.signed.try_read()
            && let Some(signed) = signed.as_ref().filter(fits)
        {
            out.extend_from_slice(&signed.head);
            return Ok(Head::Ready);
        }
        let made = self.sign(&known)?;
        out.extend_from_slice(&made.head);
        if let Ok(mut signed) = self.signed.try_write() {
            *signed = Some(made);
        }
        Ok(Head::Ready)
    }

    fn judge(&self, name: &str, response: &HttpResponse<'_>) -> Judgement {
        let source = self.bucket.credentials.source();
        let context = self.bucket.request_context("read", name, source);
        Refusal::of_lane_response(response).judge(&context)
    }

    fn asks_whole(&self) -> bool {
        true
    }

    fn checksum(&self, response: &HttpResponse<'_>) -> Option<Checksum> {
        checksum(response)
    }

    fn part_checksum(&self, response: &HttpResponse<'_>) -> Option<Checksum> {
        part_checksum(response)
    }

    /// The header is metadata of the object: S3 never encodes a response.
    fn stores_encoded(&self) -> bool {
        true
    }

    fn renew(&self) -> Result<()> {
        // If the current credentials have not expired, the service has rejected them.
        let known = self.bucket.credentials.ready();
        let signed = self.signed.read().ok();
        let signed = signed.as_deref().and_then(Option::as_ref);
        let refused = known.and(signed).map(|signed| signed.generation);
        self.bucket.credentials.renew(refused).map(drop)
    }
}

impl fmt::Debug for KeyService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyService")
            .field("bucket", &self.bucket)
            .field("key", &self.key)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

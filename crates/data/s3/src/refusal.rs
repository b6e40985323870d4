//! The meaning of S3's error responses: an error with a hint, or a retry.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use straightway_core::{Error, ErrorKind};
use straightway_net::{HttpResponse, Judgement, Next, overlong_wait};

use crate::{credentials::ANONYMOUS, xml::Fault};

/// A clock skew below this is not the reason for a refusal.
const SKEW_MIN: Duration = Duration::from_mins(5);

/// The context of a request, for errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestContext<'a> {
    /// The operation.
    pub(crate) operation: &'static str,
    /// The name of the object or the bucket in errors.
    pub(crate) name: &'a str,
    /// The URL of the service.
    pub(crate) service: &'a str,
    /// The bucket.
    pub(crate) bucket: &'a str,
    /// The region that the request was signed for.
    pub(crate) region: &'a str,
    /// The source of the credentials.
    pub(crate) source: &'a str,
    /// Whether the object is encrypted with a customer's key.
    pub(crate) has_customer_key: bool,
}

impl RequestContext<'_> {
    /// Whether the operation changes something.
    fn writes(&self) -> bool {
        !matches!(self.operation, "read" | "open" | "list" | "check")
    }
}

/// A response with an unexpected status or an error in its body.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: u16,
    fault: Option<Fault>,
    has_body: bool,
    /// The region of the bucket, from its header.
    region: Option<String>,
    /// Whether the response has a request id, as those of S3 do.
    is_s3: bool,
    /// The server's clock.
    date: Option<SystemTime>,
    retry_after: Option<Duration>,
}

impl Refusal {
    /// The refusal in a response.
    pub(crate) fn of(response: &HttpResponse<'_>) -> Self {
        Self {
            status: response.status,
            fault: Fault::parse(response.body),
            has_body: !response.body.trim_ascii().is_empty(),
            region: response.text("x-amz-bucket-region").map(str::to_owned),
            is_s3: response.text("x-amz-request-id").is_some(),
            date: response.date("date"),
            retry_after: response.retry_after(),
        }
    }

    /// Whether it is an error after a status of success. For long operations services send the status first.
    pub(crate) fn is_late(&self) -> bool {
        self.status == 200 && self.fault.is_some()
    }

    /// Whether the service does not implement a header of the request.
    pub(crate) fn is_unimplemented(&self) -> bool {
        self.status == 501 || self.code() == "NotImplemented"
    }

    /// Whether the service received damaged bytes.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(
            self.code(),
            "BadDigest" | "XAmzContentChecksumMismatch" | "XAmzContentSHA256Mismatch"
        )
    }

    /// Decides the next step.
    pub(crate) fn judge(&self, context: &RequestContext<'_>) -> Judgement {
        let next = match (self.status, self.code()) {
            (_, "ExpiredToken" | "TokenRefreshRequired" | "ExpiredTokenException") => Next::Renew,
            _ if self.is_overload() && overlong_wait(self.retry_after).is_some() => Next::Fail,
            _ if self.is_overload() => Next::SlowDown(self.retry_after),
            _ if self.is_full() => Next::Fail,
            (
                _,
                "RequestTimeout"
                | "InternalError"
                | "OperationAborted"
                | "ConditionalRequestConflict"
                | "IncompleteBody"
                | "BadDigest"
                // The list of parts is sent without a checksum, and may have been damaged.
                | "MalformedXML"
                | "InvalidPart"
                | "InvalidPartOrder",
            )
            | (408 | 500 | 502 | 504, _) => Next::Retry,
            _ => Next::Fail,
        };
        Judgement::new(next, self.error(context))
    }

    /// The error with its message and hint.
    pub(crate) fn error(&self, context: &RequestContext<'_>) -> Error {
        let Explanation { kind, why, hint } = self.explain(context);
        let mut said = self.fault.as_ref().map_or("", |fault| fault.message.as_str());
        // These messages repeat the access key and the signed text. Of other messages the first line is enough.
        if matches!(
            self.code(),
            "SignatureDoesNotMatch" | "InvalidAccessKeyId" | "InvalidToken" | "ExpiredToken"
        ) {
            said = "";
        }
        let said: String = said.lines().next().unwrap_or_default().chars().take(200).collect();
        let code = match self.code() {
            "" => format!("status {}", self.status),
            code => format!("{} {code}", self.status),
        };
        let mut message = if said.is_empty() || why.contains(&said) {
            format!("{why} ({code})")
        } else {
            format!("{why} ({code}: {})", said.trim_end_matches('.'))
        };
        if let Some(overlong) = overlong_wait(self.retry_after).filter(|_| self.is_overload()) {
            message = format!("{message}; {overlong}");
        }
        Error::new(kind, context.operation, context.name, message).with_hint(hint)
    }

    /// Whether the service asks for fewer requests.
    fn is_overload(&self) -> bool {
        matches!(self.status, 429 | 503) || matches!(self.code(), "SlowDown" | "Throttling" | "RequestLimitExceeded")
    }

    /// Whether the service has no space for the object.
    fn is_full(&self) -> bool {
        let code = self.code();
        self.status == 507
            || code.contains("StorageFull")
            || matches!(code, "QuotaExceeded" | "InsufficientStorage" | "EntityTooLarge")
    }

    /// Whether the object is protected by object lock.
    fn is_locked(&self) -> bool {
        let said = self.fault.as_ref().map_or("", |fault| &fault.message);
        let said = said.to_ascii_lowercase();
        self.code() == "ObjectLocked"
            || ["object lock", "worm protected", "retention", "legal hold"]
                .iter()
                .any(|word| said.contains(word))
    }

    fn code(&self) -> &str {
        self.fault.as_ref().map_or("", |fault| fault.code.as_str())
    }

    fn explain(&self, context: &RequestContext<'_>) -> Explanation {
        let known = self.explain_region(context).or_else(|| self.explain_clock(context));
        let known = known.or_else(|| self.explain_write().filter(|_| context.writes()));
        let known = known.or_else(|| self.explain_code(context));
        known.unwrap_or_else(|| self.explain_status(context))
    }

    /// Explains a documented code of a write.
    fn explain_write(&self) -> Option<Explanation> {
        Some(match (self.code(), self.status) {
            _ if self.is_unimplemented() => explanation(
                ErrorKind::Unsupported,
                "the service does not implement a part of the request",
                "write to a service with conditional puts, multipart uploads and server-side copies, or to a file system",
            ),
            _ if self.is_full() => explanation(
                ErrorKind::Transient,
                "the service has no space for it, or does not accept objects of this size",
                "free space on the service, or raise its quota",
            ),
            _ if self.is_locked() => explanation(
                ErrorKind::Invalid,
                "it is protected by object lock",
                "wait until its retention ends, or use a bucket or prefix without object lock",
            ),
            ("NoSuchUpload", _) => explanation(
                ErrorKind::Transient,
                "its upload was aborted by a sweep or by a lifecycle rule of the bucket",
                "write it again; let sweeps and rules abort only uploads that are older than the longest save",
            ),
            ("InvalidPart" | "InvalidPartOrder" | "EntityTooSmall", _) => explanation(
                ErrorKind::Corrupt,
                "the service does not have the parts that were stored",
                "write it again",
            ),
            ("BadDigest", _) => explanation(
                ErrorKind::Corrupt,
                "its bytes were damaged in transit: the service computed another checksum",
                "check the network and proxies, or write it another way",
            ),
            ("PreconditionFailed", _) | (_, 412) => explanation(
                ErrorKind::AlreadyExists,
                "an object with its name exists already",
                "choose another name, or remove the existing object",
            ),
            _ => return None,
        })
    }

    /// Explains a documented code.
    fn explain_code(&self, context: &RequestContext<'_>) -> Option<Explanation> {
        let RequestContext {
            service,
            bucket,
            source,
            ..
        } = context;
        Some(match (self.code(), self.status) {
            ("NoSuchBucket", _) => explanation(
                ErrorKind::NotFound,
                format!("there is no bucket {bucket} at {service}"),
                "check the bucket's name, and that ⟦endpoint⟧ or AWS_ENDPOINT_URL_S3 names the right service",
            ),
            ("NoSuchKey", _) => explanation(
                ErrorKind::NotFound,
                "there is no such object",
                format!("`straightway ls s3://{bucket}/` lists what is there"),
            ),
            ("NoSuchVersion" | "MethodNotAllowed", _) => explanation(
                ErrorKind::NotFound,
                "there is no such version of it",
                "leave out `?versionId=…` to read the latest version",
            ),
            ("InvalidAccessKeyId", _) => explanation(
                ErrorKind::Invalid,
                format!("the service does not know the access key from {source}"),
                "check the access key id, and that ⟦endpoint⟧ names the service that issued it",
            ),
            ("SignatureDoesNotMatch", _) => explanation(
                ErrorKind::Invalid,
                format!("the service refuses the signature: the secret key from {source} is wrong"),
                "check the secret access key; it belongs to the access key id",
            ),
            ("InvalidToken" | "ExpiredToken" | "TokenRefreshRequired" | "ExpiredTokenException", _) => explanation(
                ErrorKind::Invalid,
                format!("the session token from {source} has expired or is not valid"),
                "renew the credentials, for example with `aws sso login`",
            ),
            ("PreconditionFailed", _) | (_, 412) => explanation(
                ErrorKind::Precondition,
                "it was replaced while it was read",
                "read it again; nothing of two versions was mixed",
            ),
            ("InvalidRange", _) | (_, 416) => explanation(
                ErrorKind::Precondition,
                "it is shorter than it was when it was opened",
                "read it again",
            ),
            ("InvalidObjectState", _) => explanation(
                ErrorKind::Invalid,
                "it is archived",
                "restore it from the archive first",
            ),
            _ => return None,
        })
    }

    /// Explains a response by its status and its form.
    fn explain_status(&self, context: &RequestContext<'_>) -> Explanation {
        let RequestContext {
            service,
            bucket,
            source,
            ..
        } = context;
        match (self.code(), self.status) {
            ("AccessDenied" | "AllAccessDisabled" | "AccountProblem", _) | ("", 401 | 403) if self.looks_like_s3() => {
                explanation(
                    ErrorKind::Denied,
                    format!("access is denied to {source}"),
                    if *source == ANONYMOUS {
                        "the bucket is not public: leave out ⟦anonymous⟧ and use credentials (⟦profile⟧, \
                         AWS_ACCESS_KEY_ID)"
                    } else if context.writes() {
                        "grant s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload and \
                         s3:ListBucketMultipartUploads, or use credentials that may write (⟦profile⟧, AWS_ACCESS_KEY_ID)"
                    } else {
                        "grant s3:GetObject and s3:ListBucket, or use other credentials (⟦profile⟧, AWS_ACCESS_KEY_ID); \
                         for a public bucket ⟦anonymous⟧"
                    },
                )
            }
            (_, 400) if context.has_customer_key => explanation(
                ErrorKind::Invalid,
                "the service refuses the encryption key",
                "check the SSE customer key; it needs https",
            ),
            ("InvalidRequest" | "", 400) if self.looks_like_s3() => explanation(
                ErrorKind::Invalid,
                "the service refuses the request",
                "an object that is encrypted with a customer's key needs ⟦sse_customer_key⟧",
            ),
            ("", 404) if self.looks_like_s3() => explanation(
                ErrorKind::NotFound,
                "there is no such object",
                format!("`straightway ls s3://{bucket}/` lists what is there"),
            ),
            _ if self.is_unimplemented() => explanation(
                ErrorKind::Unsupported,
                "the service does not implement a part of the request",
                "use a service that implements the S3 protocol",
            ),
            (_, 429 | 500..) => explanation(
                ErrorKind::Transient,
                "the service is overloaded or has failed",
                "try again later",
            ),
            ("", _) => explanation(
                ErrorKind::Unsupported,
                format!("{service} does not respond like an S3 service"),
                "check ⟦endpoint⟧ or AWS_ENDPOINT_URL_S3: it must be the address of an S3 service, with its port",
            ),
            (code, _) => explanation(
                ErrorKind::Unsupported,
                "the service refuses the request",
                format!("look up {code} in the documentation of the service"),
            ),
        }
    }

    /// Whether a response may be from S3. One without a body may be, since `HEAD` has none.
    fn looks_like_s3(&self) -> bool {
        self.fault.is_some() || self.is_s3 || !self.has_body
    }

    fn explain_region(&self, context: &RequestContext<'_>) -> Option<Explanation> {
        let is_redirect = matches!(self.status, 301 | 307 | 308)
            || matches!(
                self.code(),
                "AuthorizationHeaderMalformed" | "PermanentRedirect" | "IllegalLocationConstraintException"
            );
        let fault = self.fault.as_ref();
        let by_body = fault
            .map(|fault| fault.region.as_str())
            .filter(|region| !region.is_empty());
        let region = self.region.as_deref().or(by_body);
        let bucket = context.bucket;
        match region {
            Some(region) if region != context.region && (is_redirect || self.status == 400) => Some(explanation(
                ErrorKind::Invalid,
                format!(
                    "bucket {bucket} is in region {region}, and the request was for {}",
                    context.region
                ),
                format!("use ⟦region={region}⟧ or AWS_REGION={region}"),
            )),
            _ if is_redirect => {
                let endpoint = fault.map(|fault| fault.endpoint.as_str()).filter(|e| !e.is_empty());
                let hint = match endpoint {
                    Some(endpoint) => format!("use ⟦endpoint=https://{endpoint}⟧"),
                    None => "check ⟦region⟧ and ⟦endpoint⟧".to_owned(),
                };
                Some(explanation(
                    ErrorKind::Invalid,
                    format!("bucket {bucket} is elsewhere"),
                    hint,
                ))
            }
            _ => None,
        }
    }

    fn explain_clock(&self, context: &RequestContext<'_>) -> Option<Explanation> {
        let is_said = self.code() == "RequestTimeTooSkewed";
        let skew = self.date.map(|there| Skew::between(SystemTime::now(), there));
        let may_be = is_said || (self.status == 403 && skew.is_some_and(|skew| skew.by > SKEW_MIN));
        may_be.then(|| {
            let why = match skew.filter(|skew| skew.by > SKEW_MIN) {
                Some(skew) => format!("the clock of this machine is {skew} that of {}", context.service),
                None => format!("the clocks of this machine and of {} differ too much", context.service),
            };
            explanation(
                ErrorKind::Invalid,
                why,
                "set the clock, for example with `chronyc makestep`",
            )
        })
    }
}

struct Explanation {
    kind: ErrorKind,
    why: String,
    hint: String,
}

fn explanation(kind: ErrorKind, why: impl Into<String>, hint: impl Into<String>) -> Explanation {
    let (why, hint) = (why.into(), hint.into());
    Explanation { kind, why, hint }
}

/// The difference between the clock of this machine and that of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Skew {
    /// Its amount.
    pub(crate) by: Duration,
    is_ahead: bool,
}

impl Skew {
    pub(crate) fn between(here: SystemTime, there: SystemTime) -> Self {
        match here.duration_since(there) {
            Ok(by) => Self { by, is_ahead: true },
            Err(error) => Self {
                by: error.duration(),
                is_ahead: false,
            },
        }
    }
}

impl std::fmt::Display for Skew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.by.as_secs();
        let (number, unit) = if seconds < 120 {
            (seconds, "s")
        } else {
            (seconds / 60, "minutes")
        };
        write!(
            f,
            "{number} {unit} {}",
            if self.is_ahead { "ahead of" } else { "behind" }
        )
    }
}

/// A header as text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: RequestContext<'static> = RequestContext {
        operation: "open",
        name: "s3://bucket/key",
        service: "http://host:1",
        bucket: "bucket",
        region: "us-east-1",
        source: "the environment",
        has_customer_key: false,
    };

    fn refusal(status: u16, headers: &[(&str, &str)], body: &str) -> Refusal {
        let mut response = http::Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        let response = response.body(body.as_bytes().to_vec()).unwrap();
        Refusal::of(&HttpResponse::of(&response))
    }

    fn fault(status: u16, code: &str) -> Refusal {
        refusal(
            status,
            &[],
            &format!("<Error><Code>{code}</Code><Message>Some text.</Message></Error>"),
        )
    }

    fn fatal(refusal: &Refusal) -> (ErrorKind, String) {
        let Judgement { next, error } = refusal.judge(&CONTEXT);
        assert_eq!(next, Next::Fail, "{error}");
        let hint = error.hint().expect("each has a hint");
        (error.kind(), format!("{error}\n{hint}"))
    }

    #[test]
    fn a_wait_of_more_than_a_minute_is_an_error_that_says_so() {
        let slow = "<Error><Code>SlowDown</Code></Error>";
        let date = ("date", "Sun, 06 Nov 1994 08:00:00 GMT");
        let judged = |after: &str| refusal(503, &[("retry-after", after), date], slow).judge(&CONTEXT);
        for minute in ["60", "Sun, 06 Nov 1994 08:01:00 GMT"] {
            assert_eq!(judged(minute).next, Next::SlowDown(Some(Duration::from_mins(1))));
        }
        for hour in ["3600", "Sun, 06 Nov 1994 09:00:00 GMT"] {
            let refused = judged(hour);
            assert_eq!(refused.next, Next::Fail);
            let said = refused.error.to_string();
            assert!(said.contains("it asks to retry after 3600 s, more than 60 s"), "{said}");
        }
    }

    #[test]
    fn each_refusal_names_the_object_and_has_a_hint() {
        for (status, code, kind, words) in [
            (404, "NoSuchKey", ErrorKind::NotFound, "there is no such object"),
            (
                404,
                "NoSuchBucket",
                ErrorKind::NotFound,
                "no bucket bucket at http://host:1",
            ),
            (
                403,
                "AccessDenied",
                ErrorKind::Denied,
                "access is denied to the environment",
            ),
            (
                403,
                "InvalidAccessKeyId",
                ErrorKind::Invalid,
                "does not know the access key",
            ),
            (
                403,
                "SignatureDoesNotMatch",
                ErrorKind::Invalid,
                "check the secret access key",
            ),
            (403, "RequestTimeTooSkewed", ErrorKind::Invalid, "set the clock"),
            (400, "InvalidToken", ErrorKind::Invalid, "renew the credentials"),
            (412, "PreconditionFailed", ErrorKind::Precondition, "replaced"),
            (416, "InvalidRange", ErrorKind::Precondition, "shorter"),
            (403, "InvalidObjectState", ErrorKind::Invalid, "archived"),
            (400, "InvalidRequest", ErrorKind::Invalid, "needs sse_customer_key"),
            (418, "Teapot", ErrorKind::Unsupported, "Teapot"),
        ] {
            let (found, text) = fatal(&fault(status, code));
            assert_eq!(found, kind, "{text}");
            assert!(text.contains(words) && text.contains("s3://bucket/key"), "{text}");
        }
    }

    #[test]
    fn a_failed_condition_means_a_taken_name_or_another_version() {
        let writing = RequestContext {
            operation: "write",
            ..CONTEXT
        };
        let kind = |refusal: &Refusal, context| refusal.error(context).kind();
        assert_eq!(
            kind(&fault(412, "PreconditionFailed"), &writing),
            ErrorKind::AlreadyExists
        );
        for (status, code) in [(412, "PreconditionFailed"), (412, ""), (416, "InvalidRange")] {
            assert_eq!(kind(&fault(status, code), &CONTEXT), ErrorKind::Precondition);
        }
    }

    #[test]
    fn the_hint_of_a_wrong_region_names_the_right_one() {
        let body = "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-3</Region></Error>";
        let redirect = [("x-amz-bucket-region", "eu-west-3"), ("x-amz-request-id", "1")];
        for wrong in [refusal(400, &[], body), refusal(301, &redirect, "")] {
            let (kind, text) = fatal(&wrong);
            assert_eq!(kind, ErrorKind::Invalid);
            assert!(
                text.contains("region eu-west-3") && text.contains("was for us-east-1"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_clock_skew_is_reported_with_its_amount() {
        let past = [("date", "Mon, 16 Nov 2020 03:04:05 GMT")];
        let body = "<Error><Code>RequestTimeTooSkewed</Code></Error>";
        let (_, text) = fatal(&refusal(403, &past, body));
        assert!(text.contains("minutes ahead of that of http://host:1"), "{text}");
        // Some servers report it as a wrong signature or denied access.
        let (_, text) = fatal(&refusal(403, &past, "<Error><Code>AccessDenied</Code></Error>"));
        assert!(text.contains("set the clock"), "{text}");
    }

    #[test]
    fn a_service_that_is_not_s3_is_reported() {
        for (status, body) in [(404, "<html>not found</html>"), (200, "hello"), (403, "{}"), (302, "")] {
            let (_, text) = fatal(&refusal(status, &[], body));
            assert!(
                text.contains("endpoint or AWS_ENDPOINT_URL_S3"),
                "{status} {body}: {text}"
            );
        }
        let (kind, _) = fatal(&refusal(404, &[], ""));
        assert_eq!(kind, ErrorKind::NotFound);
    }

    #[test]
    fn transient_refusals_are_retried() {
        let next = |refusal: &Refusal| refusal.judge(&CONTEXT).next;
        assert_eq!(next(&fault(400, "ExpiredToken")), Next::Renew);
        assert_eq!(next(&fault(503, "SlowDown")), Next::SlowDown(None));
        let later = refusal(503, &[("retry-after", "3")], "");
        assert_eq!(next(&later), Next::SlowDown(Some(Duration::from_secs(3))));
        let dates = [
            ("date", "Mon, 16 Nov 2020 03:04:05 GMT"),
            ("retry-after", "Mon, 16 Nov 2020 03:04:12 GMT"),
        ];
        assert_eq!(
            next(&refusal(503, &dates, "")),
            Next::SlowDown(Some(Duration::from_secs(7)))
        );
        assert_eq!(next(&fault(500, "InternalError")), Next::Retry);
        assert_eq!(next(&refusal(502, &[], "<html>")), Next::Retry);
        assert_eq!(fault(500, "InternalError").error(&CONTEXT).kind(), ErrorKind::Transient);
    }

    #[test]
    fn credentials_that_a_server_repeats_are_not_shown() {
        let body = "<Error><Code>SignatureDoesNotMatch</Code><Message>AKID hush</Message>\
                    <AWSAccessKeyId>AKID</AWSAccessKeyId><StringToSign>hush</StringToSign></Error>";
        let refusal = refusal(403, &[], body);
        assert!(!fatal(&refusal).1.contains("hush"));
        assert!(!fatal(&refusal).1.contains("AKID"));
    }
}

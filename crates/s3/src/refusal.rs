//! What an answer of S3 means that is not what was asked for: an error with its remedy, or another attempt.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use reqsign_core::time::Timestamp;
use straightway_core::{Error, Kind};
use straightway_net::{Answer, Judgement, Next};

use crate::xml::Fault;

/// A clock that is off by less is not the reason for a refusal.
const SKEW_MIN: Duration = Duration::from_mins(5);

/// Where a request went, and what it asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    /// What was to be done.
    pub(crate) operation: &'static str,
    /// What errors call the object or the bucket.
    pub(crate) name: &'a str,
    /// The service's address.
    pub(crate) service: &'a str,
    /// The bucket.
    pub(crate) bucket: &'a str,
    /// The region that the request was signed for.
    pub(crate) region: &'a str,
    /// Where the credentials came from.
    pub(crate) source: &'a str,
    /// Whether the object is encrypted with a key that the caller gave.
    pub(crate) has_customer_key: bool,
}

impl Asked<'_> {
    /// Whether something was to be changed.
    fn writes(&self) -> bool {
        !matches!(self.operation, "read" | "open" | "list" | "ask")
    }
}

/// An answer that is not what was asked for.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: u16,
    fault: Option<Fault>,
    has_body: bool,
    /// The region of the bucket, by its own header.
    region: Option<String>,
    /// Whether the server signs its answers as S3 does.
    is_s3: bool,
    /// The server's clock.
    date: Option<SystemTime>,
    retry_after: Option<Duration>,
}

impl Refusal {
    /// The refusal in an answer to a lane.
    pub(crate) fn of_answer(answer: &Answer<'_>) -> Self {
        Self {
            status: answer.status,
            fault: Fault::parse(answer.body),
            has_body: !answer.body.trim_ascii().is_empty(),
            region: answer.text("x-amz-bucket-region").map(str::to_owned),
            is_s3: answer.text("x-amz-request-id").is_some(),
            date: answer.text("date").and_then(clock),
            retry_after: answer.retry_after(),
        }
    }

    /// The refusal in an answer to the control plane.
    pub(crate) fn of_response(answer: &http::Response<Vec<u8>>) -> Self {
        let text = |name: &str| header(answer.headers(), name);
        let seconds = text("retry-after").and_then(|text| text.parse().ok());
        Self {
            status: answer.status().as_u16(),
            fault: Fault::parse(answer.body()),
            has_body: !answer.body().trim_ascii().is_empty(),
            region: text("x-amz-bucket-region").map(str::to_owned),
            is_s3: text("x-amz-request-id").is_some(),
            date: text("date").and_then(clock),
            retry_after: seconds.map(|seconds: u64| Duration::from_secs(seconds.min(60))),
        }
    }

    /// Whether it is an error behind a status of success. Services that work long send the status first.
    pub(crate) fn is_late(&self) -> bool {
        self.status == 200 && self.fault.is_some()
    }

    /// Whether the service does not implement a header of the request.
    pub(crate) fn is_unimplemented(&self) -> bool {
        self.status == 501 || self.code() == "NotImplemented"
    }

    /// Whether the service says that bytes were damaged on their way.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(
            self.code(),
            "BadDigest" | "XAmzContentChecksumMismatch" | "XAmzContentSHA256Mismatch"
        )
    }

    /// What to do about it.
    pub(crate) fn judge(&self, asked: &Asked<'_>) -> Judgement {
        let next = match (self.status, self.code()) {
            (_, "ExpiredToken" | "TokenRefreshRequired" | "ExpiredTokenException") => Next::Renew,
            (429 | 503, _) | (_, "SlowDown" | "Throttling" | "RequestLimitExceeded") => {
                Next::SlowDown(self.retry_after)
            }
            _ if self.is_full() => Next::Fail,
            (
                _,
                "RequestTimeout"
                | "InternalError"
                | "OperationAborted"
                | "ConditionalRequestConflict"
                | "IncompleteBody"
                | "BadDigest",
            )
            | (408 | 500 | 502 | 504, _) => Next::Retry,
            _ => Next::Fail,
        };
        Judgement::new(next, self.error(asked))
    }

    /// The error, for people.
    pub(crate) fn error(&self, asked: &Asked<'_>) -> Error {
        let Told { kind, why, hint } = self.tell(asked);
        let mut said = self
            .fault
            .as_ref()
            .map_or("", |fault| fault.message.as_str());
        // Servers repeat the access key and what they would have signed; of the rest the first line says enough.
        if matches!(
            self.code(),
            "SignatureDoesNotMatch" | "InvalidAccessKeyId" | "InvalidToken" | "ExpiredToken"
        ) {
            said = "";
        }
        let said: String = said
            .lines()
            .next()
            .unwrap_or_default()
            .chars()
            .take(200)
            .collect();
        let code = match self.code() {
            "" => format!("status {}", self.status),
            code => format!("{} {code}", self.status),
        };
        let message = if said.is_empty() || why.contains(&said) {
            format!("{why} ({code})")
        } else {
            format!("{why} ({code}: {})", said.trim_end_matches('.'))
        };
        Error::new(kind, asked.operation, asked.name, message).with_hint(hint)
    }

    /// Whether the service has no room.
    fn is_full(&self) -> bool {
        let code = self.code();
        self.status == 507
            || code.contains("StorageFull")
            || matches!(
                code,
                "QuotaExceeded" | "InsufficientStorage" | "EntityTooLarge"
            )
    }

    /// Whether what is there may not be changed.
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

    fn tell(&self, asked: &Asked<'_>) -> Told {
        let known = self.tell_region(asked).or_else(|| self.tell_clock(asked));
        let known = known.or_else(|| self.tell_write().filter(|_| asked.writes()));
        let known = known.or_else(|| self.tell_code(asked));
        known.unwrap_or_else(|| self.tell_status(asked))
    }

    /// What a documented code means when something was to be written.
    fn tell_write(&self) -> Option<Told> {
        Some(match (self.code(), self.status) {
            _ if self.is_full() => told(
                Kind::Transient,
                "the service has no room for it, or takes none so large",
                "free space on the service, or raise its quota",
            ),
            _ if self.is_locked() => told(
                Kind::Invalid,
                "it is protected by object lock",
                "wait until its retention ends, or use a bucket or prefix without object lock",
            ),
            ("NoSuchUpload", _) => told(
                Kind::Transient,
                "its upload was ended by somebody else: a sweep, or a lifecycle rule of the bucket",
                "write it again; let sweeps and rules end only uploads that are older than the longest save",
            ),
            ("InvalidPart" | "InvalidPartOrder" | "EntityTooSmall", _) => told(
                Kind::Corrupt,
                "the service does not have the parts that were stored",
                "write it again",
            ),
            ("BadDigest", _) => told(
                Kind::Corrupt,
                "its bytes were damaged on their way: the service found another checksum",
                "the network or a proxy damages it: write it another way",
            ),
            ("PreconditionFailed", _) | (_, 412) => told(
                Kind::Invalid,
                "something has its name already",
                "choose another name, or remove what is there",
            ),
            _ => return None,
        })
    }

    /// What a documented code means.
    fn tell_code(&self, asked: &Asked<'_>) -> Option<Told> {
        let Asked {
            service,
            bucket,
            source,
            ..
        } = asked;
        Some(match (self.code(), self.status) {
            ("NoSuchBucket", _) => told(
                Kind::NotFound,
                format!("there is no bucket {bucket} at {service}"),
                "check the bucket's name, and that --endpoint or AWS_ENDPOINT_URL_S3 names the right service",
            ),
            ("NoSuchKey", _) => told(
                Kind::NotFound,
                "there is no such object",
                format!("`straightway ls s3://{bucket}/` lists what is there"),
            ),
            ("NoSuchVersion" | "MethodNotAllowed", _) => told(
                Kind::NotFound,
                "there is no such version of it",
                "leave out `?versionId=…` to read the latest version",
            ),
            ("InvalidAccessKeyId", _) => told(
                Kind::Invalid,
                format!("the service does not know the access key from {source}"),
                "check the access key id, and that --endpoint names the service that issued it",
            ),
            ("SignatureDoesNotMatch", _) => told(
                Kind::Invalid,
                format!("the service refuses the signature: the secret key from {source} is wrong"),
                "check the secret access key; it belongs to the access key id",
            ),
            (
                "InvalidToken" | "ExpiredToken" | "TokenRefreshRequired" | "ExpiredTokenException",
                _,
            ) => told(
                Kind::Invalid,
                format!("the session token from {source} has expired or is not valid"),
                "renew the credentials, for example with `aws sso login`",
            ),
            ("PreconditionFailed", _) | (_, 412) => told(
                Kind::Corrupt,
                "it was replaced while it was read",
                "read it again; nothing of two versions was mixed",
            ),
            ("InvalidRange", _) | (_, 416) => told(
                Kind::Corrupt,
                "it is shorter than it was when it was opened",
                "read it again",
            ),
            ("InvalidObjectState", _) => told(
                Kind::Invalid,
                "it is archived",
                "restore it from the archive first",
            ),
            _ => return None,
        })
    }

    /// What an answer means by its status, and by what it looks like.
    fn tell_status(&self, asked: &Asked<'_>) -> Told {
        let Asked {
            service,
            bucket,
            source,
            ..
        } = asked;
        match (self.code(), self.status) {
            ("AccessDenied" | "AllAccessDisabled" | "AccountProblem", _) | ("", 401 | 403)
                if self.looks_like_s3() =>
            {
                told(
                    Kind::Invalid,
                    format!("access is denied to {source}"),
                    if asked.writes() {
                        "grant s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload and \
                         s3:ListBucketMultipartUploads, or use credentials that may write (--profile, AWS_ACCESS_KEY_ID)"
                    } else {
                        "grant s3:GetObject and s3:ListBucket, or use other credentials (--profile, \
                         AWS_ACCESS_KEY_ID); for a public bucket --anonymous"
                    },
                )
            }
            (_, 400) if asked.has_customer_key => told(
                Kind::Invalid,
                "the service refuses the encryption key",
                "check the SSE customer key; it needs https",
            ),
            ("InvalidRequest" | "", 400) if self.looks_like_s3() => told(
                Kind::Invalid,
                "the service refuses the request",
                "an object that is encrypted with a customer's key needs --sse-customer-key",
            ),
            ("", 404) if self.looks_like_s3() => told(
                Kind::NotFound,
                "there is no such object",
                format!("`straightway ls s3://{bucket}/` lists what is there"),
            ),
            (_, 429 | 500..) => told(
                Kind::Transient,
                "the service is overloaded or fails",
                "try again later",
            ),
            ("", _) => told(
                Kind::Unsupported,
                format!("{service} does not answer as S3 does"),
                "check --endpoint or AWS_ENDPOINT_URL_S3: it must be the address of an S3 service, with its port",
            ),
            (code, _) => told(
                Kind::Unsupported,
                "the service refuses the request",
                format!("look up {code} in the documentation of the service"),
            ),
        }
    }

    /// Whether an answer without a known body may still be one of S3: `HEAD` has none.
    fn looks_like_s3(&self) -> bool {
        self.fault.is_some() || self.is_s3 || !self.has_body
    }

    fn tell_region(&self, asked: &Asked<'_>) -> Option<Told> {
        let is_redirect = matches!(self.status, 301 | 307 | 308)
            || matches!(
                self.code(),
                "AuthorizationHeaderMalformed"
                    | "PermanentRedirect"
                    | "IllegalLocationConstraintException"
            );
        let fault = self.fault.as_ref();
        let by_body = fault
            .map(|fault| fault.region.as_str())
            .filter(|region| !region.is_empty());
        let region = self.region.as_deref().or(by_body);
        let bucket = asked.bucket;
        match region {
            Some(region) if region != asked.region && (is_redirect || self.status == 400) => {
                Some(told(
                    Kind::Invalid,
                    format!(
                        "bucket {bucket} is in region {region}, and the request was for {}",
                        asked.region
                    ),
                    format!("use --region {region} or AWS_REGION={region}"),
                ))
            }
            _ if is_redirect => {
                let endpoint = fault
                    .map(|fault| fault.endpoint.as_str())
                    .filter(|e| !e.is_empty());
                let hint = match endpoint {
                    Some(endpoint) => format!("use --endpoint https://{endpoint}"),
                    None => "check --region and --endpoint".to_owned(),
                };
                Some(told(
                    Kind::Invalid,
                    format!("bucket {bucket} is elsewhere"),
                    hint,
                ))
            }
            _ => None,
        }
    }

    fn tell_clock(&self, asked: &Asked<'_>) -> Option<Told> {
        let is_said = self.code() == "RequestTimeTooSkewed";
        let skew = self
            .date
            .map(|there| Skew::between(SystemTime::now(), there));
        let may_be = is_said || (self.status == 403 && skew.is_some_and(|skew| skew.by > SKEW_MIN));
        may_be.then(|| {
            let why = match skew.filter(|skew| skew.by > SKEW_MIN) {
                Some(skew) => format!(
                    "the clock of this machine is {skew} that of {}",
                    asked.service
                ),
                None => format!(
                    "the clocks of this machine and of {} differ too much",
                    asked.service
                ),
            };
            told(
                Kind::Invalid,
                why,
                "set the clock, for example with `chronyc makestep`",
            )
        })
    }
}

struct Told {
    kind: Kind,
    why: String,
    hint: String,
}

fn told(kind: Kind, why: impl Into<String>, hint: impl Into<String>) -> Told {
    let (why, hint) = (why.into(), hint.into());
    Told { kind, why, hint }
}

/// How far the clock of this machine is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Skew {
    /// By how much.
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

/// The time of a `Date` header.
pub(crate) fn clock(text: &str) -> Option<SystemTime> {
    Timestamp::parse_rfc2822(text)
        .ok()
        .map(Timestamp::as_system_time)
}

/// A header as text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Asked<'static> = Asked {
        operation: "open",
        name: "s3://bucket/key",
        service: "http://host:1",
        bucket: "bucket",
        region: "us-east-1",
        source: "the environment",
        has_customer_key: false,
    };

    fn refusal(status: u16, headers: &[(&str, &str)], body: &str) -> Refusal {
        let mut answer = http::Response::builder().status(status);
        for (name, value) in headers {
            answer = answer.header(*name, *value);
        }
        Refusal::of_response(&answer.body(body.as_bytes().to_vec()).unwrap())
    }

    fn fault(status: u16, code: &str) -> Refusal {
        refusal(
            status,
            &[],
            &format!("<Error><Code>{code}</Code><Message>Some text.</Message></Error>"),
        )
    }

    fn fatal(refusal: &Refusal) -> (Kind, String) {
        let Judgement { next, error } = refusal.judge(&ASKED);
        assert_eq!(next, Next::Fail, "{error}");
        let hint = error.hint().expect("each has a remedy");
        (error.kind(), format!("{error}\n{hint}"))
    }

    #[test]
    fn each_refusal_names_the_object_and_the_remedy() {
        for (status, code, kind, words) in [
            (404, "NoSuchKey", Kind::NotFound, "there is no such object"),
            (
                404,
                "NoSuchBucket",
                Kind::NotFound,
                "no bucket bucket at http://host:1",
            ),
            (
                403,
                "AccessDenied",
                Kind::Invalid,
                "access is denied to the environment",
            ),
            (
                403,
                "InvalidAccessKeyId",
                Kind::Invalid,
                "does not know the access key",
            ),
            (
                403,
                "SignatureDoesNotMatch",
                Kind::Invalid,
                "check the secret access key",
            ),
            (403, "RequestTimeTooSkewed", Kind::Invalid, "set the clock"),
            (400, "InvalidToken", Kind::Invalid, "renew the credentials"),
            (412, "PreconditionFailed", Kind::Corrupt, "replaced"),
            (416, "InvalidRange", Kind::Corrupt, "shorter"),
            (403, "InvalidObjectState", Kind::Invalid, "archived"),
            (400, "InvalidRequest", Kind::Invalid, "--sse-customer-key"),
            (418, "Teapot", Kind::Unsupported, "Teapot"),
        ] {
            let (found, text) = fatal(&fault(status, code));
            assert_eq!(found, kind, "{text}");
            assert!(
                text.contains(words) && text.contains("s3://bucket/key"),
                "{text}"
            );
        }
    }

    #[test]
    fn the_hint_of_a_wrong_region_names_the_right_one() {
        let body =
            "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-3</Region></Error>";
        let redirect = [
            ("x-amz-bucket-region", "eu-west-3"),
            ("x-amz-request-id", "1"),
        ];
        for wrong in [refusal(400, &[], body), refusal(301, &redirect, "")] {
            let (kind, text) = fatal(&wrong);
            assert_eq!(kind, Kind::Invalid);
            assert!(
                text.contains("--region eu-west-3") && text.contains("was for us-east-1"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_clock_that_is_off_is_told_by_how_much() {
        let past = [("date", "Mon, 16 Nov 2020 03:04:05 GMT")];
        let body = "<Error><Code>RequestTimeTooSkewed</Code></Error>";
        let (_, text) = fatal(&refusal(403, &past, body));
        assert!(
            text.contains("minutes ahead of that of http://host:1"),
            "{text}"
        );
        // Some servers call it a wrong signature or a denied access.
        let (_, text) = fatal(&refusal(
            403,
            &past,
            "<Error><Code>AccessDenied</Code></Error>",
        ));
        assert!(text.contains("set the clock"), "{text}");
    }

    #[test]
    fn what_does_not_answer_as_s3_does_is_told_so() {
        for (status, body) in [
            (404, "<html>not found</html>"),
            (200, "hello"),
            (403, "{}"),
            (302, ""),
        ] {
            let (_, text) = fatal(&refusal(status, &[], body));
            assert!(text.contains("--endpoint"), "{status} {body}: {text}");
        }
        let (kind, _) = fatal(&refusal(404, &[], ""));
        assert_eq!(kind, Kind::NotFound);
    }

    #[test]
    fn what_may_pass_is_tried_again() {
        let next = |refusal: &Refusal| refusal.judge(&ASKED).next;
        assert_eq!(next(&fault(400, "ExpiredToken")), Next::Renew);
        assert_eq!(next(&fault(503, "SlowDown")), Next::SlowDown(None));
        let later = refusal(503, &[("retry-after", "3")], "");
        assert_eq!(next(&later), Next::SlowDown(Some(Duration::from_secs(3))));
        assert_eq!(next(&fault(500, "InternalError")), Next::Retry);
        assert_eq!(next(&refusal(502, &[], "<html>")), Next::Retry);
        assert_eq!(
            fault(500, "InternalError").error(&ASKED).kind(),
            Kind::Transient
        );
    }

    #[test]
    fn what_a_server_repeats_of_the_credentials_is_not_shown() {
        let body = "<Error><Code>SignatureDoesNotMatch</Code><Message>AKID hush</Message>\
                    <AWSAccessKeyId>AKID</AWSAccessKeyId><StringToSign>hush</StringToSign></Error>";
        let refusal = refusal(403, &[], body);
        assert!(!fatal(&refusal).1.contains("hush"));
        assert!(!fatal(&refusal).1.contains("AKID"));
    }
}

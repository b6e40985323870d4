//! The address of STS, the service that issues the credentials of a role.
//!
//! reqsign sends these requests to AWS. `AWS_ENDPOINT_URL_STS` names another service, as for AWS's clients. A request
//! that is signed is sent there by its signer, because the signature covers the host. One that is not signed is sent
//! there by its sender.

use std::time::Duration;

use bytes::Bytes;
use http::{Uri, request::Parts, uri};
use reqsign_aws_v4::{Credential, RequestSigner};
use reqsign_core::{Context, Error, HttpSend, SignRequest, time::Timestamp};

use crate::access::Environment;

/// The variable with the address.
const VARIABLE: &str = "AWS_ENDPOINT_URL_STS";

/// The address of STS.
#[derive(Clone, Debug)]
pub(super) enum StsEndpoint {
    /// That of AWS in the region.
    Aws,
    /// Another one.
    At(Uri),
}

impl StsEndpoint {
    /// The address in the environment. The error says why it cannot be used.
    pub(super) fn of(environment: &Environment) -> Result<Self, &'static str> {
        let Some(text) = environment.get(VARIABLE).filter(|_| !environment.ignores_endpoints()) else {
            return Ok(Self::Aws);
        };
        let uri = text.parse::<Uri>().ok();
        let is_usable = |uri: &Uri| {
            let authority = uri
                .authority()
                .is_some_and(|authority| !authority.as_str().contains('@'));
            authority && matches!(uri.scheme_str(), Some("http" | "https")) && uri.query().is_none()
        };
        let why = "AWS_ENDPOINT_URL_STS is not an address of the form http://HOST[:PORT] or https://HOST[:PORT]";
        uri.filter(is_usable).map(Self::At).ok_or(why)
    }

    /// The address of a request to STS.
    fn resolve(&self, asked: &Uri) -> reqsign_core::Result<Uri> {
        let Self::At(service) = self else {
            return Ok(asked.clone());
        };
        let target = asked.path_and_query().map_or("/", uri::PathAndQuery::as_str);
        let mut parts = service.clone().into_parts();
        let target = format!("{}{target}", service.path().trim_end_matches('/'));
        parts.path_and_query = Some(
            target
                .parse()
                .map_err(|_| Error::config_invalid("the path of STS is invalid"))?,
        );
        Uri::from_parts(parts).map_err(|_| Error::config_invalid("the address of STS is invalid"))
    }
}

/// Signs requests to STS.
#[derive(Debug)]
pub(super) struct StsSigner {
    inner: RequestSigner,
    endpoint: StsEndpoint,
}

impl StsSigner {
    pub(super) fn new(region: &str, endpoint: StsEndpoint) -> Self {
        Self {
            inner: RequestSigner::new("sts", region),
            endpoint,
        }
    }
}

impl SignRequest for StsSigner {
    type Credential = Credential;

    fn required_valid_until(&self, credential: &Credential, expires_in: Option<Duration>) -> Timestamp {
        self.inner.required_valid_until(credential, expires_in)
    }

    async fn sign_request(
        &self,
        context: &Context,
        request: &mut Parts,
        credential: Option<&Credential>,
        expires_in: Option<Duration>,
    ) -> reqsign_core::Result<()> {
        // After an error the request must be unchanged.
        let mut moved = request.clone();
        moved.uri = self.endpoint.resolve(&request.uri)?;
        self.inner
            .sign_request(context, &mut moved, credential, expires_in)
            .await?;
        (request.uri, request.headers) = (moved.uri, moved.headers);
        Ok(())
    }
}

/// Sends requests to STS that are not signed.
#[derive(Debug)]
pub(super) struct StsSender {
    pub(super) context: Context,
    pub(super) endpoint: StsEndpoint,
}

impl HttpSend for StsSender {
    async fn http_send(&self, mut request: http::Request<Bytes>) -> reqsign_core::Result<http::Response<Bytes>> {
        *request.uri_mut() = self.endpoint.resolve(request.uri())?;
        self.context.http_send(request).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_go_to_the_service_of_the_environment() {
        let asked: Uri = "https://sts.eu-west-1.amazonaws.com/?Action=AssumeRole"
            .parse()
            .unwrap();
        for (pairs, sent) in [
            (&[][..], asked.to_string()),
            (
                &[(VARIABLE, "http://127.0.0.1:9")],
                "http://127.0.0.1:9/?Action=AssumeRole".to_owned(),
            ),
            (
                &[(VARIABLE, "https://h/sts/")],
                "https://h/sts/?Action=AssumeRole".to_owned(),
            ),
            (
                &[
                    (VARIABLE, "https://h/"),
                    ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true"),
                ],
                asked.to_string(),
            ),
        ] {
            let endpoint = StsEndpoint::of(&Environment::of(pairs)).unwrap();
            assert_eq!(endpoint.resolve(&asked).unwrap().to_string(), sent);
        }
        for text in ["host", "ftp://host", "https://me:hush@host", "http://h/?x", "http://"] {
            let why = StsEndpoint::of(&Environment::of(&[(VARIABLE, text)])).unwrap_err();
            assert!(why.contains(VARIABLE) && !why.contains("hush"), "{text}");
        }
    }
}

//! Profiles that assume a role: `role_arn` with `source_profile` or `credential_source`.
//!
//! If the role cannot be assumed, no other credentials are used instead.

use reqsign_aws_v4::{
    AssumeRoleCredentialProvider, Credential, ECSCredentialProvider, EnvCredentialProvider,
    IMDSv2CredentialProvider, ProcessCredentialProvider, ProfileCredentialProvider, RequestSigner,
    SSOCredentialProvider,
};
use reqsign_core::{Context, Error, ProvideCredential, ProvideCredentialChain, Result, Signer};

use super::context::config_value;
use crate::access::{Environment, REGION_DEFAULT};

/// The longest chain of profiles that assume a role with the role of another.
const CHAIN_MAX: usize = 5;

/// The provider of a profile's role.
#[derive(Debug)]
pub(super) enum Role {
    /// Assumes the role.
    Provider(Box<AssumeRoleCredentialProvider>),
    /// The role cannot be assumed, and why.
    Refused(&'static str),
}

impl Role {
    /// The role of a profile, if it has one.
    pub(super) fn of(environment: &Environment, profile: &str, context: &Context) -> Option<Self> {
        Self::of_chain(environment, profile, context, CHAIN_MAX)
    }

    fn of_chain(
        environment: &Environment,
        profile: &str,
        context: &Context,
        left: usize,
    ) -> Option<Self> {
        let value = |name: &str| config_value(environment, profile, name);
        let role_arn = value("role_arn")?;
        if value("web_identity_token_file").is_some() {
            let why = "web_identity_token_file of a profile is not read: set AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN";
            return Some(Self::Refused(why));
        }
        if value("mfa_serial").is_some() {
            let why =
                "the role of the profile asks for a second factor: get a session by other means";
            return Some(Self::Refused(why));
        }
        let chain = ProvideCredentialChain::new();
        let source = match (
            value("source_profile"),
            value("credential_source").as_deref(),
        ) {
            (Some(source), _) if source != profile => {
                if left == 0 {
                    return Some(Self::Refused(
                        "its chain of source profiles is too long or a loop",
                    ));
                }
                match Self::of_chain(environment, &source, context, left - 1) {
                    Some(Self::Provider(role)) => chain.push(*role),
                    Some(refused) => return Some(refused),
                    None => of_profile(chain, &source),
                }
            }
            // The keys of the profile itself.
            (Some(_), _) => chain.push(ProfileCredentialProvider::new().with_profile(profile)),
            (None, Some("Environment")) => chain.push(EnvCredentialProvider::new()),
            (None, Some("EcsContainer")) => chain.push(ECSCredentialProvider::new()),
            (None, Some("Ec2InstanceMetadata")) => chain.push(IMDSv2CredentialProvider::new()),
            (None, _) => {
                let why = "the profile has a role_arn, but neither a source_profile nor a known credential_source";
                return Some(Self::Refused(why));
            }
        };
        let region = value("region").or_else(|| environment.get("AWS_REGION").map(str::to_owned));
        let region = region.unwrap_or_else(|| REGION_DEFAULT.to_owned());
        let signer = Signer::new(context.clone(), source, RequestSigner::new("sts", &region));
        let mut role = AssumeRoleCredentialProvider::new(role_arn, signer)
            .with_region(region)
            .with_regional_sts_endpoint();
        if let Some(name) = value("role_session_name") {
            role = role.with_role_session_name(name);
        }
        if let Some(id) = value("external_id") {
            role = role.with_external_id(id);
        }
        if let Some(seconds) = value("duration_seconds").and_then(|text| text.parse().ok()) {
            role = role.with_duration_seconds(seconds);
        }
        Some(Self::Provider(Box::new(role)))
    }
}

impl ProvideCredential for Role {
    type Credential = Credential;

    async fn provide_credential(&self, context: &Context) -> Result<Option<Credential>> {
        match self {
            Self::Provider(role) => role.provide_credential(context).await,
            Self::Refused(why) => Err(Error::config_invalid(*why)),
        }
    }
}

/// Adds the providers of a profile without a role.
fn of_profile(
    chain: ProvideCredentialChain<Credential>,
    profile: &str,
) -> ProvideCredentialChain<Credential> {
    chain
        .push(ProfileCredentialProvider::new().with_profile(profile))
        .push(SSOCredentialProvider::new().with_profile(profile))
        .push(ProcessCredentialProvider::new().with_profile(profile))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::credentials::{Http, block_on, context};

    const CONFIG: &str = "
[profile base]
aws_access_key_id = BASEACCESSKEY
aws_secret_access_key = base-secret
[profile worker]
role_arn = arn:aws:iam::123456789012:role/worker
source_profile = base
external_id = outside
region = eu-west-2
[profile second]
role_arn = arn:aws:iam::123456789012:role/second
source_profile = worker
[profile loop]
role_arn = arn:aws:iam::123456789012:role/loop
source_profile = pool
[profile pool]
role_arn = arn:aws:iam::123456789012:role/pool
source_profile = loop
[profile bare]
role_arn = arn:aws:iam::123456789012:role/bare
[profile factor]
role_arn = arn:aws:iam::123456789012:role/factor
source_profile = base
mfa_serial = arn:aws:iam::123456789012:mfa/me
";

    /// Gets the credentials of a profile. Returns them, and the target and signature of each request.
    fn ask(profile: &str) -> (Result<Option<Credential>>, Vec<(String, String)>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        std::fs::write(&path, CONFIG).unwrap();
        let variables = [
            ("AWS_CONFIG_FILE", path.to_str().unwrap()),
            ("AWS_SHARED_CREDENTIALS_FILE", "/none"),
        ];
        let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let environment = Environment {
            variables: variables.map(own).into_iter().collect(),
            home: None,
        };
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        let http: Http = Arc::new(move |request| {
            let signed = request.headers()["authorization"]
                .to_str()
                .unwrap()
                .to_owned();
            let body = String::from_utf8_lossy(request.body()).into_owned();
            let mut log = log.lock().unwrap();
            log.push((format!("{} {body}", request.uri()), signed));
            let id = format!("ASSUMEDACCESSKEY{}", log.len());
            let response = format!(
                "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>{id}</AccessKeyId>\
                 <SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>\
                 <Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
            );
            Ok(http::Response::new(response.into_bytes()))
        });
        let context = context(&environment, http);
        let role = Role::of(&environment, profile, &context).expect("it has a role");
        let credential = block_on(role.provide_credential(&context));
        let asked = asked.lock().unwrap().clone();
        (credential, asked)
    }

    #[test]
    fn the_keys_of_the_source_profile_assume_the_role() {
        let (credential, asked) = ask("worker");
        assert_eq!(
            credential.unwrap().unwrap().access_key_id,
            "ASSUMEDACCESSKEY1"
        );
        let [(target, signed)] = asked.as_slice() else {
            panic!("{asked:?}")
        };
        assert!(target.contains("sts.eu-west-2.amazonaws.com"), "{target}");
        assert!(
            target.contains("AssumeRole") && target.contains("role%2Fworker"),
            "{target}"
        );
        assert!(target.contains("ExternalId=outside"), "{target}");
        assert!(
            signed.contains("Credential=BASEACCESSKEY/") && signed.contains("/eu-west-2/sts/"),
            "{signed}"
        );
    }

    #[test]
    fn a_role_can_be_assumed_with_the_role_of_another_profile() {
        let (credential, asked) = ask("second");
        assert_eq!(
            credential.unwrap().unwrap().access_key_id,
            "ASSUMEDACCESSKEY2"
        );
        assert!(
            asked[0].0.contains("role%2Fworker") && asked[1].0.contains("role%2Fsecond"),
            "{asked:?}"
        );
        assert!(
            asked[1].1.contains("Credential=ASSUMEDACCESSKEY1/"),
            "{asked:?}"
        );
    }

    #[test]
    fn a_role_that_cannot_be_assumed_is_an_error_without_a_request() {
        for profile in ["loop", "bare", "factor"] {
            let (credential, asked) = ask(profile);
            assert!(
                credential.is_err() && asked.is_empty(),
                "{profile}: {asked:?}"
            );
        }
    }
}

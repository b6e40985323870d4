//! Profiles that assume a role: `role_arn` with `source_profile`, `credential_source` or `web_identity_token_file`.
//!
//! If the role cannot be assumed, no other credentials are used instead.

use reqsign_aws_v4::{
    AssumeRoleCredentialProvider, AssumeRoleWithWebIdentityCredentialProvider, Credential, ECSCredentialProvider,
    EnvCredentialProvider, IMDSv2CredentialProvider, ProfileCredentialProvider, SSOCredentialProvider,
};
use reqsign_core::{Context, Error, ErrorKind, ProvideCredential, ProvideCredentialChain, Result, Signer};

use super::{
    context::config_value,
    process::{LastFailure, Process},
    sts::{StsEndpoint, StsSender, StsSigner},
};
use crate::access::{Environment, REGION_DEFAULT};

/// The longest chain of profiles that assume a role with the role of another.
const CHAIN_MAX: usize = 5;

/// The provider of a profile's role.
#[derive(Debug)]
pub(super) enum Role {
    /// Assumes the role with other credentials.
    Provider {
        provider: Box<AssumeRoleCredentialProvider>,
        /// Why the process of the source profile failed, if it did.
        process_failure: LastFailure,
    },
    /// Assumes the role with the token in a file, as in Kubernetes.
    WebIdentity {
        provider: Box<AssumeRoleWithWebIdentityCredentialProvider>,
        /// The file that the profile names.
        token_file: Option<String>,
        endpoint: StsEndpoint,
    },
    /// The role cannot be assumed, and why.
    Refused(&'static str),
}

impl Role {
    /// The role of a profile, if it has one.
    pub(super) fn of(environment: &Environment, profile: &str, context: &Context) -> Option<Self> {
        Self::of_chain(environment, profile, context, CHAIN_MAX)
    }

    /// The role of the environment variables, which a token in a file assumes.
    pub(super) fn of_environment(environment: &Environment) -> Self {
        // The variables of a web identity may be missing: then its address does not matter.
        if environment.get("AWS_WEB_IDENTITY_TOKEN_FILE").is_none() {
            return Self::web_identity(
                AssumeRoleWithWebIdentityCredentialProvider::new(),
                None,
                StsEndpoint::Aws,
            );
        }
        match StsEndpoint::of(environment) {
            Ok(endpoint) => Self::web_identity(AssumeRoleWithWebIdentityCredentialProvider::new(), None, endpoint),
            Err(why) => Self::Refused(why),
        }
    }

    fn web_identity(
        provider: AssumeRoleWithWebIdentityCredentialProvider,
        token_file: Option<String>,
        endpoint: StsEndpoint,
    ) -> Self {
        Self::WebIdentity {
            provider: Box::new(provider),
            token_file,
            endpoint,
        }
    }

    fn of_chain(environment: &Environment, profile: &str, context: &Context, left: usize) -> Option<Self> {
        let value = |name: &str| config_value(environment, profile, name);
        let role_arn = value("role_arn")?;
        let region = value("region").or_else(|| environment.get("AWS_REGION").map(str::to_owned));
        let region = region.unwrap_or_else(|| REGION_DEFAULT.to_owned());
        let endpoint = match StsEndpoint::of(environment) {
            Ok(endpoint) => endpoint,
            Err(why) => return Some(Self::Refused(why)),
        };
        if let Some(token_file) = value("web_identity_token_file") {
            return Some(Self::with_token(role_arn, token_file, region, endpoint, value));
        }
        if value("mfa_serial").is_some() {
            let why = "it needs a second factor (mfa_serial), which is not supported; get a session by other means \
                       and set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN";
            return Some(Self::Refused(why));
        }
        let (chain, process_failure) = (ProvideCredentialChain::new(), LastFailure::default());
        let source = match (value("source_profile"), value("credential_source").as_deref()) {
            (Some(source), _) if source != profile => {
                if left == 0 {
                    return Some(Self::Refused("its chain of source profiles is too long or a loop"));
                }
                match Self::of_chain(environment, &source, context, left - 1) {
                    Some(Self::Refused(why)) => return Some(Self::Refused(why)),
                    Some(role) => chain.push(role),
                    None => of_profile(chain, environment, &source, &process_failure),
                }
            }
            // The keys of the profile itself.
            (Some(_), _) => chain.push(ProfileCredentialProvider::new().with_profile(profile)),
            (None, Some("Environment")) => chain.push(EnvCredentialProvider::new()),
            (None, Some("EcsContainer")) => chain.push(ECSCredentialProvider::new()),
            (None, Some("Ec2InstanceMetadata")) => chain.push(IMDSv2CredentialProvider::new()),
            (None, _) => {
                let why = "the profile has a role_arn, but no source_profile, no web_identity_token_file and no known \
                           credential_source";
                return Some(Self::Refused(why));
            }
        };
        let signer = Signer::new(context.clone(), source, StsSigner::new(&region, endpoint));
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
        Some(Self::Provider {
            provider: Box::new(role),
            process_failure,
        })
    }

    /// The role that the token in a file assumes. Such a request is not signed. `value` returns a setting of the
    /// profile.
    fn with_token(
        role_arn: String,
        token_file: String,
        region: String,
        endpoint: StsEndpoint,
        value: impl Fn(&str) -> Option<String>,
    ) -> Self {
        let path = token_file.clone().into();
        let mut provider = AssumeRoleWithWebIdentityCredentialProvider::with_config(role_arn, path)
            .with_region(region)
            .with_regional_sts_endpoint();
        if let Some(name) = value("role_session_name") {
            provider = provider.with_role_session_name(name);
        }
        if let Some(seconds) = value("duration_seconds").and_then(|text| text.parse().ok()) {
            provider = provider.with_duration_seconds(seconds);
        }
        Self::web_identity(provider, Some(token_file), endpoint)
    }
}

impl ProvideCredential for Role {
    type Credential = Credential;

    async fn provide_credential(&self, context: &Context) -> Result<Option<Credential>> {
        match self {
            Self::Provider {
                provider,
                process_failure,
            } => {
                let provided = provider.provide_credential(context).await;
                // Without the credentials of its source, the provider says only that it cannot sign.
                provided.map_err(|error| process_failure.get().map_or(error, Error::config_invalid))
            }
            Self::WebIdentity {
                provider,
                token_file,
                endpoint,
            } => {
                let sender = StsSender {
                    context: context.clone(),
                    endpoint: endpoint.clone(),
                };
                let provided = provider
                    .provide_credential(&context.clone().with_http_send(sender))
                    .await;
                // The provider's own message does not name the file.
                provided.map_err(|error| match (error.kind(), token_file) {
                    (ErrorKind::ConfigInvalid, Some(token_file)) => {
                        Error::config_invalid(format!("{error} (web_identity_token_file is {token_file})"))
                    }
                    _ => error,
                })
            }
            Self::Refused(why) => Err(Error::config_invalid(*why)),
        }
    }
}

/// Adds the providers of a profile without a role.
fn of_profile(
    chain: ProvideCredentialChain<Credential>,
    environment: &Environment,
    profile: &str,
    process_failure: &LastFailure,
) -> ProvideCredentialChain<Credential> {
    chain
        .push(ProfileCredentialProvider::new().with_profile(profile))
        .push(SSOCredentialProvider::new().with_profile(profile))
        .push(Process::new(environment, profile, process_failure))
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
[profile identity]
role_arn = arn:aws:iam::123456789012:role/identity
web_identity_token_file = FOLDER/token
role_session_name = night
[profile third]
role_arn = arn:aws:iam::123456789012:role/third
source_profile = identity
[profile tokenless]
role_arn = arn:aws:iam::123456789012:role/tokenless
web_identity_token_file = FOLDER/missing
[profile mixed]
role_arn = arn:aws:iam::123456789012:role/replaced
region = eu-west-3
[profile factor]
role_arn = arn:aws:iam::123456789012:role/factor
source_profile = base
mfa_serial = arn:aws:iam::123456789012:mfa/me
";

    const CREDENTIALS: &str = "
[stored]
role_arn = arn:aws:iam::123456789012:role/stored
source_profile = keys
[keys]
aws_access_key_id = STOREDACCESSKEY
aws_secret_access_key = stored-secret
[mixed]
role_arn = arn:aws:iam::123456789012:role/mixed
source_profile = keys
";

    /// Gets the credentials of a profile. Returns them, and the target and signature of each request.
    fn ask(profile: &str) -> (Result<Option<Credential>>, Vec<(String, String)>) {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| format!("{}/{name}", folder.path().display());
        let (config, credentials) = (path("config"), path("credentials"));
        std::fs::write(&config, CONFIG.replace("FOLDER/", &path(""))).unwrap();
        std::fs::write(&credentials, CREDENTIALS).unwrap();
        std::fs::write(path("token"), "a-token\n").unwrap();
        let variables = [
            ("AWS_CONFIG_FILE", config.as_str()),
            ("AWS_SHARED_CREDENTIALS_FILE", credentials.as_str()),
        ];
        let environment = Environment::of(&variables);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        let http: Http = Arc::new(move |request| {
            let signed = request.headers().get("authorization");
            let signed = signed.map_or("", |signed| signed.to_str().unwrap());
            let body = String::from_utf8_lossy(request.body()).into_owned();
            let target = format!("{} {body}", request.uri());
            let action = if target.contains("AssumeRoleWithWebIdentity") {
                "AssumeRoleWithWebIdentity"
            } else {
                "AssumeRole"
            };
            let mut log = log.lock().unwrap();
            log.push((target, signed.to_owned()));
            let id = format!("ASSUMEDACCESSKEY{}", log.len());
            let response = format!(
                "<{action}Response><{action}Result><Credentials><AccessKeyId>{id}</AccessKeyId>\
                 <SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>\
                 <Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></{action}Result></{action}Response>"
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
        assert_eq!(credential.unwrap().unwrap().access_key_id, "ASSUMEDACCESSKEY1");
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
        assert_eq!(credential.unwrap().unwrap().access_key_id, "ASSUMEDACCESSKEY2");
        assert!(
            asked[0].0.contains("role%2Fworker") && asked[1].0.contains("role%2Fsecond"),
            "{asked:?}"
        );
        assert!(asked[1].1.contains("Credential=ASSUMEDACCESSKEY1/"), "{asked:?}");
    }

    #[test]
    fn the_token_in_the_file_of_a_profile_assumes_the_role_without_a_signature() {
        let (credential, asked) = ask("identity");
        assert_eq!(credential.unwrap().unwrap().access_key_id, "ASSUMEDACCESSKEY1");
        let [(target, signed)] = asked.as_slice() else {
            panic!("{asked:?}")
        };
        for part in [
            "sts.us-east-1.amazonaws.com",
            "role%2Fidentity",
            "WebIdentityToken=a-token",
            "RoleSessionName=night",
        ] {
            assert!(target.contains(part), "{part}: {target}");
        }
        assert_eq!(signed, "");
        // As the source of another role.
        let (credential, asked) = ask("third");
        assert_eq!(credential.unwrap().unwrap().access_key_id, "ASSUMEDACCESSKEY2");
        assert!(asked[1].1.contains("Credential=ASSUMEDACCESSKEY1/"), "{asked:?}");
    }

    #[test]
    fn a_role_in_the_credentials_file_is_assumed_and_takes_precedence() {
        for (profile, role, region) in [
            ("stored", "role%2Fstored", "us-east-1"),
            ("mixed", "role%2Fmixed", "eu-west-3"),
        ] {
            let (credential, asked) = ask(profile);
            assert!(credential.unwrap().is_some(), "{profile}");
            let [(target, signed)] = asked.as_slice() else {
                panic!("{asked:?}")
            };
            assert!(
                target.contains(role) && target.contains(&format!("sts.{region}.")),
                "{target}"
            );
            assert!(signed.contains("Credential=STOREDACCESSKEY/"), "{signed}");
        }
    }

    #[test]
    fn the_error_of_a_missing_token_names_its_file() {
        let (credential, asked) = ask("tokenless");
        let error = credential.unwrap_err().to_string();
        assert!(
            error.contains("web_identity_token_file") && error.contains("/missing"),
            "{error}"
        );
        assert!(asked.is_empty(), "{asked:?}");
    }

    #[test]
    fn a_role_that_cannot_be_assumed_is_an_error_without_a_request() {
        for profile in ["loop", "bare", "factor"] {
            let (credential, asked) = ask(profile);
            assert!(credential.is_err() && asked.is_empty(), "{profile}: {asked:?}");
        }
    }
}

//! Credentials: their sources, and when they are renewed.
//!
//! The providers are reqsign's. Their futures never wait, since files, commands and HTTP requests run on the caller's
//! thread. One thread calls the providers at a time, and the others use its result.
//!
//! Secrets are used only for signatures: `Debug` hides all values, and a provider's own error is not shown, because it
//! may quote text that it could not parse.

mod context;
mod process;
mod role;
mod sts;
mod words;

use std::{
    fmt,
    future::Future,
    pin::pin,
    sync::{Arc, MutexGuard},
    task::{Context as Task, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use reqsign_aws_v4::{
    Credential, ECSCredentialProvider, EnvCredentialProvider, IMDSv2CredentialProvider, ProfileCredentialProvider,
    SSOCredentialProvider, StaticCredentialProvider,
};
use reqsign_core::{Context, ProvideCredentialDyn, SigningCredential, time::Timestamp};
use straightway_core::{Error, ErrorKind, Lock, Result, SharedLock};

use crate::access::{CredentialSource, S3Access};

pub(crate) use context::{Http, config_value, context};
use process::{LastFailure, Process};
use role::Role;

/// The remaining validity that credentials need: the lifetime of a signature and a margin.
const MARGIN: Duration = Duration::from_mins(7);

/// The remaining validity down to which credentials are used if newer ones cannot be obtained.
const MARGIN_MIN: Duration = Duration::from_secs(10);

/// The pause after a renewal that failed, or that returned credentials below [`MARGIN`]. They are used meanwhile.
const PAUSE: Duration = Duration::from_secs(30);

/// The source of the credentials of an assumed role.
const ROLE: &str = "the profile's role";

/// The sources whose errors in the configuration are shown. Those errors quote no values.
const SHOWN: [&str; 3] = [ROLE, WEB_IDENTITY, PROCESS];

const WEB_IDENTITY: &str = "web identity";

/// The source of requests without credentials.
pub(crate) const ANONYMOUS: &str = "anonymous access";

const PROCESS: &str = "the profile's process";

type Provider = Arc<dyn ProvideCredentialDyn<Credential = Credential>>;

/// Credentials and their source.
pub(crate) struct KnownCredentials {
    /// The credential; `None` for anonymous access.
    pub(crate) credential: Option<Credential>,
    /// Their source, for messages.
    pub(crate) source: &'static str,
    /// Increases with each renewal. Signatures of other generations are not used.
    pub(crate) generation: u64,
}

impl KnownCredentials {
    /// Whether they are valid for at least `time` from now.
    fn lasts(&self, time: Duration) -> bool {
        let at = Timestamp::now() + time;
        self.credential.as_ref().is_none_or(|c| c.is_valid_at(at))
    }
}

impl fmt::Debug for KnownCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KnownCredentials({}, {}th)", self.source, self.generation)
    }
}

/// The credentials of a store, and their providers.
pub(crate) struct Credentials {
    context: Context,
    providers: Vec<(&'static str, Provider)>,
    profile: String,
    latest: SharedLock<Latest>,
    /// Held while providers are called, which may take a minute.
    asking: Lock<()>,
    /// The process that it was made in. A forked child does not wait for `asking`.
    process: straightway_sys::Process,
}

/// The result of the last renewal.
#[derive(Clone, Default)]
struct Latest {
    known: Option<Arc<KnownCredentials>>,
    /// No renewal before this time, unless the service refuses the credentials.
    pause_until: Option<Instant>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.providers.iter().map(|(name, _)| *name).collect();
        write!(f, "Credentials({})", names.join(", "))
    }
}

impl Credentials {
    /// The credentials that `access` selects. No provider is called yet.
    pub(crate) fn new(access: &S3Access, context: Context) -> Self {
        Self {
            providers: providers(access, &context),
            profile: access.profile().to_owned(),
            context,
            latest: SharedLock::default(),
            asking: Lock::new(()),
            process: straightway_sys::Process::this(),
        }
    }

    /// The known credentials; `None` if they must be renewed first. It does not block.
    pub(crate) fn ready(&self) -> Option<Arc<KnownCredentials>> {
        let Latest { known, pause_until } = self.latest();
        let is_paused = pause_until.is_some_and(|until| Instant::now() < until);
        let margin = if is_paused { MARGIN_MIN } else { MARGIN };
        known.filter(|known| known.lasts(margin))
    }

    /// The known credentials, renewed if necessary. It may block.
    pub(crate) fn get(&self) -> Result<Arc<KnownCredentials>> {
        match self.ready() {
            Some(known) => Ok(known),
            None => self.renew(None),
        }
    }

    /// Renews the credentials, unless another thread did so since generation `refused`. It may block.
    pub(crate) fn renew(&self, refused: Option<u64>) -> Result<Arc<KnownCredentials>> {
        let before = self.latest().known.map(|known| known.generation);
        let _asking = self.lock_asking();
        let latest = self.latest().known;
        let is_newer = |known: &Arc<KnownCredentials>| match refused {
            Some(refused) => known.generation > refused,
            None => Some(known.generation) > before || self.ready().is_some(),
        };
        if let Some(known) = latest.as_ref().filter(|known| is_newer(known)) {
            return Ok(Arc::clone(known));
        }
        let generation = latest.as_ref().map_or(0, |known| known.generation) + 1;
        let known = match (self.find(generation), latest) {
            (Ok(found), _) => Arc::new(found),
            // The service did not refuse the old ones, and they are still valid.
            (Err(_), Some(old)) if refused.is_none() && old.lasts(MARGIN_MIN) => old,
            (Err(error), _) => return Err(error),
        };
        // A provider may return a cached token until shortly before it expires. That token is used meanwhile, and the
        // provider is not called for every request.
        let pause_until = (!known.lasts(MARGIN)).then(|| Instant::now() + PAUSE);
        let mut latest = self.latest.write();
        *latest = Latest {
            known: Some(Arc::clone(&known)),
            pause_until,
        };
        Ok(known)
    }

    /// The source of the current credentials.
    pub(crate) fn source(&self) -> &'static str {
        let known = self.latest().known;
        known.map_or("no source yet", |known| known.source)
    }

    /// Lets one thread at a time call the providers.
    ///
    /// If a thread of the parent held the lock when this process was forked, nobody releases it here. So a forked child
    /// only tries it. Without the lock several of its threads may call the providers, which is harmless.
    fn lock_asking(&self) -> Option<MutexGuard<'_, ()>> {
        if self.process.is_this() {
            return Some(self.asking.lock());
        }
        self.asking.try_lock()
    }

    fn latest(&self) -> Latest {
        self.latest.read().clone()
    }

    fn find(&self, generation: u64) -> Result<KnownCredentials> {
        if self.providers.is_empty() {
            return Ok(KnownCredentials {
                credential: None,
                source: ANONYMOUS,
                generation,
            });
        }
        let mut failed = Vec::new();
        for (source, provider) in &self.providers {
            match block_on(provider.provide_credential_dyn(&self.context)) {
                Ok(Some(credential)) if credential.is_valid_at(Timestamp::now() + MARGIN_MIN) => {
                    tracing::info!("S3 credentials from {source}");
                    return Ok(KnownCredentials {
                        credential: Some(credential),
                        source,
                        generation,
                    });
                }
                Ok(Some(_)) => failed.push(format!("those of {source} have expired")),
                Ok(None) => {}
                Err(error) if error.kind() == reqsign_core::ErrorKind::ConfigInvalid && SHOWN.contains(source) => {
                    failed.push(format!("{source} failed: {error}"));
                }
                Err(error) => failed.push(format!("{source} failed ({})", error.kind())),
            }
        }
        let mut message = "no credentials were found".to_owned();
        if !failed.is_empty() {
            message = format!("{message}: {}", failed.join(", "));
        }
        let what = format!("requests to S3 with profile {}", self.profile);
        Err(Error::new(ErrorKind::Invalid, "sign", what, message).with_hint(
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile (⟦profile⟧), or read a public bucket with \
             ⟦anonymous⟧",
        ))
    }
}

/// The providers, in the order of AWS's clients. A profile that the caller names takes precedence over the environment.
fn providers(access: &S3Access, context: &Context) -> Vec<(&'static str, Provider)> {
    let profile = match &access.credentials {
        CredentialSource::Anonymous => return Vec::new(),
        CredentialSource::Keys(keys) => {
            let (id, secret) = (&keys.access_key_id, &keys.secret_access_key);
            let mut given = StaticCredentialProvider::new(id, secret);
            if let Some(token) = &keys.session_token {
                given = given.with_session_token(token);
            }
            return vec![("the keys of this call", Arc::new(given))];
        }
        CredentialSource::Found { profile } => profile,
    };
    let name = access.profile();
    let role = Role::of(&access.environment, name, context);
    let mut all: Vec<(&'static str, Provider)> = vec![
        ("the environment", Arc::new(EnvCredentialProvider::new())),
        (WEB_IDENTITY, Arc::new(Role::of_environment(&access.environment))),
        (
            "the profile",
            Arc::new(ProfileCredentialProvider::new().with_profile(name)),
        ),
        (
            "single sign-on",
            Arc::new(SSOCredentialProvider::new().with_profile(name)),
        ),
        (
            PROCESS,
            Arc::new(Process::new(&access.environment, name, &LastFailure::default())),
        ),
        ("the container", Arc::new(ECSCredentialProvider::new())),
    ];
    if let Some(role) = role {
        // No later provider replaces a role.
        all.truncate(2);
        all.push((ROLE, Arc::new(role)));
    }
    if profile.is_some() {
        all.retain(|(source, _)| source.contains("profile") || source.contains("sign-on"));
    } else if !all.iter().any(|(source, _)| *source == ROLE) && context::has_instance_metadata(&access.environment) {
        all.push(("the instance", Arc::new(IMDSv2CredentialProvider::new())));
    }
    all
}

/// Runs a future on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Task::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use reqsign_core::ProvideCredential;

    use super::*;

    /// A provider that returns credentials once and then fails.
    #[derive(Debug)]
    struct Failing {
        lasts: Duration,
        asked: Arc<AtomicU64>,
    }

    impl ProvideCredential for Failing {
        type Credential = Credential;

        async fn provide_credential(&self, _: &Context) -> reqsign_core::Result<Option<Credential>> {
            if self.asked.fetch_add(1, Ordering::Relaxed) > 0 {
                return Err(reqsign_core::Error::unexpected("it is down, and says hush"));
            }
            Ok(Some(Credential {
                access_key_id: "id".to_owned(),
                secret_access_key: "hush".to_owned(),
                session_token: None,
                expires_in: Some(Timestamp::now() + self.lasts),
            }))
        }
    }

    fn failing(lasts: Duration) -> (Credentials, Arc<AtomicU64>) {
        let asked = Arc::new(AtomicU64::new(0));
        let provider = Failing {
            lasts,
            asked: Arc::clone(&asked),
        };
        let mut credentials = Credentials::new(&S3Access::default(), Context::new());
        credentials.providers = vec![("a test", Arc::new(provider))];
        (credentials, asked)
    }

    /// Ends the pause between renewals.
    fn end_pause(credentials: &Credentials) {
        credentials.latest.write().pause_until = None;
    }

    #[test]
    fn credentials_that_expire_soon_are_used_and_not_renewed_at_once() {
        let (credentials, asked) = failing(MARGIN / 2);
        assert!(credentials.ready().is_none());
        let known = credentials.get().unwrap();
        let ready = credentials.ready().expect("they are valid");
        assert_eq!(ready.generation, known.generation);
        credentials.get().unwrap();
        credentials.renew(None).unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 1, "no renewal during the pause");
        end_pause(&credentials);
        assert!(credentials.ready().is_none(), "they expire soon");
    }

    #[test]
    fn valid_credentials_are_used_while_renewal_fails() {
        let (credentials, asked) = failing(MARGIN / 2);
        credentials.get().unwrap();
        end_pause(&credentials);
        credentials.get().unwrap();
        assert!(
            credentials.ready().is_some(),
            "the renewal failed, and they are still valid"
        );
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        credentials.get().unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 2, "no renewal during the pause");
    }

    #[test]
    fn credentials_that_are_about_to_expire_are_not_used() {
        let (credentials, _) = failing(MARGIN_MIN / 2);
        let error = credentials.get().unwrap_err();
        assert!(error.to_string().contains("have expired"), "{error}");
    }

    #[test]
    fn a_forked_child_does_not_wait_for_a_lock_that_a_thread_of_its_parent_held() {
        let (mut credentials, asked) = failing(Duration::from_hours(1));
        // This process counts as a child.
        credentials.process = straightway_sys::Process::default();
        let _held = credentials.asking.lock();
        credentials.get().unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn credentials_that_were_refused_are_not_used_again() {
        let (credentials, _) = failing(Duration::from_hours(1));
        let known = credentials.get().unwrap();
        let error = credentials.renew(Some(known.generation)).unwrap_err();
        assert!(
            !format!("{error:?} {credentials:?} {known:?}").contains("hush"),
            "{error:?}"
        );
    }

    #[test]
    fn only_one_thread_calls_the_provider() {
        let (credentials, asked) = failing(Duration::from_hours(1));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| credentials.get().unwrap());
            }
        });
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }
}

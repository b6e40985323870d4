//! Credentials: where they come from, and when they are asked for again.
//!
//! The providers are reqsign's. They are futures that never wait, since what they ask for (files, commands, HTTP) is
//! answered on the caller's thread. One thread asks at a time, and the others take what it found.
//!
//! No secret leaves this file but into a signature: `Debug` hides all values, and a provider's own error is not shown,
//! because it may quote what it could not read.

mod context;
mod role;

use std::{
    fmt,
    future::Future,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    task::{Context as Task, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use reqsign_aws_v4::{
    AssumeRoleWithWebIdentityCredentialProvider, Credential, ECSCredentialProvider,
    EnvCredentialProvider, IMDSv2CredentialProvider, ProcessCredentialProvider,
    ProfileCredentialProvider, SSOCredentialProvider, StaticCredentialProvider,
};
use reqsign_core::{Context, ErrorKind, ProvideCredentialDyn, SigningCredential, time::Timestamp};
use straightway_core::{Error, Kind, Result};

use crate::access::{Access, Identity};

pub(crate) use context::{Http, config_value, context};
use role::Role;

/// How long credentials must still be valid to sign with: as long as a signature is used, and some.
const MARGIN: Duration = Duration::from_mins(7);

/// The least that credentials must still be valid. Where no newer ones are to be had, they are used up to here.
const MARGIN_MIN: Duration = Duration::from_secs(10);

/// How long to wait before asking again where that failed and the old ones are still good.
const PAUSE: Duration = Duration::from_secs(30);

/// Where the credentials of an assumed role come from.
const ROLE: &str = "the profile's role";

type Provider = Arc<dyn ProvideCredentialDyn<Credential = Credential>>;

/// Credentials and where they came from.
pub(crate) struct Known {
    /// What signs; `None` where requests are not signed.
    pub(crate) credential: Option<Credential>,
    /// Their source, for messages.
    pub(crate) source: &'static str,
    /// Which of those that were found: a signature by another is not used any more.
    pub(crate) generation: u64,
}

impl Known {
    /// Whether they can sign what is used for `time` from now.
    fn lasts(&self, time: Duration) -> bool {
        let at = Timestamp::now() + time;
        self.credential.as_ref().is_none_or(|c| c.is_valid_at(at))
    }
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Known({}, {}th)", self.source, self.generation)
    }
}

/// Whoever signs the requests of a store.
pub(crate) struct Credentials {
    context: Context,
    providers: Vec<(&'static str, Provider)>,
    profile: String,
    latest: RwLock<Latest>,
    /// Held while providers are asked.
    asking: Mutex<()>,
}

/// What was found last.
#[derive(Clone, Default)]
struct Latest {
    known: Option<Arc<Known>>,
    /// Until then nobody asks for newer ones: it failed.
    pause_until: Option<Instant>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.providers.iter().map(|(name, _)| *name).collect();
        write!(f, "Credentials({})", names.join(", "))
    }
}

impl Credentials {
    /// The credentials that `access` names. Nothing is asked yet.
    pub(crate) fn new(access: &Access, context: Context) -> Self {
        Self {
            providers: providers(access, &context),
            profile: access.profile().to_owned(),
            context,
            latest: RwLock::default(),
            asking: Mutex::new(()),
        }
    }

    /// Those that are known and last; `None` where they have to be asked for first. It does not block.
    pub(crate) fn ready(&self) -> Option<Arc<Known>> {
        let Latest { known, pause_until } = self.latest();
        let is_paused = pause_until.is_some_and(|until| Instant::now() < until);
        let margin = if is_paused { MARGIN_MIN } else { MARGIN };
        known.filter(|known| known.lasts(margin))
    }

    /// Those that are known and last, asked for where they are not. It may block.
    pub(crate) fn get(&self) -> Result<Arc<Known>> {
        match self.ready() {
            Some(known) => Ok(known),
            None => self.renew(None),
        }
    }

    /// Asks again, unless somebody else did since `refused` were known. It may block.
    pub(crate) fn renew(&self, refused: Option<u64>) -> Result<Arc<Known>> {
        let before = self.latest().known.map(|known| known.generation);
        let _asking: MutexGuard<'_, ()> =
            self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let latest = self.latest().known;
        let is_newer = |known: &Arc<Known>| match refused {
            Some(refused) => known.generation > refused,
            None => Some(known.generation) > before || known.lasts(MARGIN),
        };
        if let Some(known) = latest.as_ref().filter(|known| is_newer(known)) {
            return Ok(Arc::clone(known));
        }
        let generation = latest.as_ref().map_or(0, |known| known.generation) + 1;
        let (known, pause_until) = match (self.ask(generation), latest) {
            (Ok(found), _) => (Arc::new(found), None),
            // They were not refused, and are good for a while.
            (Err(_), Some(old)) if refused.is_none() && old.lasts(MARGIN_MIN) => {
                (old, Some(Instant::now() + PAUSE))
            }
            (Err(error), _) => return Err(error),
        };
        let mut latest = self.latest.write().unwrap_or_else(PoisonError::into_inner);
        *latest = Latest {
            known: Some(Arc::clone(&known)),
            pause_until,
        };
        Ok(known)
    }

    /// Where the credentials came from, once they were asked for.
    pub(crate) fn source(&self) -> &'static str {
        let known = self.latest().known;
        known.map_or("no source yet", |known| known.source)
    }

    fn latest(&self) -> Latest {
        let latest = self.latest.read().unwrap_or_else(PoisonError::into_inner);
        latest.clone()
    }

    fn ask(&self, generation: u64) -> Result<Known> {
        if self.providers.is_empty() {
            return Ok(Known {
                credential: None,
                source: "anonymous access",
                generation,
            });
        }
        let mut failed = Vec::new();
        for (source, provider) in &self.providers {
            match wait_for(provider.provide_credential_dyn(&self.context)) {
                Ok(Some(credential)) if credential.is_valid_at(Timestamp::now() + MARGIN_MIN) => {
                    tracing::debug!(source, "found credentials");
                    return Ok(Known {
                        credential: Some(credential),
                        source,
                        generation,
                    });
                }
                Ok(Some(_)) => failed.push(format!("those of {source} have expired")),
                Ok(None) => {}
                // What is wrong with the configuration quotes nothing.
                Err(error) if error.kind() == ErrorKind::ConfigInvalid && *source == ROLE => {
                    failed.push(format!("{source} cannot be assumed: {error}"));
                }
                Err(error) => failed.push(format!("{source} failed ({})", error.kind())),
            }
        }
        let mut message = "no credentials were found".to_owned();
        if !failed.is_empty() {
            message = format!("{message}: {}", failed.join(", "));
        }
        let what = format!("requests to S3 with profile {}", self.profile);
        Err(Error::new(Kind::Invalid, "sign", what, message).with_hint(
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile (--profile), or read a public bucket with \
             --anonymous",
        ))
    }
}

/// What is asked for credentials, in the order of AWS's clients. A profile that the caller names counts before the
/// environment.
fn providers(access: &Access, context: &Context) -> Vec<(&'static str, Provider)> {
    let profile = match &access.identity {
        Identity::Anonymous => return Vec::new(),
        Identity::Keys(keys) => {
            let (id, secret) = (&keys.access_key_id, &keys.secret_access_key);
            let mut given = StaticCredentialProvider::new(id, secret);
            if let Some(token) = &keys.session_token {
                given = given.with_session_token(token);
            }
            return vec![("the keys of this call", Arc::new(given))];
        }
        Identity::Found { profile } => profile,
    };
    let name = access.profile();
    let role = Role::of(&access.environment, name, context);
    let mut all: Vec<(&'static str, Provider)> = vec![
        ("the environment", Arc::new(EnvCredentialProvider::new())),
        (
            "web identity",
            Arc::new(AssumeRoleWithWebIdentityCredentialProvider::new()),
        ),
        (
            "the profile",
            Arc::new(ProfileCredentialProvider::new().with_profile(name)),
        ),
        (
            "single sign-on",
            Arc::new(SSOCredentialProvider::new().with_profile(name)),
        ),
        (
            "the profile's process",
            Arc::new(ProcessCredentialProvider::new().with_profile(name)),
        ),
        ("the container", Arc::new(ECSCredentialProvider::new())),
    ];
    if let Some(role) = role {
        // Nothing that follows takes its place.
        all.truncate(2);
        all.push((ROLE, Arc::new(role)));
    }
    if profile.is_some() {
        all.retain(|(source, _)| source.contains("profile") || source.contains("sign-on"));
    } else if !all.iter().any(|(source, _)| *source == ROLE)
        && context::has_instance_metadata(&access.environment)
    {
        all.push(("the instance", Arc::new(IMDSv2CredentialProvider::new())));
    }
    all
}

/// Runs a future on this thread.
pub(crate) fn wait_for<F: Future>(future: F) -> F::Output {
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

    /// Gives credentials that expire after the first time, and then fails.
    #[derive(Debug)]
    struct Failing {
        lasts: Duration,
        asked: Arc<AtomicU64>,
    }

    impl ProvideCredential for Failing {
        type Credential = Credential;

        async fn provide_credential(
            &self,
            _: &Context,
        ) -> reqsign_core::Result<Option<Credential>> {
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
        let mut credentials = Credentials::new(&Access::default(), Context::new());
        credentials.providers = vec![("a test", Arc::new(provider))];
        (credentials, asked)
    }

    #[test]
    fn credentials_that_are_still_good_are_used_while_no_newer_ones_are_to_be_had() {
        let (credentials, asked) = failing(MARGIN / 2);
        assert!(credentials.ready().is_none());
        credentials.get().unwrap();
        assert!(credentials.ready().is_none(), "they expire soon");
        credentials.renew(None).unwrap();
        assert!(
            credentials.ready().is_some(),
            "asking failed, and they are good for a while"
        );
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        credentials.get().unwrap();
        assert_eq!(
            asked.load(Ordering::Relaxed),
            2,
            "and nobody asks again at once"
        );
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
    fn one_of_many_asks_and_the_others_take_what_it_found() {
        let (credentials, asked) = failing(Duration::from_hours(1));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| credentials.get().unwrap());
            }
        });
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }
}

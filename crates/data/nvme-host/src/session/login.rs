//! In-band authentication by DH-HMAC-CHAP, if a target requires it or the user requires proof from the target.

use std::{io, time::Instant};

use straightway_nvme::{
    Nqn,
    auth::{AuthHost, AuthRandom, Names},
    fabrics::{AUTH_PROTOCOL, AUTH_SPECIFIC, Connected, Fabrics},
};
use straightway_sys::nonce::fill_random;

use super::{
    failure::{LinkError, Refusal},
    link::Link,
};
use crate::settings::HostSettings;

/// The buffer for a message of the controller, the same size as in Linux.
const RECEIVE_BYTES: u32 = 4096;

/// Authenticates this host to a target, and the target to this host if its secret is configured.
pub(crate) fn authenticate(
    link: &mut Link,
    connected: Connected,
    subsystem: &Nqn,
    settings: &HostSettings,
    deadline: Instant,
) -> Result<(), Refusal> {
    if connected.needs_concat {
        let why = "the target requires TLS after authentication, which is not supported";
        return Err(Refusal::permanent(why));
    }
    if !connected.needs_auth && settings.controller_secret.is_none() {
        return Ok(());
    }
    let Some(secret) = settings.secret.clone() else {
        let why = if connected.needs_auth {
            "the target requires authentication, and this host has no secret"
        } else {
            "a target can only prove itself to a host that has a secret"
        };
        return Err(Refusal::permanent(why));
    };
    let names = Names {
        host: settings.host.to_string(),
        subsystem: subsystem.to_string(),
    };
    let random = random().map_err(|why| Refusal::transient(format!("no random bytes: {why}")))?;
    let transaction = (random.sequence & 0xffff) as u16;
    let mut host = AuthHost::new(names, secret, settings.controller_secret.clone(), transaction);
    let failed = |error: LinkError| match error {
        LinkError::Broken(why) => Refusal::transient(format!("authenticate: {why}")),
        LinkError::Refused(status, _) => {
            Refusal::permanent(format!("the target refuses to authenticate this host: {status}"))
        }
    };
    send(link, &host.negotiate(), deadline).map_err(failed)?;
    let challenge = receive(link, deadline).map_err(failed)?;
    let refused = |why: String| Refusal::permanent(format!("authentication failed: {why}"));
    let reply = match host.reply(&challenge, &random) {
        Ok(reply) => reply,
        Err(failure) => return Err(refused(failure.to_string())),
    };
    send(link, &reply, deadline).map_err(failed)?;
    let success = receive(link, deadline).map_err(failed)?;
    match host.finish(&success) {
        Ok(Some(last)) => send(link, &last, deadline).map_err(failed),
        Ok(None) => Ok(()),
        Err(failure) => {
            // Reports the failure to the target. It may have closed the connection already.
            let _ = send(link, &host.failure(failure), deadline);
            Err(refused(failure.to_string()))
        }
    }
}

fn send(link: &mut Link, message: &[u8], deadline: Instant) -> Result<(), LinkError> {
    let command = Fabrics::AuthSend {
        protocol: AUTH_PROTOCOL,
        specific: AUTH_SPECIFIC,
        bytes: u32::try_from(message.len()).expect("messages are short"),
    };
    link.run(command.sqe(), message, &mut [], deadline)?;
    Ok(())
}

fn receive(link: &mut Link, deadline: Instant) -> Result<Vec<u8>, LinkError> {
    let command = Fabrics::AuthReceive {
        protocol: AUTH_PROTOCOL,
        specific: AUTH_SPECIFIC,
        bytes: RECEIVE_BYTES,
    };
    let mut message = vec![0; RECEIVE_BYTES as usize];
    link.run(command.sqe(), &[], &mut message, deadline)?;
    Ok(message)
}

/// Fresh random bytes from the system.
fn random() -> io::Result<AuthRandom> {
    let mut bytes = [0; AuthRandom::BYTES];
    fill_random(&mut bytes)?;
    Ok(AuthRandom::new(&bytes))
}

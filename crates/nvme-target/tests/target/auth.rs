//! Hosts that have to authenticate.

use straightway_nvme::{
    Sgl, Status,
    auth::{self, AuthKeys, AuthRandom, FailureExplanation, Names, Secret},
    fabrics::{AUTH_PROTOCOL, AUTH_SPECIFIC, Fabrics},
    identify,
};
use straightway_nvme_target::HostRule;

use super::host::{Host, Login, NQN, host_nqn, memory, read, start};

fn secret(byte: u8) -> Secret {
    Secret::new(&[byte; 32], None).unwrap()
}

fn random(byte: u8) -> AuthRandom {
    AuthRandom {
        challenge: [byte; 64],
        exponent: [byte; 64],
        sequence: 9,
    }
}

fn names() -> Names {
    Names {
        host: host_nqn().as_str().to_owned(),
        subsystem: NQN.to_owned(),
    }
}

fn send(host: &mut Host, message: &[u8]) {
    let command = Fabrics::AuthSend {
        protocol: AUTH_PROTOCOL,
        specific: AUTH_SPECIFIC,
        bytes: message.len() as u32,
    };
    let sgl = Sgl::in_capsule(message.len() as u32);
    host.admin.ok(command.sqe().with_sgl(sgl), message);
}

fn receive(host: &mut Host) -> Vec<u8> {
    let command = Fabrics::AuthReceive {
        protocol: AUTH_PROTOCOL,
        specific: AUTH_SPECIFIC,
        bytes: 4096,
    };
    host.admin.ok(command.sqe(), &[])
}

/// Authenticates as a host with these secrets.
fn prove(host: &mut Host, own: Secret, controller: Option<Secret>) -> Result<(), auth::Failure> {
    let mut exchange = auth::AuthHost::new(names(), own, controller, 5);
    send(host, &exchange.negotiate());
    let challenge = receive(host);
    let reply = exchange.reply(&challenge, &random(3))?;
    send(host, &reply);
    let success = receive(host);
    match exchange.finish(&success) {
        Ok(Some(last)) => send(host, &last),
        Ok(None) => {}
        Err(failure) => {
            send(host, &exchange.failure(failure));
            return Err(failure);
        }
    }
    Ok(())
}

fn target() -> (straightway_nvme_target::Target, std::net::SocketAddr) {
    let mut config = memory(1 << 20);
    let keys = AuthKeys {
        controller: Some(secret(2)),
        ..AuthKeys::of_host(secret(1))
    };
    let rule = HostRule {
        nqn: host_nqn(),
        keys: Some(keys),
        share: None,
    };
    config.policy.add(rule).unwrap();
    start(&config)
}

#[test]
fn the_right_secret_authenticates_one_way_and_both_ways() {
    let (_target, address) = target();
    for controller in [None, Some(secret(2))] {
        let mut host = Host::connect(address, &Login::default()).unwrap();
        assert!(host.connected.needs_auth);
        prove(&mut host, secret(1), controller).unwrap();
        host.enable();
        host.queue(1).ok(read(1, 0, 1), &[]);
    }
}

#[test]
fn nothing_is_served_without_the_secret() {
    let (target, address) = target();
    let mut host = Host::connect(address, &Login::default()).unwrap();
    let identify = straightway_nvme::admin::Admin::Identify(straightway_nvme::admin::Identify {
        page: identify::page::CONTROLLER,
        nsid: 0,
        controller: 0,
        command_set: 0,
    });
    let refused = Status::AUTH_REQUIRED.dnr();
    assert_eq!(host.admin.status(identify.sqe(), &[]), refused);
    assert_eq!(
        prove(&mut host, secret(9), None),
        Err(FailureExplanation::Failed.into())
    );
    assert_eq!(host.admin.status(identify.sqe(), &[]), refused);
    let mut wire = super::host::Wire::open(address, host.login.digests);
    let cqe = super::host::connect(&mut wire, &host.login, 1, host.connected.controller);
    assert_eq!(cqe.status, refused);
    // The host detects a target that does not have the secret.
    let mut host = Host::connect(address, &Login::default()).unwrap();
    assert_eq!(
        prove(&mut host, secret(1), Some(secret(7))),
        Err(FailureExplanation::Failed.into())
    );
    // A second attempt with the right secret succeeds.
    prove(&mut host, secret(1), None).unwrap();
    host.enable();
    assert!(target.receipts()[0].refused >= 1);
}

//! Hosts that have to authenticate.

use std::time::{Duration, Instant};

use straightway_nvme::{
    Sgl, Status,
    auth::{self, AuthKeys, AuthRandom, FailureExplanation, Names, Secret},
    fabrics::{AUTH_PROTOCOL, AUTH_SPECIFIC, Connected, Fabrics},
    identify,
    nvm::Nvm,
};
use straightway_nvme_target::HostRule;

use super::host::{Host, Login, NQN, Wire, connect, host_nqn, memory, read, start, write};

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

fn send(wire: &mut Wire, message: &[u8]) {
    let command = Fabrics::AuthSend {
        protocol: AUTH_PROTOCOL,
        specific: AUTH_SPECIFIC,
        bytes: message.len() as u32,
    };
    let sgl = Sgl::in_capsule(message.len() as u32);
    wire.ok(command.sqe().with_sgl(sgl), message);
}

fn receive(wire: &mut Wire) -> Vec<u8> {
    let command = Fabrics::AuthReceive {
        protocol: AUTH_PROTOCOL,
        specific: AUTH_SPECIFIC,
        bytes: 4096,
    };
    wire.ok(command.sqe(), &[])
}

/// Authenticates a queue as that of a host with these secrets.
fn prove(wire: &mut Wire, own: Secret, controller: Option<Secret>) -> Result<(), auth::Failure> {
    let mut exchange = auth::AuthHost::new(names(), own, controller, 5);
    send(wire, &exchange.negotiate());
    let challenge = receive(wire);
    let reply = exchange.reply(&challenge, &random(3))?;
    send(wire, &reply);
    let success = receive(wire);
    match exchange.finish(&success) {
        Ok(Some(last)) => send(wire, &last),
        Ok(None) => {}
        Err(failure) => {
            send(wire, &exchange.failure(failure));
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
        prove(&mut host.admin, secret(1), controller.clone()).unwrap();
        host.enable();
        let mut queue = host.queue(1);
        prove(&mut queue, secret(1), controller).unwrap();
        queue.ok(read(1, 0, 1), &[]);
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
        prove(&mut host.admin, secret(9), None),
        Err(FailureExplanation::Failed.into())
    );
    assert_eq!(host.admin.status(identify.sqe(), &[]), refused);
    let mut wire = super::host::Wire::open(address, host.login.digests);
    let cqe = super::host::connect(&mut wire, &host.login, 1, host.connected.controller);
    assert_eq!(cqe.status, refused);
    // The host detects a target that does not have the secret.
    let mut host = Host::connect(address, &Login::default()).unwrap();
    assert_eq!(
        prove(&mut host.admin, secret(1), Some(secret(7))),
        Err(FailureExplanation::Failed.into())
    );
    // A second attempt with the right secret succeeds.
    prove(&mut host.admin, secret(1), None).unwrap();
    host.enable();
    assert!(target.receipts()[0].refused >= 1);
}

/// A host whose admin queue is authenticated.
fn trusted(address: std::net::SocketAddr) -> Host {
    let mut host = Host::connect(address, &Login::default()).unwrap();
    prove(&mut host.admin, secret(1), None).unwrap();
    host.enable();
    host
}

#[test]
fn an_io_queue_without_the_secret_serves_nothing() {
    let (target, address) = target();
    let mut host = trusted(address);
    let mut own = host.queue(1);
    prove(&mut own, secret(1), None).unwrap();
    own.ok(write(1, 0, 8, true), &[7; 4096]);
    // Another program that knows the names and identifiers in Connect.
    let mut thief = Wire::open(address, host.login.digests);
    let cqe = connect(&mut thief, &host.login, 2, host.connected.controller);
    assert!(cqe.status.is_success());
    assert!(Connected::from_result(cqe.result).needs_auth);
    let refused = Status::AUTH_REQUIRED.dnr();
    assert_eq!(thief.status(read(1, 0, 8), &[]), refused);
    for is_in_capsule in [true, false] {
        let status = thief.status(write(1, 0, 8, is_in_capsule), &[1; 4096]);
        assert_eq!(status, refused);
    }
    assert_eq!(thief.status(Nvm::Flush.sqe(1), &[]), refused);
    assert_eq!(
        prove(&mut thief, secret(9), None),
        Err(FailureExplanation::Failed.into())
    );
    assert_eq!(thief.status(read(1, 0, 8), &[]), refused);
    assert!(target.receipts()[0].refused >= 1);
    // The failure ends neither the other queue nor the association.
    assert!(own.ok(read(1, 0, 8), &[]) == [7; 4096]);
    host.identify(identify::page::CONTROLLER, 0);
}

#[test]
fn a_queue_that_does_not_authenticate_ends_in_bounded_time() {
    let (target, address) = target();
    let host = trusted(address);
    let mut own = host.queue(1);
    prove(&mut own, secret(1), None).unwrap();
    // Neither has a keep-alive timeout.
    let mut admin = Host::connect(address, &Login::default()).unwrap().admin;
    let mut queue = host.queue(2);
    let start = Instant::now();
    assert!(admin.receive().is_none());
    assert!(queue.receive().is_none());
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(target.receipts()[0].refused >= 2);
    own.ok(read(1, 0, 1), &[]);
}

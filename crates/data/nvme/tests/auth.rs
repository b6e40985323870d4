//! DH-HMAC-CHAP between both roles, against values of another program, and with misbehaving peers.

#![expect(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use straightway_nvme::auth::{
    AuthController, AuthHost, AuthKeys, AuthRandom, AuthStep, DhGroup, FailureExplanation, Hash, Message, Names, Secret,
};

fn names() -> Names {
    Names {
        host: "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555".to_owned(),
        subsystem: "nqn.t".to_owned(),
    }
}

/// The key 00..1f.
fn secret(transform: Option<Hash>) -> Secret {
    let key: Vec<u8> = (0..32).collect();
    Secret::new(&key, transform).unwrap()
}

fn random(challenge: u8, exponent: u8, sequence: u32) -> AuthRandom {
    AuthRandom {
        challenge: [challenge; 64],
        exponent: [exponent; 64],
        sequence,
    }
}

fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap();
    let digits = bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
    digits.collect()
}

fn controller(keys: AuthKeys) -> AuthController {
    AuthController::new(names(), keys, random(0x11, 0x33, 0x0102_0304))
}

/// Runs an exchange with mutual authentication. Returns the responses of the host and of the controller.
fn exchange(hash: Hash, group: DhGroup, transform: Option<Hash>) -> (String, String) {
    let secret = secret(transform);
    let mut controller = controller(AuthKeys {
        controller: Some(secret.clone()),
        hash: Some(hash),
        group: Some(group),
        ..AuthKeys::of_host(secret.clone())
    });
    let mut host = AuthHost::new(names(), secret.clone(), Some(secret), 0x1234);
    controller.receive(&host.negotiate());
    let reply = host
        .reply(&controller.send(), &random(0x22, 0x44, 0x0a0b_0c0d))
        .unwrap();
    controller.receive(&reply);
    assert_eq!(controller.failure(), None);
    let success = controller.send();
    assert_eq!(controller.step(), AuthStep::Success2);
    let last = host.finish(&success).unwrap().unwrap();
    controller.receive(&last);
    assert_eq!(controller.step(), AuthStep::Done);
    let bytes = hash.bytes();
    (hex(&reply[16..16 + bytes]), hex(&success[16..16 + bytes]))
}

#[test]
fn responses_match_another_program() {
    let expected = [
        (
            (Hash::Sha256, DhGroup::Null, None),
            "1405e345016b95e05a6bbc8e68c33691bd6a1cd71b2c3d45f3715b58d7171ea0",
            "b7086b6ae4922f052ecf75b8eccb62ea5d92ec8c88b097d566ef0d9592dff309",
        ),
        (
            (Hash::Sha384, DhGroup::Null, None),
            "4cec23ffae9008d31abb7995fe18b779c35875f857e63c01a4b64c2f528c930ab4c9e1f01fb109f64e8f1f3aa55ae3ad",
            "07681d2a188c26806a72ea007ba3cdeb36ef93019660400d301b07997e43ae93332b83e67630e1d40f32acf2fd04c2a9",
        ),
        (
            (Hash::Sha512, DhGroup::Ffdhe2048, Some(Hash::Sha256)),
            "def6cc0fd3c6441ebfd61943c19235c29169a412ef94ef921acf814efbd6a5e7\
             bcd1a4d5d464de121ada6be81b9bdce7e6f414c5bddb35ddfdf82fa5cab3735e",
            "c4d5a1b0064fec3e0bfb7560b27950191fbb095b0bb6066c88d1b8b62b239ccc\
             876007964bb27965a63b5908ced0921e560492df7696aae6ce0fd2da5d7341c2",
        ),
        (
            (Hash::Sha256, DhGroup::Ffdhe3072, None),
            "b96484857dc1b414cfaf6c3f5c691e2fdca04f85ae80e63ccac4242efd5affe6",
            "3438fe8bc6b68a71f15d98096bb3c7a8b0a72a89fc5f9a603763f4afc6c5dc10",
        ),
    ];
    for ((hash, group, transform), host, controller) in expected {
        let got = exchange(hash, group, transform);
        assert_eq!(got, (host.to_owned(), controller.to_owned()), "{hash:?}");
    }
}

#[test]
fn every_hash_and_group_authenticates_both_sides() {
    for hash in Hash::ALL {
        exchange(hash, DhGroup::Null, None);
    }
    for group in DhGroup::ALL {
        exchange(Hash::Sha256, group, None);
    }
}

#[test]
fn a_host_with_another_secret_is_refused() {
    let mut controller = controller(AuthKeys::of_host(secret(None)));
    let other = Secret::new(&[9; 32], None).unwrap();
    let mut host = AuthHost::new(names(), other, None, 7);
    controller.receive(&host.negotiate());
    let reply = host.reply(&controller.send(), &random(1, 2, 3)).unwrap();
    controller.receive(&reply);
    assert_eq!(controller.failure(), Some(FailureExplanation::Failed.into()));
    let failure = host.finish(&controller.send()).unwrap_err();
    assert_eq!(failure, FailureExplanation::Failed.into());
    assert_eq!(controller.step(), AuthStep::Failed);
    // The exchange stays failed, whatever the host sends afterwards.
    controller.receive(&reply);
    assert_ne!(controller.step(), AuthStep::Success1);
}

#[test]
fn a_controller_without_the_secret_is_refused() {
    let wrong = Secret::new(&[9; 32], None).unwrap();
    let mut controller = controller(AuthKeys {
        controller: Some(wrong),
        ..AuthKeys::of_host(secret(None))
    });
    let mut host = AuthHost::new(names(), secret(None), Some(secret(None)), 7);
    controller.receive(&host.negotiate());
    let reply = host.reply(&controller.send(), &random(1, 2, 3)).unwrap();
    controller.receive(&reply);
    let failure = host.finish(&controller.send()).unwrap_err();
    assert_eq!(failure, FailureExplanation::Failed.into());
    controller.receive(&host.failure(failure));
    assert_eq!(controller.step(), AuthStep::Failed);
    // A controller that omits its response is refused too.
    let mut host = AuthHost::new(names(), secret(None), Some(secret(None)), 7);
    let mut silent = self::controller(AuthKeys::of_host(secret(None)));
    silent.receive(&host.negotiate());
    host.reply(&silent.send(), &random(1, 2, 3)).unwrap();
    let success = Message::Success1(straightway_nvme::auth::Success1 {
        transaction: 7,
        hash_bytes: 32,
        response: None,
    });
    assert_eq!(host.finish(&success.encode()), Err(FailureExplanation::Failed.into()));
}

#[test]
fn a_reflected_challenge_is_not_answered() {
    let secret = secret(None);
    let mut controller = controller(AuthKeys {
        controller: Some(secret.clone()),
        group: Some(DhGroup::Null),
        ..AuthKeys::of_host(secret.clone())
    });
    let mut host = AuthHost::new(names(), secret.clone(), Some(secret), 7);
    controller.receive(&host.negotiate());
    // The same challenge as the controller's.
    let reply = host.reply(&controller.send(), &random(0x11, 2, 3)).unwrap();
    controller.receive(&reply);
    assert_eq!(controller.failure(), Some(FailureExplanation::Failed.into()));
}

#[test]
fn messages_out_of_order_and_of_other_transactions_fail() {
    let mut early = controller(AuthKeys::of_host(secret(None)));
    early.send();
    assert_eq!(early.step(), AuthStep::Failed);
    let mut host = AuthHost::new(names(), secret(None), None, 7);
    assert!(host.finish(&[0; 16]).is_err());
    let mut other = controller(AuthKeys::of_host(secret(None)));
    other.receive(&host.negotiate());
    let mut challenge = other.send();
    challenge[4] = 8;
    assert!(host.reply(&challenge, &random(1, 2, 3)).is_err());
    // Success2 without mutual authentication.
    other.receive(&Message::Success2 { transaction: 7 }.encode());
    assert_eq!(other.failure(), Some(FailureExplanation::IncorrectMessage.into()));
}

#[test]
fn a_required_group_that_the_host_lacks_fails() {
    let mut controller = controller(AuthKeys {
        group: Some(DhGroup::Ffdhe8192),
        ..AuthKeys::of_host(secret(None))
    });
    let negotiate = Message::Negotiate(straightway_nvme::auth::Negotiate {
        transaction: 1,
        secure_channel: 0,
        hashes: vec![Hash::Sha256],
        groups: vec![DhGroup::Null],
    });
    controller.receive(&negotiate.encode());
    assert_eq!(controller.failure(), Some(FailureExplanation::GroupUnusable.into()));
}

proptest! {
    #[test]
    fn arbitrary_bytes_round_trip_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(message) = Message::decode(&bytes) {
            let again = message.encode();
            prop_assert_eq!(Message::decode(&again).unwrap(), message);
        }
    }

    #[test]
    fn one_changed_bit_of_a_reply_is_refused(bit in 0_usize..(16 + 32) * 8) {
        let mut controller = controller(AuthKeys { group: Some(DhGroup::Null), ..AuthKeys::of_host(secret(None)) });
        let mut host = AuthHost::new(names(), secret(None), None, 7);
        controller.receive(&host.negotiate());
        let mut reply = host.reply(&controller.send(), &random(1, 2, 3)).unwrap();
        // The response does not cover reserved bytes, the challenge-valid flag and the host's own sequence number.
        let at = bit / 8;
        prop_assume!(!matches!(at, 2 | 3 | 7 | 8 | 9 | 12..16));
        reply[at] ^= 1 << (bit % 8);
        controller.receive(&reply);
        prop_assert!(controller.failure().is_some());
    }
}

//! Other input from an NVMe/TCP peer: the name index of a target, and authentication messages.

use straightway_nvme::{
    auth::{AuthController, AuthKeys, AuthRandom, AuthStep, Message, Names, Secret},
    index::{NameIndex, is_index_name},
};

/// Any bytes as the name index of a target. A decoded index round-trips, and no name leaves the folder.
pub(super) fn index(data: &[u8]) {
    let Ok(index) = NameIndex::decode(data) else {
        return;
    };
    for entry in &index.entries {
        assert!(is_index_name(&entry.name));
        assert_eq!(entry.nsid == 0, entry.bytes == 0);
        assert_eq!(index.find(&entry.name), Some(entry));
    }
    let again = index.encode().expect("a decoded index is within the limits");
    assert_eq!(NameIndex::decode(&again).expect("ours"), index);
}

/// Any bytes as messages of a host that does not know the secret. It is never authenticated.
pub(super) fn auth(data: &[u8]) {
    // Unknown hashes and groups are left out. An offer of unknown ones only has no encoded form.
    let is_empty = |message: &Message| match message {
        Message::Negotiate(offer) => offer.hashes.is_empty() || offer.groups.is_empty(),
        _ => false,
    };
    if let Ok(message) = Message::decode(data)
        && !is_empty(&message)
    {
        let again = Message::decode(&message.encode());
        assert_eq!(again.expect("ours"), message);
    }
    let secret = Secret::new(&[0x5c; 32], None).expect("32 bytes");
    let names = Names {
        host: "nqn.host".to_owned(),
        subsystem: "nqn.subsystem".to_owned(),
    };
    let random = AuthRandom {
        challenge: [1; 64],
        exponent: [2; 64],
        sequence: 3,
    };
    let mut controller = AuthController::new(names, AuthKeys::of_host(secret), random);
    // A byte gives the length of the next message, and whether the host requests one before it.
    let mut rest = data;
    for _ in 0..8 {
        let Some((head, behind)) = rest.split_first() else {
            break;
        };
        let (message, behind) = behind.split_at(usize::from(head & 0x7f).min(behind.len()));
        if head & 0x80 != 0 {
            controller.send();
        }
        controller.receive(message);
        assert!(!matches!(
            controller.step(),
            AuthStep::Success1 | AuthStep::Success2 | AuthStep::Done
        ));
        rest = behind;
    }
}

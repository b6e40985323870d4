//! What an NVMe/TCP peer sends beside PDUs: the index of a target of ours, and messages of authentication.

use straightway_nvme::{
    auth::{Controller, Keys, Message, Names, Random, Secret, Step},
    index::{Index, is_index_name},
};

/// Any bytes as the index of a target: what is read of it can be written and read again, and no name leads elsewhere.
pub(super) fn index(data: &[u8]) {
    let Ok(index) = Index::decode(data) else {
        return;
    };
    for entry in &index.entries {
        assert!(is_index_name(&entry.name));
        assert_eq!(entry.nsid == 0, entry.bytes == 0);
        assert_eq!(index.find(&entry.name), Some(entry));
    }
    let again = index.encode().expect("what was read is within the limits");
    assert_eq!(Index::decode(&again).expect("ours"), index);
}

/// Any bytes as messages of a host that does not know the secret, cut at zero bytes of length: it is never let in.
pub(super) fn auth(data: &[u8]) {
    if let Ok(message) = Message::decode(data) {
        let again = Message::decode(&message.encode());
        assert_eq!(again.expect("ours"), message);
    }
    let secret = Secret::new(&[0x5c; 32], None).expect("32 bytes");
    let names = Names {
        host: "nqn.host".to_owned(),
        subsystem: "nqn.subsystem".to_owned(),
    };
    let random = Random {
        challenge: [1; 64],
        exponent: [2; 64],
        sequence: 3,
    };
    let mut controller = Controller::new(names, Keys::of_host(secret), random);
    // A byte says how long the next message is, and whether the host asks for one before it.
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
            Step::Success1 | Step::Success2 | Step::Done
        ));
        rest = behind;
    }
}

//! Reads and writes over TLS, on a real server behind a TLS front, and through faulty connections.

use std::{ffi::OsStr, sync::Arc, time::Duration};

use straightway_core::ErrorKind;
use straightway_io::{Settings, Store, store::Missing};
use straightway_lab::{ByteRelay, S3Server, TlsFront};
use straightway_net::{Network, Roots, suited};
use straightway_s3::S3;

use super::{
    access, content, read,
    writes::{open_uploads, read_by_lanes, upload},
};

const PART: usize = 8 << 20;

/// A bucket at an address with TLS. The certificate file must outlive it.
fn store(front: &TlsFront, port: u16, file: &tempfile::NamedTempFile) -> S3 {
    front.certificate().write(file.path()).unwrap();
    let network = Network::new(straightway_net::NetworkSettings {
        roots: Roots::File(file.path().to_owned()),
        stall_max: Duration::from_secs(5),
        ..straightway_net::NetworkSettings::default()
    });
    let url = format!("https://127.0.0.1:{port}");
    S3::new(S3Server::BUCKET, &access(&url), &network).unwrap()
}

#[test]
fn objects_of_every_length_are_written_and_read_over_tls() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    let front = TlsFront::start(&weed.address()).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let store = store(&front, front.address().port(), &file);
    let plain = super::store(&access(&weed.url()));
    for (number, length) in [0, 1, 5000, PART, 2 * PART + 12_345].into_iter().enumerate() {
        let (name, bytes) = (format!("tls/{number}"), content(number as u64 + 50, length));
        upload(&store, &name, &bytes).unwrap();
        assert!(read(&plain, &name).unwrap() == bytes, "{length} bytes");
        let got = read_by_lanes(&store, &name, suited(Settings::default())).unwrap();
        assert!(got == bytes, "{length} bytes");
    }
    let inside = plain.below(OsStr::new("tls"), Missing::Refuse).unwrap();
    assert!(open_uploads(&*inside).is_empty());
}

#[test]
fn broken_handshakes_and_damaged_records_cause_no_wrong_byte_and_no_partial_object() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    let front = TlsFront::start(&weed.address()).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let plain = super::store(&access(&weed.url()));
    let mut broken = 0;
    for seed in 0..4 {
        let wire = ByteRelay::start(front.address(), seed, 40).unwrap();
        let store = Arc::new(store(&front, wire.address().port(), &file));
        let (name, bytes) = (format!("tls-wire/{seed}"), content(seed + 70, 2 * PART + 77));
        // A damaged handshake can look like an untrusted certificate, which is an error.
        if let Err(error) = upload(&store, &name, &bytes) {
            assert!(
                matches!(error.kind(), ErrorKind::Transient | ErrorKind::Invalid),
                "{error}"
            );
            upload(&plain, &name, &bytes).unwrap();
        }
        assert!(read(&plain, &name).unwrap() == bytes, "seed {seed}");
        match read_by_lanes(&store, &name, suited(Settings::default())) {
            Ok(got) => assert!(got == bytes, "seed {seed}"),
            Err(error) => {
                assert!(
                    matches!(error.kind(), ErrorKind::Transient | ErrorKind::Invalid),
                    "{error}"
                );
            }
        }
        broken += wire.broken();
    }
    assert!(broken > 0);
    let inside = plain.below(OsStr::new("tls-wire"), Missing::Refuse).unwrap();
    // An upload whose first response was lost is found only by a sweep.
    open_uploads(&*inside);
    assert!(open_uploads(&*inside).is_empty());
}

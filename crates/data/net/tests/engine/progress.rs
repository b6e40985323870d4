//! Bodies that come too slowly, and connections that end after a few bytes.

use std::time::{Duration, Instant};

use straightway_core::ErrorKind;
use straightway_io::engine::Engine;
use straightway_net::NetworkSettings;
use straightway_webserver::{ReceivedRequest, Server, ServerStep};

use super::{
    TAG,
    fixture::{self, Lab, content, read_all},
    start,
};

/// With or without TLS, and with or without io_uring.
const WAYS: [(bool, bool); 3] = [(false, true), (true, true), (false, false)];

fn engine(lab: &Lab, is_ring: bool) -> Box<dyn Engine> {
    if is_ring {
        Box::new(lab.engine(1))
    } else {
        Box::new(straightway_net::threads(1).unwrap())
    }
}

/// A response that ends after this many bytes of its body.
fn cut(request: &ReceivedRequest, object: &[u8], body_bytes: usize) -> Vec<ServerStep> {
    let bytes = request.response_bytes(object, TAG);
    let head_end = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
    let end = bytes.len().min(head_end + body_bytes);
    vec![ServerStep::Bytes(bytes[..end].to_vec()), ServerStep::Close]
}

/// Reads an object from a server that stalls once. `seconds` are the stall timeout and the most time for the read.
fn read_after_stall(server: &Server, is_ring: bool, object: &[u8], seconds: [u64; 2]) {
    let [stall_max, most] = seconds.map(Duration::from_secs);
    let settings = NetworkSettings {
        stall_max,
        ..NetworkSettings::default()
    };
    let lab = Lab::new(server, settings);
    let remote = lab.open("/object");
    let begun = Instant::now();
    let mut engine = engine(&lab, is_ring);
    let got = read_all(&mut *engine, &remote, object.len(), object.len()).unwrap();
    let way = format!("{}, ring {is_ring}", server.url(""));
    assert!(got.bytes == object && got.tries.retries >= 1, "{way}: {:?}", got.tries);
    let took = begun.elapsed();
    assert!(took < most, "{way}: {took:?}");
}

#[test]
fn a_body_that_comes_byte_by_byte_is_resumed_on_another_connection() {
    let object = content(40_000, 21);
    for (tls, is_ring) in WAYS {
        let copy = object.clone();
        let server = start(tls, move |request| {
            let bytes = request.response_bytes(&copy, TAG);
            if request.number != 1 {
                return vec![ServerStep::Bytes(bytes)];
            }
            let (front, back) = bytes.split_at(10_000);
            let drip = back.chunks(1).take(1000).flat_map(|byte| {
                [
                    ServerStep::Bytes(byte.to_vec()),
                    ServerStep::Wait(Duration::from_millis(50)),
                ]
            });
            let front = ServerStep::Bytes(front.to_vec());
            std::iter::once(front).chain(drip).collect()
        });
        read_after_stall(&server, is_ring, &object, [2, 30]);
    }
}

#[test]
fn a_server_that_closes_each_connection_after_a_byte_is_given_up() {
    for (tls, is_ring) in WAYS {
        let object = content(20_000, 22);
        let server = start(tls, move |request| match request.number {
            0 => request.response(&object, TAG),
            _ => cut(request, &object, 1),
        });
        let lab = Lab::new(&server, fixture::impatient());
        let remote = lab.open("/object");
        let mut engine = engine(&lab, is_ring);
        let error = read_all(&mut *engine, &remote, 20_000, 20_000).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
        let requests = server.requests();
        assert!(requests <= 5, "tls {tls}, ring {is_ring}: {requests}");
    }
}

/// An error whose body stops after its first bytes.
fn stalled_error(status: &str) -> Vec<ServerStep> {
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: 1000\r\n\r\n<Error>");
    vec![
        ServerStep::Bytes(head.into_bytes()),
        ServerStep::Wait(Duration::from_secs(20)),
    ]
}

#[test]
fn an_error_whose_body_stalls_is_retried() {
    let object = content(40_000, 24);
    std::thread::scope(|scope| {
        for (tls, is_ring) in WAYS {
            for status in ["500 Internal Server Error", "503 Slow Down"] {
                let object = &object;
                scope.spawn(move || {
                    let copy = object.clone();
                    let server = start(tls, move |request| match request.number {
                        1 => stalled_error(status),
                        _ => request.response(&copy, TAG),
                    });
                    read_after_stall(&server, is_ring, object, [3, 12]);
                });
            }
        }
    });
}

#[test]
fn an_error_whose_body_stalls_each_time_is_reported() {
    let object = content(40_000, 25);
    let server = start(false, move |request| match request.number {
        0 => request.response(&object, TAG),
        _ => stalled_error("403 Forbidden"),
    });
    let lab = Lab::new(&server, fixture::impatient());
    let remote = lab.open("/object");
    let error = read_all(&mut *engine(&lab, true), &remote, 40_000, 40_000).unwrap_err();
    assert!(error.to_string().contains("403"), "{error}");
}

#[test]
fn cuts_after_enough_bytes_are_resumed_without_limit() {
    let object = content(40_000, 23);
    for (tls, is_ring) in WAYS {
        let copy = object.clone();
        let server = start(tls, move |request| cut(request, &copy, 2000));
        let settings = NetworkSettings {
            progress_bytes_min: 1000,
            stall_max: Duration::from_secs(5),
            ..fixture::impatient()
        };
        let lab = Lab::new(&server, settings);
        let remote = lab.open("/object");
        let mut engine = engine(&lab, is_ring);
        let got = read_all(&mut *engine, &remote, object.len(), object.len()).unwrap();
        assert!(got.bytes == object, "tls {tls}, ring {is_ring}");
        assert!(got.tries.retries >= 19, "tls {tls}, ring {is_ring}");
    }
}

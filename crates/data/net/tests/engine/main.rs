//! The engine against servers that respond correctly, wrongly, late or not at all.

#![expect(clippy::unwrap_used, reason = "tests")]

mod checksums;
mod encodings;
mod fixture;
mod opening;
mod pacing;
mod progress;

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use fixture::{Lab, content, io, read_all};
use straightway_core::{
    Error, ErrorKind, Result,
    random::{Rng, Seed},
};
use straightway_io::{engine::Engine, request::Op};
use straightway_net::{Head, HttpEngine, HttpResponse, Judgement, NetworkSettings, Next, Service, judge_status};
use straightway_sys::Buf;
use straightway_webserver::{ReceivedRequest, Server, ServerStep, head, short};

const TAG: &str = "\"v1\"";

fn start(tls: bool, handler: impl Fn(&ReceivedRequest) -> Vec<ServerStep> + Send + Sync + 'static) -> Server {
    if tls {
        Server::start_tls(handler)
    } else {
        Server::start(handler)
    }
}

/// Settings without hedges.
fn unhedged() -> NetworkSettings {
    NetworkSettings {
        hedges: false,
        ..NetworkSettings::default()
    }
}

#[test]
fn every_byte_arrives_at_every_depth_and_size_with_and_without_tls() {
    let object = content(1_000_003, 1);
    for tls in [false, true] {
        let copy = object.clone();
        let handler = move |request: &ReceivedRequest| request.response(&copy, TAG);
        let server = start(tls, handler);
        let lab = Lab::new(&server, unhedged());
        let remote = lab.open("/object");
        for (depth, chunk) in [
            (1, 65_536),
            (2, 1),
            (3, 4095),
            (8, 100_000),
            (64, 16_384),
            (5, 2_000_000),
        ] {
            let bytes = if chunk == 1 { &object[..300] } else { &object[..] };
            let got = read_all(&mut lab.engine(depth), &remote, bytes.len(), chunk).unwrap();
            assert!(got.bytes == bytes, "tls {tls}, depth {depth}, chunks of {chunk}");
            assert_eq!(got.tries.retries, 0);
        }
        assert!(
            server.connections() <= 1 + 1 + 2 + 3 + 8 + 64 + 5,
            "connections are reused"
        );
    }
}

#[test]
fn the_thread_engine_reads_every_byte_and_resumes_after_cuts() {
    let object = content(700_001, 18);
    for tls in [false, true] {
        let copy = object.clone();
        let server = start(tls, move |request| {
            let bytes = request.response_bytes(&copy, TAG);
            if request.number % 9 == 4 {
                return vec![ServerStep::Bytes(bytes[..bytes.len() / 2].to_vec()), ServerStep::Close];
            }
            vec![ServerStep::Bytes(bytes)]
        });
        let lab = Lab::new(&server, NetworkSettings::default());
        let remote = lab.open("/object");
        let mut engine = straightway_net::threads(4).unwrap();
        let got = read_all(&mut engine, &remote, object.len(), 30_001).unwrap();
        assert!(got.bytes == object, "tls {tls}");
        assert!(got.tries.retries > 0, "tls {tls}");
        assert_eq!(fixture::read_range(&mut engine, &remote, 800_000, 10).unwrap().moved, 0);
    }
}

#[test]
fn connections_are_bounded_and_reused_between_reads() {
    let object = content(400_000, 2);
    let copy = object.clone();
    let server = Server::start(move |request| request.response(&copy, TAG));
    let lab = Lab::new(
        &server,
        NetworkSettings {
            connections_max: 3,
            ..unhedged()
        },
    );
    let remote = lab.open("/object");
    let mut engine = lab.engine(16);
    for _ in 0..5 {
        let got = read_all(&mut engine, &remote, object.len(), 1000).unwrap();
        assert!(got.bytes == object);
    }
    // The control plane has one more.
    assert!(server.connections() <= 4, "{}", server.connections());
    assert_eq!(server.requests(), 1 + 5 * 400);
}

#[test]
fn a_body_cut_at_any_byte_is_resumed_at_that_byte() {
    let object = content(20_000, 3);
    let cuts = (0..400).chain([4095, 4096, 4097, 10_000, 20_000]);
    // Handshakes are expensive: with TLS only every 40th byte is tested.
    let cuts_tls = (0..400).step_by(40).chain([10_000]);
    let all = cuts.map(|cut| (false, cut)).chain(cuts_tls.map(|cut| (true, cut)));
    for (tls, cut) in all {
        let copy = object.clone();
        let handler = move |request: &ReceivedRequest| {
            let bytes = request.response_bytes(&copy, TAG);
            if request.number != 1 {
                return vec![ServerStep::Bytes(bytes)];
            }
            vec![ServerStep::Bytes(bytes[..cut].to_vec()), ServerStep::Close]
        };
        let server = start(tls, handler);
        let lab = Lab::new(&server, unhedged());
        let remote = lab.open("/object");
        let got = read_all(&mut lab.engine(1), &remote, object.len(), object.len()).unwrap();
        assert!(got.bytes == object, "tls {tls}, cut at {cut}");
        assert_eq!(got.tries.retries, 1, "tls {tls}, cut at {cut}");
    }
}

#[test]
fn a_retry_after_a_cut_requests_only_the_missing_range() {
    let object = content(50_000, 4);
    let (copy, asked_bytes) = (object.clone(), Arc::new(AtomicUsize::new(0)));
    let sum = Arc::clone(&asked_bytes);
    let server = Server::start(move |request| {
        let bytes = request.response_bytes(&copy, TAG);
        sum.fetch_add(request.range(50_000).unwrap().len(), Ordering::Relaxed);
        if request.number == 0 {
            return vec![ServerStep::Bytes(bytes)];
        }
        // Ten thousand bytes at a time.
        vec![
            ServerStep::Bytes(bytes[..bytes.len().min(10_000)].to_vec()),
            ServerStep::Close,
        ]
    });
    let lab = Lab::new(&server, NetworkSettings::default());
    let remote = lab.open("/object");
    let first = asked_bytes.load(Ordering::Relaxed);
    let got = read_all(&mut lab.engine(1), &remote, 50_000, 50_000).unwrap();
    assert!(got.bytes == object);
    let requested = asked_bytes.load(Ordering::Relaxed) - first;
    // 50 + 40.1 + 30.2 + … thousand, not six times fifty.
    assert!(requested < 170_000, "{requested}");
}

/// A wrong response of a server to a request for a range of an object.
#[derive(Clone, Copy)]
enum Lie {
    /// The bytes after a head with status 206, these headers, and the version of the object if it says so.
    Headers(&'static [(&'static str, &'static str)]),
    /// Any other.
    Steps(fn() -> Vec<ServerStep>),
}

const LENGTH: (&str, &str) = ("Content-Length", "1000");
const RANGE: (&str, &str) = ("Content-Range", "bytes 1000-1999/5000");
const VERSION: (&str, &str) = ("ETag", TAG);

impl Lie {
    fn steps(self, request: &ReceivedRequest, object: &[u8]) -> Vec<ServerStep> {
        match self {
            Self::Headers(headers) => {
                let mut bytes = head("206 P", headers);
                bytes.extend_from_slice(&object[request.range(object.len()).unwrap()]);
                vec![ServerStep::Bytes(bytes), ServerStep::Close]
            }
            Self::Steps(steps) => steps(),
        }
    }
}

/// Servers whose every response is wrong, and the resulting error.
const LIES: &[(&str, Lie, ErrorKind, &str)] = {
    use ErrorKind::{Corrupt, Precondition, Transient, Unsupported};
    use Lie::{Headers, Steps};
    &[
        (
            "200 to a range",
            Steps(|| {
                let whole = [head("200 OK", &[("Content-Length", "5000"), VERSION]), vec![7; 5000]];
                vec![ServerStep::Bytes(whole.concat())]
            }),
            Unsupported,
            "whole object",
        ),
        (
            "another range",
            Headers(&[LENGTH, ("Content-Range", "bytes 1-1000/5000"), VERSION]),
            Corrupt,
            "another range",
        ),
        (
            "another total",
            Headers(&[LENGTH, ("Content-Range", "bytes 1000-1999/5001"), VERSION]),
            Corrupt,
            "another range",
        ),
        ("no range", Headers(&[LENGTH, VERSION]), Corrupt, "which range"),
        (
            "another length",
            Headers(&[("Content-Length", "999"), RANGE, VERSION]),
            Corrupt,
            "999 bytes",
        ),
        (
            "two lengths",
            Headers(&[LENGTH, ("Content-Length", "10"), RANGE, VERSION]),
            Corrupt,
            "Content-Length cannot be read",
        ),
        (
            "chunks",
            Headers(&[("Transfer-Encoding", "chunked"), RANGE, VERSION]),
            Unsupported,
            "chunks",
        ),
        (
            "another version",
            Headers(&[LENGTH, RANGE, ("ETag", "\"v2\"")]),
            Precondition,
            "replaced",
        ),
        ("no version", Headers(&[LENGTH, RANGE]), Precondition, "which version"),
        (
            "a wait of an hour",
            Steps(|| {
                let headers = [("Retry-After", "3600"), ("Content-Length", "0")];
                vec![ServerStep::Bytes(head("503 Slow Down", &headers))]
            }),
            Transient,
            "it asks to retry after 3600 s, more than 60 s",
        ),
        (
            "412",
            Steps(|| short("412 Precondition Failed", "")),
            Precondition,
            "replaced",
        ),
        (
            "404",
            Steps(|| short("404 Not Found", "gone")),
            ErrorKind::NotFound,
            "no such object",
        ),
        ("403", Steps(|| short("403 Forbidden", "")), ErrorKind::Denied, "denied"),
        (
            "no HTTP",
            Steps(|| vec![ServerStep::Bytes(b"SSH-2.0-x\r\n".to_vec())]),
            Transient,
            "not valid HTTP",
        ),
        (
            "a head of 1 MB",
            Steps(|| vec![ServerStep::Bytes(head("206 P", &[("X", &"a".repeat(1 << 20))]))]),
            Transient,
            "too long",
        ),
        (
            "nothing",
            Steps(|| vec![ServerStep::Close]),
            Transient,
            "closed the connection",
        ),
    ]
};

#[test]
fn wrong_responses_never_become_data() {
    for (name, lie, kind, why) in LIES {
        let object = content(5000, 5);
        let lie = *lie;
        let server = Server::start(move |request| {
            if request.number == 0 {
                request.response(&object, TAG)
            } else {
                lie.steps(request, &object)
            }
        });
        let lab = Lab::new(&server, fixture::impatient());
        let remote = lab.open("/object");
        let error = fixture::read_range(&mut lab.engine(4), &remote, 1000, 1000).unwrap_err();
        assert_eq!(error.kind(), *kind, "{name}: {error}");
        assert!(error.to_string().contains(why), "{name}: {error}");
        assert!(error.to_string().contains("/object"), "{name}: {error}");
    }
}

#[test]
fn interim_responses_are_read_over() {
    let object = content(40_000, 26);
    for (tls, is_ring) in [(false, true), (true, true), (false, false)] {
        let copy = object.clone();
        let server = start(tls, move |request| {
            let interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
            let mut bytes = interim.to_vec();
            if request.number % 2 == 0 {
                bytes.extend(request.response_bytes(&copy, TAG));
                return vec![ServerStep::Bytes(bytes)];
            }
            // Each in a packet of its own.
            let mut steps: Vec<_> = bytes
                .split_inclusive(|byte| *byte == b'\n')
                .map(<[u8]>::to_vec)
                .collect();
            steps.push(request.response_bytes(&copy, TAG));
            let wait = ServerStep::Wait(Duration::from_millis(2));
            let steps = steps.into_iter().map(ServerStep::Bytes);
            steps.flat_map(|step| [step, wait.clone()]).collect()
        });
        let lab = Lab::new(&server, unhedged());
        let remote = lab.open("/object");
        let mut engine: Box<dyn Engine> = if is_ring {
            Box::new(lab.engine(1))
        } else {
            Box::new(straightway_net::threads(1).unwrap())
        };
        let got = read_all(&mut *engine, &remote, object.len(), 10_000).unwrap();
        assert!(got.bytes == object, "tls {tls}, ring {is_ring}");
        assert_eq!(got.tries.retries, 0, "tls {tls}, ring {is_ring}");
    }
}

#[test]
fn an_occasional_wrong_response_is_retried() {
    let object = content(100_000, 6);
    let copy = object.clone();
    let server = Server::start(move |request| match request.number {
        0 => request.response(&copy, TAG),
        n if n % 3 == 1 => {
            // The requested bytes with a `Content-Range` that is off by one.
            let range = request.range(100_000).unwrap();
            let content_range = format!("bytes {}-{}/100000", range.start.saturating_sub(1), range.end - 2);
            let length = range.len().to_string();
            let mut bytes = head(
                "206 P",
                &[
                    ("Content-Length", &length),
                    ("Content-Range", &content_range),
                    ("ETag", TAG),
                ],
            );
            bytes.extend_from_slice(&copy[range]);
            vec![ServerStep::Bytes(bytes)]
        }
        n if n % 7 == 2 => short("500 Internal Server Error", "oops"),
        _ => request.response(&copy, TAG),
    });
    let lab = Lab::new(&server, NetworkSettings::default());
    let remote = lab.open("/object");
    let got = read_all(&mut lab.engine(4), &remote, object.len(), 7001).unwrap();
    assert!(got.bytes == object);
    assert!(got.tries.retries > 3);
}

#[test]
fn surplus_bytes_after_a_body_are_discarded() {
    let object = content(30_000, 7);
    for whole_response in [false, true] {
        let copy = object.clone();
        let server = Server::start(move |request| {
            let mut bytes = request.response_bytes(&copy, TAG);
            if request.number > 0 {
                // Garbage, or a second response that would fit the next request.
                let next = ReceivedRequest {
                    headers: vec![("range".to_owned(), "bytes=10000-19999".to_owned())],
                    ..request.clone()
                };
                let wrong = vec![0xEE; 30_000];
                let more = if whole_response {
                    next.response_bytes(&wrong, TAG)
                } else {
                    b"rubbish".to_vec()
                };
                bytes.extend_from_slice(&more);
            }
            vec![ServerStep::Bytes(bytes)]
        });
        let lab = Lab::new(&server, NetworkSettings::default());
        let remote = lab.open("/object");
        let got = read_all(&mut lab.engine(1), &remote, object.len(), 10_000).unwrap();
        assert!(got.bytes == object, "a whole response: {whole_response}");
    }
}

#[test]
fn a_server_that_closes_idle_connections_costs_no_retry() {
    let object = content(10_000, 8);
    let copy = object.clone();
    let server = Server::start(move |request| {
        let mut steps = request.response(&copy, TAG);
        steps.push(ServerStep::Close);
        steps
    });
    let lab = Lab::new(&server, NetworkSettings::default());
    let remote = lab.open("/object");
    let mut engine = lab.engine(1);
    for at in 0..10 {
        let got = fixture::read_range(&mut engine, &remote, at * 1000, 1000).unwrap();
        let at = usize::try_from(at).unwrap();
        assert!(got.bytes == object[at * 1000..][..1000]);
        assert_eq!(got.tries.retries, 0);
        let deadline = Instant::now() + Duration::from_secs(20);
        while server.open() > 0 {
            assert!(Instant::now() < deadline, "the server closes its connection");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_stalled_read_is_resumed_on_another_connection() {
    let object = content(40_000, 9);
    let copy = object.clone();
    let server = Server::start(move |request| {
        let bytes = request.response_bytes(&copy, TAG);
        if request.number != 1 {
            return vec![ServerStep::Bytes(bytes)];
        }
        let (front, back) = bytes.split_at(15_000);
        vec![
            ServerStep::Bytes(front.to_vec()),
            ServerStep::Wait(Duration::from_secs(30)),
            ServerStep::Bytes(back.to_vec()),
        ]
    });
    let settings = NetworkSettings {
        stall_max: Duration::from_millis(200),
        ..NetworkSettings::default()
    };
    let lab = Lab::new(&server, settings);
    let remote = lab.open("/object");
    let start = Instant::now();
    let got = read_all(&mut lab.engine(1), &remote, object.len(), object.len()).unwrap();
    assert!(got.bytes == object);
    assert_eq!(got.tries.retries, 1);
    assert!(start.elapsed() < Duration::from_secs(20));
}

/// The server stops sending before the head, inside it, and inside the body.
#[test]
fn cancelled_reads_complete_at_once_and_the_others_succeed() {
    let object = content(40_000, 11);
    for tls in [false, true] {
        for silent_from in [0, 20, 15_000] {
            let copy = object.clone();
            let server = start(tls, move |request| {
                let bytes = request.response_bytes(&copy, TAG);
                if request.target != "/silent" {
                    return vec![ServerStep::Bytes(bytes)];
                }
                let front = bytes[..silent_from].to_vec();
                vec![ServerStep::Bytes(front), ServerStep::Wait(Duration::from_secs(30))]
            });
            let lab = Lab::new(&server, NetworkSettings::default());
            let silent = lab.known("/silent", 40_000, TAG);
            let good = lab.known("/good", 40_000, TAG);
            let mut engine = lab.engine(8);
            for tag in 0..5 {
                engine.submit(io(&silent, Op::Read, 0, 40_000, tag)).unwrap();
            }
            engine.submit(io(&good, Op::Read, 0, 40_000, 5)).unwrap();
            let mut done = Vec::new();
            let begun = Instant::now();
            while done.is_empty() || begun.elapsed() < Duration::from_millis(200) {
                engine.poll(&mut done, Duration::from_millis(50)).unwrap();
                assert!(begun.elapsed() < Duration::from_secs(20), "{engine:?}");
            }
            let Buf::Slot(slot) = &done[0].io.buf else {
                panic!("it went out with a slot")
            };
            assert_eq!((done.len(), done[0].io.tag), (1, 5));
            assert!(slot.as_slice()[..40_000] == object);
            let stopped = Instant::now();
            engine.cancel(&|tag| tag < 4);
            engine.cancel(&|tag| tag < 4);
            while done.len() < 5 {
                engine.poll(&mut done, Duration::from_millis(50)).unwrap();
                assert!(stopped.elapsed() < Duration::from_secs(15), "{engine:?}");
            }
            let mut tags: Vec<_> = done[1..].iter().map(|one| one.io.tag).collect();
            tags.sort_unstable();
            assert_eq!(tags, [0, 1, 2, 3]);
            assert!(done[1..].iter().all(|one| one.result.is_err()));
            // The engine still works.
            let got = read_all(&mut engine, &good, object.len(), 10_000).unwrap();
            assert!(got.bytes == object);
            engine.cancel(&|tag| tag == 4);
            while done.len() < 6 {
                engine.poll(&mut done, Duration::from_millis(50)).unwrap();
            }
        }
    }
}

#[test]
fn requests_that_wait_for_a_connection_or_a_retry_are_cancelled_too() {
    let server = Server::start(|_| short("503 Slow Down", ""));
    let lab = Lab::new(&server, unhedged());
    let remote = lab.known("/object", 1000, TAG);
    let mut engine = HttpEngine::new(4, 1).unwrap();
    for tag in 0..4 {
        engine.submit(io(&remote, Op::Read, 0, 1000, tag)).unwrap();
    }
    let mut done = Vec::new();
    engine.poll(&mut done, Duration::from_millis(300)).unwrap();
    assert_eq!(done.len(), 0, "it is still retried");
    engine.cancel(&|_| true);
    let stopped = Instant::now();
    while done.len() < 4 {
        engine.poll(&mut done, Duration::from_millis(50)).unwrap();
        assert!(stopped.elapsed() < Duration::from_secs(15), "{engine:?}");
    }
}

#[test]
fn slow_progress_is_not_a_stall() {
    let object = content(3000, 10);
    let copy = object.clone();
    let server = Server::start(move |request| {
        let bytes = request.response_bytes(&copy, TAG);
        if request.number == 0 {
            return vec![ServerStep::Bytes(bytes)];
        }
        let drip = bytes.chunks(150).flat_map(|part| {
            [
                ServerStep::Bytes(part.to_vec()),
                ServerStep::Wait(Duration::from_millis(110)),
            ]
        });
        drip.collect()
    });
    let settings = NetworkSettings {
        stall_max: Duration::from_secs(2),
        progress_bytes_min: 500,
        ..NetworkSettings::default()
    };
    let lab = Lab::new(&server, settings);
    let remote = lab.open("/object");
    let start = Instant::now();
    let got = read_all(&mut lab.engine(1), &remote, object.len(), object.len()).unwrap();
    assert!(got.bytes == object);
    assert!(
        start.elapsed() > Duration::from_secs(2),
        "longer than the limit on a stall"
    );
    assert_eq!(got.tries.retries, 0);
}

#[test]
fn a_body_fails_only_after_the_stall_timeout() {
    let object = content(30_000, 19);
    let waits = [1200, 1200, 1200, 1200].map(Duration::from_millis);
    let parts = |bytes: &[u8]| -> Vec<_> {
        let parts = bytes.chunks(bytes.len().div_ceil(5));
        parts.map(<[u8]>::to_vec).map(ServerStep::Bytes).collect()
    };
    let stall_max = Duration::from_secs(2);
    let settings = NetworkSettings {
        stall_max,
        progress_bytes_min: 1000,
        ..unhedged()
    };
    // A progress check may find no new bytes although the stall timeout has not passed.
    let copy = object.clone();
    let server = Server::start(move |request| {
        let parts = parts(&request.response_bytes(&copy, TAG)).into_iter();
        let pauses = waits.map(ServerStep::Wait).into_iter();
        let is_first = request.number == 0;
        let pauses = pauses.chain([ServerStep::Wait(Duration::ZERO)]);
        parts
            .zip(pauses)
            .flat_map(|(part, pause)| [part, pause])
            .filter(|step| !is_first || matches!(step, ServerStep::Bytes(_)))
            .collect()
    });
    let lab = Lab::new(&server, settings.clone());
    let remote = lab.open("/object");
    let got = read_all(&mut lab.engine(1), &remote, object.len(), object.len()).unwrap();
    assert!(got.bytes == object);
    assert_eq!(got.tries.retries, 0);
    // No more bytes come: the request fails after the timeout, and not long after it.
    let copy = object.clone();
    let server = Server::start(move |request| {
        let mut steps = parts(&request.response_bytes(&copy, TAG));
        if request.number == 1 {
            steps.insert(3, ServerStep::Wait(Duration::from_secs(30)));
        }
        steps
    });
    let lab = Lab::new(&server, settings);
    let remote = lab.open("/object");
    let start = Instant::now();
    let got = read_all(&mut lab.engine(1), &remote, object.len(), object.len()).unwrap();
    assert!(got.bytes == object);
    assert_eq!(got.tries.retries, 1);
    let took = start.elapsed();
    assert!(took >= stall_max && took < 10 * stall_max, "{took:?}");
}

#[test]
fn slow_requests_are_hedged_within_the_budget() {
    // Much longer than the whole test takes otherwise, also on a busy machine.
    let stall = Duration::from_secs(8);
    for tls in [false, true] {
        let object = content(4_000_000, 11);
        let (copy, seen) = (object.clone(), Mutex::new(HashSet::new()));
        let server = start(tls, move |request| {
            let mut steps = request.response(&copy, TAG);
            let start = request.range(4_000_000).unwrap().start;
            // Every hundredth range, on its first request.
            if start % 400_000 == 200_000 && seen.lock().unwrap().insert(start) {
                steps.insert(0, ServerStep::Wait(stall));
            }
            steps
        });
        let lab = Lab::new(&server, NetworkSettings::default());
        let remote = lab.open("/object");
        let start = Instant::now();
        let got = read_all(&mut lab.engine(8), &remote, object.len(), 4000).unwrap();
        assert!(got.bytes == object);
        let tries = got.tries;
        assert!(tries.hedges_sent > 0 && tries.hedges_won > 0, "{tries:?}");
        assert!(tries.hedges_sent <= 50, "{tries:?}");
        assert!(start.elapsed() < stall, "{:?}", start.elapsed());
    }
}

/// A service that needs a renewal at first, and whose first credentials the server rejects.
#[derive(Debug)]
struct Expiring {
    host: String,
    credentials: AtomicUsize,
    /// The last credentials that a renewal can obtain.
    last: usize,
}

impl Service for Expiring {
    fn head(&self, out: &mut Vec<u8>) -> Result<Head> {
        let credentials = self.credentials.load(Ordering::Relaxed);
        if credentials == 0 {
            return Ok(Head::Renew);
        }
        let host = &self.host;
        let head = format!("GET /object HTTP/1.1\r\nHost: {host}\r\nX-Token: {credentials}\r\n");
        out.extend_from_slice(head.as_bytes());
        Ok(Head::Ready)
    }

    fn judge(&self, name: &str, response: &HttpResponse<'_>) -> Judgement {
        let is_expired = response.status == 400 && response.body == b"<Code>ExpiredToken</Code>";
        let judgement = judge_status(name, response);
        let next = if is_expired { Next::Renew } else { judgement.next };
        Judgement { next, ..judgement }
    }

    fn renew(&self) -> Result<()> {
        // A renewal takes some time.
        std::thread::sleep(Duration::from_millis(20));
        let next = self.credentials.load(Ordering::Relaxed) + 1;
        if next > self.last {
            let why = "nobody is logged in";
            return Err(Error::new(ErrorKind::Invalid, "renew", "the credentials", why));
        }
        self.credentials.store(next, Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn credentials_are_renewed_before_a_request_and_after_a_rejection() {
    let object = content(50_000, 19);
    let copy = object.clone();
    let server = Server::start(move |request| match request.header("x-token") {
        None | Some("1") => short("400 Bad Request", "<Code>ExpiredToken</Code>"),
        _ => request.response(&copy, TAG),
    });
    let lab = Lab::new(&server, NetworkSettings::default());
    for (last, why) in [(9, None), (1, Some("nobody is logged in"))] {
        let service = Arc::new(Expiring {
            host: lab.origin.site().authority(),
            credentials: AtomicUsize::new(0),
            last,
        });
        let remote = lab.with("/object", 50_000, TAG, service);
        let read = read_all(&mut lab.engine(4), &remote, object.len(), 7000);
        match why {
            None => assert!(read.unwrap().bytes == object),
            Some(why) => {
                let error = read.unwrap_err();
                assert!(error.to_string().contains(why), "{error}");
            }
        }
    }
}

#[test]
fn reads_from_an_overloaded_server_succeed() {
    let object = content(100_000, 12);
    let copy = object.clone();
    let server = Server::start(move |request| {
        if request.number > 0 && request.number % 4 == 0 {
            return short("503 Slow Down", "<Error><Code>SlowDown</Code></Error>");
        }
        request.response(&copy, TAG)
    });
    let lab = Lab::new(&server, NetworkSettings::default());
    let remote = lab.open("/object");
    let got = read_all(&mut lab.engine(8), &remote, object.len(), 5000).unwrap();
    assert!(got.bytes == object);
    assert!(got.tries.retries > 0);
}

#[test]
fn a_replaced_object_is_an_error() {
    let versions = [content(200_000, 13), content(200_000, 14)];
    let copy = versions.clone();
    let server = Server::start(move |request| {
        let (version, tag) = if request.number < 12 {
            (0, "\"v1\"")
        } else {
            (1, "\"v2\"")
        };
        request.response(&copy[version], tag)
    });
    let lab = Lab::new(&server, NetworkSettings::default());
    let remote = lab.open("/object");
    let error = read_all(&mut lab.engine(4), &remote, 200_000, 5000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
    assert!(error.to_string().contains("replaced"), "{error}");
}

#[test]
fn an_unreachable_server_is_an_error_in_bounded_time() {
    let object = content(5000, 15);
    let server = Server::start(move |request| request.response(&object, TAG));
    let lab = Lab::new(&server, fixture::impatient());
    let remote = lab.open("/object");
    drop(server);
    let error = fixture::read_range(&mut lab.engine(2), &remote, 0, 1000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
}

#[test]
fn a_missing_handshake_and_a_slow_head_time_out() {
    // The kernel accepts the connection, but nothing reads from it.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let trusted = Server::start_tls(|_| vec![ServerStep::Close]);
    let lab = Lab::at(
        &format!("https://127.0.0.1:{port}/"),
        Some(&trusted),
        fixture::impatient(),
    );
    let remote = lab.known("/object", 5000, TAG);
    let start = Instant::now();
    let error = fixture::read_range(&mut lab.engine(2), &remote, 0, 1000).unwrap_err();
    assert!(error.to_string().contains("no connection within"), "{error}");
    let server = Server::start(|_| {
        let head = head("206 Partial Content", &[("Content-Length", "1000")]);
        let drip = head.chunks(1).flat_map(|byte| {
            [
                ServerStep::Bytes(byte.to_vec()),
                ServerStep::Wait(Duration::from_millis(50)),
            ]
        });
        drip.collect()
    });
    let lab = Lab::new(&server, fixture::impatient());
    let remote = lab.known("/object", 5000, TAG);
    let error = fixture::read_range(&mut lab.engine(1), &remote, 0, 1000).unwrap_err();
    assert!(error.to_string().contains("no response within"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn an_untrusted_certificate_is_an_error_with_a_hint() {
    let object = content(5000, 16);
    let copy = object.clone();
    let server = Server::start_tls(move |request| request.response(&copy, TAG));
    let other = Server::start_tls(|_| vec![ServerStep::Close]);
    let lab = Lab::trusting(&server, &other, NetworkSettings::default());
    let remote = lab.known("/object", 5000, TAG);
    let error = fixture::read_range(&mut lab.engine(1), &remote, 0, 1000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.hint().unwrap().contains("certificate"), "{error}");
    let error = lab.try_open("/object").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[test]
fn a_read_past_the_end_is_short_and_a_write_is_refused() {
    let object = content(5000, 17);
    let copy = object.clone();
    let server = Server::start(move |request| request.response(&copy, TAG));
    let lab = Lab::new(&server, NetworkSettings::default());
    let remote = lab.open("/object");
    let mut engine = lab.engine(2);
    let got = fixture::read_range(&mut engine, &remote, 4900, 1000).unwrap();
    assert!(got.bytes[..100] == object[4900..] && got.moved == 100);
    assert_eq!(fixture::read_range(&mut engine, &remote, 9000, 1000).unwrap().moved, 0);
    fixture::writes_are_refused(&mut engine, &remote);
}

/// The random response of a faulty server to one request.
fn trouble(request: &ReceivedRequest, object: &[u8], rng: &Mutex<Rng>) -> Vec<ServerStep> {
    let bytes = request.response_bytes(object, TAG);
    let (cut, kind) = {
        let mut rng = rng.lock().unwrap();
        (rng.index(bytes.len()), rng.below(24))
    };
    let (front, back) = (bytes[..cut].to_vec(), bytes[cut..].to_vec());
    match kind {
        0 => vec![ServerStep::Bytes(front), ServerStep::Close],
        1 => vec![
            ServerStep::Bytes(front),
            ServerStep::Wait(Duration::from_millis(400)),
            ServerStep::Bytes(back),
        ],
        2 => vec![
            ServerStep::Bytes(front),
            ServerStep::Wait(Duration::from_millis(20)),
            ServerStep::Bytes(back),
        ],
        3 => short("500 Internal Server Error", "<Error/>"),
        4 => vec![ServerStep::Bytes(bytes), ServerStep::Bytes(b"HTTP/1.1 206 ".to_vec())],
        5 => vec![ServerStep::Close],
        6 => {
            // The right bytes with a wrong range.
            let wrong = String::from_utf8_lossy(&bytes[..bytes.len().min(150)]).replace("bytes ", "bytes 1");
            vec![ServerStep::Bytes(wrong.into_bytes()), ServerStep::Close]
        }
        7 => {
            // Another range than the requested one.
            let other = ReceivedRequest {
                headers: vec![("range".to_owned(), "bytes=7-20".to_owned())],
                ..request.clone()
            };
            other.response(object, TAG)
        }
        8 => vec![ServerStep::Bytes(bytes), ServerStep::Close],
        _ => vec![ServerStep::Bytes(bytes)],
    }
}

#[test]
fn with_random_faults_of_every_kind_no_byte_is_wrong() {
    for seed in 0..12_usize {
        let tls = seed % 4 == 3;
        let object = content(150_000, seed as u64);
        let (copy, rng) = (object.clone(), Mutex::new(Seed(seed as u64).rng()));
        let server = start(tls, move |request| {
            if request.nth == 0 && request.connection == 0 {
                return request.response(&copy, TAG);
            }
            trouble(request, &copy, &rng)
        });
        let settings = NetworkSettings {
            stall_max: Duration::from_millis(250),
            ..NetworkSettings::default()
        };
        let lab = Lab::new(&server, settings);
        let remote = lab.open("/object");
        let depth = 1 + u32::try_from(seed).unwrap() * 5 % 16;
        let chunk = 1000 + seed * 977;
        let got = read_all(&mut lab.engine(depth), &remote, object.len(), chunk).unwrap();
        assert!(
            got.bytes == object,
            "seed {seed}, depth {depth}, chunks of {chunk}, tls {tls}"
        );
        assert!(got.tries.retries > 0);
    }
}

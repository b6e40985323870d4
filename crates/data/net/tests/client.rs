//! The client of control planes: connection reuse, bounds, timeouts and proxies.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use http::{Request, StatusCode};
use straightway_core::ErrorKind;
use straightway_net::{Client, Network, NetworkSettings, Proxies, ProxyUrl, Roots};
use straightway_webserver::{Server, ServerStep, head, short};

fn client(settings: NetworkSettings) -> Client {
    Client::new(&Network::new(settings))
}

fn get(url: &str) -> Request<Vec<u8>> {
    Request::get(url).body(Vec::new()).unwrap()
}

#[test]
fn requests_share_a_connection_and_bodies_are_complete() {
    let server = Server::start(|request| match &*request.target {
        "/chunks" => {
            let head = head("200 OK", &[("Transfer-Encoding", "chunked")]);
            let body = b"5\r\nhello\r\n1;x=y\r\n \r\n5\r\nworld\r\n0\r\n\r\n";
            vec![ServerStep::Bytes(head), ServerStep::Bytes(body.to_vec())]
        }
        "/echo" => short("201 Created", &String::from_utf8_lossy(&request.body)),
        _ => short("404 Not Found", "nothing here"),
    });
    let client = client(NetworkSettings::default());
    let response = client.send(get(&server.url("/chunks"))).unwrap();
    assert_eq!(response.body(), b"hello world");
    let put = Request::put(server.url("/echo")).body(b"abc".to_vec()).unwrap();
    let response = client.send(put).unwrap();
    assert_eq!(
        (response.status(), &**response.body()),
        (StatusCode::CREATED, &b"abc"[..])
    );
    let response = client.send(get(&server.url("/missing"))).unwrap();
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
    assert_eq!(server.connections(), 1);
}

#[test]
fn redirects_are_not_followed_and_errors_show_no_secret() {
    let server = Server::start(|_| {
        let headers = [("Location", "http://elsewhere.invalid/"), ("Content-Length", "0")];
        vec![ServerStep::Bytes(head("307 Temporary Redirect", &headers))]
    });
    let client = client(NetworkSettings::default());
    let response = client.send(get(&server.url("/"))).unwrap();
    assert_eq!(response.status(), StatusCode::TEMPORARY_REDIRECT);
    let address = server.address();
    drop(server);
    let request = Request::get(format!("http://{address}/key?X-Amz-Signature=secret"))
        .header("Authorization", "secret")
        .body(Vec::new())
        .unwrap();
    let error = client.send(request).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
    assert!(error.to_string().contains("/key"), "{error}");
}

#[test]
fn a_refused_connection_is_an_error_with_a_hint() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = client(NetworkSettings::default());
    let error = client.send(get(&format!("http://{address}/key"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
    let hint = error.hint().unwrap_or_default();
    assert!(hint.contains("the server is running"), "{error}: {hint}");
}

#[test]
fn heads_and_bodies_are_bounded() {
    let server = Server::start(|request| match &*request.target {
        "/head" => vec![ServerStep::Bytes(head("200 OK", &[("X", &"a".repeat(1 << 20))]))],
        "/long" => short("200 OK", &"a".repeat((16 << 20) + 1)),
        _ => short("200 OK", &"a".repeat(16 << 20)),
    });
    let client = client(NetworkSettings::default());
    let error = client.send(get(&server.url("/head"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let error = client.send(get(&server.url("/long"))).unwrap_err();
    assert!(error.to_string().contains("longer than 16777216 bytes"), "{error}");
    assert!(client.send(get(&server.url("/body"))).is_ok());
}

#[test]
fn interim_responses_before_a_long_body_are_read_over() {
    let body = vec![b'a'; 300_000];
    let sent = body.clone();
    let server = Server::start(move |_| {
        let hints = head("103 Early Hints", &[("Link", "</style.css>; rel=preload")]);
        let mut response = hints.repeat(5);
        response.extend(head("200 OK", &[("Content-Length", "300000")]));
        response.extend(&sent);
        vec![ServerStep::Bytes(response)]
    });
    let client = client(NetworkSettings::default());
    for _ in 0..4 {
        let response = client.send(get(&server.url("/"))).unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert!(*response.body() == body);
    }
}

#[test]
fn a_stall_is_an_error_and_slow_progress_is_not() {
    let server = Server::start(|request| {
        let text = head("200 OK", &[("Content-Length", "12")]);
        let pause = if request.target == "/stall" { 30_000 } else { 300 };
        let part = |bytes: &[u8]| {
            [
                ServerStep::Bytes(bytes.to_vec()),
                ServerStep::Wait(Duration::from_millis(pause)),
            ]
        };
        [part(&text), part(b"abc"), part(b"def"), part(b"ghi"), part(b"jkl")].concat()
    });
    let client = client(NetworkSettings {
        stall_max: Duration::from_secs(1),
        ..NetworkSettings::default()
    });
    let start = Instant::now();
    assert_eq!(client.send(get(&server.url("/drip"))).unwrap().body(), b"abcdefghijkl");
    assert!(start.elapsed() > Duration::from_secs(1));
    let start = Instant::now();
    let error = client.send(get(&server.url("/stall"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    assert!(start.elapsed() < Duration::from_secs(20));
}

/// One byte every 50 ms.
fn drip(bytes: &[u8]) -> Vec<ServerStep> {
    let steps = bytes.chunks(1).flat_map(|byte| {
        [
            ServerStep::Bytes(byte.to_vec()),
            ServerStep::Wait(Duration::from_millis(50)),
        ]
    });
    steps.collect()
}

#[test]
fn a_head_and_a_body_that_come_byte_by_byte_time_out() {
    let server = Server::start(|request| {
        let head = head("200 OK", &[("Content-Length", "1000")]);
        if request.target == "/head" {
            return drip(&head);
        }
        let mut steps = vec![ServerStep::Bytes(head)];
        steps.extend(drip(&[b'a'; 1000]));
        steps
    });
    let client = client(NetworkSettings {
        stall_max: Duration::from_millis(200),
        ..NetworkSettings::default()
    });
    for path in ["/head", "/body"] {
        let start = Instant::now();
        let error = client.send(get(&server.url(path))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
        assert!(start.elapsed() < Duration::from_secs(20), "{path}");
    }
}

/// Starts a proxy that opens tunnels. Returns its port and the count of its tunnels.
fn proxy() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let tunnels = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tunnels);
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                if client.read(&mut byte).unwrap_or(0) == 0 {
                    break;
                }
                request.push(byte[0]);
            }
            let request = String::from_utf8(request).unwrap();
            if !request.contains("Basic dXNlcjpwdw==") {
                client.write_all(&head("407 Who", &[("Content-Length", "0")])).unwrap();
                continue;
            }
            let target = request.split(' ').nth(1).unwrap().to_owned();
            let mut server = TcpStream::connect(target).unwrap();
            count.fetch_add(1, Ordering::Relaxed);
            client
                .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
                .unwrap();
            let (mut to, mut from) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            std::thread::spawn(move || std::io::copy(&mut client, &mut server));
        }
    });
    (port, tunnels)
}

#[test]
fn a_proxy_opens_a_tunnel_for_the_client_and_for_the_engine() {
    let object: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
    for tls in [false, true] {
        let copy = object.clone();
        let handler = move |request: &straightway_webserver::ReceivedRequest| request.response(&copy, "\"v\"");
        let server = if tls {
            Server::start_tls(handler)
        } else {
            Server::start(handler)
        };
        let (port, tunnels) = proxy();
        let folder = tempfile::tempdir().unwrap();
        let roots = if tls {
            let path = folder.path().join("ca.pem");
            server.certificate().write(&path).unwrap();
            Roots::File(path)
        } else {
            Roots::System
        };
        let url = |credentials: &str| ProxyUrl::parse(&format!("http://{credentials}127.0.0.1:{port}")).unwrap();
        let settings = |proxy: ProxyUrl| NetworkSettings {
            roots: roots.clone(),
            proxies: Proxies {
                http: Some(proxy.clone()),
                https: Some(proxy),
                ..Proxies::default()
            },
            attempts_max: 1,
            ..NetworkSettings::default()
        };
        let through = client(settings(url("user:pw@")));
        assert_eq!(through.send(get(&server.url("/x"))).unwrap().body(), &object);
        assert_eq!(tunnels.load(Ordering::Relaxed), 1, "tls {tls}");
        let error = client(settings(url(""))).send(get(&server.url("/x"))).unwrap_err();
        assert!(error.to_string().contains("tunnel"), "{error}");
        engine::reads_through(&through, &server.url("/x"), &object);
        assert!(tunnels.load(Ordering::Relaxed) > 1, "tls {tls}");
    }
}

mod engine {
    //! A read by the engine, on the network of a client.

    use std::{sync::Arc, time::Duration};

    use straightway_core::Result;
    use straightway_io::{
        Handle,
        engine::Engine,
        request::{Io, Op},
    };
    use straightway_net::{Client, Head, HttpEngine, Remote, Service, Site};
    use straightway_sys::{Buf, IoPath, Slot};

    #[derive(Debug)]
    struct Plain(String);

    impl Service for Plain {
        fn head(&self, out: &mut Vec<u8>) -> Result<Head> {
            out.extend_from_slice(self.0.as_bytes());
            Ok(Head::Ready)
        }
    }

    pub(super) fn reads_through(client: &Client, url: &str, object: &[u8]) {
        let url: http::Uri = url.parse().unwrap();
        let site = Site::of(&url).unwrap();
        let origin = client.network().origin(&site).unwrap();
        let head = format!("GET {} HTTP/1.1\r\nHost: {}\r\n", url.path(), site.authority());
        let service = Arc::new(Plain(head));
        let remote = Remote::open(url.to_string(), None, &origin, service, client, 1).unwrap();
        let slot = Slot::ring(1, object.len()).unwrap().remove(0);
        let io = Io {
            op: Op::Read,
            object: Arc::new(remote) as Arc<dyn Handle>,
            by: IoPath::Direct,
            offset: 0,
            buf: Buf::Slot(slot),
            start: 0,
            bytes: object.len(),
            tag: 0,
        };
        let mut engine = HttpEngine::new(1, 1).unwrap();
        engine.submit(io).unwrap();
        let mut done = Vec::new();
        engine.poll(&mut done, Duration::from_secs(20)).unwrap();
        let Buf::Slot(slot) = &done[0].io.buf else {
            panic!("it went out with a slot")
        };
        assert_eq!(*done[0].result.as_ref().unwrap(), object.len());
        assert!(slot.as_slice()[..object.len()] == *object);
    }
}

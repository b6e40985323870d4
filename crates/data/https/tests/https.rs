//! Objects on web servers: redirects, tokens, versions, and models loaded from a stand-in for a hub.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    ffi::OsStr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use straightway_core::{Choice, ErrorKind, Extent, Leg, Move, Place, Reason, Route};
use straightway_https::{Https, Token};
use straightway_io::{
    Executor, Objects, Region,
    store::{Location, Named, Store, Tag, Verbs},
};
use straightway_net::{Network, NetworkSettings, Roots, Site};
use straightway_webserver::{ReceivedRequest, Server, ServerStep, head, short, with_headers};
use straightway_weights::{Loader, Model, Selection};

const TAG: &str = "\"v1\"";

fn store(server: &Server, token: Option<&str>) -> Https {
    store_with(server, token, NetworkSettings::default())
}

fn store_with(server: &Server, token: Option<&str>, settings: NetworkSettings) -> Https {
    let site = Site::of(&server.url("/").parse().unwrap()).unwrap();
    let token = token.map(|token| Token::new(token).unwrap());
    Https::new(&Network::new(settings), site, token).unwrap()
}

fn open(store: &Https, name: &str) -> straightway_core::Result<Arc<dyn straightway_io::Handle>> {
    store.open(&[Named::new(name)]).map(|mut opened| opened.remove(0))
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| u8::try_from(at * 31 % 251).unwrap()).collect()
}

fn redirect(location: &str) -> Vec<ServerStep> {
    let headers = [("Location", location), ("Content-Length", "0")];
    vec![ServerStep::Bytes(head("302 Found", &headers))]
}

#[test]
fn an_object_is_opened_by_one_request_that_reads_its_front() {
    let object = content(200_000);
    let copy = object.clone();
    let server = Server::start(move |request| request.response(&copy, TAG));
    let store = store(&server, None);
    assert_eq!(store.verbs(), Verbs::default());
    let handle = open(&store, "folder/object?sig=secret").unwrap();
    assert_eq!(handle.object().bytes, 200_000);
    assert_eq!(handle.tag(), Some(Tag::Text(TAG.to_owned())));
    assert!(!handle.object().name.contains("secret"), "{}", handle.object().name);
    let mut front = [0; 1000];
    handle.read_exact_at(8, &mut front).unwrap();
    assert!(front == object[8..1008]);
    assert_eq!(server.requests(), 1);
    let mut back = [0; 1000];
    handle.read_exact_at(199_000, &mut back).unwrap();
    assert!(back == object[199_000..]);
    assert!(handle.read_exact_at(199_001, &mut back).is_err());
    handle.check_unchanged().unwrap();
}

#[test]
fn objects_of_zero_bytes_and_of_5_tib_are_opened() {
    let server = Server::start(|request| {
        if request.target == "/empty" {
            return request.response(b"", TAG);
        }
        // Only heads and a few bytes of it exist.
        let range = request.range(usize::MAX >> 1).unwrap();
        let content_range = format!("bytes {}-{}/5497558138880", range.start, range.end - 1);
        let length = range.len().to_string();
        let headers = [
            ("Content-Length", &*length),
            ("Content-Range", &*content_range),
            ("ETag", TAG),
        ];
        let mut bytes = head("206 Partial Content", &headers);
        bytes.extend(vec![7; range.len()]);
        vec![ServerStep::Bytes(bytes)]
    });
    let store = store(&server, None);
    let empty = open(&store, "empty").unwrap();
    assert_eq!(empty.object().bytes, 0);
    empty.check_unchanged().unwrap();
    let large = open(&store, "large").unwrap();
    assert_eq!(large.object().bytes, 5 << 40);
    let mut last = [0; 16];
    large.read_exact_at((5 << 40) - 16, &mut last).unwrap();
    assert_eq!(last, [7; 16]);
}

#[test]
fn a_missing_or_denied_object_is_an_error_that_names_it() {
    let server = Server::start(|request| match &*request.target {
        "/missing" => short("404 Not Found", ""),
        "/denied" => short("403 Forbidden", ""),
        _ => {
            let mut bytes = head("200 OK", &[("Content-Length", "100000")]);
            bytes.extend(vec![0; 100_000]);
            vec![ServerStep::Bytes(bytes)]
        }
    });
    let store = store(&server, None);
    for (name, kind, why) in [
        ("missing", ErrorKind::NotFound, "/missing"),
        ("denied", ErrorKind::Denied, "denied"),
        ("whole", ErrorKind::Unsupported, "whole object"),
    ] {
        let error = open(&store, name).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn a_requested_version_is_opened_or_refused() {
    let object = content(1000);
    let server = Server::start(move |request| request.response(&object, TAG));
    let store = store(&server, None);
    let named = |tag: &str| Named {
        tag: Some(Tag::Text(tag.to_owned())),
        ..Named::new("object")
    };
    assert!(store.open(&[named(TAG)]).is_ok());
    let error = store.open(&[named("\"v0\"")]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
}

#[test]
fn an_object_of_another_length_than_the_known_one_is_refused() {
    let object = content(1000);
    let server = Server::start(move |request| request.response(&object, TAG));
    let store = store(&server, None);
    let named = |bytes| Named {
        bytes: Some(bytes),
        ..Named::new("object")
    };
    assert!(store.open(&[named(1000)]).is_ok());
    let error = store.open(&[named(999)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
    assert!(error.to_string().contains("from 999 to 1000"), "{error}");
}

/// Reads a whole object by the executor.
fn transfer(store: &Arc<dyn Store>, handle: &Arc<dyn straightway_io::Handle>) -> straightway_core::Result<Vec<u8>> {
    let executor = Executor::new(straightway_io::Settings::default())?;
    let bytes = handle.object().bytes;
    let mut region = Arc::new(Region::host(bytes)?);
    let moves = vec![Extent::new(0, bytes).into()];
    let objects = Objects::new(Arc::clone(store), vec![Arc::clone(handle)]);
    executor.read(objects, moves, &region, Choice::Auto)?.wait()?;
    let region = Arc::get_mut(&mut region).expect("the transfer is over");
    Ok(region.as_slice()[..usize::try_from(bytes).unwrap()].to_vec())
}

#[test]
fn a_short_object_without_a_version_is_read_in_one_response() {
    for (bytes, requests) in [(1000, 1), (300_000, 2)] {
        let object = content(bytes);
        let (copy, is_new) = (object.clone(), Arc::new(AtomicBool::new(false)));
        let replaced = Arc::clone(&is_new);
        let server = Server::start(move |request| {
            let mut object = copy.clone();
            object[700] ^= u8::from(replaced.load(Ordering::Relaxed));
            request.response(&object, "")
        });
        let store: Arc<dyn Store> = Arc::new(store(&server, None));
        let handle = store.open(&[Named::new("object")]).unwrap().remove(0);
        assert_eq!(server.requests(), requests);
        handle.check_unchanged().unwrap();
        let requests = server.requests();
        is_new.store(true, Ordering::Relaxed);
        let mut read = vec![0; bytes];
        handle.read_exact_at(0, &mut read).unwrap();
        assert!(read == object);
        assert!(transfer(&store, &handle).unwrap() == object);
        assert_eq!(server.requests(), requests, "no other response was used");
        // The object that was replaced is another version.
        assert!(handle.check_unchanged().is_err());
        let named = Named {
            tag: handle.tag(),
            ..Named::new("object")
        };
        let error = store.open(std::slice::from_ref(&named)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
        is_new.store(false, Ordering::Relaxed);
        assert!(store.open(&[named]).is_ok());
    }
}

#[test]
fn a_long_object_without_a_version_is_refused_beyond_its_first_bytes() {
    let object = content(9 << 20);
    let copy = object.clone();
    let server = Server::start(move |request| request.response(&copy, ""));
    let store: Arc<dyn Store> = Arc::new(store(&server, None));
    let handle = store.open(&[Named::new("object")]).unwrap().remove(0);
    let mut bytes = [0; 1000];
    handle.read_exact_at(0, &mut bytes).unwrap();
    assert!(bytes == object[..1000]);
    let by_call = handle.read_exact_at(1 << 20, &mut bytes).unwrap_err();
    let by_executor = transfer(&store, &handle).unwrap_err();
    for error in [by_call, by_executor] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("neither an ETag"), "{error}");
        assert!(error.hint().is_some(), "{error}");
    }
    assert_eq!(server.requests(), 1);
}

#[test]
fn an_object_with_only_a_date_is_compared_after_a_transfer() {
    const MODIFIED: [&str; 2] = ["Sun, 15 Nov 2026 10:00:00 GMT", "Sun, 15 Nov 2026 10:00:01 GMT"];
    let object = content(200_000);
    // A date that the next version may share is compared too.
    for (date, condition) in [
        ("Sun, 15 Nov 2026 12:00:00 GMT", Some(MODIFIED[0])),
        (MODIFIED[0], None),
    ] {
        let (copy, conditions) = (object.clone(), Arc::new(Mutex::new(Vec::new())));
        let seen = Arc::clone(&conditions);
        let server = Server::start(move |request| {
            // The first request opens the object, and the second one transfers it.
            let modified = MODIFIED[usize::from(request.number > 1)];
            let sent = request.header("if-unmodified-since").map(str::to_owned);
            seen.lock().unwrap().push(sent);
            let headers = [("Last-Modified", modified), ("Date", date)];
            let response = request.response_bytes(&copy, "");
            vec![ServerStep::Bytes(with_headers(response, &headers))]
        });
        let store: Arc<dyn Store> = Arc::new(store(&server, None));
        let handle = store.open(&[Named::new("object")]).unwrap().remove(0);
        assert_eq!(handle.tag(), Some(Tag::Text(MODIFIED[0].to_owned())));
        assert!(!handle.pins_reads());
        let error = transfer(&store, &handle).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
        assert!(error.to_string().contains("replaced"), "{error}");
        let conditions = conditions.lock().unwrap();
        assert_eq!(conditions[1].as_deref(), condition);
    }
}

#[test]
fn a_token_is_sent_only_to_its_own_host() {
    let object = content(100_000);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (copy, sent) = (object.clone(), Arc::clone(&seen));
    let cdn = Server::start(move |request| {
        sent.lock()
            .unwrap()
            .push(request.header("authorization").map(str::to_owned));
        request.response(&copy, TAG)
    });
    let target = cdn.url("/blob?Signature=abc");
    let hub = Server::start(move |request| {
        if request.header("authorization") != Some("Bearer hub-token") {
            return short("401 Unauthorized", "");
        }
        redirect(&target)
    });
    let store = store(&hub, Some("hub-token"));
    let handle = open(&store, "org/model/resolve/main/model.safetensors").unwrap();
    let mut bytes = vec![0; 100_000];
    handle.read_exact_at(0, &mut bytes).unwrap();
    assert!(bytes == object);
    let seen = seen.lock().unwrap();
    assert!(!seen.is_empty() && seen.iter().all(Option::is_none), "{seen:?}");
    assert!(!format!("{handle:?} {store:?}").contains("hub-token"));
    let error = open(&store_with(&hub, None, NetworkSettings::default()), "x").unwrap_err();
    assert!(error.to_string().contains("credentials"), "{error}");
}

#[test]
fn a_token_is_not_sent_without_encryption() {
    let site = Site::new(false, "files.example").unwrap();
    let token = Some(Token::new("secret").unwrap());
    let error = Https::new(&Network::new(NetworkSettings::default()), site, token).unwrap_err();
    assert!(error.to_string().contains("without encryption"), "{error}");
}

#[test]
fn endless_redirects_are_an_error() {
    let server = Server::start(|request| redirect(&format!("{}x", request.target)));
    let error = open(&store(&server, None), "a").unwrap_err();
    assert!(error.to_string().contains("more than 8 times"), "{error}");
}

#[test]
fn an_expired_address_is_resolved_again() {
    let object = content(300_000);
    let issued = Arc::new(AtomicUsize::new(0));
    let (copy, valid) = (object.clone(), Arc::clone(&issued));
    let cdn = Server::start(move |request| {
        // Only the latest address is valid, and it expires too.
        let last = format!("/blob?sig={}", valid.load(Ordering::Relaxed));
        if request.target != last || request.number % 5 == 4 {
            return short("403 Forbidden", "expired");
        }
        request.response(&copy, TAG)
    });
    let (target, issuing) = (cdn.url("/blob?sig="), Arc::clone(&issued));
    let hub = Server::start(move |_| {
        let number = issuing.fetch_add(1, Ordering::Relaxed) + 1;
        redirect(&format!("{target}{number}"))
    });
    let store = store(&hub, None);
    let handle = open(&store, "file").unwrap();
    for at in [100_000, 150_000, 200_000, 250_000] {
        let mut bytes = [0; 1000];
        handle.read_exact_at(at, &mut bytes).unwrap();
        let at = usize::try_from(at).unwrap();
        assert!(bytes == object[at..at + 1000]);
    }
    assert!(hub.requests() > 1);
}

#[test]
fn an_address_that_is_refused_after_a_redirect_is_one_error_after_a_few_requests() {
    for (status, kind) in [
        ("400 Bad Request", ErrorKind::Unsupported),
        ("401 Unauthorized", ErrorKind::Denied),
        ("403 Forbidden", ErrorKind::Denied),
        ("404 Not Found", ErrorKind::NotFound),
        ("410 Gone", ErrorKind::NotFound),
    ] {
        let object = content(200_000);
        let is_valid = Arc::new(AtomicBool::new(false));
        let valid = Arc::clone(&is_valid);
        let server = Server::start(move |request| match &*request.target {
            "/file" => redirect("/blob"),
            _ if valid.load(Ordering::Relaxed) => request.response(&object, TAG),
            _ => short(status, ""),
        });
        let store = store(&server, None);
        let error = open(&store, "file").unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains("/file"), "{error}");
        assert_eq!(server.requests(), 2, "{status}");
        // The same if the address becomes invalid after the object was opened.
        is_valid.store(true, Ordering::Relaxed);
        let handle = open(&store, "file").unwrap();
        is_valid.store(false, Ordering::Relaxed);
        let before = server.requests();
        let error = handle.read_exact_at(100_000, &mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(server.requests() - before, 3, "{status}");
    }
}

/// A safetensors file with one tensor of bytes.
fn file(tensor: &str, bytes: &[u8]) -> Vec<u8> {
    let json = format!(
        "{{\"{tensor}\":{{\"dtype\":\"U8\",\"shape\":[{0}],\"data_offsets\":[0,{0}]}}}}",
        bytes.len()
    );
    let mut file = (json.len() as u64).to_le_bytes().to_vec();
    file.extend(json.as_bytes());
    file.extend(bytes);
    file
}

type Answer = Box<dyn Fn(&ReceivedRequest) -> Vec<ServerStep> + Send + Sync>;

/// A hub that redirects to a content network, for an index and two shards.
fn hub(tls: bool) -> (Server, Server, Vec<Vec<u8>>) {
    let tensors = vec![content(3_000_017), content(1_234_567)];
    let files = [file("one", &tensors[0]), file("two", &tensors[1])];
    let start = |response: Answer| {
        if tls {
            Server::start_tls(response)
        } else {
            Server::start(response)
        }
    };
    let cdn = start(Box::new(move |request| match &*request.target {
        "/blobs/0?sig=x" => request.response(&files[0], "\"a\""),
        "/blobs/1?sig=x" => request.response(&files[1], "\"b\""),
        _ => short("404 Not Found", ""),
    }));
    let blobs = cdn.url("/blobs/");
    let index = br#"{"weight_map":{"one":"model-1.safetensors","two":"model-2.safetensors"}}"#;
    let hub = start(Box::new(move |request| {
        let folder = "/org/model/resolve/main";
        match request.target.strip_prefix(folder) {
            Some("/model.safetensors.index.json") => request.response(index, "\"i\""),
            Some("/model-1.safetensors") => redirect(&format!("{blobs}0?sig=x")),
            Some("/model-2.safetensors") => redirect(&format!("{blobs}1?sig=x")),
            _ => short("404 Not Found", ""),
        }
    }));
    (hub, cdn, tensors)
}

#[test]
fn a_model_is_loaded_from_a_hub_that_redirects_and_the_receipt_shows_its_route() {
    for tls in [false, true] {
        let (hub, cdn, tensors) = hub(tls);
        let folder = tempfile::tempdir().unwrap();
        let mut settings = NetworkSettings::default();
        if tls {
            // Both servers are trusted.
            let path = folder.path().join("ca.pem");
            hub.certificate().write(&path).unwrap();
            let first = std::fs::read_to_string(&path).unwrap();
            cdn.certificate().write(&path).unwrap();
            let second = std::fs::read_to_string(&path).unwrap();
            std::fs::write(&path, first + &second).unwrap();
            settings.roots = Roots::File(path);
        }
        let store: Arc<dyn Store> = Arc::new(store_with(&hub, None, settings));
        let name = "org/model/resolve/main/model.safetensors.index.json";
        let model = Model::open(Location::from((store, OsStr::new(name).to_owned()))).unwrap();
        let executor = Executor::new(straightway_io::Settings::default()).unwrap();
        let mut loaded = Loader::new(Arc::new(executor))
            .load(&model, &Selection::all(&model), Place::Host)
            .unwrap();
        let region = Arc::get_mut(&mut loaded.region).expect("the transfer is over");
        for tensor in loaded.tensors.iter() {
            let expected = &tensors[usize::from(&*tensor.name == "two")];
            let mut bytes = vec![0; expected.len()];
            region.read_at(tensor.at, &mut bytes).unwrap();
            assert!(bytes == *expected, "{}", tensor.name);
        }
        let receipt = &loaded.receipt;
        let reason = if tls { Reason::Tls } else { Reason::Tcp };
        assert!(
            receipt
                .routes
                .iter()
                .all(|r| (r.route, r.reason) == (Route::Socket, reason)),
            "{receipt}"
        );
        assert_eq!(receipt.bytes_by(Leg::Read, Route::Socket), 4_234_584);
        assert!(receipt.requests.is_some(), "{receipt}");
        assert!(receipt.engine.contains("sockets"), "{receipt}");
    }
}

#[test]
fn concurrent_jobs_get_their_own_bytes_while_the_server_sometimes_fails() {
    const OBJECTS: usize = 250;
    let bytes_of = |number: usize| {
        let length = 1 + number * 7919 % 70_001;
        (0..length).map(move |at| u8::try_from((at + number * 13) % 251).unwrap())
    };
    let server = Server::start(move |request| {
        let number: usize = request.target.trim_start_matches('/').parse().unwrap();
        let content: Vec<u8> = bytes_of(number).collect();
        let tag = format!("\"{number}\"");
        match request.number % 97 {
            13 => short("500 Internal Server Error", ""),
            29 => vec![ServerStep::Close],
            61 => {
                let bytes = request.response_bytes(&content, &tag);
                vec![ServerStep::Bytes(bytes[..bytes.len() - 1].to_vec()), ServerStep::Close]
            }
            _ => request.response(&content, &tag),
        }
    });
    let shared: Arc<dyn Store> = Arc::new(store(&server, None));
    let executor = Executor::new(straightway_io::Settings::default()).unwrap();
    std::thread::scope(|scope| {
        for job in 0..4 {
            let (shared, executor) = (&shared, &executor);
            scope.spawn(move || {
                let numbers: Vec<_> = (0..OBJECTS).map(|n| n * 4 + job).collect();
                let names: Vec<_> = numbers.iter().map(|n| Named::new(n.to_string())).collect();
                let objects = Objects::new(Arc::clone(shared), shared.open(&names).unwrap());
                let (mut moves, mut expected) = (Vec::new(), Vec::new());
                for (object, number) in (0..).zip(&numbers) {
                    let content: Vec<u8> = bytes_of(*number).collect();
                    let extent = Extent::new(0, content.len() as u64);
                    let at = expected.len() as u64;
                    moves.push(Move { object, extent, at });
                    expected.extend(content);
                }
                let mut region = Arc::new(Region::host(expected.len() as u64).unwrap());
                let ticket = executor.read(objects, moves, &region, Choice::Auto).unwrap();
                let receipt = ticket.wait().unwrap();
                let region = Arc::get_mut(&mut region).expect("the transfer is over");
                assert!(region.as_slice()[..expected.len()] == expected[..], "job {job}");
                assert_eq!(receipt.bytes, expected.len() as u64);
                assert!(receipt.requests.unwrap().retries > 0, "{receipt}");
            });
        }
    });
}

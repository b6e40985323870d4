//! First responses that break off: the rest is requested, of the same version.

use std::sync::{Arc, Mutex};

use straightway_io::{Handle, engine::Engine};
use straightway_net::{Remote, threads};
use straightway_webserver::{ReceivedRequest, Server, ServerStep, head};

use super::fixture::{Lab, content, impatient, read_all};

const BYTES: usize = 3_000_000;
const FRONT_BYTES: usize = 1 << 20;

/// The range and the condition of each request.
type Asked = Arc<Mutex<Vec<(String, Option<String>)>>>;

/// A server whose responses `respond` makes, and the requests that it gets.
fn serve(respond: impl Fn(&ReceivedRequest) -> Vec<ServerStep> + Send + Sync + 'static) -> (Server, Asked) {
    let asked = Asked::default();
    let noted = Arc::clone(&asked);
    let server = Server::start(move |request| {
        let header = |name| request.header(name).map(str::to_owned);
        let one = (header("range").unwrap_or_default(), header("if-match"));
        noted.lock().unwrap().push(one);
        respond(request)
    });
    (server, asked)
}

/// The part of a response up to this number of bytes of its body, and the end of the connection.
fn cut(response: &[u8], body_bytes: usize) -> Vec<ServerStep> {
    let head_bytes = response.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
    let end = response.len().min(head_bytes + body_bytes);
    vec![ServerStep::Bytes(response[..end].to_vec()), ServerStep::Close]
}

fn open(server: &Server) -> straightway_core::Result<Remote> {
    Lab::new(server, impatient()).open_front("/object", u32::try_from(FRONT_BYTES).unwrap())
}

/// The first bytes of an object, which need no request.
fn front(remote: &Remote) -> Vec<u8> {
    let mut front = vec![0; FRONT_BYTES];
    remote.read_exact_at(0, &mut front).unwrap();
    front
}

#[test]
fn a_first_response_that_breaks_off_again_and_again_is_continued() {
    let object = content(BYTES, 1);
    let copy = object.clone();
    let (server, asked) = serve(move |request| cut(&request.response_bytes(&copy, "\"1\""), 100_000));
    let remote = open(&server).unwrap();
    assert_eq!(remote.object().bytes, BYTES as u64);
    assert!(front(&remote) == object[..FRONT_BYTES]);
    let asked = asked.lock().unwrap();
    assert_eq!(asked[0], (format!("bytes=0-{}", FRONT_BYTES - 1), None));
    assert_eq!(asked.len(), FRONT_BYTES.div_ceil(100_000));
    for (number, one) in asked.iter().enumerate().skip(1) {
        let range = format!("bytes={}-{}", number * 100_000, FRONT_BYTES - 1);
        assert_eq!(*one, (range, Some("\"1\"".to_owned())));
    }
}

#[test]
fn an_object_that_is_replaced_after_its_first_response_broke_off_is_opened_anew() {
    let versions = [content(BYTES, 1), content(BYTES, 2)];
    let new = versions[1].clone();
    let (server, asked) = serve(move |request| match request.number {
        0 => cut(&request.response_bytes(&versions[0], "\"1\""), 100_000),
        _ => request.response(&versions[1], "\"2\""),
    });
    let remote = open(&server).unwrap();
    assert!(front(&remote) == new[..FRONT_BYTES], "two versions are mixed");
    assert_eq!(
        asked.lock().unwrap().len(),
        3,
        "the rest is refused, then all is requested"
    );
}

#[test]
fn a_first_response_without_a_version_begins_again() {
    let object = content(BYTES, 1);
    let copy = object.clone();
    let (server, asked) = serve(move |request| {
        let response = request.response_bytes(&copy, "");
        match request.number {
            0 => cut(&response, 100_000),
            _ => vec![ServerStep::Bytes(response)],
        }
    });
    let remote = open(&server).unwrap();
    assert!(front(&remote) == object[..FRONT_BYTES]);
    let asked = asked.lock().unwrap();
    assert_eq!(asked[0], asked[1]);
}

#[test]
fn a_length_that_no_file_can_have_is_refused() {
    for (total, is_possible) in [(u64::MAX, false), (1 << 63, false), (i64::MAX as u64, true)] {
        let server = Server::start(move |_| {
            let range = format!("bytes 0-{}/{total}", FRONT_BYTES - 1);
            let length = FRONT_BYTES.to_string();
            let headers = [
                ("Content-Range", range.as_str()),
                ("Content-Length", &length),
                ("ETag", "\"1\""),
            ];
            let mut response = head("206 Partial Content", &headers);
            response.resize(response.len() + FRONT_BYTES, 7);
            vec![ServerStep::Bytes(response)]
        });
        let opened = open(&server);
        assert_eq!(opened.is_ok(), is_possible, "{total}: {opened:?}");
    }
}

#[test]
fn an_object_whose_responses_break_off_after_a_third_is_opened_and_read() {
    let object = content(BYTES, 1);
    let copy = object.clone();
    let server = Server::start(move |request: &ReceivedRequest| {
        let length = request.range(BYTES).map_or(BYTES, |range| range.len());
        cut(&request.response_bytes(&copy, "\"1\""), length.div_ceil(3))
    });
    let lab = Lab::new(&server, impatient());
    let remote = Arc::new(lab.open_front("/object", u32::try_from(FRONT_BYTES).unwrap()).unwrap());
    assert!(front(&remote) == object[..FRONT_BYTES]);
    for engine in [&mut lab.engine(2) as &mut dyn Engine, &mut threads(2).unwrap()] {
        let got = read_all(engine, &remote, BYTES, 1 << 20).unwrap();
        assert!(got.bytes == object);
    }
}

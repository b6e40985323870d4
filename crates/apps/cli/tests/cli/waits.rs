//! Waits before retries are printed to stderr, also without `-v`.

use std::sync::atomic::{AtomicUsize, Ordering};

use straightway_webserver::{ReceivedRequest, Server, ServerStep, head, short};

use crate::test_dir::{Ran, TestDir};

/// The wait that the server asks for.
const WAIT_S: &str = "2";

/// A server of an object, whose second request is refused, and of a bucket, whose first request is refused. `headers`
/// come with the refusal. The first request for the object opens it, and the others are those of lanes.
fn refusing_once(headers: &'static [(&'static str, &'static str)]) -> Server {
    let content = vec![7; 3 << 20];
    let (objects, lists) = (AtomicUsize::new(0), AtomicUsize::new(0));
    Server::start(move |request: &ReceivedRequest| {
        let is_list = request.target.contains("list-type");
        let is_refused = if is_list {
            lists.fetch_add(1, Ordering::Relaxed) == 0
        } else {
            objects.fetch_add(1, Ordering::Relaxed) == 1
        };
        if is_refused {
            let headers = [headers, &[("Content-Length", "0")]].concat();
            return vec![ServerStep::Bytes(head("503 Slow Down", &headers))];
        }
        if is_list {
            let list = "<ListBucketResult><Contents><Key>x</Key><Size>1</Size></Contents></ListBucketResult>";
            return short("200 OK", list);
        }
        request.response(&content, "\"1\"")
    })
}

/// Reads the object, and lists the bucket.
fn run(server: &Server) -> [Ran; 2] {
    let (object, service) = (server.url("/object"), server.url(""));
    let variables = [
        ("no_proxy", "*"),
        ("AWS_SKIP_SIGNATURE", "true"),
        ("AWS_ENDPOINT_URL_S3", &service),
    ];
    let run = |args: &[&str]| TestDir::new().run_with(&variables, args);
    std::thread::scope(|scope| {
        let copied = scope.spawn(|| run(&["copy", &object, "host:"]));
        let listed = run(&["ls", "s3://bucket"]);
        [copied.join().unwrap(), listed]
    })
}

#[test]
fn a_wait_that_the_server_asks_for_is_shown_and_a_short_one_is_not() {
    for ran in run(&refusing_once(&[("Retry-After", WAIT_S)])) {
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let shown = ran
            .err
            .lines()
            .filter(|line| line.starts_with("warning: "))
            .collect::<Vec<_>>();
        let [line] = shown[..] else {
            panic!("one wait is one line: {ran:?}")
        };
        assert!(
            line.contains("503") && line.contains("retry 1 of 10 in 2.0 s"),
            "{line}"
        );
    }
    for ran in run(&refusing_once(&[])) {
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    }
}

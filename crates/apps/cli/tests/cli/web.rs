//! Commands on web servers, and the environment variables for them.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::spawn,
};

use crate::{machine::Mount, test_dir::TestDir};

/// The length of the object.
const BYTES: usize = 100_000;

/// Starts a server of one object. Returns its port and the count of its requests.
fn serve() -> (u16, Arc<AtomicUsize>) {
    serve_claiming(BYTES as u64)
}

/// The same, for a server that claims that the object is longer than it is.
fn serve_claiming(claimed_bytes: u64) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let requests = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&requests);
    spawn(move || {
        for stream in listener.incoming().flatten() {
            let count = Arc::clone(&count);
            // A client that disconnects is not an error.
            spawn(move || respond(stream, &count, claimed_bytes).ok());
        }
    });
    (port, requests)
}

/// Responds to the requests on a connection.
fn respond(stream: TcpStream, count: &AtomicUsize, claimed_bytes: u64) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut range = 0..BYTES;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let line = line.trim().to_ascii_lowercase();
        let wanted = line.strip_prefix("range: bytes=");
        if let Some((first, last)) = wanted.and_then(|wanted| wanted.split_once('-')) {
            let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
            range = first..BYTES.min(last + 1);
        }
        if line.is_empty() {
            count.fetch_add(1, Ordering::Relaxed);
            let head = format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {}-{}/{claimed_bytes}\r\n\
                 ETag: \"1\"\r\n\r\n",
                range.len(),
                range.start,
                range.end - 1
            );
            let stream = stream.get_mut();
            stream.write_all(head.as_bytes())?;
            stream.write_all(&vec![7; range.len()])?;
        }
    }
}

/// Variables without proxies, also where those of the tests have some.
const NO_PROXY: [(&str, &str); 1] = [("no_proxy", "*")];

#[test]
fn the_doctor_measures_latency_by_requests() {
    let (port, requests) = serve();
    let dir = TestDir::new();
    let url = format!("http://127.0.0.1:{port}/object");
    let ran = dir.run_with(&NO_PROXY, ["doctor", &url]);
    assert!(ran.out.contains("first byte after"), "{ran:?}");
    // One request opens the object, and eight measure the latency.
    assert_eq!(requests.load(Ordering::Relaxed), 9, "{ran:?}");
}

#[test]
fn an_unusable_proxy_or_token_does_not_stop_commands_on_files() {
    let dir = TestDir::new();
    dir.file("file", 100, 1);
    let variables = [
        ("http_proxy", "socks5h://127.0.0.1:1080"),
        ("https_proxy", "socks5h://127.0.0.1:1080"),
        ("no_proxy", ""),
        ("HF_TOKEN", "two words"),
    ];
    let ran = dir.run_with(&variables, ["ls", "."]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains("file"), "{ran:?}");
    let ran = dir.run_with(&variables, ["ls", "https://files.invalid/object"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("only HTTP proxies"), "{ran:?}");
    // Without a proxy, only the token of its host is in the way.
    let (port, _) = serve();
    let variables = [("no_proxy", "*"), variables[0], variables[3]];
    let url = format!("http://127.0.0.1:{port}/object");
    let ran = dir.run_with(&variables, ["ls", &url]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran = dir.run_with(&variables, ["ls", "https://huggingface.co/object"]);
    assert!(ran.err.contains("HF_TOKEN"), "{ran:?}");
}

#[test]
fn an_object_that_claims_to_be_larger_than_the_drive_takes_none_of_it() {
    let dir = TestDir::new();
    let Some(mount) = Mount::small(&dir, "mkfs.ext4") else {
        return;
    };
    let free = || rustix::fs::statvfs(&mount.at).unwrap().f_bfree;
    let before = free();
    let (port, requests) = serve_claiming(1 << 40);
    let url = format!("http://127.0.0.1:{port}/object");
    let ran = dir.run_with(&NO_PROXY, ["copy", &url, "small/target"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(
        ran.err
            .contains("small/target: No space left on device: it has 1 TiB, and "),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("hint: free space"), "{}", ran.err);
    assert!(
        requests.load(Ordering::Relaxed) <= 2,
        "it is only opened: once to find it, and once to copy it"
    );
    assert_eq!(free(), before);
}

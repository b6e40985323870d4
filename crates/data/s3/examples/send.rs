//! The cost of sending: uploads by this crate compared with a bare loop of CRC-64/NVME and `send`.
//!
//! ```text
//! send ours BUCKET KEY MIB ROUNDS      an object in parts of 8 MiB; the service is that of the environment
//! send bare URLS ROUNDS CONNECTIONS    a part of 8 MiB to each URL of a file, which authorise themselves
//! ```
//!
//! Ours uses 8 connections. Both send from memory of their own. The bare loop has a thread per connection, computes the
//! checksum of each part before it sends it, and checks only the status. Prints the CPU seconds of this process
//! (`getrusage`) and the wall seconds of each round but the first, which opens the connections.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "an example")]

use std::{
    env,
    ffi::OsStr,
    io::{Read, Write},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use straightway_core::{Choice, Extent};
use straightway_io::{
    Executor, Objects, Region, Settings, Store,
    store::{CommitMode, Like},
};
use straightway_net::{Network, suited};
use straightway_s3::{S3, S3Access};
use straightway_sys::CpuTime;

const CONNECTIONS: u32 = 8;
const PART_BYTES: usize = 8 << 20;

fn main() {
    let words: Vec<_> = env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["ours", bucket, key, mib, rounds] => {
            ours(bucket, key, mib.parse().unwrap(), rounds.parse().unwrap());
        }
        ["bare", urls, rounds, connections] => {
            bare(urls, rounds.parse().unwrap(), connections.parse().unwrap());
        }
        _ => println!("send ours BUCKET KEY MIB ROUNDS | send bare URLS ROUNDS CONNECTIONS"),
    }
}

/// Runs all rounds, and prints the times of each but the first.
fn measured(rounds: usize, mut run: impl FnMut()) {
    for round in 0..=rounds {
        let (cpu, start) = (CpuTime::of_process(), Instant::now());
        run();
        let seconds = start.elapsed().as_secs_f64();
        if round > 0 {
            println!("{} {seconds}", (CpuTime::of_process() - cpu).total_s());
        }
    }
}

/// Bytes that are not all the same.
fn fill(bytes: &mut [u8]) {
    for (number, piece) in bytes.chunks_mut(8).enumerate() {
        let word = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        piece.copy_from_slice(&word.to_le_bytes()[..piece.len()]);
    }
}

fn ours(bucket: &str, key: &str, mib: u64, rounds: usize) {
    let variable = |name: &str| env::var(name).unwrap();
    let access = S3Access {
        region: Some(variable("AWS_REGION")),
        ..S3Access::with_keys(
            &variable("AWS_ENDPOINT_URL_S3"),
            &variable("AWS_ACCESS_KEY_ID"),
            &variable("AWS_SECRET_ACCESS_KEY"),
        )
    };
    let network = Network::new(straightway_net::NetworkSettings::default());
    let store = S3::new(bucket, &access, &network).unwrap();
    let bytes = mib << 20;
    let mut region = Region::host(bytes).unwrap();
    fill(region.as_mut_slice());
    let region = Arc::new(region);
    let executor = Executor::new(Settings {
        depth: CONNECTIONS,
        write_depth: CONNECTIONS,
        drive_lanes: 1,
        ..suited(Settings::default())
    })
    .unwrap();
    measured(rounds, || {
        let draft = store.create(OsStr::new(key), bytes, &Like::Replaced).unwrap();
        let objects = Objects::new(Arc::new(store.clone()), vec![draft.handle()]);
        let whole = vec![Extent::new(0, bytes).into()];
        let ticket = executor.write(&region, objects, whole, Choice::Auto).unwrap();
        ticket.wait().unwrap();
        store.commit(vec![draft], CommitMode::InOrder).unwrap();
    });
}

fn bare(urls: &str, rounds: usize, connections: u32) {
    let urls = std::fs::read_to_string(urls).unwrap();
    let urls: Vec<http::Uri> = urls.lines().map(|url| url.parse().unwrap()).collect();
    let host = urls[0].authority().unwrap().as_str().to_owned();
    let mut memory = vec![0; urls.len() * PART_BYTES];
    fill(&mut memory);
    let connect = |_| {
        let stream = TcpStream::connect(&host).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    };
    let mut lanes: Vec<_> = (0..connections).map(connect).collect();
    measured(rounds, || {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for stream in &mut lanes {
                let (next, urls, memory) = (&next, &urls, &memory);
                scope.spawn(move || {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let Some(url) = urls.get(number) else { return };
                        let part = &memory[number * PART_BYTES..(number + 1) * PART_BYTES];
                        put(stream, url, part);
                    }
                });
            }
        });
    });
}

/// Computes the checksum of a part, sends it, and reads the response.
fn put(stream: &mut TcpStream, url: &http::Uri, part: &[u8]) {
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, part);
    let (path, host) = (url.path_and_query().unwrap(), url.authority().unwrap());
    // Services ignore the header `Sum`. It keeps the compiler from removing the checksum.
    let head = format!(
        "PUT {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\nSum: {sum:016x}\r\n\r\n",
        part.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(part).unwrap();
    let (mut response, mut filled) = ([0; 4096], 0);
    loop {
        let more = stream.read(&mut response[filled..]).unwrap();
        assert!(more > 0, "the server closed the connection");
        filled += more;
        if response[..filled].ends_with(b"\r\n\r\n") {
            break;
        }
    }
    assert!(
        response.starts_with(b"HTTP/1.1 200"),
        "{}",
        String::from_utf8_lossy(&response[..filled])
    );
}

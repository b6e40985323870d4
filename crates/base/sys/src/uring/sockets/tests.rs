//! Tests of socket operations, on loopback.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::{
    file::IoPath,
    request::{Buf, Op},
    slot::Slot,
};

/// A ring, or a printed reason why there is none.
fn ring() -> Option<SocketRing<u8>> {
    SocketRing::new(8)
        .inspect_err(|error| eprintln!("skipped: {error}"))
        .ok()
}

fn one(ring: &mut SocketRing<u8>) -> SocketCompletion<u8> {
    let mut landed = Vec::new();
    while landed.is_empty() {
        ring.poll(&mut landed, 1, Duration::from_secs(5)).unwrap();
    }
    assert_eq!(landed.len(), 1);
    landed.remove(0)
}

/// A socket that is connected, and its other side.
fn connected(ring: &mut SocketRing<u8>) -> (Arc<Socket>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let socket = Arc::new(Socket::new(&address).unwrap());
    ring.begin(7, &socket, Payload::Connect(address)).unwrap();
    let landed = one(ring);
    assert_eq!((landed.key, landed.result.unwrap()), (7, 0));
    (socket, listener.accept().unwrap().0)
}

/// Begins to receive up to eight bytes.
fn receive(ring: &mut SocketRing<u8>, socket: &Arc<Socket>) {
    let payload = Payload::Receive {
        bytes: vec![0; 8],
        from: 0,
        to: 8,
    };
    ring.begin(5, socket, payload).unwrap();
}

fn io(bytes: usize) -> Io<u8> {
    Io {
        op: Op::Read,
        object: 3,
        by: IoPath::Direct,
        offset: 0,
        buf: Buf::Slot(Slot::ring(1, 4096).unwrap().remove(0)),
        start: 96,
        bytes,
        tag: 1,
    }
}

#[test]
fn sent_bytes_arrive_and_received_bytes_are_in_the_io() {
    let Some(mut ring) = ring() else { return };
    let (socket, mut peer) = connected(&mut ring);
    let payload = Payload::Send {
        bytes: b"__hello".to_vec(),
        from: 2,
    };
    ring.begin(1, &socket, payload).unwrap();
    assert_eq!(one(&mut ring).result.unwrap(), 5);
    let mut seen = [0; 5];
    peer.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"hello");
    assert!(socket.is_quiet());
    peer.write_all(b"abcdef").unwrap();
    let payload = Payload::Fill {
        io: io(10),
        from: 4,
        to: 10,
    };
    ring.begin(2, &socket, payload).unwrap();
    let landed = one(&mut ring);
    assert_eq!(landed.result.unwrap(), 6);
    let Payload::Fill { io, .. } = landed.payload else {
        panic!("it was submitted with an I/O")
    };
    let Buf::Slot(slot) = &io.buf else {
        panic!("it was submitted with a slot")
    };
    assert_eq!(&slot.as_slice()[95..107], b"\0\0\0\0\0abcdef\0");
    let payload = Payload::Spill { io, from: 5, to: 9 };
    ring.begin(3, &socket, payload).unwrap();
    let landed = one(&mut ring);
    assert_eq!(landed.result.unwrap(), 4);
    assert!(matches!(landed.payload, Payload::Spill { from: 5, .. }));
    let mut seen = [0; 4];
    peer.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"bcde");
    peer.write_all(b"x").unwrap();
    drop(peer);
    assert!(!socket.is_quiet());
}

#[test]
fn a_cancelled_operation_returns_its_buffer_when_it_completes() {
    let Some(mut ring) = ring() else { return };
    let (socket, _peer) = connected(&mut ring);
    let operation = ring.begin(
        4,
        &socket,
        Payload::Fill {
            io: io(10),
            from: 0,
            to: 10,
        },
    );
    let mut landed = Vec::new();
    ring.poll(&mut landed, 1, Duration::from_millis(20)).unwrap();
    assert!(landed.is_empty() && ring.in_flight() == 1);
    ring.cancel(operation.unwrap());
    let landed = one(&mut ring);
    assert_eq!(landed.result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
    assert!(matches!(landed.payload, Payload::Fill { .. }));
}

#[test]
fn dropping_a_ring_ends_operations_in_flight() {
    let Some(mut ring) = ring() else { return };
    let (socket, _peer) = connected(&mut ring);
    for key in 0..8 {
        let payload = Payload::Receive {
            bytes: vec![0; 64],
            from: 0,
            to: 64,
        };
        ring.begin(key, &socket, payload).unwrap();
    }
    let payload = Payload::Fill {
        io: io(10),
        from: 0,
        to: 10,
    };
    let refused = ring.begin(9, &socket, payload).unwrap_err();
    assert!(matches!(refused, Payload::Fill { .. }), "the table is full");
    let start = std::time::Instant::now();
    drop(ring);
    assert!(start.elapsed() < Duration::from_secs(10));
    drop(socket);
}

#[test]
fn a_refused_connection_is_an_error() {
    let Some(mut ring) = ring() else { return };
    let listener = TcpListener::bind("[::1]:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let socket = Arc::new(Socket::new(&address).unwrap());
    ring.begin(0, &socket, Payload::Connect(address)).unwrap();
    let error = one(&mut ring).result.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

fn filled(io: &Io<u8>) -> Vec<u8> {
    let mut bytes = vec![0; io.bytes];
    io.spill(&mut bytes);
    bytes
}

#[test]
fn two_pieces_are_received_and_sent_as_one_stream() {
    let Some(mut ring) = ring() else { return };
    let (socket, mut peer) = connected(&mut ring);
    for (sent, into_io, behind) in [
        (&b"abc"[..], &b"abc\0\0\0"[..], &b""[..]),
        (&b"abcdefgh"[..], &b"abcdef"[..], &b"gh"[..]),
    ] {
        peer.write_all(sent).unwrap();
        let payload = Payload::FillThen {
            io: io(10),
            fill: 2..8,
            bytes: vec![0xEE; 12],
            then: 4..9,
        };
        ring.begin(5, &socket, payload).unwrap();
        let landed = one(&mut ring);
        assert_eq!(landed.result.unwrap(), sent.len());
        let Payload::FillThen { io, bytes, .. } = landed.payload else {
            panic!("it was submitted as two pieces")
        };
        assert_eq!(&filled(&io)[2..8], into_io);
        let mut expected = vec![0xEE; 12];
        expected[4..4 + behind.len()].copy_from_slice(behind);
        assert_eq!(bytes, expected);
    }
    let mut io = io(10);
    io.fill(b"0123456789");
    let payload = Payload::SpillAfter {
        bytes: b"__head".to_vec(),
        from: 2,
        io,
        spill: 3..9,
    };
    ring.begin(6, &socket, payload).unwrap();
    assert_eq!(one(&mut ring).result.unwrap(), 10);
    let mut seen = [0; 10];
    peer.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"head345678");
}

#[test]
fn a_cancelled_receive_of_two_pieces_returns_both() {
    let Some(mut ring) = ring() else { return };
    let (socket, _peer) = connected(&mut ring);
    let payload = Payload::FillThen {
        io: io(10),
        fill: 0..10,
        bytes: vec![0; 8],
        then: 0..8,
    };
    let operation = ring.begin(4, &socket, payload).unwrap();
    let mut landed = Vec::new();
    ring.poll(&mut landed, 1, Duration::from_millis(20)).unwrap();
    assert!(landed.is_empty());
    ring.cancel(operation);
    let landed = one(&mut ring);
    assert!(landed.result.is_err());
    assert!(matches!(landed.payload, Payload::FillThen { bytes, .. } if bytes.len() == 8));
}

#[test]
fn cancelling_a_completed_operation_does_not_cancel_the_next_with_its_number() {
    let Some(mut ring) = ring() else { return };
    let (socket, mut peer) = connected(&mut ring);
    let receive = || Payload::Receive {
        bytes: vec![0; 1],
        from: 0,
        to: 1,
    };
    let first = ring.begin(1, &socket, receive()).unwrap();
    peer.write_all(b"a").unwrap();
    assert_eq!(one(&mut ring).result.unwrap(), 1);
    let second = ring.begin(2, &socket, receive()).unwrap();
    assert_eq!(first.number, second.number);
    ring.cancel(first);
    let mut landed = Vec::new();
    ring.poll(&mut landed, 1, Duration::from_millis(50)).unwrap();
    assert!(landed.is_empty(), "{landed:?}");
    peer.write_all(b"b").unwrap();
    assert_eq!(one(&mut ring).result.unwrap(), 1);
}

#[test]
fn a_wait_ends_in_time_after_any_earlier_waits() {
    let Some(mut ring) = ring() else { return };
    let (socket, mut peer) = connected(&mut ring);
    receive(&mut ring, &socket);
    let mut landed = Vec::new();
    let mut wait = |ring: &mut SocketRing<u8>, milliseconds| {
        let start = Instant::now();
        let timeout = Duration::from_millis(milliseconds);
        while let Some(left) = timeout.checked_sub(start.elapsed())
            && landed.is_empty()
        {
            ring.poll(&mut landed, 1, left).unwrap();
        }
        (landed.drain(..).count(), start.elapsed())
    };
    // The first wait leaves a late timeout pending: a shorter wait must not wait for it.
    peer.write_all(b"x").unwrap();
    let (count, took) = wait(&mut ring, 60_000);
    assert_eq!(count, 1);
    assert!(took < Duration::from_secs(30), "{took:?}");
    receive(&mut ring, &socket);
    for milliseconds in [30, 1, 60, 5, 5, 200] {
        let (count, took) = wait(&mut ring, milliseconds);
        assert_eq!(count, 0);
        assert!(took >= Duration::from_millis(milliseconds), "{took:?}");
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}

#[test]
fn many_short_waits_take_one_system_call_each() {
    let Some(mut ring) = ring() else { return };
    let (socket, mut peer) = connected(&mut ring);
    let before = ring.system_calls();
    for _ in 0..100 {
        receive(&mut ring, &socket);
        peer.write_all(b"x").unwrap();
        assert_eq!(one(&mut ring).result.unwrap(), 1);
    }
    assert_eq!(ring.system_calls() - before, 100);
}

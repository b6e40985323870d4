//! A relay in front of a target: one of several paths, which can be cut.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    thread,
    time::Duration,
};

/// The treatment of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Bytes pass.
    Pass = 0,
    /// Existing and new connections are reset.
    Reset = 1,
    /// No byte passes, and no connection is closed.
    Blackhole = 2,
    /// The relay has ended.
    Over = 3,
}

/// The interval at which a connection checks the mode.
const LOOK: Duration = Duration::from_millis(5);

/// A relay on loopback. It ends when it is dropped.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    mode: Arc<AtomicU8>,
}

impl Relay {
    pub(crate) fn new(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mode = Arc::new(AtomicU8::new(Mode::Pass as u8));
        let shared = Arc::clone(&mode);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mode = Arc::clone(&shared);
                match mode.load(Ordering::SeqCst) {
                    over if over == Mode::Over as u8 => return,
                    reset if reset == Mode::Reset as u8 => close(&stream.unwrap()),
                    _ => {
                        thread::spawn(move || pair(stream.unwrap(), target, &mode));
                    }
                }
            }
        });
        Self { address, mode }
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::SeqCst);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.set(Mode::Over);
        let _ = TcpStream::connect(self.address);
    }
}

/// Makes the next close of a stream a reset.
fn close(stream: &TcpStream) {
    rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO)).unwrap();
}

/// Copies bytes in both directions until one side closes or the mode changes.
fn pair(near: TcpStream, target: SocketAddr, mode: &Arc<AtomicU8>) {
    while mode.load(Ordering::SeqCst) == Mode::Blackhole as u8 {
        thread::sleep(LOOK);
    }
    let Ok(far) = TcpStream::connect(target) else {
        return close(&near);
    };
    for stream in [&near, &far] {
        close(stream);
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LOOK)).unwrap();
    }
    let (near, far) = (Arc::new(near), Arc::new(far));
    let back = {
        let (near, far, mode) = (Arc::clone(&near), Arc::clone(&far), Arc::clone(mode));
        thread::spawn(move || pump(&far, &near, &mode))
    };
    pump(&near, &far, mode);
    back.join().unwrap();
}

fn pump(mut from: &TcpStream, mut to: &TcpStream, mode: &AtomicU8) {
    let mut bytes = vec![0; 256 << 10];
    loop {
        match mode.load(Ordering::SeqCst) {
            black if black == Mode::Blackhole as u8 => {
                thread::sleep(LOOK);
                continue;
            }
            pass if pass == Mode::Pass as u8 => {}
            _ => break,
        }
        match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) if to.write_all(&bytes[..count]).is_ok() => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Ok(_) | Err(_) => break,
        }
    }
    // Ends the other direction too.
    let _ = from.shutdown(std::net::Shutdown::Read);
    let _ = to.shutdown(std::net::Shutdown::Read);
}

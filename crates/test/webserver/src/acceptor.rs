//! Accepts connections, each on a thread of its own.

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

/// An address where connections are accepted, until it is dropped.
#[derive(Debug)]
pub struct Acceptor {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Listens at an address. `serve` gets each connection. Its error ends that connection only: a client that
    /// disconnects is not an error of the server.
    pub fn start(
        address: &str,
        serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (ends, serve) = (Arc::clone(&is_over), Arc::new(serve));
        let accepting = thread::spawn(move || {
            for stream in listener.incoming() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let serve = Arc::clone(&serve);
                thread::spawn(move || {
                    let _ = stream.and_then(|stream| {
                        stream.set_nodelay(true)?;
                        serve(stream)
                    });
                });
            }
        });
        Ok(Self {
            address,
            is_over,
            accepting: Some(accepting),
        })
    }

    /// The address it listens at.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let woken = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take().filter(|_| woken.is_ok()) {
            let _ = accepting.join();
        }
    }
}

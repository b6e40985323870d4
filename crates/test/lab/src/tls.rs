//! TLS in front of a server without TLS.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::Arc,
};

use rustix::event::{PollFd, PollFlags, poll};
use rustls::{ServerConfig, ServerConnection};
use straightway_webserver::{Acceptor, Certificate};

/// A TLS server on loopback that forwards everything to another server. It ends when it is dropped.
#[derive(Debug)]
pub struct TlsFront {
    acceptor: Acceptor,
    certificate: Certificate,
}

impl TlsFront {
    /// Starts a TLS server in front of `upstream`, a host and port.
    pub fn start(upstream: &str) -> io::Result<Self> {
        let certificate = Certificate::new();
        let (upstream, config) = (upstream.to_owned(), certificate.server_config());
        let relay = move |client: TcpStream| relay(&client, &upstream, Arc::clone(&config));
        Ok(Self {
            acceptor: Acceptor::start("127.0.0.1:0", relay)?,
            certificate,
        })
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.acceptor.address()
    }

    /// Its certificate, which clients must trust.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }
}

/// Forwards bytes between a client with TLS and a server without.
fn relay(mut client: &TcpStream, upstream: &str, config: Arc<ServerConfig>) -> io::Result<()> {
    let mut server = TcpStream::connect(upstream)?;
    server.set_nodelay(true)?;
    let mut session = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        while session.wants_write() {
            session.write_tls(&mut client)?;
        }
        let mut sides = [PollFd::new(&client, PollFlags::IN), PollFd::new(&server, PollFlags::IN)];
        poll(&mut sides, None)?;
        let [from_client, from_server] = sides.map(|side| !side.revents().is_empty());
        if from_client {
            if session.read_tls(&mut client)? == 0 {
                return server.shutdown(Shutdown::Both);
            }
            let state = session.process_new_packets().map_err(io::Error::other)?;
            let mut plain = vec![0; state.plaintext_bytes_to_read()];
            session.reader().read_exact(&mut plain)?;
            server.write_all(&plain)?;
            if state.peer_has_closed() {
                return server.shutdown(Shutdown::Both);
            }
        }
        if from_server {
            match server.read(&mut buffer)? {
                0 => {
                    session.send_close_notify();
                    while session.wants_write() {
                        session.write_tls(&mut client)?;
                    }
                    return client.shutdown(Shutdown::Both);
                }
                read => session.writer().write_all(&buffer[..read])?,
            }
        }
    }
}

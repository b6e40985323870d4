//! A TCP socket for [`SocketRing`](crate::uring::sockets::SocketRing).

use std::{
    io,
    net::{SocketAddr, TcpStream},
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recv, send, socket_with, sockopt},
};

/// A TCP socket. It is closed when the last I/O that uses it is done.
#[derive(Debug)]
pub struct Socket(OwnedFd);

impl Socket {
    /// Creates a socket for the address family of `peer`, with `TCP_NODELAY`.
    pub fn new(peer: &SocketAddr) -> io::Result<Self> {
        let family = match peer {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        // It is blocking: on a non-blocking socket io_uring returns EAGAIN instead of waiting.
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        Ok(Self(socket))
    }

    /// Takes the socket of an existing connection. Closing it discards unsent bytes, so that the peer does not receive
    /// them.
    pub fn of_stream(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        stream.set_nodelay(true)?;
        let socket = OwnedFd::from(stream);
        sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        Ok(Self(socket))
    }

    /// Whether the peer has neither sent anything nor closed, as for an idle connection.
    pub fn is_quiet(&self) -> bool {
        let mut byte = [0_u8; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        matches!(recv(self.0.as_fd(), &mut byte, flags), Err(Errno::AGAIN))
    }

    /// Sends as much as fits into the socket's buffer, without waiting. Returns the number of bytes.
    pub fn send_now(&self, bytes: &[u8]) -> io::Result<usize> {
        match send(self.0.as_fd(), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) => Ok(sent),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives bytes that have already arrived, without waiting. 0 is the end of the connection.
    pub fn receive_now(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let (received, _) = recv(self.0.as_fd(), bytes, RecvFlags::DONTWAIT)?;
        Ok(received)
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

//! A TCP socket of this side, for [`Sockets`](crate::sockets::Sockets).

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto, recv, socket_with, sockopt},
};

/// A TCP socket. It is closed when the last I/O that uses it is done.
#[derive(Debug)]
pub struct Socket(OwnedFd);

impl Socket {
    /// A socket that can connect to addresses of `peer`'s kind. Small writes go out at once.
    pub fn new(peer: &SocketAddr) -> io::Result<Self> {
        let family = match peer {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        // It blocks: io_uring gives EAGAIN for one that does not, instead of waiting.
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        Ok(Self(socket))
    }

    /// Whether the other side has neither sent anything nor closed. A connection that waits for a request is so.
    pub fn is_quiet(&self) -> bool {
        let mut byte = [0_u8; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        matches!(recv(self.0.as_fd(), &mut byte, flags), Err(Errno::AGAIN))
    }

    /// Takes what has come already, without waiting. 0 is the end of the connection.
    pub fn receive_now(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let (received, _) = recv(self.0.as_fd(), bytes, RecvFlags::DONTWAIT)?;
        Ok(received)
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// An address as the kernel has it.
#[derive(Clone, Copy)]
pub(crate) struct KernelAddress {
    storage: Storage,
    bytes: libc::socklen_t,
}

#[derive(Clone, Copy)]
#[repr(C)]
union Storage {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl KernelAddress {
    pub(crate) fn new(address: &SocketAddr) -> Self {
        let length = |bytes: usize| libc::socklen_t::try_from(bytes).expect("addresses are short");
        match address {
            SocketAddr::V4(address) => Self {
                storage: Storage {
                    v4: libc::sockaddr_in {
                        sin_family: libc::AF_INET as libc::sa_family_t,
                        sin_port: address.port().to_be(),
                        sin_addr: libc::in_addr {
                            s_addr: u32::from_ne_bytes(address.ip().octets()),
                        },
                        sin_zero: [0; 8],
                    },
                },
                bytes: length(size_of::<libc::sockaddr_in>()),
            },
            SocketAddr::V6(address) => Self {
                storage: Storage {
                    v6: libc::sockaddr_in6 {
                        sin6_family: libc::AF_INET6 as libc::sa_family_t,
                        sin6_port: address.port().to_be(),
                        sin6_flowinfo: address.flowinfo(),
                        sin6_addr: libc::in6_addr {
                            s6_addr: address.ip().octets(),
                        },
                        sin6_scope_id: address.scope_id(),
                    },
                },
                bytes: length(size_of::<libc::sockaddr_in6>()),
            },
        }
    }

    pub(crate) fn pointer(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    pub(crate) fn bytes(&self) -> libc::socklen_t {
        self.bytes
    }
}

impl std::fmt::Debug for KernelAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KernelAddress({} bytes)", self.bytes)
    }
}

//! Statistics of a TCP connection from the kernel (`TCP_INFO`).

use std::mem::size_of;

use crate::socket::Socket;

/// The number of bytes requested: the fields up to Linux 5.4, and some more.
const BYTES: usize = 240;

/// The offsets of fields in `struct tcp_info` (`linux/tcp.h`). They never move; new fields are added at the end.
mod field {
    pub(super) const RTT_US: usize = 68;
    pub(super) const RETRANSMITS: usize = 100;
    pub(super) const ACKED_BYTES: usize = 120;
    pub(super) const RECEIVED_BYTES: usize = 128;
    pub(super) const OUT_OF_ORDER: usize = 224;
}

/// The kernel's statistics of a connection. Counters start at its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// The smoothed round-trip time, in microseconds.
    pub rtt_us: u32,
    /// Segments that this side retransmitted.
    pub retransmits: u32,
    /// Packets that arrived out of order, because earlier ones were lost or late. 0 before Linux 5.4.
    pub out_of_order: u32,
    /// Bytes that the peer has acknowledged.
    pub acked_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
}

impl Socket {
    /// The kernel's statistics of this connection; `None` if the kernel reports none or too few fields.
    pub fn tcp_info(&self) -> Option<TcpInfo> {
        let mut bytes = [0_u8; BYTES];
        let mut length = libc::socklen_t::try_from(BYTES).expect("it is small");
        // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes to `bytes`.
        let outcome = unsafe {
            libc::getsockopt(
                self.raw(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                bytes.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let told = bytes.get(..usize::try_from(length).ok()?)?;
        if outcome != 0 {
            return None;
        }
        Some(TcpInfo {
            rtt_us: word(told, field::RTT_US)?,
            retransmits: word(told, field::RETRANSMITS)?,
            out_of_order: word(told, field::OUT_OF_ORDER).unwrap_or(0),
            acked_bytes: long(told, field::ACKED_BYTES)?,
            received_bytes: long(told, field::RECEIVED_BYTES)?,
        })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at + size_of::<u32>())?;
    Some(u32::from_ne_bytes(field.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at + size_of::<u64>())?;
    Some(u64::from_ne_bytes(field.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    #[test]
    fn a_connection_counts_sent_and_received_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        let own = Socket::of_stream(own).unwrap();
        let before = own.tcp_info().unwrap();
        assert_eq!((before.received_bytes, before.retransmits), (0, 0));
        assert_eq!(own.send_now(&[7; 1000]).unwrap(), 1000);
        other.read_exact(&mut [0; 1000]).unwrap();
        other.write_all(&[8; 5000]).unwrap();
        let info = || own.tcp_info().unwrap();
        while info().received_bytes < 5000 || info().acked_bytes < 1000 {
            std::thread::yield_now();
        }
        assert!(info().rtt_us > 0 && info().out_of_order == 0, "{:?}", info());
    }
}

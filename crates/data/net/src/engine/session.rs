//! TLS on a connection, without its socket: the engine moves ciphertext between the socket and the buffers here.
//!
//! rustls decrypts in place, so a received byte is copied once: from the record into the memory of the I/O.

use std::sync::Arc;

use rustls::{
    ClientConfig,
    client::UnbufferedClientConnection,
    unbuffered::{ConnectionState, EncodeError, EncryptError, InsufficientSizeError},
};
use rustls_pki_types::ServerName;

/// The size of the receive buffer. A TLS record has up to 16 KiB.
const INCOMING_BYTES: usize = 128 << 10;

/// TLS on one connection.
pub(super) struct Session {
    connection: UnbufferedClientConnection,
    incoming: Vec<u8>,
    /// The number of received bytes in `incoming`.
    filled: usize,
    /// Ciphertext to send.
    outgoing: Vec<u8>,
}

/// The stage of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The handshake needs more from the server, after all outgoing data was sent.
    Handshaking,
    /// The session is established: requests can be sent.
    Open,
    /// The server has closed it.
    Closed,
}

impl Session {
    pub(super) fn new(config: &Arc<ClientConfig>, name: &ServerName<'static>) -> Result<Self, rustls::Error> {
        Ok(Self {
            connection: UnbufferedClientConnection::new(Arc::clone(config), name.clone())?,
            incoming: vec![0; INCOMING_BYTES],
            filled: 0,
            outgoing: Vec::new(),
        })
    }

    /// Lends the receive buffer, with the offset for the next bytes.
    pub(super) fn lend_incoming(&mut self) -> (Vec<u8>, usize) {
        (std::mem::take(&mut self.incoming), self.filled)
    }

    /// Takes the receive buffer back with `more` bytes in it.
    pub(super) fn take_incoming(&mut self, incoming: Vec<u8>, more: usize) {
        self.incoming = incoming;
        self.filled += more;
    }

    /// Lends the ciphertext to send, if there is any.
    pub(super) fn lend_outgoing(&mut self) -> Option<Vec<u8>> {
        (!self.outgoing.is_empty()).then(|| std::mem::take(&mut self.outgoing))
    }

    /// Takes the send buffer back after it was sent.
    pub(super) fn take_outgoing(&mut self, mut outgoing: Vec<u8>) {
        outgoing.clear();
        self.outgoing = outgoing;
    }

    /// Whether there is ciphertext to send.
    pub(super) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Processes the received ciphertext and passes decrypted bytes to `plain`.
    pub(super) fn process(&mut self, mut plain: impl FnMut(&[u8])) -> Result<Stage, rustls::Error> {
        let mut start = 0;
        let stage = loop {
            let status = self
                .connection
                .process_tls_records(&mut self.incoming[start..self.filled]);
            let mut used = status.discard;
            let mut stage = None;
            match status.state? {
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record?;
                        used += record.discard;
                        plain(record.payload);
                    }
                }
                ConnectionState::EncodeTlsData(mut data) => {
                    append(&mut self.outgoing, |room| match data.encode(room) {
                        Ok(bytes) => Ok(Ok(bytes)),
                        Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
                            Ok(Err(required_size))
                        }
                        Err(EncodeError::AlreadyEncoded) => Ok(Ok(0)),
                    })?;
                }
                // The engine sends `outgoing` before anything else.
                ConnectionState::TransmitTlsData(data) => data.done(),
                ConnectionState::BlockedHandshake => stage = Some(Stage::Handshaking),
                ConnectionState::WriteTraffic(_) => {
                    // The server may send tickets at any time, with payload after them.
                    stage = (used == 0).then_some(Stage::Open);
                }
                _ => stage = Some(Stage::Closed),
            }
            start += used;
            if let Some(stage) = stage {
                break stage;
            }
        };
        self.incoming.copy_within(start..self.filled, 0);
        self.filled -= start;
        Ok(stage)
    }

    /// Encrypts `bytes` into the send buffer. The session must be open.
    pub(super) fn encrypt(&mut self, bytes: &[u8]) -> Result<(), rustls::Error> {
        let status = self.connection.process_tls_records(&mut self.incoming[..self.filled]);
        debug_assert_eq!(status.discard, 0, "all records were processed before");
        let ConnectionState::WriteTraffic(mut traffic) = status.state? else {
            return Err(rustls::Error::General("the session is not open".to_owned()));
        };
        append(&mut self.outgoing, |room| match traffic.encrypt(bytes, room) {
            Ok(bytes) => Ok(Ok(bytes)),
            Err(EncryptError::InsufficientSize(InsufficientSizeError { required_size })) => Ok(Err(required_size)),
            Err(EncryptError::EncryptExhausted) => Err(rustls::Error::EncryptError),
        })
    }
}

/// Appends the output of `write` to `buffer`. `write` returns the number of bytes written, or the room that it needs.
fn append(
    buffer: &mut Vec<u8>,
    mut write: impl FnMut(&mut [u8]) -> Result<Result<usize, usize>, rustls::Error>,
) -> Result<(), rustls::Error> {
    let used = buffer.len();
    let mut room = 1 << 10;
    for _ in 0..2 {
        buffer.resize(used + room, 0);
        match write(&mut buffer[used..]) {
            Ok(Ok(bytes)) => {
                buffer.truncate(used + bytes);
                return Ok(());
            }
            Ok(Err(needed)) => room = needed,
            Err(error) => {
                buffer.truncate(used);
                return Err(error);
            }
        }
    }
    buffer.truncate(used);
    Err(rustls::Error::General(
        "it needs more room than it asked for".to_owned(),
    ))
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session {{ received: {} }}", self.filled)
    }
}

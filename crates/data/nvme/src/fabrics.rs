//! Fabrics commands: Connect, properties and authentication.

use crate::{Malformed, Nqn, Sqe, Status, entry::Sgl, wire};

/// The opcode of all fabrics commands.
pub const OPCODE: u8 = 0x7f;

/// The size of Connect's data.
pub const CONNECT_BYTES: usize = 1024;

/// The controller identifier in Connect that lets the target assign any controller.
pub const DYNAMIC_CONTROLLER: u16 = 0xffff;

/// The security protocol of in-band authentication (SECP).
pub const AUTH_PROTOCOL: u8 = 0xe9;
/// The protocol-specific field of [`AUTH_PROTOCOL`] (SPSP).
pub const AUTH_SPECIFIC: u16 = 0x0101;

mod kind {
    pub(super) const PROPERTY_SET: u8 = 0x00;
    pub(super) const CONNECT: u8 = 0x01;
    pub(super) const PROPERTY_GET: u8 = 0x04;
    pub(super) const AUTH_SEND: u8 = 0x05;
    pub(super) const AUTH_RECEIVE: u8 = 0x06;
    pub(super) const DISCONNECT: u8 = 0x08;
}

/// A fabrics command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabrics {
    /// Creates a queue on this connection. Its data is [`ConnectData`].
    Connect(Connect),
    /// Reads a property.
    PropertyGet {
        /// The property.
        property: Property,
    },
    /// Writes a property.
    PropertySet {
        /// The property.
        property: Property,
        /// The value.
        value: u64,
    },
    /// Authentication Send: carries a message of the host.
    AuthSend {
        /// The security protocol.
        protocol: u8,
        /// The protocol-specific field.
        specific: u16,
        /// The length of the message.
        bytes: u32,
    },
    /// Authentication Receive: requests a message of the controller.
    AuthReceive {
        /// The security protocol.
        protocol: u8,
        /// The protocol-specific field.
        specific: u16,
        /// The maximum length of the message.
        bytes: u32,
    },
    /// Deletes a queue. Linux neither sends nor supports it.
    Disconnect,
}

/// The fields of Connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// The queue identifier: 0 is the admin queue.
    pub queue: u16,
    /// The queue size in entries, less one.
    pub size: u16,
    /// Whether submission queue flow control is disabled. A read may then end without a completion.
    pub is_uncontrolled: bool,
    /// The keep-alive timeout; 0 for none.
    pub keep_alive_ms: u32,
}

/// A property of a controller: its offset, and whether it has 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Property {
    /// The offset.
    pub offset: u32,
    /// Whether it has 8 bytes instead of 4.
    pub is_wide: bool,
}

impl Property {
    /// Controller capabilities: see [`ControllerCapabilities`].
    pub const CAP: Self = Self::wide(0x00);
    /// The version.
    pub const VS: Self = Self::narrow(0x08);
    /// The controller configuration: see [`config`].
    pub const CC: Self = Self::narrow(0x14);
    /// The controller status: see [`CSTS_READY`].
    pub const CSTS: Self = Self::narrow(0x1c);
    /// The controller ready timeouts.
    pub const CRTO: Self = Self::narrow(0x68);

    const fn wide(offset: u32) -> Self {
        Self { offset, is_wide: true }
    }

    const fn narrow(offset: u32) -> Self {
        Self { offset, is_wide: false }
    }
}

/// CSTS: ready.
pub const CSTS_READY: u64 = 1;
/// CSTS: fatal error.
pub const CSTS_FATAL: u64 = 2;
/// CSTS: the mask of the shutdown status. It is [`CSTS_SHUTDOWN_DONE`] when the shutdown is complete.
pub const CSTS_SHUTDOWN: u64 = 0xc;
/// CSTS: the shutdown is complete.
pub const CSTS_SHUTDOWN_DONE: u64 = 0x8;

/// Values of the property CC.
pub mod config {
    /// The controller is enabled.
    pub const ENABLE: u64 = 1;
    /// Requests a normal shutdown.
    pub const SHUTDOWN: u64 = 1 << 14;
    /// The mask of the shutdown notification.
    pub const SHUTDOWN_MASK: u64 = 3 << 14;
    /// Queue entry sizes of 64 and 16 bytes.
    pub const ENTRIES: u64 = 6 << 16 | 4 << 20;
}

/// The property CAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerCapabilities(pub u64);

impl ControllerCapabilities {
    /// A controller for NVM commands with queues of up to `entries` entries and a ready timeout of `ready_500ms` × 500
    /// ms.
    pub const fn new(entries: u16, ready_500ms: u8) -> Self {
        let needs_contiguous = 1 << 16;
        let nvm = 1 << 37;
        let size = entries.saturating_sub(1) as u64;
        Self(size | needs_contiguous | (ready_500ms as u64) << 24 | nvm)
    }

    /// The maximum queue size in entries, less one (MQES).
    pub const fn size_max(self) -> u16 {
        (self.0 & 0xffff) as u16
    }

    /// The ready timeout in units of 500 ms.
    pub const fn ready_500ms(self) -> u8 {
        (self.0 >> 24 & 0xff) as u8
    }

    /// Whether it supports the NVM command set.
    pub const fn has_nvm(self) -> bool {
        self.0 >> 37 & 1 != 0
    }
}

/// The result of Connect: dword 0 of its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Connected {
    /// The controller identifier.
    pub controller: u16,
    /// Whether authentication is required next.
    pub needs_auth: bool,
    /// Whether a secure channel is required after authentication.
    pub needs_concat: bool,
}

impl Connected {
    /// Encodes dword 0.
    pub const fn to_result(self) -> u64 {
        let auth = (self.needs_auth as u64) << 17;
        self.controller as u64 | auth | (self.needs_concat as u64) << 18
    }

    /// Decodes dword 0.
    pub const fn from_result(result: u64) -> Self {
        Self {
            controller: (result & 0xffff) as u16,
            needs_auth: result >> 17 & 1 != 0,
            needs_concat: result >> 18 & 1 != 0,
        }
    }
}

/// The result of a Connect that fails with [`Status::CONNECT_INVALID_PARAM`]: the offset of the invalid field.
pub const fn invalid_parameter(offset: u16, is_in_data: bool) -> u64 {
    offset as u64 | (is_in_data as u64) << 16
}

impl Fabrics {
    /// The submission queue entry, without data and command identifier.
    pub fn sqe(&self) -> Sqe {
        let (kind, dwords) = match *self {
            Self::Connect(connect) => {
                let attributes = if connect.is_uncontrolled { 4 } else { 0 };
                let size = u32::from(connect.size) | attributes << 16;
                let queue = u32::from(connect.queue) << 16;
                (kind::CONNECT, [queue, size, connect.keep_alive_ms, 0, 0, 0])
            }
            Self::PropertyGet { property } => {
                let wide = u32::from(property.is_wide);
                (kind::PROPERTY_GET, [wide, property.offset, 0, 0, 0, 0])
            }
            Self::PropertySet { property, value } => {
                let wide = u32::from(property.is_wide);
                let (low, high) = halves(value);
                (kind::PROPERTY_SET, [wide, property.offset, low, high, 0, 0])
            }
            Self::AuthSend {
                protocol,
                specific,
                bytes,
            } => (kind::AUTH_SEND, [auth(protocol, specific), bytes, 0, 0, 0, 0]),
            Self::AuthReceive {
                protocol,
                specific,
                bytes,
            } => (kind::AUTH_RECEIVE, [auth(protocol, specific), bytes, 0, 0, 0, 0]),
            Self::Disconnect => (kind::DISCONNECT, [0; 6]),
        };
        let sqe = Sqe::new(OPCODE, u32::from(kind), dwords);
        match *self {
            Self::Connect(_) => sqe.with_sgl(Sgl::in_capsule(1024)),
            Self::AuthSend { bytes, .. } => sqe.with_sgl(Sgl::in_capsule(bytes)),
            Self::AuthReceive { bytes, .. } => sqe.with_sgl(Sgl::transport(bytes)),
            _ => sqe,
        }
    }

    /// Decodes a submission queue entry, or returns the status that refuses it.
    pub fn from_sqe(sqe: &Sqe) -> Result<Self, Status> {
        let [d10, d11, d12, d13, ..] = sqe.dwords;
        let property = Property {
            offset: d11,
            is_wide: d10 & 7 == 1,
        };
        let (protocol, specific) = ((d10 >> 24) as u8, (d10 >> 8 & 0xffff) as u16);
        match sqe.fabrics_type() {
            kind::CONNECT if d10 & 0xffff != 0 => Err(Status::CONNECT_FORMAT.dnr()),
            kind::CONNECT => Ok(Self::Connect(Connect {
                queue: (d10 >> 16) as u16,
                size: (d11 & 0xffff) as u16,
                is_uncontrolled: d11 >> 18 & 1 != 0,
                keep_alive_ms: d12,
            })),
            kind::PROPERTY_GET | kind::PROPERTY_SET if d10 & 7 > 1 => Err(Status::INVALID_FIELD.dnr()),
            kind::PROPERTY_GET => Ok(Self::PropertyGet { property }),
            kind::PROPERTY_SET => Ok(Self::PropertySet {
                property,
                value: u64::from(d12) | u64::from(d13) << 32,
            }),
            kind::AUTH_SEND => Ok(Self::AuthSend {
                protocol,
                specific,
                bytes: d11,
            }),
            kind::AUTH_RECEIVE => Ok(Self::AuthReceive {
                protocol,
                specific,
                bytes: d11,
            }),
            kind::DISCONNECT => Ok(Self::Disconnect),
            _ => Err(Status::INVALID_OPCODE.dnr()),
        }
    }
}

/// Dword 10 of authentication commands: SPSP0, SPSP1 and SECP in bytes 1 to 3.
fn auth(protocol: u8, specific: u16) -> u32 {
    u32::from(specific) << 8 | u32::from(protocol) << 24
}

/// The low and the high 32 bits.
pub(crate) fn halves(value: u64) -> (u32, u32) {
    ((value & 0xffff_ffff) as u32, (value >> 32) as u32)
}

/// The data of Connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// The host identifier.
    pub host_id: [u8; 16],
    /// The controller identifier; [`DYNAMIC_CONTROLLER`] on the admin queue.
    pub controller: u16,
    /// The NQN of the subsystem.
    pub subsystem: Nqn,
    /// The NQN of the host.
    pub host: Nqn,
}

impl ConnectData {
    /// Encodes the data.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; CONNECT_BYTES];
        wire::put(&mut bytes, 0, &self.host_id);
        wire::put(&mut bytes, 16, &self.controller.to_le_bytes());
        self.subsystem.put(&mut bytes, 256);
        self.host.put(&mut bytes, 512);
        bytes
    }

    /// Decodes the data. The error has the offset of the invalid field for [`invalid_parameter`].
    pub fn decode(bytes: &[u8]) -> Result<Self, (u16, Malformed)> {
        if bytes.len() != CONNECT_BYTES {
            return Err((0, Malformed("the data of Connect does not have 1024 bytes")));
        }
        Ok(Self {
            host_id: wire::array_at(bytes, 0),
            controller: wire::u16_at(bytes, 16),
            subsystem: Nqn::at(bytes, 256).map_err(|error| (256, error))?,
            host: Nqn::at(bytes, 512).map_err(|error| (512, error))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fabrics() -> impl Strategy<Value = Fabrics> {
        let property = (any::<u32>(), any::<bool>());
        let property = property.prop_map(|(offset, is_wide)| Property { offset, is_wide });
        let connect = (any::<u16>(), any::<u16>(), any::<bool>(), any::<u32>());
        prop_oneof![
            connect.prop_map(|(queue, size, is_uncontrolled, keep_alive_ms)| {
                Fabrics::Connect(Connect {
                    queue,
                    size,
                    is_uncontrolled,
                    keep_alive_ms,
                })
            }),
            property.clone().prop_map(|property| Fabrics::PropertyGet { property }),
            (property, any::<u64>()).prop_map(|(property, value)| Fabrics::PropertySet { property, value }),
            (any::<u8>(), any::<u16>(), any::<u32>()).prop_map(|(protocol, specific, bytes)| {
                Fabrics::AuthSend {
                    protocol,
                    specific,
                    bytes,
                }
            }),
            (any::<u8>(), any::<u16>(), any::<u32>()).prop_map(|(protocol, specific, bytes)| {
                Fabrics::AuthReceive {
                    protocol,
                    specific,
                    bytes,
                }
            }),
            Just(Fabrics::Disconnect),
        ]
    }

    proptest! {
        #[test]
        fn commands_round_trip(command in fabrics()) {
            let sqe = Sqe::decode(&command.sqe().encode());
            prop_assert_eq!(Fabrics::from_sqe(&sqe), Ok(command));
        }

        #[test]
        fn connect_data_round_trips(host_id: [u8; 16], controller: u16, nqn in "[a-z.:-]{1,223}") {
            let host = Nqn::of_host(&host_id);
            let subsystem = Nqn::new(&nqn).unwrap();
            let data = ConnectData { host_id, controller, subsystem, host };
            prop_assert_eq!(ConnectData::decode(&data.encode()), Ok(data));
        }
    }

    #[test]
    fn values_match_linux() {
        let cap = ControllerCapabilities(0x0000_0820_0f00_03ff);
        assert_eq!((cap.size_max(), cap.ready_500ms()), (1023, 15));
        let connect = Connect {
            queue: 1,
            size: 127,
            is_uncontrolled: true,
            keep_alive_ms: 0,
        };
        let sqe = Fabrics::Connect(connect).sqe().encode();
        assert_eq!(sqe[40..52], [0, 0, 1, 0, 127, 0, 4, 0, 0, 0, 0, 0]);
        let connected = Connected::from_result(0x2_0001);
        assert!(connected.needs_auth && connected.controller == 1);
        assert_eq!(connected.to_result(), 0x2_0001);
        let mut data = ConnectData {
            host_id: [7; 16],
            controller: DYNAMIC_CONTROLLER,
            subsystem: Nqn::discovery(),
            host: Nqn::of_host(&[7; 16]),
        }
        .encode();
        data[256] = 0;
        assert_eq!(ConnectData::decode(&data).unwrap_err().0, 256);
        assert_eq!(invalid_parameter(256, true), 0x1_0100);
    }
}

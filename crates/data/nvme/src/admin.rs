//! Admin commands, features and asynchronous events.

mod event;
mod feature;

pub use event::AsyncEvent;
pub use feature::{EventMask, Feature, QueueCounts};

use crate::{Sqe, Status, entry::Sgl, fabrics::halves, identify::IDENTIFY_LENGTH};

mod opcode {
    pub(super) const GET_LOG: u8 = 0x02;
    pub(super) const IDENTIFY: u8 = 0x06;
    pub(super) const ABORT: u8 = 0x08;
    pub(super) const SET_FEATURES: u8 = 0x09;
    pub(super) const GET_FEATURES: u8 = 0x0a;
    pub(super) const EVENT: u8 = 0x0c;
    pub(super) const KEEP_ALIVE: u8 = 0x18;
}

/// The broadcast namespace identifier: all namespaces.
pub const ALL_NAMESPACES: u32 = u32::MAX;

/// An admin command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admin {
    /// Reads an Identify data structure of 4096 bytes.
    Identify(Identify),
    /// Reads a part of a log page.
    GetLog(GetLog),
    /// Aborts a command.
    Abort {
        /// The submission queue of the command.
        queue: u16,
        /// The command identifier.
        cid: u16,
    },
    /// Sets a feature.
    SetFeatures {
        /// The feature identifier.
        feature: u8,
        /// Whether the value persists over a reset.
        is_saved: bool,
        /// The value: dword 11.
        value: u32,
        /// The namespace, or 0.
        nsid: u32,
    },
    /// Reads a feature.
    GetFeatures {
        /// The feature identifier.
        feature: u8,
        /// The requested value: 0 is the current one.
        select: u8,
        /// The namespace, or 0.
        nsid: u32,
    },
    /// An Asynchronous Event Request. The controller completes it when an event occurs: see [`AsyncEvent`].
    EventRequest,
    /// Restarts the keep-alive timer.
    KeepAlive,
}

/// The parameters of Identify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identify {
    /// The page (CNS): see [`crate::identify::page`].
    pub page: u8,
    /// The namespace, or the start of a list.
    pub nsid: u32,
    /// The controller at which a list starts.
    pub controller: u16,
    /// The command set: 0 for NVM.
    pub command_set: u8,
}

/// The parameters of Get Log Page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLog {
    /// The log page identifier: see [`crate::log::page`].
    pub page: u8,
    /// The log specific field. For ANA, bit 0 omits the namespaces.
    pub specific: u8,
    /// Retain Asynchronous Event: whether the event of this page stays pending, so that it is not sent again.
    pub retains_event: bool,
    /// The offset in the page: a multiple of 4.
    pub offset: u64,
    /// The number of bytes: a multiple of 4, at least 4.
    pub bytes: u32,
    /// The namespace, or [`ALL_NAMESPACES`] or 0.
    pub nsid: u32,
}

impl Admin {
    /// The submission queue entry, without a command identifier. Data PDUs transfer the data.
    pub fn sqe(&self) -> Sqe {
        match *self {
            Self::Identify(what) => {
                let page = u32::from(what.page) | u32::from(what.controller) << 16;
                let set = u32::from(what.command_set) << 24;
                let sqe = Sqe::new(opcode::IDENTIFY, what.nsid, [page, set, 0, 0, 0, 0]);
                sqe.with_sgl(Sgl::transport(IDENTIFY_LENGTH))
            }
            Self::GetLog(log) => {
                let dwords = (log.bytes / 4).saturating_sub(1);
                let specific = u32::from(log.specific & 0x7f) << 8;
                let retain = u32::from(log.retains_event) << 15;
                let d10 = u32::from(log.page) | specific | retain | (dwords & 0xffff) << 16;
                let (low, high) = halves(log.offset);
                let sqe = Sqe::new(opcode::GET_LOG, log.nsid, [d10, dwords >> 16, low, high, 0, 0]);
                sqe.with_sgl(Sgl::transport(log.bytes))
            }
            Self::Abort { queue, cid } => {
                let d10 = u32::from(queue) | u32::from(cid) << 16;
                Sqe::new(opcode::ABORT, 0, [d10, 0, 0, 0, 0, 0])
            }
            Self::SetFeatures {
                feature,
                is_saved,
                value,
                nsid,
            } => {
                let d10 = u32::from(feature) | u32::from(is_saved) << 31;
                Sqe::new(opcode::SET_FEATURES, nsid, [d10, value, 0, 0, 0, 0])
            }
            Self::GetFeatures { feature, select, nsid } => {
                let d10 = u32::from(feature) | u32::from(select & 7) << 8;
                Sqe::new(opcode::GET_FEATURES, nsid, [d10, 0, 0, 0, 0, 0])
            }
            Self::EventRequest => Sqe::new(opcode::EVENT, 0, [0; 6]),
            Self::KeepAlive => Sqe::new(opcode::KEEP_ALIVE, 0, [0; 6]),
        }
    }

    /// Decodes a submission queue entry, or returns the status that refuses it.
    pub fn from_sqe(sqe: &Sqe) -> Result<Self, Status> {
        let [d10, d11, d12, d13, ..] = sqe.dwords;
        let nsid = sqe.nsid;
        let feature = (d10 & 0xff) as u8;
        Ok(match sqe.opcode {
            opcode::IDENTIFY => Self::Identify(Identify {
                page: (d10 & 0xff) as u8,
                controller: (d10 >> 16) as u16,
                command_set: (d11 >> 24) as u8,
                nsid,
            }),
            opcode::GET_LOG => {
                let dwords = u64::from(d10 >> 16) | u64::from(d11 & 0xffff) << 16;
                let bytes = u32::try_from((dwords + 1) * 4);
                let offset = u64::from(d12) | u64::from(d13) << 32;
                if !offset.is_multiple_of(4) {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                Self::GetLog(GetLog {
                    page: (d10 & 0xff) as u8,
                    specific: (d10 >> 8 & 0x7f) as u8,
                    retains_event: d10 >> 15 & 1 != 0,
                    offset,
                    bytes: bytes.map_err(|_| Status::INVALID_FIELD.dnr())?,
                    nsid,
                })
            }
            opcode::ABORT => Self::Abort {
                queue: (d10 & 0xffff) as u16,
                cid: (d10 >> 16) as u16,
            },
            opcode::SET_FEATURES => Self::SetFeatures {
                feature,
                is_saved: d10 >> 31 != 0,
                value: d11,
                nsid,
            },
            opcode::GET_FEATURES => Self::GetFeatures {
                feature,
                select: (d10 >> 8 & 7) as u8,
                nsid,
            },
            opcode::EVENT => Self::EventRequest,
            opcode::KEEP_ALIVE => Self::KeepAlive,
            _ => return Err(Status::INVALID_OPCODE.dnr()),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn admin() -> impl Strategy<Value = Admin> {
        let ids = (any::<u8>(), any::<u16>(), any::<u32>(), any::<u8>());
        let place = (any::<u64>(), 1..1_u32 << 20);
        prop_oneof![
            ids.prop_map(|(page, controller, nsid, command_set)| {
                Admin::Identify(Identify {
                    page,
                    nsid,
                    controller,
                    command_set,
                })
            }),
            (ids, place, any::<bool>()).prop_map(|(ids, (offset, dwords), retains_event)| {
                Admin::GetLog(GetLog {
                    page: ids.0,
                    specific: ids.3 & 0x7f,
                    retains_event,
                    offset: offset & !3,
                    bytes: dwords * 4,
                    nsid: ids.2,
                })
            }),
            (any::<u16>(), any::<u16>()).prop_map(|(queue, cid)| Admin::Abort { queue, cid }),
            (ids, any::<bool>()).prop_map(|((feature, _, value, _), is_saved)| {
                Admin::SetFeatures {
                    feature,
                    is_saved,
                    value,
                    nsid: value ^ 5,
                }
            }),
            ids.prop_map(|(feature, _, nsid, select)| Admin::GetFeatures {
                feature,
                select: select & 7,
                nsid
            }),
            Just(Admin::EventRequest),
            Just(Admin::KeepAlive),
        ]
    }

    proptest! {
        #[test]
        fn commands_round_trip(command in admin()) {
            let sqe = Sqe::decode(&command.sqe().encode());
            prop_assert_eq!(Admin::from_sqe(&sqe), Ok(command));
        }
    }

    #[test]
    fn get_log_with_an_unaligned_offset_or_over_32_bits_is_refused() {
        let log = GetLog {
            page: 0x70,
            specific: 0,
            retains_event: false,
            offset: 4,
            bytes: 1024,
            nsid: 0,
        };
        let mut sqe = Admin::GetLog(log).sqe();
        sqe.dwords[2] = 5;
        assert_eq!(Admin::from_sqe(&sqe), Err(Status::INVALID_FIELD.dnr()));
        sqe.dwords = [u32::MAX, u32::MAX, 0, 0, 0, 0];
        assert_eq!(Admin::from_sqe(&sqe), Err(Status::INVALID_FIELD.dnr()));
        assert_eq!(
            Admin::from_sqe(&Sqe::new(0xc0, 0, [0; 6])),
            Err(Status::INVALID_OPCODE.dnr())
        );
    }
}

//! The pages of the target.

use std::sync::atomic::Ordering;

use straightway_nvme::{
    Nqn, Status,
    admin::{EventMask, GetLog},
    identify,
    log::{AddressFamily, AnaGroup, AnaLog, DiscoveryEntry, DiscoveryHeader, SubsystemKind, TransportType},
};

use super::{Connection, NQN, Over};

impl Connection {
    pub(super) fn controller(&self) -> Vec<u8> {
        let mut page = identify::Controller::new();
        page.id = 7;
        page.transfer_shift = self.script.transfer_shift;
        page.command_capsule_16 = self.script.capsule_bytes / 16 + 4;
        page.namespaces = 1;
        page.namespaces_max = 1;
        page.subsystem = Some(Nqn::new(NQN).unwrap());
        if self.script.ana.is_some() {
            page.multipath = identify::Controller::ANA;
            page.ana_groups = 1;
            page.ana_transition_s = self.script.transition_s;
        }
        if self.script.storms {
            page.events = EventMask::NAMESPACES;
        }
        page.encode()
    }

    pub(super) fn ana(&self) -> Vec<u8> {
        let state = self.shared.script.lock().unwrap().ana.unwrap();
        let group = AnaGroup {
            id: 1,
            changes: 1,
            state,
            namespaces: vec![1],
        };
        let groups = vec![group];
        AnaLog { changes: 1, groups }.encode()
    }

    /// Sends a part of the name index, unless it is to be refused.
    pub(super) fn index(&mut self, cid: u16, log: GetLog) -> Result<(), Over> {
        let index = self.shared.script.lock().unwrap().index.clone();
        let Some(index) = index else {
            return self.answer(cid, Status::INVALID_LOG_PAGE.dnr(), 0);
        };
        let left = &self.shared.refusals;
        let is_refused = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if is_refused.is_ok() {
            return self.answer(cid, Status::INTERRUPTED, 0);
        }
        let bytes = &self.shared.index_bytes;
        bytes.fetch_add(log.bytes, Ordering::SeqCst);
        self.shared.index_reads.fetch_add(1, Ordering::SeqCst);
        let mut page = index.encode().unwrap();
        let start = log.offset as usize;
        let end = start + log.bytes as usize;
        page.resize(page.len().max(end), 0);
        self.give(cid, &page[start..end])
    }

    pub(super) fn discovery(&self) -> Vec<u8> {
        let listed = &self.script.listed;
        let header = DiscoveryHeader {
            generation: 3,
            entries: listed.len() as u64 + 1,
            format: 0,
        };
        let mut bytes = header.encode();
        let here = (
            SubsystemKind::CURRENT,
            "nqn.2014-08.org.nvmexpress.discovery".to_owned(),
            self.address,
        );
        for (kind, nqn, address) in listed.iter().chain([&here]) {
            let entry = DiscoveryEntry {
                transport: TransportType::TCP,
                family: AddressFamily::V4,
                kind: *kind,
                requirements: 4,
                port: 1,
                controller: 0xffff,
                admin_entries: 32,
                flags: 0,
                service: address.port().to_string(),
                subsystem: Nqn::new(nqn).unwrap(),
                address: address.ip().to_string(),
                security: 0,
            };
            bytes.extend(entry.encode());
        }
        bytes
    }
}

//! Discovery of subsystems, including those of referred discovery controllers.

use std::collections::BTreeSet;

use straightway_core::{Error, ErrorKind, Result};
use straightway_nvme::{
    Nqn,
    admin::{Admin, GetLog},
    log::{
        self, DISCOVERY_ENTRY_BYTES, DISCOVERY_HEADER_BYTES, DiscoveryEntry, DiscoveryHeader, SubsystemKind,
        TransportType,
    },
};

use crate::{portal::Portal, session::opening::Opening, settings::HostSettings};

/// The maximum number of entries of one log.
const ENTRIES_MAX: u64 = 4096;

/// The maximum number of discovery controllers that are queried.
const CONTROLLERS_MAX: usize = 16;

/// The maximum number of reads of a log that changes meanwhile.
const READS_MAX: usize = 5;

/// The maximum number of bytes of a log that one command reads.
const READ_BYTES_MAX: usize = 64 << 10;

/// A discovered subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredSubsystem {
    /// Its NQN.
    pub subsystem: Nqn,
    /// Its address.
    pub portal: Portal,
    /// The discovery controller that listed it.
    pub by: Portal,
}

/// Finds all NVM subsystems with TCP addresses that a discovery controller and its referrals list. Errors of referrals
/// are returned in the second list and do not fail the discovery.
pub fn discover(portal: &Portal, settings: &HostSettings) -> Result<(Vec<DiscoveredSubsystem>, Vec<Error>)> {
    let mut found = Vec::new();
    let mut failed = Vec::new();
    let mut asked = BTreeSet::new();
    let mut next = vec![portal.clone()];
    while let Some(portal) = next.pop() {
        if asked.len() >= CONTROLLERS_MAX || !asked.insert(portal.clone()) {
            continue;
        }
        let entries = match read_log(&portal, settings) {
            Ok(entries) => entries,
            Err(error) if asked.len() == 1 => return Err(error),
            Err(error) => {
                failed.push(error);
                continue;
            }
        };
        for entry in entries {
            if entry.transport != TransportType::TCP {
                continue;
            }
            let Ok(port) = entry.service.trim().parse() else {
                continue;
            };
            let at = Portal::new(&entry.address, port);
            match entry.kind {
                SubsystemKind::NVM => found.push(DiscoveredSubsystem {
                    subsystem: entry.subsystem,
                    portal: at,
                    by: portal.clone(),
                }),
                SubsystemKind::REFERRAL => next.push(at),
                _ => {}
            }
        }
    }
    found.sort_by(|a, b| (&a.subsystem, &a.portal).cmp(&(&b.subsystem, &b.portal)));
    found.dedup_by(|a, b| a.subsystem == b.subsystem && a.portal == b.portal);
    Ok((found, failed))
}

/// Reads the entries of one discovery log.
fn read_log(portal: &Portal, settings: &HostSettings) -> Result<Vec<DiscoveryEntry>> {
    let mut last = None;
    for address in portal.addresses(settings.connect_max)? {
        match Opening::new(address, &Nqn::discovery(), settings) {
            Ok(mut opening) => return read_whole(&mut opening, portal),
            Err(refusal) => last = Some(refusal),
        }
    }
    let refusal = last.expect("a name has at least one address");
    let kind = if refusal.is_final {
        ErrorKind::Invalid
    } else {
        ErrorKind::Transient
    };
    let hint = refusal.hint.unwrap_or("the port of discovery is 8009");
    Err(Error::new(kind, "discover at", portal, refusal.why).with_hint(hint))
}

/// Reads the header, all entries, and the header again, until the generation did not change meanwhile.
fn read_whole(opening: &mut Opening, portal: &Portal) -> Result<Vec<DiscoveryEntry>> {
    let failed = |why: String| Error::new(ErrorKind::Corrupt, "discover at", portal, why);
    for _ in 0..READS_MAX {
        let header = read(opening, 0, DISCOVERY_HEADER_BYTES, portal)?;
        let header = DiscoveryHeader::decode(&header).map_err(|e| failed(e.to_string()))?;
        if header.entries > ENTRIES_MAX {
            return Err(failed(format!("its log has {} entries", header.entries)));
        }
        let count = usize::try_from(header.entries).expect("at most 4096");
        let mut bytes = Vec::with_capacity(count * DISCOVERY_ENTRY_BYTES);
        while bytes.len() < count * DISCOVERY_ENTRY_BYTES {
            let length = (count * DISCOVERY_ENTRY_BYTES - bytes.len()).min(READ_BYTES_MAX);
            let at = DISCOVERY_HEADER_BYTES + bytes.len();
            bytes.extend(read(opening, at as u64, length, portal)?);
        }
        let again = read(opening, 0, DISCOVERY_HEADER_BYTES, portal)?;
        let again = DiscoveryHeader::decode(&again).map_err(|e| failed(e.to_string()))?;
        if again == header {
            let entries = bytes.chunks(DISCOVERY_ENTRY_BYTES).map(DiscoveryEntry::decode);
            // An invalid entry must not hide the others.
            return Ok(entries.filter_map(std::result::Result::ok).collect());
        }
    }
    Err(failed("its log changes faster than it can be read".to_owned()))
}

fn read(opening: &mut Opening, offset: u64, bytes: usize, portal: &Portal) -> Result<Vec<u8>> {
    let sqe = Admin::GetLog(GetLog {
        page: log::page::DISCOVERY,
        specific: 0,
        retains_event: false,
        offset,
        bytes: u32::try_from(bytes).expect("reads are short"),
        nsid: 0,
    });
    let mut into = vec![0; bytes];
    let run = opening.link.run(sqe.sqe(), &[], &mut into, opening.deadline);
    run.map_err(|error| Error::new(ErrorKind::Transient, "discover at", portal, error.to_string()))?;
    Ok(into)
}

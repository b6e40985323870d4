//! Identify and log pages.

use std::{
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use straightway_nvme::{
    Nqn, Status, TRANSFER_BYTES_MAX,
    admin::{ALL_NAMESPACES, EventMask, GetLog, Identify},
    identify::{self, ControllerKind, IDENTIFY_BYTES, NamespaceId, encode_list},
    index::{INDEX_PAGE, INDEX_SCANS},
    log::{
        self, AddressFamily, AnaGroup, AnaLog, DiscoveryEntry, DiscoveryHeader, SubsystemKind, TransportType,
        encode_changed,
    },
};

use crate::{
    catalog::NAMESPACES_MAX, connection::CAPSULE_BYTES_MAX, controller::Controller, login::QUEUE_SIZE_MAX,
    namespace::Namespace, refresh::WAIT_MAX, state::Shared,
};

/// The maximum number of outstanding Asynchronous Event Requests, less one.
pub(crate) const EVENT_LIMIT: u8 = 3;

/// MDTS: 4 MiB in units of 2^n × 4096 bytes.
const TRANSFER_SHIFT: u8 = 10;
const _: () = assert!(4096 << TRANSFER_SHIFT == TRANSFER_BYTES_MAX);

/// The maximum number of scans for one read of the index. A file that grows faster than that has no stable version.
const SCANS_MAX: usize = 3;

/// OAES of I/O controllers.
pub(crate) const EVENTS: u32 = EventMask::NAMESPACES | EventMask::ANA;

/// Supported commands by opcode. Commands that change data have a second bit in the effects log.
const ADMIN_COMMANDS: [u8; 7] = [0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18];
const READ_COMMANDS: [u8; 2] = [0x00, 0x02];
const WRITE_COMMANDS: [u8; 3] = [0x01, 0x08, 0x09];

/// Makes an Identify page.
pub(crate) fn identify(shared: &Shared, controller: &Controller, what: Identify) -> Result<Vec<u8>, Status> {
    use identify::page;
    let invalid = Status::INVALID_FIELD.dnr();
    if what.page == page::CONTROLLER {
        return Ok(describe(shared, controller).encode());
    }
    if controller.is_discovery {
        return Err(invalid);
    }
    if what.page == page::CONTROLLER_SET && what.command_set == 0 {
        return Ok(vec![0; IDENTIFY_BYTES]);
    }
    let table = shared.table();
    if what.page == page::NAMESPACES {
        if what.nsid >= 0xffff_fffe {
            return Err(Status::INVALID_NAMESPACE.dnr());
        }
        let list: Vec<u32> = table
            .namespaces
            .range(what.nsid + 1..)
            .map(|(nsid, _)| *nsid)
            .take(identify::LIST_MAX)
            .collect();
        return Ok(encode_list(&list));
    }
    if what.nsid == ALL_NAMESPACES && what.page == page::NAMESPACE {
        // The properties common to all namespaces: the format.
        let shift = table
            .namespaces
            .values()
            .next()
            .map_or(9, |namespace| namespace.backing.block_shift);
        return Ok(identify::Namespace::new(0, shift).encode());
    }
    if what.nsid == 0 || what.nsid > NAMESPACES_MAX {
        return Err(Status::INVALID_NAMESPACE.dnr());
    }
    let namespace = table.namespaces.get(&what.nsid);
    match (what.page, namespace) {
        (page::NAMESPACE, Some(namespace)) => Ok(namespace_page(namespace).encode()),
        (page::NAMESPACE_SET, Some(_)) if what.command_set == 0 => Ok(vec![0; IDENTIFY_BYTES]),
        (page::NAMESPACE_COMMON, Some(namespace)) => Ok(common_page(namespace)),
        (page::DESCRIPTORS, Some(namespace)) => Ok(NamespaceId {
            eui64: None,
            nguid: Some(namespace.uuid),
            uuid: Some(namespace.uuid),
            command_set: Some(0),
        }
        .encode()),
        // A valid NSID without a namespace has a page of zeros.
        (page::NAMESPACE, None) => Ok(vec![0; IDENTIFY_BYTES]),
        (page::DESCRIPTORS | page::NAMESPACE_COMMON | page::NAMESPACE_SET, None) => {
            Err(Status::INVALID_NAMESPACE.dnr())
        }
        _ => Err(invalid),
    }
}

fn describe(shared: &Shared, controller: &Controller) -> identify::Controller {
    let mut page = identify::Controller::new();
    page.serial.clone_from(&shared.serial);
    "Straightway target".clone_into(&mut page.model);
    env!("CARGO_PKG_VERSION").clone_into(&mut page.firmware);
    page.id = controller.id;
    page.transfer_shift = TRANSFER_SHIFT;
    page.commands_max = QUEUE_SIZE_MAX + 1;
    page.keep_alive_100ms = 1;
    page.abort_limit = 3;
    page.event_limit = EVENT_LIMIT;
    page.attributes |= identify::Controller::ANY_COMMAND_KEEPS_ALIVE;
    // Log page offsets are supported.
    page.log_attributes = 1 << 2;
    if controller.is_discovery {
        page.kind = ControllerKind::DISCOVERY;
        page.subsystem = Some(Nqn::discovery());
        page.events = EventMask::DISCOVERY;
        return page;
    }
    page.subsystem = Some(shared.nqn.clone());
    page.events = EVENTS;
    // The commands supported and effects log is supported.
    page.log_attributes |= 1 << 1;
    page.multipath = identify::Controller::SHARED | identify::Controller::ANA;
    page.ana_transition_s = 10;
    page.ana_states = 0b1_1111;
    page.ana_group_max = shared.groups;
    page.ana_groups = shared.groups;
    page.namespaces = NAMESPACES_MAX;
    page.namespaces_max = NAMESPACES_MAX;
    if shared.is_writable {
        // Dataset Management and Write Zeroes.
        page.io_commands = 1 << 2 | 1 << 3;
        // Writes stay in the page cache until a Flush, which applies to one namespace or all.
        page.write_cache = 1 | 3 << 1;
    }
    page.command_capsule_16 = (64 + CAPSULE_BYTES_MAX) / 16;
    page
}

fn namespace_page(namespace: &Namespace) -> identify::Namespace {
    let backing = &namespace.backing;
    let mut page = identify::Namespace::new(backing.blocks(), backing.block_shift);
    page.ana_group = namespace.ana_group;
    page.is_protected = !backing.is_writable;
    page.nguid = namespace.uuid;
    page
}

/// The command set independent page of a namespace: shared, its group, its protection, ready.
fn common_page(namespace: &Namespace) -> Vec<u8> {
    let mut page = vec![0; IDENTIFY_BYTES];
    page[1] = 1;
    page[4..8].copy_from_slice(&namespace.ana_group.to_le_bytes());
    page[8] = u8::from(!namespace.backing.is_writable);
    page[14] = 1;
    page
}

/// A part of a log page. It is shorter than requested if the page ends before. An offset beyond its end is refused.
pub(crate) fn log(
    shared: &Shared,
    controller: &Controller,
    local: Option<SocketAddr>,
    what: GetLog,
) -> Result<Vec<u8>, Status> {
    use log::page;
    if what.bytes > TRANSFER_BYTES_MAX {
        return Err(Status::INVALID_FIELD.dnr());
    }
    let whole = match (what.page, controller.is_discovery) {
        (page::DISCOVERY, true) => discovery(shared, local),
        (page::ERRORS, false) => vec![0; 64],
        (page::SMART | page::FIRMWARE, false) => vec![0; 512],
        (page::EFFECTS, false) => effects(shared.is_writable),
        (page::CHANGED_NAMESPACES, false) => {
            let list = controller.take_changed(what.retains_event);
            encode_changed(list.as_deref())
        }
        (page::ANA, false) => ana(shared, controller, what.specific & 1 != 0),
        (INDEX_PAGE, false) => return index(shared, controller, what),
        _ => return Err(Status::INVALID_LOG_PAGE.dnr()),
    };
    if !what.retains_event {
        controller.rearm(what.page);
    }
    let offset = usize::try_from(what.offset).map_err(|_| Status::INVALID_FIELD.dnr())?;
    let rest = whole.get(offset..).ok_or(Status::INVALID_FIELD.dnr())?;
    Ok(rest[..rest.len().min(what.bytes as usize)].to_vec())
}

/// A part of the name index. The files whose versions are in it are looked at first, so that these versions are newer
/// than the request. If a look finds another length or another file than the last scan, the sources are scanned again.
/// A version whose file does not answer in time is unsettled. If it is the only one, the host can try again.
fn index(shared: &Shared, controller: &Controller, what: GetLog) -> Result<Vec<u8>, Status> {
    let invalid = Status::INVALID_FIELD.dnr();
    let offset = usize::try_from(what.offset).map_err(|_| invalid)?;
    let (bytes, mut since) = (what.bytes as usize, Instant::now());
    let deadline = since + WAIT_MAX;
    if what.specific & INDEX_SCANS != 0 {
        // Without an answer of the file system in time, the names of the last scan are sent.
        shared.rescan_since(since, deadline);
    }
    let mut scans = 0;
    let table = loop {
        let table = shared.table();
        let files = table.versions_in(offset, bytes);
        shared.refresh.look(files, since, deadline);
        let is_stale = files.iter().any(|(_, file)| file.is_stale());
        let now = Instant::now();
        if !is_stale || scans == SCANS_MAX || !shared.rescan_since(now, deadline) {
            break table;
        }
        scans += 1;
        since = now;
    };
    if let [(_, only)] = table.versions_in(offset, bytes)
        && (!only.version.is_fresh(since) || only.is_stale())
    {
        return Err(Status::INTERRUPTED);
    }
    let part = table.index_part(offset, bytes, &controller.identity, since);
    part.ok_or(invalid)
}

fn effects(is_writable: bool) -> Vec<u8> {
    let mut page = vec![0; 4096];
    for opcode in ADMIN_COMMANDS {
        page[usize::from(opcode) * 4] = 1;
    }
    let io = |opcode: u8| 1024 + usize::from(opcode) * 4;
    for opcode in READ_COMMANDS {
        page[io(opcode)] = 1;
    }
    if is_writable {
        for opcode in WRITE_COMMANDS {
            page[io(opcode)] = 3;
        }
    }
    page
}

fn ana(shared: &Shared, controller: &Controller, is_short: bool) -> Vec<u8> {
    let table = shared.table();
    let changes = shared.ana_changes();
    let group = |id: u32| AnaGroup {
        id,
        changes,
        state: shared.ports[controller.port].state(id),
        namespaces: if is_short {
            Vec::new()
        } else {
            let all = table.namespaces.values();
            let own = all.filter(|namespace| namespace.ana_group == id);
            own.map(|namespace| namespace.nsid).collect()
        },
    };
    AnaLog {
        changes,
        groups: (1..=shared.groups).map(group).collect(),
    }
    .encode()
}

/// All addresses of this subsystem, and the referrals.
fn discovery(shared: &Shared, local: Option<SocketAddr>) -> Vec<u8> {
    let nqn = |kind| match kind {
        SubsystemKind::NVM => shared.nqn.clone(),
        _ => Nqn::discovery(),
    };
    let entry = |kind, port: u16, address: SocketAddr| DiscoveryEntry {
        transport: TransportType::TCP,
        family: match address {
            SocketAddr::V4(_) => AddressFamily::V4,
            SocketAddr::V6(_) => AddressFamily::V6,
        },
        kind,
        // Bit 2: flow control may be disabled.
        requirements: 1 << 2,
        port,
        controller: 0xffff,
        admin_entries: 32,
        flags: 0,
        service: address.port().to_string(),
        subsystem: nqn(kind),
        address: address.ip().to_string(),
        security: 0,
    };
    let ways = shared.ports.iter().map(|port| {
        let address = reachable(port.address, local);
        entry(SubsystemKind::NVM, port.id, address)
    });
    let others = shared
        .referrals
        .iter()
        .map(|address| entry(SubsystemKind::REFERRAL, 0, *address));
    let entries: Vec<_> = ways.chain(others).collect();
    let mut page = DiscoveryHeader {
        generation: 1,
        entries: entries.len() as u64,
        format: 0,
    }
    .encode();
    for entry in entries {
        page.extend(entry.encode());
    }
    page
}

/// The address to report for a port. A wildcard address is replaced by the one that the host used.
fn reachable(bound: SocketAddr, local: Option<SocketAddr>) -> SocketAddr {
    let ip = match (bound.ip(), local) {
        (ip, Some(local)) if ip.is_unspecified() => local.ip().to_canonical(),
        (ip, _) => ip,
    };
    let ip: IpAddr = ip;
    SocketAddr::new(ip, bound.port())
}

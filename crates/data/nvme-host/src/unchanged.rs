//! The check after a transfer: a namespace must still be the one that was opened, on every address that was used.
//!
//! The entries of many files are read together, with a few commands on each path. An equal entry is proof. An entry
//! that differs is looked up again alone, because the target may only not know its version yet.

use std::{collections::BTreeSet, sync::Arc};

use straightway_core::{Error, ErrorKind, Result};
use straightway_nvme::index::IndexEntry;

use crate::{
    index::{self, EntryKey},
    link::LinkError,
    namespace::{CHANGING, Namespace, changed},
    subsystem::Subsystem,
};

/// The numbers of the controllers that showed the opened entry of a namespace during this check.
type ShownBy = Vec<u64>;

/// Returns an error if one of these namespaces changed since it was opened.
pub(crate) fn check_all(namespaces: &[Arc<Namespace>]) -> Result<()> {
    let mut all = namespaces.iter();
    all.try_for_each(|namespace| namespace.subsystem.check_own(&namespace.name))?;
    let shown = read_together(namespaces);
    let mut all = namespaces.iter().zip(&shown);
    all.try_for_each(|(namespace, shown)| check_known(namespace, shown))
}

/// Returns an error if a namespace changed since it was opened.
pub(crate) fn check(namespace: &Namespace) -> Result<()> {
    namespace.subsystem.check_own(&namespace.name)?;
    check_known(namespace, &[])
}

/// Reads the entries of all files, path by path. Failures are left to the lookups of single entries.
fn read_together(namespaces: &[Arc<Namespace>]) -> Vec<ShownBy> {
    let mut shown = vec![ShownBy::new(); namespaces.len()];
    let has_entry = |at: &usize| namespaces[*at].print.entry.is_some();
    let mut left: Vec<usize> = (0..namespaces.len()).filter(has_entry).collect();
    while let Some(&first) = left.first() {
        let subsystem = &namespaces[first].subsystem;
        let is_own = |at: &usize| Arc::ptr_eq(&namespaces[*at].subsystem, subsystem);
        let (own, others): (Vec<usize>, Vec<usize>) = left.into_iter().partition(is_own);
        if own.len() > 1 {
            read_paths(subsystem, namespaces, &own, &mut shown);
        }
        left = others;
    }
    shown
}

/// Reads the entries of those namespaces that have these indices, on each path of their subsystem that was used, and on
/// each further association. The first path is also read for those that no path was used for.
fn read_paths(subsystem: &Subsystem, namespaces: &[Arc<Namespace>], own: &[usize], shown: &mut [ShownBy]) {
    let entry_of = |at: usize| namespaces[at].print.entry.as_deref();
    let mut controllers = subsystem.connected();
    for at in own {
        for further in namespaces[*at].print.history.further() {
            if !controllers.iter().any(|c| c.number == further.number) {
                controllers.push(further);
            }
        }
    }
    if controllers.is_empty() {
        // All paths were idle for a while.
        controllers.extend(subsystem.controller());
    }
    for (number, controller) in controllers.into_iter().enumerate() {
        let is_read = |at: &usize| {
            let history = &namespaces[*at].print.history;
            number == 0 || history.is_confirmed(controller.address)
        };
        let read: Vec<usize> = own.iter().copied().filter(is_read).collect();
        let entries = read.iter().filter_map(|at| entry_of(*at));
        let names: BTreeSet<&[u8]> = entries.map(|entry| entry.name.as_slice()).collect();
        if names.is_empty() {
            continue;
        }
        match index::read_entries(&controller, &names) {
            Ok(Ok(found)) => {
                for at in read {
                    let is_same = |entry: &IndexEntry| found.get(&entry.name) == Some(entry);
                    if entry_of(at).is_some_and(is_same) {
                        shown[at].push(controller.number);
                    }
                }
            }
            Ok(Err(_)) | Err(LinkError::Refused(..)) => {}
            Err(LinkError::Broken(why)) => controller.end(why),
        }
    }
}

fn check_known(namespace: &Namespace, shown: &[u64]) -> Result<()> {
    match &namespace.print.entry {
        Some(entry) => check_entry(namespace, entry, shown),
        None => check_identity(namespace),
    }
}

/// Returns an error if an address that was used for a namespace shows another version of it. The controllers in `shown`
/// are not asked again.
fn check_entry(namespace: &Namespace, entry: &IndexEntry, shown: &[u64]) -> Result<()> {
    let (subsystem, print) = (&namespace.subsystem, &namespace.print);
    let failed = |why: String| changed("read", &namespace.name, why);
    if let Some(address) = print.history.changed() {
        return Err(failed(print.other_version(address)));
    }
    let key = EntryKey::Name(&entry.name);
    let mut is_checked = false;
    let further = print.history.further();
    for controller in subsystem.connected().into_iter().chain(further) {
        let address = controller.address;
        if !print.history.is_confirmed(address) {
            // It was not used for this namespace.
            continue;
        }
        if shown.contains(&controller.number) {
            is_checked = true;
            continue;
        }
        match controller.retry(|controller| index::lookup_on(controller, key)) {
            Ok(Ok(found)) if found.entry() == Some(entry) => is_checked = true,
            Ok(Ok(_)) => return Err(failed(print.other_version(address))),
            Ok(Err(why)) => {
                return Err(Error::new(ErrorKind::Corrupt, "read", &namespace.name, why).with_hint(CHANGING));
            }
            // The path is lost. Another controller was or will be asked.
            Err(LinkError::Broken(why)) => controller.end(why),
            Err(LinkError::Refused(status, _)) => {
                let why = format!("{address} does not show its version: {status}");
                let error = Error::new(ErrorKind::Transient, "check", &namespace.name, why);
                return Err(error.with_hint("check the file on the target, and try again"));
            }
        }
    }
    // If no path that was used is left, any other will do.
    let is_shown = is_checked || !shown.is_empty();
    if is_shown || index::lookup(subsystem, key)?.entry() == Some(entry) {
        return Ok(());
    }
    Err(failed("it was replaced or changed since it was opened".to_owned()))
}

/// Returns an error if a namespace without an entry in an index has another identity or length.
fn check_identity(namespace: &Namespace) -> Result<()> {
    let name = namespace.name.clone();
    let now = Namespace::open(&namespace.subsystem, namespace.nsid, None, name)?;
    if now.print.is_same(&namespace.print) {
        return Ok(());
    }
    let why = if now.bytes == namespace.bytes {
        "it is another namespace now".to_owned()
    } else {
        let (was, is) = (namespace.bytes, now.bytes);
        format!("its length changed from {was} to {is} bytes")
    };
    Err(changed("read", &namespace.name, why))
}

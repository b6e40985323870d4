//! The check after a transfer: a namespace must still be the one that was opened, on every address that was used.
//!
//! The entries of many files are read together, with a few commands on each path. An equal entry is proof. An entry
//! that differs is looked up again alone, because the target may only not know its version yet.

use std::{collections::BTreeSet, sync::Arc};

use straightway_core::{Error, ErrorKind, Result};

use super::{
    catalog::{Catalog, EntryKey},
    opened::{CHANGING, Opened},
};
use crate::session::failure::LinkError;

/// The numbers of the controllers that showed the opened entry of a namespace during this check.
type ShownBy = Vec<u64>;

/// Returns an error if one of these namespaces changed since it was opened.
pub(crate) fn check_all(opened: &[Arc<Opened>]) -> Result<()> {
    opened.iter().try_for_each(|opened| opened.check_own())?;
    let shown = read_together(opened);
    let mut all = opened.iter().zip(&shown);
    all.try_for_each(|(opened, shown)| check_known(opened, shown))
}

/// Returns an error if a namespace changed since it was opened.
pub(crate) fn check(opened: &Opened) -> Result<()> {
    opened.check_own()?;
    check_known(opened, &[])
}

/// Reads the entries of all files, path by path. Failures are left to the lookups of single entries.
fn read_together(opened: &[Arc<Opened>]) -> Vec<ShownBy> {
    let mut shown = vec![ShownBy::new(); opened.len()];
    let has_entry = |at: &usize| opened[*at].entry.is_some();
    let mut left: Vec<usize> = (0..opened.len()).filter(has_entry).collect();
    while let Some(&first) = left.first() {
        let catalog = &opened[first].catalog;
        let is_own = |at: &usize| Arc::ptr_eq(&opened[*at].catalog, catalog);
        let (own, others): (Vec<usize>, Vec<usize>) = left.into_iter().partition(is_own);
        if own.len() > 1 {
            read_paths(catalog, opened, &own, &mut shown);
        }
        left = others;
    }
    shown
}

/// Reads the entries of those namespaces that have these indices, on each path of their subsystem that was used, and on
/// each further association. The first path is also read for those that no path was used for.
fn read_paths(catalog: &Catalog, opened: &[Arc<Opened>], own: &[usize], shown: &mut [ShownBy]) {
    let mut controllers = catalog.subsystem.connected();
    for at in own {
        for further in opened[*at].history.further() {
            if !controllers.iter().any(|c| c.number == further.number) {
                controllers.push(further);
            }
        }
    }
    if controllers.is_empty() {
        // All paths were idle for a while.
        controllers.extend(catalog.subsystem.controller());
    }
    for (number, controller) in controllers.into_iter().enumerate() {
        let is_read = |at: &usize| number == 0 || opened[*at].history.is_confirmed(controller.address);
        let read: Vec<usize> = own.iter().copied().filter(is_read).collect();
        let entries = read.iter().filter_map(|at| opened[*at].entry.as_ref());
        let names: BTreeSet<&[u8]> = entries.map(|entry| entry.name.as_slice()).collect();
        if names.is_empty() {
            continue;
        }
        match catalog.read_entries(&controller, &names) {
            Ok(Ok(found)) => {
                for at in read {
                    let name = opened[at].entry.as_ref().map(|entry| &entry.name);
                    if opened[at].is_entry(name.and_then(|name| found.get(name))) {
                        shown[at].push(controller.number);
                    }
                }
            }
            Ok(Err(_)) | Err(LinkError::Refused(..)) => {}
            Err(LinkError::Broken(why)) => controller.end(why),
        }
    }
}

fn check_known(opened: &Opened, shown: &[u64]) -> Result<()> {
    let Some(entry) = &opened.entry else {
        let now = Opened::open(&opened.catalog, opened.print.nsid, None, opened.name.clone())?;
        return opened.check_same(&now);
    };
    check_entry(opened, EntryKey::Name(&entry.name), shown)
}

/// Returns an error if an address that was used for a namespace shows another version of it. The controllers in `shown`
/// are not asked again.
fn check_entry(opened: &Opened, key: EntryKey<'_>, shown: &[u64]) -> Result<()> {
    let history = &opened.history;
    if let Some(address) = history.changed() {
        return Err(opened.changed(opened.other_version(address)));
    }
    let mut is_checked = false;
    for controller in opened.subsystem().connected().into_iter().chain(history.further()) {
        let address = controller.address;
        if !history.is_confirmed(address) {
            // It was not used for this namespace.
            continue;
        }
        if shown.contains(&controller.number) {
            is_checked = true;
            continue;
        }
        match controller.retry(|controller| opened.catalog.lookup_on(controller, key)) {
            Ok(Ok(found)) if opened.is_entry(found.entry()) => is_checked = true,
            Ok(Ok(_)) => return Err(opened.changed(opened.other_version(address))),
            Ok(Err(why)) => {
                return Err(Error::new(ErrorKind::Corrupt, "read", &opened.name, why).with_hint(CHANGING));
            }
            // The path is lost. Another controller was or will be asked.
            Err(LinkError::Broken(why)) => controller.end(why),
            Err(LinkError::Refused(status, _)) => {
                let why = format!("{address} does not show its version: {status}");
                let error = Error::new(ErrorKind::Transient, "check", &opened.name, why);
                return Err(error.with_hint("check the file on the target, and try again"));
            }
        }
    }
    // If no path that was used is left, any other will do.
    let is_shown = is_checked || !shown.is_empty();
    if is_shown || opened.is_entry(opened.catalog.lookup(key)?.entry()) {
        return Ok(());
    }
    Err(opened.changed("it was replaced or changed since it was opened".to_owned()))
}

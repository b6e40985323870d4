//! Removals of one version of an object, on services that compare the version, ignore it, or refuse to compare it.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    sync::{Arc, Mutex},
};

use straightway_io::store::{Durability, StoreExt, Tag};
use straightway_s3::doctor::{CheckState, examine};
use straightway_webserver::ReceivedRequest;

use super::{
    access,
    server::{Reply, Server},
    store,
};

const NONCE: &str = "x-amz-meta-straightway-nonce";

/// What a service does with `If-Match` of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Compares,
    Ignores,
    Refuses,
}

/// A service of small objects.
#[derive(Debug)]
struct Objects {
    kind: Kind,
    /// Tags and nonces by name.
    known: BTreeMap<String, (String, String)>,
    /// Whether another writer replaces an object after the next HEAD.
    is_replaced: bool,
}

impl Objects {
    fn respond(&mut self, request: &ReceivedRequest) -> Reply {
        let name = request.target.split('?').next().unwrap().to_owned();
        let known = self.known.get(&name).cloned();
        let header = |name: &str| request.header(name).map(str::to_owned);
        match (request.method.as_str(), known) {
            ("PUT", Some(_)) if header("if-none-match").is_some() => Reply::error(412, "PreconditionFailed"),
            ("PUT", _) => {
                let put = ("\"1\"".to_owned(), header(NONCE).unwrap_or_default());
                self.known.insert(name, put);
                Reply::new(200, &[("ETag", "\"1\"")], "")
            }
            ("HEAD", Some((tag, nonce))) => {
                if std::mem::take(&mut self.is_replaced) {
                    self.known.insert(name, ("\"2\"".to_owned(), String::new()));
                }
                match header("if-match") {
                    Some(wanted) if wanted != tag => Reply::error(412, "PreconditionFailed"),
                    _ => Reply::new(200, &[("ETag", &tag), (NONCE, &nonce)], ""),
                }
            }
            ("DELETE", Some((tag, _))) => match (self.kind, header("if-match")) {
                (Kind::Compares, Some(wanted)) if wanted != tag => Reply::error(412, "PreconditionFailed"),
                (Kind::Refuses, Some(_)) => Reply::error(501, "NotImplemented"),
                _ => {
                    self.known.remove(&name);
                    Reply::new(204, &[], "")
                }
            },
            ("GET", _) if request.target.contains("list-type") => Reply::new(200, &[], "<ListBucketResult/>"),
            _ => Reply::error(404, "NoSuchKey"),
        }
    }
}

/// A service with an object of version 1.
fn serve(kind: Kind) -> (Server, Arc<Mutex<Objects>>) {
    let first = ("\"1\"".to_owned(), String::new());
    let objects = Arc::new(Mutex::new(Objects {
        kind,
        known: BTreeMap::from([("/lab/object".to_owned(), first)]),
        is_replaced: false,
    }));
    let shared = Arc::clone(&objects);
    let server = Server::start(move |_, request: &ReceivedRequest| shared.lock().unwrap().respond(request));
    (server, objects)
}

/// Removes the version with this tag. Returns whether it was removed.
fn remove(server: &Server, tag: &str) -> bool {
    let store = store(&access(&server.url()));
    let tag = Tag::Text(tag.to_owned());
    store
        .remove_if_match(OsStr::new("object"), &tag, Durability::Synced)
        .unwrap()
}

#[test]
fn one_version_is_removed_and_no_other() {
    for kind in [Kind::Compares, Kind::Ignores, Kind::Refuses] {
        let (server, objects) = serve(kind);
        // The object was replaced before.
        assert!(!remove(&server, "\"0\""), "{kind:?}");
        assert_eq!(objects.lock().unwrap().known.len(), 1, "{kind:?}");
        assert!(remove(&server, "\"1\""), "{kind:?}");
        assert_eq!(objects.lock().unwrap().known.len(), 0, "{kind:?}");
        assert!(!remove(&server, "\"1\""), "{kind:?}: it is gone");
    }
}

#[test]
fn an_object_that_is_replaced_after_the_check_stays_if_the_service_compares_versions() {
    let (server, objects) = serve(Kind::Compares);
    objects.lock().unwrap().is_replaced = true;
    assert!(!remove(&server, "\"1\""));
    assert_eq!(objects.lock().unwrap().known["/lab/object"].0, "\"2\"");
}

#[test]
fn the_doctor_names_services_that_do_not_compare_versions() {
    for (kind, state) in [
        (Kind::Compares, CheckState::Fine),
        (Kind::Ignores, CheckState::Note),
        (Kind::Refuses, CheckState::Note),
    ] {
        let (server, objects) = serve(kind);
        let checks = examine(&store(&access(&server.url())), OsStr::new("runs/new"), true);
        let found = checks.iter().find(|check| check.name == "conditional removal");
        let found = found.unwrap_or_else(|| panic!("{kind:?}: {checks:?}"));
        assert_eq!(found.state, state, "{found:?}");
        assert_eq!(found.mend.is_some(), state == CheckState::Note);
        assert_eq!(objects.lock().unwrap().known.len(), 1, "{kind:?}: the probes are left");
    }
}

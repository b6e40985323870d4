//! Objects of known length and version, as from a listing: the store opens them without a request, but the server is
//! still asked.

use std::{
    ffi::OsStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use straightway_cache::CachedStore;
use straightway_core::{Choice, ErrorKind, Extent, Move, Receipt, Result};
use straightway_io::{
    Executor, Objects, Region, Settings,
    engine::Engine,
    store::{Facts, Handle, LaneSpec, Named, Store, Tag, Verbs},
};
use straightway_net::{
    Client, FAMILY, Head, Network, NetworkSettings, Origin, Remote, Service, Site, TUNING, Validator, engine, suited,
};
use straightway_webserver::{Server, short};

use crate::fixture::{Load, cache, content};

const OBJECTS: usize = 40;

/// A store that opens objects without a request, as S3 does after a listing.
#[derive(Debug)]
struct Listed {
    client: Client,
    origin: Arc<Origin>,
}

/// The head of the requests for an object.
#[derive(Debug)]
struct Get(String);

impl Service for Get {
    fn head(&self, out: &mut Vec<u8>) -> Result<Head> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(Head::Ready)
    }
}

impl Listed {
    fn new(url: &str) -> Self {
        let network = Network::new(NetworkSettings {
            // Requests are counted, so hedges are off.
            hedges: false,
            ..NetworkSettings::default()
        });
        let site = Site::of(&url.parse().unwrap()).unwrap();
        Self {
            client: Client::new(&network),
            origin: network.origin(&site).unwrap(),
        }
    }

    fn open_one(&self, named: &Named) -> Arc<dyn Handle> {
        let Some(Tag::Text(tag)) = &named.tag else {
            panic!("{named:?} has no tag")
        };
        let host = self.origin.site().authority();
        let head = format!("GET /{} HTTP/1.1\r\nHost: {host}\r\n", named.name.display());
        Arc::new(Remote::known(
            self.describe(&named.name),
            named.bytes.unwrap(),
            Some(Validator::Tag(tag.clone())),
            &self.origin,
            Arc::new(Get(head)),
            &self.client,
        ))
    }
}

impl Store for Listed {
    fn describe(&self, name: &OsStr) -> String {
        format!("listed:{}", name.display())
    }

    fn verbs(&self) -> Verbs {
        Verbs::default()
    }

    fn open(&self, objects: &[Named]) -> Result<Vec<Arc<dyn Handle>>> {
        Ok(objects.iter().map(|named| self.open_one(named)).collect())
    }

    fn engine(&self, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
        engine(self.client.network(), lane)
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            tuning: Some(TUNING),
            ..Facts::of(FAMILY)
        }
    }
}

/// Loads all bytes of open objects.
fn load(store: &Arc<dyn Store>, handles: Vec<Arc<dyn Handle>>) -> Receipt {
    let (mut moves, mut at) = (Vec::new(), 0);
    for (object, handle) in (0..).zip(&handles) {
        let extent = Extent::new(0, handle.object().bytes);
        moves.push(Move { object, extent, at });
        at += extent.bytes;
    }
    let executor = Executor::new(suited(Settings::default())).unwrap();
    let region = Arc::new(Region::host(at).unwrap());
    let objects = Objects::new(Arc::clone(store), handles);
    let ticket = executor.read(objects, moves, &region, Choice::Auto);
    ticket.unwrap().wait().unwrap()
}

#[test]
fn the_server_is_asked_once_for_each_listed_object_even_if_its_bytes_are_cached() {
    let is_denied = Arc::new(AtomicBool::new(false));
    let denies = Arc::clone(&is_denied);
    let server = Server::start(move |request| {
        if denies.load(Ordering::SeqCst) {
            return short("403 Forbidden", "");
        }
        let number = request.target.trim_start_matches('/').parse::<usize>();
        let number = number.unwrap();
        request.response(&content(number, 1, 1000 + number), "\"1\"")
    });
    let listed: Vec<_> = (0..OBJECTS)
        .map(|number| Named {
            bytes: Some(1000 + number as u64),
            tag: Some(Tag::Text("\"1\"".to_owned())),
            ..Named::new(number.to_string())
        })
        .collect();
    let (_folder, cache) = cache(1 << 30);
    // A new store for each load, as each command has one.
    let store = || -> Arc<dyn Store> {
        let inner = Arc::new(Listed::new(&server.url("/")));
        Arc::new(CachedStore::new(inner, &cache, ""))
    };
    let open = |store: &Arc<dyn Store>| {
        let before = server.requests();
        let opened = store.open(&listed).unwrap();
        (opened, server.requests() - before)
    };
    for is_warm in [false, true] {
        let store = store();
        let (opened, requests) = open(&store);
        assert_eq!(requests, OBJECTS);
        let receipt = load(&store, opened);
        let load = Load {
            sent: 0,
            requests: 0,
            receipt,
        };
        assert_eq!(load.ways().0 == 0, is_warm, "{:?}", load.ways());
        let (_, requests) = open(&store);
        assert_eq!(requests, 0, "the server was asked a moment ago");
    }
    is_denied.store(true, Ordering::SeqCst);
    let error = store().open(&listed).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("listed:"), "{error}");
}

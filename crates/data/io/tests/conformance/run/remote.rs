//! Remote objects: from a web server, SeaweedFS or an NVMe/TCP target, directly or through fault injection.

use std::{path::Path, sync::Arc, time::Duration};

use straightway_cache::{BYTES_MIN, Cache, CachedStore};
use straightway_core::{Choice, Extent, Move, random::Rng};
use straightway_https::Https;
use straightway_io::{Executor, Objects, Region, Store, store::Named};
use straightway_lab::{ByteRelay, FaultProxy, ProxyFault, ProxyFaults, S3Server};
use straightway_net::{Network, NetworkSettings, Roots, Site, suited};
use straightway_s3::{S3, S3Access};
use straightway_webserver::Server;

use crate::{case::Case, mounts::System, nvme::Nvme};

/// The servers of objects. They end with the job.
#[derive(Default)]
pub(crate) struct Served {
    server: Option<Server>,
    proxy: Option<FaultProxy>,
    wire: Option<ByteRelay>,
    nvme: Vec<Nvme>,
}

/// The faults that a client has to tolerate. Each disappears when the request is repeated.
const FAULTS: [ProxyFault; 14] = [
    ProxyFault::CutHead,
    ProxyFault::CutInHead,
    ProxyFault::CutBody,
    ProxyFault::Reset,
    ProxyFault::Stall(Duration::from_millis(200)),
    ProxyFault::StallBody(Duration::from_millis(200)),
    ProxyFault::Drip,
    ProxyFault::Lose,
    ProxyFault::Status(500),
    ProxyFault::Status(503),
    ProxyFault::WrongRange,
    ProxyFault::WrongLength,
    ProxyFault::Twice,
    ProxyFault::Leftover,
];

/// The frequency of each fault in 10,000 requests, and the percentage of connections that break.
const SHARE: u32 = 70;
const BROKEN_PERCENT: u64 = 40;

/// Serves objects with these contents on the case's system.
pub(crate) fn serve(case: &Case, folder: &Path, contents: &[Vec<u8>], rng: &mut Rng) -> (Served, Objects) {
    if case.system == System::S3Faulty {
        return on_s3(case, contents, rng);
    }
    if case.system == System::NvmeFaulty {
        return on_nvme(folder, contents, rng);
    }
    let mut all = Served::default();
    let copies = contents.to_vec();
    let answer = move |asked: &straightway_webserver::ReceivedRequest| {
        let number = asked.target.trim_start_matches("/source-").parse();
        let number: usize = number.expect("only sources are asked for");
        asked.response(&copies[number], &format!("\"{number}\""))
    };
    let mut settings = short_timeouts();
    let url = match case.system {
        System::TlsFaulty => {
            let server = Server::start_tls(answer);
            let path = folder.join("roots.pem");
            server.certificate().write(&path).unwrap();
            settings.roots = Roots::File(path);
            let wire = ByteRelay::start(server.address(), rng.bits(), BROKEN_PERCENT).unwrap();
            let url = format!("https://{}/", wire.address());
            (all.server, all.wire) = (Some(server), Some(wire));
            url
        }
        System::Web => {
            settings = NetworkSettings::default();
            let server = all.server.insert(Server::start(answer));
            server.url("/")
        }
        _ => {
            let server = all.server.insert(Server::start(answer));
            let proxy = FaultProxy::start(&server.address().to_string(), faults(rng)).unwrap();
            let url = proxy.url() + "/";
            all.proxy = Some(proxy);
            url
        }
    };
    let site = Site::of(&url.parse().unwrap()).unwrap();
    let store = Arc::new(Https::new(&Network::new(settings), site, None).unwrap());
    let store: Arc<dyn Store> = if case.system == System::CachedFaulty {
        let cache = Cache::open(&folder.join("cache"), BYTES_MIN).unwrap();
        Arc::new(CachedStore::new(store, &Arc::new(cache), ""))
    } else {
        store
    };
    let names = (0..contents.len()).map(|n| Named::new(format!("source-{n}")));
    let handles = store.open(&names.collect::<Vec<_>>()).unwrap();
    let objects = Objects::new(store, handles);
    if case.system == System::CachedFaulty {
        read_some(&objects, rng);
    }
    (all, objects)
}

/// Reads parts of some objects, so that a cache has them.
fn read_some(objects: &Objects, rng: &mut Rng) {
    let mut moves = Vec::new();
    let mut end = 0;
    for (object, handle) in (0..).zip(objects.handles()) {
        let bytes = handle.object().bytes;
        let start = rng.below(bytes);
        let extent = Extent::new(start, 1 + rng.below(bytes - start));
        if rng.chance(0.5) {
            moves.push(Move {
                object,
                extent,
                at: end,
            });
            end += extent.bytes;
        }
    }
    let executor = Executor::new(suited(straightway_io::Settings::default())).unwrap();
    let region = Arc::new(Region::host(end + 1).unwrap());
    let read = executor.read(objects.clone(), moves, &region, Choice::Auto);
    read.unwrap().wait().unwrap();
}

/// Objects in a bucket of SeaweedFS, read through a proxy.
fn on_s3(case: &Case, contents: &[Vec<u8>], rng: &mut Rng) -> (Served, Objects) {
    let weed = S3Server::shared().expect("the suite looked for it");
    let prefix = format!("conformance/{}-{:x}", case.number, rng.bits());
    for (number, content) in contents.iter().enumerate() {
        weed.put(&format!("{prefix}/{number}"), content.clone());
    }
    let proxy = FaultProxy::start(&weed.address(), faults(rng)).unwrap();
    let access = S3Access::with_keys(&proxy.url(), S3Server::ACCESS_KEY_ID, S3Server::SECRET_ACCESS_KEY);
    let store = S3::new(S3Server::BUCKET, &access, &Network::new(short_timeouts())).unwrap();
    let names = (0..contents.len()).map(|n| Named::new(format!("{prefix}/{n}")));
    let handles = store.open(&names.collect::<Vec<_>>()).unwrap();
    let served = Served {
        proxy: Some(proxy),
        ..Served::default()
    };
    (served, Objects::new(Arc::new(store), handles))
}

/// Files served by a target over connections that break.
fn on_nvme(folder: &Path, contents: &[Vec<u8>], rng: &mut Rng) -> (Served, Objects) {
    let files = folder.join("served");
    std::fs::create_dir(&files).unwrap();
    for (number, content) in contents.iter().enumerate() {
        std::fs::write(files.join(format!("source-{number}")), content).unwrap();
    }
    let source = straightway_nvme_target::NamespaceSource::Path(files);
    let nvme = Nvme::start(vec![source], Some((rng.bits(), BROKEN_PERCENT)));
    let store = nvme.store("served");
    let names = (0..contents.len()).map(|n| Named::new(format!("source-{n}")));
    let handles = store.open(&names.collect::<Vec<_>>()).unwrap();
    let served = Served {
        nvme: vec![nvme],
        ..Served::default()
    };
    (served, Objects::new(store, handles))
}

fn faults(rng: &mut Rng) -> ProxyFaults {
    ProxyFaults {
        seed: rng.bits(),
        shares: FAULTS.map(|fault| (fault, SHARE)).to_vec(),
        only: None,
        after: 0,
    }
}

/// Network settings with short timeouts.
fn short_timeouts() -> NetworkSettings {
    NetworkSettings {
        stall_max: Duration::from_secs(1),
        connect_max: Duration::from_secs(2),
        attempts_max: 20,
        ..NetworkSettings::default()
    }
}

impl Served {
    /// The number of injected faults.
    pub(crate) fn faults(&self) -> u64 {
        let proxy = self.proxy.as_ref().map_or(0, |proxy| proxy.counts().faults);
        let nvme: u64 = self.nvme.iter().map(Nvme::broken).sum();
        proxy + self.wire.as_ref().map_or(0, ByteRelay::broken) + nvme
    }

    /// A store of zeroed namespaces with room for objects of these lengths, over connections that break.
    pub(crate) fn nvme_targets(&mut self, lengths: &[usize], seed: u64) -> Arc<dyn Store> {
        let memory = |(number, length): (usize, &usize)| straightway_nvme_target::NamespaceSource::Memory {
            name: format!("target-{number}"),
            bytes: (*length as u64).next_multiple_of(512),
        };
        let sources = lengths.iter().enumerate().map(memory).collect();
        let nvme = Nvme::start(sources, Some((seed ^ lengths.len() as u64, BROKEN_PERCENT)));
        let store = nvme.store("");
        self.nvme.push(nvme);
        store
    }
}

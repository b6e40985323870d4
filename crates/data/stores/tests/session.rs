//! The session: what is read when, and what is shared.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    mem::MaybeUninit,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::inotify;
use straightway_core::{Place, Rate};
use straightway_io::{Executor, settings::Demand};
use straightway_stores::{DriveFacts, Environment, NvmeOptions, Session, StoreOptions, TransferSpec, registry};
use straightway_weights::{Dtype, FileSaver, Held, Holding, Loader, Model, Selection, Shape};

/// Records which files are opened.
struct OpenedFiles {
    watch: rustix::fd::OwnedFd,
    names: BTreeMap<i32, PathBuf>,
}

impl OpenedFiles {
    fn watch(files: &[PathBuf]) -> Self {
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK).expect("inotify is available");
        let add = |file: &PathBuf| {
            let number = inotify::add_watch(&watch, file, inotify::WatchFlags::OPEN).expect("the file exists");
            (number, file.clone())
        };
        let names = files.iter().map(add).collect();
        Self { watch, names }
    }

    /// The files that were opened since the last call.
    fn take(&self) -> BTreeSet<&Path> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.watch, &mut buffer);
        let mut opened = BTreeSet::new();
        while let Ok(event) = events.next() {
            opened.insert(self.names[&event.wd()].as_path());
        }
        opened
    }
}

#[test]
fn a_local_load_opens_no_configuration_of_nvme_or_aws() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let identity = home.join("nvme");
    fs::create_dir(&identity).unwrap();
    fs::create_dir(home.join(".aws")).unwrap();
    let nvme = [identity.join("hostnqn"), identity.join("hostid")];
    let aws = [home.join(".aws/config"), home.join(".aws/credentials")];
    fs::write(&nvme[0], "nqn.2026-11.test:host\n").unwrap();
    fs::write(&nvme[1], "30313233-3435-3637-3839-616263646566\n").unwrap();
    fs::write(&aws[0], "[default]\nregion = eu-west-1\n").unwrap();
    fs::write(&aws[1], "[default]\naws_access_key_id = A\naws_secret_access_key = B\n").unwrap();
    let opened = OpenedFiles::watch(&[&nvme[..], &aws[..]].concat());

    let options = StoreOptions {
        nvme: NvmeOptions {
            identity,
            ..NvmeOptions::default()
        },
        ..StoreOptions::default()
    };
    let environment = Environment {
        home: Some(home.to_owned()),
        ..Environment::default()
    };
    let stores = registry(&options, environment);
    let (session, file) = (Session::new(), stores.locate(home.join("one.safetensors")).unwrap());
    let executor = Arc::new(session.executor([&file]).unwrap());
    let held = Held {
        name: "weight",
        dtype: Dtype::U8,
        shape: Shape::from(&[3][..]),
        bytes: Holding::Host(&[1, 2, 3]),
    };
    let saver = FileSaver::new(Arc::clone(&executor));
    saver.save_held(file.clone(), &[held], &BTreeMap::new()).unwrap();
    let model = Model::open(file).unwrap();
    let loaded = Loader::new(executor).load(&model, &Selection::all(&model), Place::Host);
    assert_eq!(loaded.unwrap().receipt.bytes, 3);
    assert_eq!(opened.take(), BTreeSet::new());

    // The first use of a scheme reads its files: the watch would have seen them.
    stores.locate("nvme-tcp://127.0.0.1/nqn.2026-11.test:target").unwrap();
    assert_eq!(opened.take(), nvme.iter().map(PathBuf::as_path).collect());
    stores.locate("s3://bucket/key").unwrap();
    assert!(opened.take().contains(aws[0].as_path()));
}

/// Whether two executors have the same lanes, which have one copy of the settings.
fn share(one: &Executor, other: &Executor) -> bool {
    std::ptr::eq(one.settings(), other.settings())
}

#[test]
fn transfers_with_the_same_tuning_share_an_executor() {
    let folder = tempfile::tempdir().unwrap();
    let session = Session::new();
    let stores = session.stores(&StoreOptions::default());
    let file = stores.locate(folder.path().join("file")).unwrap();
    let with = |demand: Demand| {
        let spec = TransferSpec {
            ends: vec![&file],
            demand,
            drive: DriveFacts::Unused,
            ..TransferSpec::default()
        };
        session.executor_for(spec).unwrap()
    };
    let usual = with(Demand::default());
    assert!(share(&usual, &with(Demand::default())));
    let slow = with(Demand {
        rate_max: Some(Rate(1e6)),
        ..Demand::default()
    });
    assert!(!share(&usual, &slow));
    assert_eq!(slow.settings().rate_max, Some(Rate(1e6)));
    // A session keeps few executors. Those that are in use go on.
    for depth in 1..20 {
        with(Demand {
            depth: Some(depth),
            ..Demand::default()
        });
    }
    assert!(!share(&usual, &with(Demand::default())));
}

#[test]
fn stores_are_shared_by_options() {
    let session = Session::new();
    let options = |region: &str| StoreOptions::parse([("region", region)]).unwrap();
    let first = session.stores(&options("here"));
    assert!(Arc::ptr_eq(&first, &session.stores(&options("here"))));
    assert!(!Arc::ptr_eq(&first, &session.stores(&options("there"))));
}

#[test]
fn every_store_on_a_network_gets_the_settings_for_a_network() {
    let options = [
        ("endpoint_url", "http://127.0.0.1:1"),
        ("region", "nowhere"),
        ("anonymous", "true"),
    ];
    let stores = registry(&StoreOptions::parse(options).unwrap(), Environment::default());
    let session = Session::new();
    let settings = |names: &[&str], depth: Option<u32>| {
        let ends: Vec<_> = names.iter().map(|name| stores.locate(name).unwrap()).collect();
        let spec = TransferSpec {
            ends: ends.iter().collect(),
            demand: Demand {
                depth,
                ..Demand::default()
            },
            ..TransferSpec::default()
        };
        *session.executor_for(spec).unwrap().settings()
    };
    let nvme = "nvme-tcp://127.0.0.1/nqn.2026-11.straightway:models";
    for names in [
        &["s3://bucket/key"][..],
        &["http://127.0.0.1:1/file"],
        &[nvme],
        &["/a/file", "s3://bucket/key"],
        &["s3://bucket/key", "/a/file"],
        &[nvme, "s3://bucket/key"],
    ] {
        let chosen = settings(names, None);
        assert_eq!((chosen.chunk_bytes, chosen.depth), (8 << 20, 16), "{names:?}");
        assert_eq!(chosen.staging_bytes, 128 << 20, "{names:?}");
        assert_eq!(settings(names, Some(3)).depth, 3, "{names:?}");
    }
}

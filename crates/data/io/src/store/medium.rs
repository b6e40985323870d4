//! The choice of an executor's settings by the stores of its transfers: those for a drive, or those for a network.

use std::path::PathBuf;

use super::{Location, Tuning};
use crate::settings::Settings;

/// The storage that determines the settings of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A drive. All objects are local files, and this is the path of the first one.
    Drive(PathBuf),
    /// A network. At least one object is on it; the others may be local files.
    Network(Tuning),
}

impl Medium {
    /// The medium of transfers between these locations. A network counts more than a drive, and of two networks the
    /// one with the larger chunks counts: slots have to hold the largest requests.
    pub fn of<'a>(ends: impl IntoIterator<Item = &'a Location>) -> Self {
        let mut drive: Option<PathBuf> = None;
        let mut network: Option<Tuning> = None;
        for end in ends {
            match end.path() {
                Some(path) => drive = drive.or(Some(path)),
                None => network = network.max(Some(end.store.facts().tuning.unwrap_or_default())),
            }
        }
        match network {
            Some(tuning) => Self::Network(tuning),
            None => Self::Drive(drive.unwrap_or_default()),
        }
    }

    /// The settings of an executor for it, given those for the drive. `sizes` are those of the objects, where they are
    /// known: see [`Tuning::applied_to`].
    pub fn settings(&self, sizes: impl IntoIterator<Item = u64>, drive: Settings) -> Settings {
        match self {
            Self::Drive(_) => drive,
            Self::Network(tuning) => tuning.applied_to(Settings::default(), sizes),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, sync::Arc};

    use straightway_core::Result;

    use super::*;
    use crate::{
        engine::Engine,
        store::{Facts, Handle, LaneSpec, Named, Store, StoreExt, Verb, Verbs},
    };

    const WEB: Tuning = Tuning {
        chunk_bytes: 8 << 20,
        depth: 16,
    };

    /// A store on a network.
    #[derive(Debug)]
    struct Web(Tuning);

    impl Store for Web {
        fn describe(&self, name: &OsStr) -> String {
            format!("web:{}", name.display())
        }

        fn verbs(&self) -> Verbs {
            Verbs::default()
        }

        fn open(&self, _: &[Named]) -> Result<Vec<Arc<dyn Handle>>> {
            Err(self.lacks(Verb::List))
        }

        fn engine(&self, _: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
            Err(self.lacks(Verb::List))
        }

        fn facts(&self) -> Facts<'_> {
            Facts {
                tuning: Some(self.0),
                ..Facts::of("web")
            }
        }
    }

    fn web(tuning: Tuning) -> Location {
        Location {
            store: Arc::new(Web(tuning)),
            name: "x".into(),
        }
    }

    #[test]
    fn local_files_get_the_settings_of_the_first_one_s_drive() {
        let (first, second) = (Location::from("/a/first"), Location::from("/b/second"));
        let medium = Medium::of([&first, &second]);
        assert_eq!(medium, Medium::Drive("/a/first".into()));
        let of_drive = Settings {
            depth: 7,
            ..Settings::default()
        };
        assert_eq!(medium.settings([64 << 10; 9], of_drive), of_drive);
    }

    #[test]
    fn one_object_on_a_network_is_enough_for_the_settings_of_a_network() {
        let file = Location::from("/a/file");
        for ends in [
            vec![web(WEB)],
            vec![file.clone(), web(WEB)],
            vec![web(WEB), file.clone()],
        ] {
            let medium = Medium::of(&ends);
            assert_eq!(medium, Medium::Network(WEB));
            let large = medium.settings([], Settings::default());
            assert_eq!(large.chunk_bytes, WEB.chunk_bytes);
            let small = medium.settings([64 << 10; 9], Settings::default());
            assert_eq!(small.chunk_bytes, 64 << 10);
        }
    }

    #[test]
    fn of_two_networks_the_one_with_the_larger_chunks_counts() {
        let other = Tuning {
            chunk_bytes: 1 << 20,
            depth: 64,
        };
        for ends in [[web(WEB), web(other)], [web(other), web(WEB)]] {
            assert_eq!(Medium::of(&ends), Medium::Network(WEB));
        }
    }
}

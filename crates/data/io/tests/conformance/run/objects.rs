//! The objects of a job, in files or stores: creates them, and reads them back after a write.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
};

use straightway_core::Result;
use straightway_io::{
    File, Handle, Objects, Store,
    store::{CommitMode, Condition, Draft, Durability, Like, Named, StoreExt},
};
use straightway_memory::Memory;

use super::{JobRun, remote};
use crate::{
    case::{Density, Residency},
    content,
    mounts::System,
};

/// Objects to write to. Those of a store are visible after their commit.
pub(super) struct Targets {
    pub(super) objects: Objects,
    drafts: Vec<Box<dyn Draft>>,
    /// Their store, if it is not a file system.
    store: Option<Arc<dyn Store>>,
}

impl JobRun<'_> {
    /// Objects to read from, their contents, and their files. Pages are cached as the case requires.
    pub(super) fn sources(&mut self) -> (Objects, Vec<Vec<u8>>, Vec<Arc<File>>) {
        let mut contents = Vec::new();
        let mut files = Vec::new();
        for number in 0..self.case.objects {
            let len = self.length();
            let mut bytes = content::bytes(self.rng.bits(), len);
            if self.case.system != System::Memory && !self.case.system.is_remote() {
                let path = self.folder.join(format!("source-{number}"));
                match self.case.density {
                    Density::Dense => fs::write(&path, &bytes).unwrap(),
                    Density::Sparse(unit) => self.write_sparse(&path, &mut bytes, unit as usize),
                }
                files.push(Arc::new(File::open(&path).unwrap()));
            }
            contents.push(bytes);
        }
        if self.case.system == System::Memory {
            return (in_memory(&contents), contents, files);
        }
        if self.case.system.is_remote() {
            let (served, objects) = remote::serve(self.case, self.folder, &contents, &mut self.rng);
            *self.served.borrow_mut() = served;
            return (objects, contents, files);
        }
        self.settle_pages(&files);
        (files.clone().into(), contents, files)
    }

    /// Writes about half of the units and makes the others holes.
    fn write_sparse(&mut self, path: &Path, bytes: &mut [u8], unit: usize) {
        let file = fs::File::create(path).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        for (n, part) in bytes.chunks_mut(unit).enumerate() {
            if self.rng.chance(0.5) {
                part.fill(0);
            } else {
                file.write_all_at(part, (n * unit) as u64).unwrap();
            }
        }
    }

    /// Brings the files' pages into the state that the case requires.
    fn settle_pages(&mut self, files: &[Arc<File>]) {
        let residency = self.case.residency;
        if residency != Residency::Dirty {
            File::sync_all(files).unwrap();
        }
        if matches!(residency, Residency::Evicted | Residency::Mixed) {
            for file in files {
                file.evict().unwrap();
            }
        }
        for file in files {
            if residency == Residency::Mixed && self.rng.chance(0.5) {
                let offset = self.rng.below(file.bytes());
                let len = (1 + self.rng.below(100_000)).min(file.bytes() - offset);
                file.read_exact_at(offset, &mut vec![0; len as usize]).unwrap();
            }
        }
    }

    /// New objects. Space for files is reserved unless they are to have holes.
    pub(super) fn targets(&self, lengths: &[usize]) -> Result<Targets> {
        if self.case.system == System::Memory {
            return targets_in(Arc::new(Memory::new("targets")), lengths);
        }
        if self.case.system == System::NvmeFaulty {
            let store = self.served.borrow_mut().nvme_targets(lengths, self.case.seed);
            return targets_in(store, lengths);
        }
        let create = |(n, len): (usize, &usize)| {
            let path = self.folder.join(name(n));
            let file = match self.case.density {
                Density::Dense => File::create(&path, *len as u64),
                Density::Sparse(_) => File::create_for(&path, rustix::fs::CWD, &path, *len as u64, 0o666),
            };
            file.map(Arc::new)
        };
        let files = lengths.iter().enumerate().map(create);
        Ok(Targets {
            objects: files.collect::<Result<Vec<_>>>()?.into(),
            drafts: Vec::new(),
            store: None,
        })
    }

    /// Commits what was written, and compares it.
    pub(super) fn compare(&self, targets: Targets, expected: &[Vec<u8>]) -> Result<(), String> {
        let Targets { drafts, store, .. } = targets;
        if let Some(store) = &store {
            store.commit(drafts, CommitMode::InOrder).map_err(|e| e.to_string())?;
        }
        for (number, bytes) in expected.iter().enumerate() {
            let seen = match &store {
                Some(store) => store.get(&name(number), u64::MAX).map_err(|e| e.to_string()),
                None => fs::read(self.folder.join(name(number))).map_err(|e| e.to_string()),
            };
            let mut seen = seen?;
            if self.case.system == System::NvmeFaulty {
                // A namespace has whole blocks. The bytes behind the object were zero, and padding is zero.
                let rest = seen.split_off(bytes.len().min(seen.len()));
                if rest.iter().any(|byte| *byte != 0) {
                    return Err(format!("object {number}: there is data behind its end"));
                }
            }
            if let Some(difference) = content::difference(&seen, bytes) {
                let len = bytes.len();
                return Err(format!("object {number} of {len} bytes: {difference}"));
            }
        }
        Ok(())
    }
}

fn name(number: usize) -> OsString {
    format!("target-{number}").into()
}

/// New objects of these lengths in a store.
fn targets_in(store: Arc<dyn Store>, lengths: &[usize]) -> Result<Targets> {
    let create = |(n, len): (usize, &usize)| store.create(&name(n), *len as u64, &Like::Replaced);
    let drafts = lengths.iter().enumerate().map(create);
    let drafts = drafts.collect::<Result<Vec<_>>>()?;
    let handles = drafts.iter().map(|draft| draft.handle()).collect();
    Ok(Targets {
        objects: Objects::new(Arc::clone(&store), handles),
        drafts,
        store: Some(store),
    })
}

/// Objects of a memory store with these contents.
fn in_memory(contents: &[Vec<u8>]) -> Objects {
    let memory = Memory::new("sources");
    let put = |(n, bytes): (usize, &Vec<u8>)| -> Arc<dyn Handle> {
        let name = format!("source-{n}");
        let (always, how) = (Condition::Always, Durability::Unsynced);
        memory.put(OsStr::new(&name), bytes, &always, how).unwrap();
        memory.open(&[Named::new(name)]).unwrap().remove(0)
    };
    let handles = contents.iter().enumerate().map(put).collect();
    Objects::new(Arc::new(memory), handles)
}

//! Memory in a BAR of a PCI device that other devices reach by peer-to-peer DMA (`p2pmem`).
//!
//! Linux 6.2 and later hand it out by a mapping of `p2pmem/allocate` in the device's folder of sysfs. To the CPU it is
//! memory like any other, only slow. A mapping proves nothing by being there, so it is checked: every page of it lies
//! inside a BAR of the device, by the page table and the device's list of resources, and the provider has that much
//! less to give.
//!
//! The kernel takes the mapping away when the device is unbound, and a later access by the CPU ends the process with
//! SIGBUS. It does so for no other reason.

use std::{fs, os::unix::fs::FileExt, path::PathBuf, ptr::NonNull};

use rustix::{
    fs::{Mode, OFlags, open},
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap},
};
use straightway_core::{Alignment, Bytes, Error, Kind, PciAddress, Result};

use crate::root::Root;

/// The bits of an entry of the page table's image: whether there is a page, and its number.
const PAGE_PRESENT: u64 = 1 << 63;
const PAGE_NUMBER: u64 = (1 << 55) - 1;

/// Times that the provider's free bytes are looked at around a mapping, before it counts as wrong: other processes take
/// and give back as well.
const COUNTS_MAX: usize = 3;

/// A PCI device with memory for its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Provider(PciAddress);

impl Provider {
    /// The device there, whether or not it has any.
    pub fn at(address: PciAddress) -> Self {
        Self(address)
    }

    /// Where it is.
    pub fn address(self) -> PciAddress {
        self.0
    }

    /// All devices of the machine that have such memory, in order.
    pub fn all(root: &Root) -> Vec<Self> {
        let names = root.list("/sys/bus/pci/devices").into_iter();
        let addresses = names.filter_map(|name| name.parse().ok().map(Self));
        addresses.filter(|one| one.bytes(root).is_some()).collect()
    }

    fn folder(self) -> PathBuf {
        format!("/sys/bus/pci/devices/{}", self.0).into()
    }

    /// How much memory it has in all; `None` where it has none, or the kernel has no P2PDMA.
    pub fn bytes(self, root: &Root) -> Option<u64> {
        root.value(self.folder().join("p2pmem/size"))
    }

    /// How much of it is free.
    pub fn free_bytes(self, root: &Root) -> Option<u64> {
        root.value(self.folder().join("p2pmem/available"))
    }

    /// Where its BARs are in the address space of the bus.
    pub fn bars(self, root: &Root) -> Vec<std::ops::Range<u64>> {
        let text = root
            .text(self.folder().join("resource"))
            .unwrap_or_default();
        let bar = |line: &str| {
            let mut ends = line.split_whitespace();
            let mut end = || u64::from_str_radix(ends.next()?.strip_prefix("0x")?, 16).ok();
            let (first, last) = (end()?, end()?);
            (first > 0 && last > first).then(|| first..last + 1)
        };
        // After the six BARs come the expansion ROM and the windows of bridges.
        text.lines().take(6).filter_map(bar).collect()
    }

    /// Maps `bytes` of it, a multiple of the page, and checks what came.
    pub(crate) fn map(self, bytes: usize) -> Result<NonNull<u8>> {
        let root = Root::machine();
        let mut counted = None;
        for _ in 0..COUNTS_MAX {
            let before = self.free_bytes(&root).ok_or_else(|| self.absent(&root))?;
            let mapped = self.map_once(bytes, before)?;
            if let Err(error) = self.check(mapped, bytes, &root) {
                unmap(mapped, bytes);
                return Err(error);
            }
            let after = self.free_bytes(&root).unwrap_or(before);
            if before.checked_sub(after) == Some(bytes as u64) {
                return Ok(mapped);
            }
            unmap(mapped, bytes);
            counted = Some((before, after));
        }
        let (before, after) = counted.unwrap_or_default();
        let why = format!(
            "{} were mapped, and its free bytes went from {before} to {after}",
            Bytes(bytes as u64)
        );
        Err(self.error(Kind::Transient, why))
    }

    fn map_once(self, bytes: usize, free: u64) -> Result<NonNull<u8>> {
        let path = self.folder().join("p2pmem/allocate");
        let hint = "run as root, or give this user access to p2pmem/allocate of the device";
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = open(&path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT => self.error(
                Kind::Unsupported,
                "the kernel does not hand its memory out: that takes Linux 6.2 with CONFIG_PCI_P2PDMA",
            ),
            _ => Error::os("open", path.display(), errno.into()).with_hint(hint),
        })?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice. It stays when the descriptor is closed.
        let map = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                prot,
                MapFlags::SHARED,
                &file,
                0,
            )
        };
        let map = map.map_err(|errno| match errno {
            Errno::NOMEM => {
                let why = format!(
                    "{} are wanted, and {} are free",
                    Bytes(bytes as u64),
                    Bytes(free)
                );
                let hint = "use a smaller --staging, or let other programs give theirs back";
                self.error(Kind::Transient, why).with_hint(hint)
            }
            _ => Error::os("map", path.display(), errno.into()),
        })?;
        Ok(NonNull::new(map.cast()).expect("a mapping is never at address 0"))
    }

    /// An error unless every page of a mapping lies inside one of the device's BARs.
    pub(crate) fn check(self, start: NonNull<u8>, bytes: usize, root: &Root) -> Result<()> {
        let page = usize::try_from(Alignment::PAGE_BYTES).expect("a page is short");
        let failed = |e| Error::os("read", "/proc/self/pagemap", e);
        let table = fs::File::open("/proc/self/pagemap").map_err(failed)?;
        let mut entries = vec![0; bytes.div_ceil(page) * 8];
        let at = (start.addr().get() / page * 8) as u64;
        table.read_exact_at(&mut entries, at).map_err(failed)?;
        let bars = self.bars(root);
        for entry in entries.chunks_exact(8) {
            let entry = u64::from_le_bytes(entry.try_into().expect("it has eight bytes"));
            let number = entry & PAGE_NUMBER;
            if entry & PAGE_PRESENT == 0 || number == 0 {
                let why = "where its pages are cannot be seen";
                let hint = "run as root: /proc/self/pagemap shows that to nobody else";
                return Err(self.error(Kind::Unsupported, why).with_hint(hint));
            }
            let address = number * Alignment::PAGE_BYTES;
            if !bars.iter().any(|bar| bar.contains(&address)) {
                let why = format!("a page of the mapping is at {address:#x}, outside its BARs");
                return Err(self.error(Kind::Corrupt, why));
            }
        }
        Ok(())
    }

    fn absent(self, root: &Root) -> Error {
        let others = Self::all(root).into_iter();
        let others: Vec<_> = others.map(|one| format!("p2p:{}", one.0)).collect();
        let hint = if others.is_empty() {
            "`straightway doctor` says what peer-to-peer DMA takes".to_owned()
        } else {
            format!("those that have are {}", others.join(", "))
        };
        self.error(
            Kind::NotFound,
            "the device has no memory for its peers (p2pmem)",
        )
        .with_hint(hint)
    }

    fn error(self, kind: Kind, why: impl Into<String>) -> Error {
        Error::new(kind, "use the BAR memory of", self.0, why)
    }
}

fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the mapping was made by `map_once` with this length, and nobody has heard of it.
    let _ = unsafe { rustix::mm::munmap(start.as_ptr().cast(), bytes) };
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn device(folder: &Path, address: &str) -> PathBuf {
        let device = folder.join("sys/bus/pci/devices").join(address);
        fs::create_dir_all(device.join("p2pmem")).unwrap();
        device
    }

    #[test]
    fn providers_are_the_devices_with_p2pmem_and_their_bars_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let one = device(folder.path(), "0000:04:00.0");
        device(folder.path(), "0000:05:00.0");
        fs::write(one.join("p2pmem/size"), "67108864\n").unwrap();
        fs::write(one.join("p2pmem/available"), "66912256\n").unwrap();
        let lines = "0x00000000fe800000 0x00000000fe803fff 0x0000000000140204\n\
                     0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                     0x00000000f4000000 0x00000000f7ffffff 0x000000000014220c\n";
        fs::write(one.join("resource"), lines).unwrap();
        let root = Root::at(folder.path());
        let all = Provider::all(&root);
        assert_eq!(all, [Provider::at("0000:04:00.0".parse().unwrap())]);
        assert_eq!(all[0].bytes(&root), Some(64 << 20));
        assert_eq!(all[0].free_bytes(&root), Some(66_912_256));
        assert_eq!(
            all[0].bars(&root),
            [0xfe80_0000..0xfe80_4000, 0xf400_0000..0xf800_0000]
        );
    }

    #[test]
    fn host_memory_is_not_taken_for_a_bar() {
        let folder = tempfile::tempdir().unwrap();
        let one = device(folder.path(), "0000:04:00.0");
        fs::write(one.join("resource"), "0x10 0x1f 0x0\n").unwrap();
        let memory = crate::memory::HostMemory::new(4096).unwrap();
        memory.populate();
        let provider = Provider::at("0000:04:00.0".parse().unwrap());
        let error = provider
            .check(memory.start(), 4096, &Root::at(folder.path()))
            .unwrap_err();
        // Without privileges it cannot even be seen where the page is.
        let text = error.to_string();
        assert!(
            text.contains("outside its BARs") || text.contains("cannot be seen"),
            "{text}"
        );
    }

    #[test]
    fn a_device_without_such_memory_is_an_error_that_says_so() {
        let nowhere = Provider::at("ffff:1f:1f.7".parse().unwrap());
        let error = nowhere.map(4096).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.to_string().contains("p2pmem"), "{error}");
    }
}

//! Memory in a BAR of a PCI device that other devices access by peer-to-peer DMA (`p2pmem`).
//!
//! Linux 6.2 and later provide it through a mapping of `p2pmem/allocate` in the device's sysfs folder. To the CPU it
//! is ordinary but slow memory. A mapping alone proves nothing, so two facts are checked: every page of it is inside
//! a BAR of the device, by the page table and the device's list of resources, and the provider's free memory
//! decreased by that length.
//!
//! The kernel removes the mapping when the device is unbound, and only then. A later access by the CPU kills the
//! process with SIGBUS.

use std::{fs, os::unix::fs::FileExt, path::PathBuf, ptr::NonNull};

use rustix::{
    fs::{Mode, OFlags, open},
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap},
};
use straightway_core::{Alignment, Bytes, Error, ErrorKind, PciAddress, Result};

use crate::root::Root;

/// The bits of an entry of /proc/self/pagemap: whether the page is present, and its frame number.
const PAGE_PRESENT: u64 = 1 << 63;
const PAGE_NUMBER: u64 = (1 << 55) - 1;

/// The number of attempts until the provider's free bytes match a mapping: other processes allocate and free memory at
/// the same time.
const COUNTS_MAX: usize = 3;

/// A PCI device that provides peer-to-peer memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Provider(PciAddress);

impl Provider {
    /// The device at `address`, whether or not it provides memory.
    pub fn at(address: PciAddress) -> Self {
        Self(address)
    }

    /// Its PCI address.
    pub fn address(self) -> PciAddress {
        self.0
    }

    /// All devices of the machine with such memory, in order.
    pub fn all(root: &Root) -> Vec<Self> {
        let names = root.list("/sys/bus/pci/devices").into_iter();
        let addresses = names.filter_map(|name| name.parse().ok().map(Self));
        addresses.filter(|one| one.bytes(root).is_some()).collect()
    }

    fn folder(self) -> PathBuf {
        format!("/sys/bus/pci/devices/{}", self.0).into()
    }

    /// The total size of its memory; `None` if it has none, or if the kernel has no P2PDMA.
    pub fn bytes(self, root: &Root) -> Option<u64> {
        root.value(self.folder().join("p2pmem/size"))
    }

    /// The size of its free memory.
    pub fn free_bytes(self, root: &Root) -> Option<u64> {
        root.value(self.folder().join("p2pmem/available"))
    }

    /// The address ranges of its BARs on the bus.
    pub fn bars(self, root: &Root) -> Vec<std::ops::Range<u64>> {
        let text = root.text(self.folder().join("resource")).unwrap_or_default();
        let bar = |line: &str| {
            let mut ends = line.split_whitespace();
            let mut end = || u64::from_str_radix(ends.next()?.strip_prefix("0x")?, 16).ok();
            let (first, last) = (end()?, end()?);
            (first > 0 && last > first).then(|| first..last + 1)
        };
        // After the six BARs come the expansion ROM and the windows of bridges.
        text.lines().take(6).filter_map(bar).collect()
    }

    /// Maps `bytes` of it, a multiple of the page size, and checks the mapping.
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
            "{} were mapped, but its free bytes changed from {before} to {after}",
            Bytes(bytes as u64)
        );
        Err(self.error(ErrorKind::Transient, why))
    }

    fn map_once(self, bytes: usize, free: u64) -> Result<NonNull<u8>> {
        let path = self.folder().join("p2pmem/allocate");
        let hint = "run as root, or give this user access to p2pmem/allocate of the device";
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = open(&path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT => self.error(
                ErrorKind::Unsupported,
                "the kernel does not provide its memory: this requires Linux 6.2 with CONFIG_PCI_P2PDMA",
            ),
            _ => Error::os("open", path.display(), errno.into()).with_hint(hint),
        })?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice. It stays when the descriptor is closed.
        let map = unsafe { mmap(std::ptr::null_mut(), bytes, prot, MapFlags::SHARED, &file, 0) };
        let map = map.map_err(|errno| match errno {
            Errno::NOMEM => {
                let why = format!("{} are needed, but {} are free", Bytes(bytes as u64), Bytes(free));
                let hint = "use a smaller ⟦staging⟧, or let other programs give theirs back";
                self.error(ErrorKind::Transient, why).with_hint(hint)
            }
            _ => Error::os("map", path.display(), errno.into()),
        })?;
        Ok(NonNull::new(map.cast()).expect("a mapping is never at address 0"))
    }

    /// Returns an error unless every page of a mapping is inside one of the device's BARs.
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
                let why = "the addresses of its pages are hidden";
                let hint = "run as root: /proc/self/pagemap shows them only to root";
                return Err(self.error(ErrorKind::Unsupported, why).with_hint(hint));
            }
            let address = number * Alignment::PAGE_BYTES;
            if !bars.iter().any(|bar| bar.contains(&address)) {
                let why = format!("a page of the mapping is at {address:#x}, outside its BARs");
                return Err(self.error(ErrorKind::Corrupt, why));
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
            format!("devices that have it: {}", others.join(", "))
        };
        self.error(ErrorKind::NotFound, "the device has no peer-to-peer memory (p2pmem)")
            .with_hint(hint)
    }

    fn error(self, kind: ErrorKind, why: impl Into<String>) -> Error {
        Error::new(kind, "use the BAR memory of", self.0, why)
    }
}

fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the mapping was made by `map_once` with this length, and nobody else uses it.
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
        assert_eq!(all[0].bars(&root), [0xfe80_0000..0xfe80_4000, 0xf400_0000..0xf800_0000]);
    }

    #[test]
    fn host_memory_is_not_accepted_as_a_bar() {
        let folder = tempfile::tempdir().unwrap();
        let one = device(folder.path(), "0000:04:00.0");
        fs::write(one.join("resource"), "0x10 0x1f 0x0\n").unwrap();
        let memory = crate::memory::HostMemory::new(4096).unwrap();
        memory.populate();
        let provider = Provider::at("0000:04:00.0".parse().unwrap());
        let error = provider
            .check(memory.start(), 4096, &Root::at(folder.path()))
            .unwrap_err();
        // Without privileges the address of the page is hidden.
        let text = error.to_string();
        assert!(
            text.contains("outside its BARs") || text.contains("are hidden"),
            "{text}"
        );
    }

    #[test]
    fn a_device_without_such_memory_is_an_error_that_says_so() {
        let nowhere = Provider::at("ffff:1f:1f.7".parse().unwrap());
        let error = nowhere.map(4096).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("p2pmem"), "{error}");
    }
}

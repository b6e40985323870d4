//! Driver-specific counters of a network interface.
//!
//! Pause frames, for example, are not in sysfs: the driver reports them by name through the `ethtool`
//! ioctl. The names and their number depend on the driver, so they are queried first.

use std::{
    io, mem,
    ptr::{self, NonNull},
};

use rustix::{
    fd::{AsRawFd, OwnedFd},
    mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap},
};

/// The most counters accepted. Drivers with many queues have a few thousand.
pub const COUNTERS_MAX: usize = 65_536;

/// The set of strings that names the counters.
const SET_STATS: u32 = 1;
const GET_STRINGS: u32 = 0x1b;
const GET_STATS: u32 = 0x1d;
const GET_SET_INFO: u32 = 0x37;
/// The length of a name, including its final zero.
const NAME_BYTES: usize = 32;

/// The counters of `interface`, by name.
pub fn counters(interface: &str) -> io::Result<Vec<(String, u64)>> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    // struct ethtool_sset_info: cmd and reserved, the mask, one length.
    let info = ask(&socket, interface, &[u64::from(GET_SET_INFO), 1 << SET_STATS], 3)?;
    if info[1] == 0 {
        return Ok(Vec::new());
    }
    let count = usize::try_from(info[2] & 0xffff_ffff).unwrap_or(usize::MAX);
    if count > COUNTERS_MAX {
        return Err(io::Error::other(format!("{count} counters are too many")));
    }
    let names = names(&socket, interface, count)?;
    // struct ethtool_stats: cmd and the number, then the values.
    let head = [u64::from(GET_STATS) | (count as u64) << 32];
    let stats = ask(&socket, interface, &head, 1 + room(count))?;
    Ok(names.into_iter().zip(stats.into_iter().skip(1)).collect())
}

/// The number of entries to allocate. The driver writes as many counters as it has at the time of the call.
/// Queues may have been added since the count, so there is room for twice as many and 1024 more.
fn room(count: usize) -> usize {
    2 * count + 1024
}

fn names(socket: &OwnedFd, interface: &str, count: usize) -> io::Result<Vec<String>> {
    // struct ethtool_gstrings: cmd, the set, the number; the names follow after 12 bytes.
    const HEAD_BYTES: usize = 12;
    let words = (HEAD_BYTES + NAME_BYTES * room(count)).div_ceil(8);
    let head = [u64::from(GET_STRINGS) | u64::from(SET_STATS) << 32, count as u64];
    let strings = ask(socket, interface, &head, words)?;
    let bytes: Vec<u8> = strings.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let names = bytes[HEAD_BYTES..].chunks_exact(NAME_BYTES).take(count);
    Ok(names
        .map(|name| {
            let end = name.iter().position(|b| *b == 0).unwrap_or(NAME_BYTES);
            String::from_utf8_lossy(&name[..end]).into_owned()
        })
        .collect())
}

/// Passes a request to the driver that begins with `head`, whose first four bytes are the command. The driver writes its
/// answer over it, of which this returns `words` words.
fn ask(socket: &OwnedFd, interface: &str, head: &[u64], words: usize) -> io::Result<Vec<u64>> {
    // SAFETY: an ifreq is a name and a union of plain numbers; all zero is one of its values.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    let name = interface.as_bytes();
    if name.len() >= request.ifr_name.len() || name.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        // `c_char` is signed on x86-64, but not on aarch64.
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    let mut answer = Answer::new(words)?;
    answer.words()[..head.len()].copy_from_slice(head);
    request.ifr_ifru.ifru_data = answer.start.as_ptr().cast();
    // SAFETY: the descriptor is open, and the request points to memory that is alive and aligned for every field of the
    // three commands. If the driver writes more than that, the kernel stops at the page that nobody may access.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(answer.words().to_vec())
}

/// Memory for an answer, followed by a page that nobody may access. The number of words in a request does not limit what
/// a driver writes, so an answer that became longer must not reach other memory.
struct Answer {
    start: NonNull<u64>,
    words: usize,
    mapped: usize,
}

impl Answer {
    fn new(words: usize) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let open = (words * size_of::<u64>()).next_multiple_of(page);
        let mapped = open + page;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), mapped, ProtFlags::empty(), MapFlags::PRIVATE) }?;
        let start = NonNull::new(start.cast()).expect("a mapping is never at address 0");
        let answer = Self { start, words, mapped };
        // SAFETY: the range lies inside the mapping just made, which nobody else knows.
        unsafe { mprotect(start.as_ptr().cast(), open, MprotectFlags::READ | MprotectFlags::WRITE) }?;
        Ok(answer)
    }

    fn words(&mut self) -> &mut [u64] {
        // SAFETY: so many words are mapped, aligned and initialised by the kernel; `&mut self` makes the access
        // exclusive, since the driver writes only during the call of `ioctl`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and nobody has a reference into it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.mapped) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_interface_is_an_error() {
        assert!(counters("no-such-if0").is_err());
        assert!(counters("a name longer than any interface has").is_err());
        assert!(counters("lo\0").is_err());
    }

    #[test]
    fn every_driver_of_this_machine_has_counters_with_names_or_none() {
        let mut found = 0;
        for interface in crate::root::Root::machine().list("/sys/class/net") {
            let counters = match counters(&interface) {
                Ok(counters) => counters,
                // A driver without counters, or a file such as bonding_masters. A malformed request has another error.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENODEV)) => continue,
                Err(error) => panic!("{interface}: {error}"),
            };
            for (name, _) in &counters {
                let is_name = !name.is_empty() && name.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
                assert!(is_name, "{interface}: {name:?}");
            }
            found += counters.len();
        }
        if found == 0 {
            eprintln!("skipped: no network interface here has counters of its own");
        }
    }
}

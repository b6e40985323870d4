//! The behaviour of Linux with BAR memory, on a real kernel in QEMU: why such memory is never registered with io_uring,
//! sent without a copy or mapped privately, and why a receive into it is not DMA.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs::File,
    io::Write,
    net::{TcpListener, TcpStream},
    os::fd::AsRawFd,
};

use rustix::{
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap},
};
use straightway_lab::guest::{Guest, NEWEST, Topology};

const BYTES: usize = 64 << 10;

/// Maps memory of the provider.
fn map(flags: MapFlags) -> Result<*mut u8, Errno> {
    let provider = std::env::var("P").unwrap();
    let path = format!("/sys/bus/pci/devices/{provider}/p2pmem/allocate");
    let file = File::options().read(true).write(true).open(path).unwrap();
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice. Nobody unmaps it.
    let start = unsafe { mmap(std::ptr::null_mut(), BYTES, prot, flags, &file, 0) }?;
    Ok(start.cast())
}

/// The error number of a result, or 0.
fn errno(result: isize) -> i32 {
    if result < 0 {
        std::io::Error::last_os_error().raw_os_error().unwrap()
    } else {
        0
    }
}

fn register(start: *mut u8) -> i32 {
    let ring = io_uring::IoUring::new(8).unwrap();
    let buffer = libc::iovec {
        iov_base: start.cast(),
        iov_len: BYTES,
    };
    // SAFETY: the mapping stays as long as the process.
    let registered = unsafe { ring.submitter().register_buffers(&[buffer]) };
    registered.map_or_else(|e| e.raw_os_error().unwrap(), |()| 0)
}

fn send_without_copy(socket: &TcpStream, start: *mut u8) -> i32 {
    let on: libc::c_int = 1;
    // SAFETY: the option is an int, and `on` is one.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ZEROCOPY,
            (&raw const on).cast(),
            4,
        )
    };
    assert_eq!(set, 0);
    // SAFETY: the mapping has as many bytes and stays as long as the process.
    errno(unsafe { libc::send(socket.as_raw_fd(), start.cast(), BYTES, libc::MSG_ZEROCOPY) })
}

fn receive(socket: &TcpStream, start: *mut u8) -> i32 {
    // SAFETY: the mapping has as many bytes, and nobody else uses it.
    errno(unsafe { libc::recv(socket.as_raw_fd(), start.cast(), BYTES, libc::MSG_WAITALL) })
}

#[test]
#[ignore = "it runs in the guest"]
fn inside() {
    let private = map(MapFlags::PRIVATE).map_or_else(Errno::raw_os_error, |_| 0);
    let start = map(MapFlags::SHARED).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    let sent: Vec<u8> = (0..BYTES).map(|at| (at * 7 % 251).try_into().unwrap()).collect();
    let copy = sent.clone();
    let writer = std::thread::spawn(move || near.write_all(&copy).map(|()| near).unwrap());
    let received = receive(&far, start);
    // SAFETY: the mapping has as many bytes, and nothing writes to it now.
    let seen = unsafe { std::slice::from_raw_parts(start, BYTES) };
    let is_equal = seen == sent;
    let near = writer.join().unwrap();
    let sending = send_without_copy(&near, start);
    println!(
        "\nfacts: private {private} register {} zerocopy {sending} receive {received} equal {is_equal}",
        register(start)
    );
}

#[test]
fn bar_memory_cannot_be_registered_or_sent_without_a_copy_and_receives_into_it_are_copies_by_the_cpu() {
    if !Guest::is_possible(NEWEST) {
        return;
    }
    let own = std::env::current_exe().unwrap();
    let guest = Guest {
        series: NEWEST,
        topology: Topology::Switch,
        programs: &[("facts", &own)],
        modules: &[],
        script: "facts --ignored --exact inside --nocapture\n",
    };
    let ran = guest.run().unwrap();
    let facts: Vec<_> = ran.said("facts: ").collect();
    let expected = format!(
        "private {} register {} zerocopy {} receive 0 equal true",
        libc::EINVAL,
        libc::EFAULT,
        libc::EFAULT
    );
    assert_eq!(facts, [expected.as_str()], "{}", ran.log);
}

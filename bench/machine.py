"""Describes and prepares the machine that figures are measured on, for all scripts here."""

import os
import platform
import subprocess
import sys


def about():
    """The properties of the machine that matter for a result."""
    with open("/proc/cpuinfo") as f:
        processor = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), "unknown")
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
    }


def drop_caches():
    """Drops the page cache, which needs root."""
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("3\n")


def touch_memory(nbytes):
    """Uses this much memory once, in a process that ends, so that the next process finds it quickly.

    The host of a virtual machine takes back memory that is free for seconds, and returns it at the first use. That was
    seen at 1.6 GB/s, slower than the drive; memory that was just in use is returned at 13 GB/s.
    """
    # 23 is MADV_POPULATE_WRITE, from Linux 5.14 on. Before, the memory stays as it is.
    script = "import mmap, sys; mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE).madvise(23)"
    subprocess.run([sys.executable, "-c", script, str(nbytes)], stderr=subprocess.DEVNULL, check=False)

"""Describes the machine that figures are measured on, for all scripts here."""

import os
import platform


def about():
    """The properties of the machine that matter for a result."""
    with open("/proc/cpuinfo") as f:
        processor = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), "unknown")
    return {"processor": processor, "cores": os.cpu_count(), "kernel": platform.release(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)}


def drop_caches():
    """Drops the page cache, which needs root."""
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("3\n")

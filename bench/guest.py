"""A Linux guest under QEMU for the scripts here: loopback, RAM disks, and programs of this machine. It is like
`NetworkGuest` of crates/test/lab, but its clock is the TSC, as on real machines."""

import os
import shutil
import subprocess
import tempfile

from harness import ROOT, sh

LAB = f"{ROOT}/crates/test/lab/src/guest"
FOLDERS = ["proc", "sys", "dev", "tmp", "run", "mnt", "sbin", "bin", "etc", "etc/nvme"]


class Archive:
    """A cpio archive in the `newc` format that Linux unpacks."""

    def __init__(self):
        self.parts, self.names = [], set()

    def add(self, name, mode, content=b""):
        if name in self.names:
            return
        folder = os.path.dirname(name)
        if folder and folder not in self.names:
            self.add(folder, 0o040755)
        self.names.add(name)
        fields = [len(self.names), mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0]
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        self.parts += [head + bytes(-len(head) % 4), content + bytes(-len(content) % 4)]

    def file(self, name, path):
        with open(path, "rb") as file:
            self.add(name, 0o100755, file.read())

    def program(self, name, path):
        """Adds a program to /bin, with the shared libraries that it needs."""
        self.file(f"bin/{name}", path)
        listed = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
        for word in listed.split():
            if word.startswith("/"):
                self.file(word[1:], word)

    def modules(self, kernel, version, wanted):
        """Adds those of the wanted modules that are not built in, with their dependencies."""
        with open(f"{kernel}/modules/modules.dep") as file:
            needs = {path: rest.split() for path, _, rest in (line.strip().partition(":") for line in file)}
        own = set()
        for path, rest in needs.items():
            if os.path.basename(path).removesuffix(".ko").replace("-", "_") in wanted:
                own |= {path, *rest}
        for path in own:
            self.file(f"lib/modules/{version}/{path}", f"{kernel}/modules/{path}")
        lines = "".join(f"{path}: {' '.join(needs[path])}\n" for path in sorted(own))
        self.add(f"lib/modules/{version}/modules.dep", 0o100644, lines.encode())
        for name in ("modules.builtin", "modules.order"):
            if os.path.exists(f"{kernel}/modules/{name}"):
                self.file(f"lib/modules/{version}/{name}", f"{kernel}/modules/{name}")

    def write(self, path):
        self.add("TRAILER!!!", 0)
        with open(path, "wb") as file:
            file.writelines(self.parts)


def arguments(name):
    """Arguments that the guests of crates/test/lab have too."""
    with open(f"{LAB}/{name}") as file:
        return file.read().split()


def boot(script, programs, modules, seconds, memory_mib=1536, cpus=2):
    """Boots the newest kernel, runs a shell script in it, and returns its output."""
    kernel = sh(f"{ROOT}/tools/guest-kernel").strip()
    with open(f"{kernel}/version") as file:
        version = file.read().strip()
    archive = Archive()
    for folder in FOLDERS:
        archive.add(folder, 0o040755)
    # Before busybox: of two programs with the same name, the first one added stays.
    for name, path in programs.items():
        archive.program(name, path)
    busybox = shutil.which("busybox")
    archive.file("bin/busybox", busybox)
    for name in sh(busybox, "--list").split():
        archive.add(f"bin/{name}", 0o120777, b"busybox")
    archive.modules(kernel, version, modules)
    archive.file("init", f"{LAB}/network.sh")
    archive.add("run.sh", 0o100644, script.encode())
    with tempfile.TemporaryDirectory() as folder:
        archive.write(f"{folder}/initrd")
        # The emulated TSC has the rate of this machine's. A guest that gets little CPU time would measure it wrongly.
        with open("/proc/cpuinfo") as file:
            khz = round(1000 * next((float(line.split(":")[1]) for line in file if line.startswith("cpu MHz")), 0))
        # Without erms: with it, Linux copies by `rep movsb`, which QEMU emulates byte by byte.
        parameters = [*arguments("kernel.args"), "tsc=reliable", f"tsc_early_khz={khz}", "no_timer_check"]
        command = [
            "timeout",
            str(seconds),
            "qemu-system-x86_64",
            *arguments("qemu.args"),
            "-cpu",
            "max,-erms",
            "-smp",
            str(cpus),
            "-m",
            str(memory_mib),
            "-append",
            " ".join(parameters),
            "-kernel",
            f"{kernel}/kernel",
        ]
        subprocess.run(command, stdin=subprocess.DEVNULL, cwd=folder)
        with open(f"{folder}/serial", errors="replace") as file:
            return file.read().replace("\r", "")

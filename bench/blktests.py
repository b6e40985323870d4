#!/usr/bin/env python3
"""The nvme cases of blktests in a guest: Linux's host and nvme-cli against our target.

    python3 bench/blktests.py BLKTESTS [--cases 003 004 …] [--out FILE]

BLKTESTS is a checkout of https://github.com/linux-blktests/blktests, which is GPL and not part of this repository. Its
cases run unchanged, with `NVME_TARGET_CONTROL` set to a program that starts `straightway target`. $STRAIGHTWAY is the
binary.
"""

import base64
import io
import os
import re
import shutil
import subprocess
import tarfile

from guest import boot
from harness import HERE, facts, parser, straightway, version

# The cases that run with any target; see the documentation of blktests.
CASES = (
    "003 004 005 006 008 010 012 014 018 019 021 022 023 025 026 027 028 029 030 031 033 040 041 042 043 044 045 047 "
    "048 049 050 051 052 053 054 055 056 057 058 060 061 062 063 065 067 068 069"
).split()
MODULES = "loop nvme_tcp nvmet_tcp nvme_fabrics nvme_auth nvmet nvme_loop dh_generic hmac sha256 sha512 brd".split()
# busybox's own versions lack options that blktests uses.
PROGRAMS = (
    "bash awk sed grep find sort stat truncate losetup blkdiscard blockdev dmesg getopt realpath readlink timeout date "
    "tee modprobe modinfo udevadm lsblk mktemp dd cut tr uname env basename dirname seq sleep rm ls cat tail head wc "
    "diff cmp touch mkdir nproc od id jq bc mount umount findmnt mountpoint column xargs uuidgen"
).split()


def sources(folder):
    """The sources of blktests as a tar archive in base64."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name in ("check", "common", "tests/nvme", "tests/block/rc", "src"):
            path = os.path.join(folder, name)
            if os.path.exists(path):
                tar.add(path, "blktests/" + name)
    return base64.encodebytes(out.getvalue()).decode()


def main():
    options = parser(__doc__, "nvme-blktests.txt")
    options.add_argument("blktests")
    options.add_argument("--cases", nargs="*", default=CASES)
    options.add_argument("--seconds", type=int, default=2400)
    options.add_argument("--log", help="write everything that the guest printed to this file")
    args = options.parse_args()
    target = straightway()
    programs = {name: shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin") for name in [*PROGRAMS, "nvme", "fio"]}
    programs = {name: path for name, path in programs.items() if path} | {"straightway": target}
    with open(os.path.join(HERE, "blktests.sh")) as file:
        script = (
            f"CASES='{' '.join(args.cases)}'\nbase64 -d >/tmp/sources <<'END'\n{sources(args.blktests)}END\n"
            f"tar xzf /tmp/sources -C /tmp\n{file.read()}"
        )
    said = boot(script, programs, MODULES, args.seconds)
    if args.log:
        with open(args.log, "w") as file:
            file.write(said)
    kernel = re.search(r"Linux (\S+)", said)
    sources_commit = subprocess.run(
        ["git", "-C", args.blktests, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    known = facts()
    lines = [
        f"blktests {sources_commit or '(no git)'}, nvme cases over TCP, Linux {kernel and kernel[1]} as host in QEMU, "
        f"{version(target)} as target, {known['date']}",
        f"commit {known.get('commit', 'unknown')}, {known['machine']['processor']}, {known['machine']['cores']} cores, "
        f"Linux {known['machine']['kernel']}",
    ]
    for case in args.cases:
        found = re.findall(rf"^result: {case} nvme/{case} (?:\(.*?\) )*\((.*?)\) +\[(.*?)\]", said, re.M)
        why = re.findall(rf"^result: {case}     (\S.*)$", said, re.M)
        lines.append(
            f"nvme/{case} {found[-1][1] if found else 'no result'}: {found[-1][0] if found else ''}"
            + (f" ({'; '.join(why)[:300]})" if why and found and found[-1][1] != "passed" else "")
        )
    with open(args.out, "w") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()

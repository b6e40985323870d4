#!/usr/bin/env python3
"""Compares reads over NVMe/TCP on loopback with `sendfile` and `recv` of the same file over as many sockets.

    STRAIGHTWAY=target/release/straightway NVME_READ=target/release/examples/nvme-read \\
        python3 bench/nvme_tcp.py [--seconds 3] [--rounds 5] [--out FILE]

The target is `straightway target`. The host is our engine (`nvme-read`, one lane per socket). `tcpbench.c`, a small C
host with one connection per process, shows the target alone. The three alternate, and ratios are taken within a round.
CPU time is that of the processes on both ends. A run takes --rounds × 3 × --seconds for each of the three socket
counts: 2.5 minutes.
"""

import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from harness import HERE, MIB, facts, make_file, parser, version, write


def build_tcpbench(folder, *flags):
    """Builds the C host. Returns its path."""
    program = os.path.join(folder, "tcpbench")
    subprocess.run(["gcc", "-O2", "-w", *flags, "-o", program, os.path.join(HERE, "tcpbench.c")], check=True)
    return program


def cpu_of(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sendfile_server(path, listener, count):
    """Sends 1 MiB pieces of the file from random offsets until the other side closes, with a thread per connection."""
    size = os.path.getsize(path)

    def serve(connection):
        draw = random.Random(7)
        with open(path, "rb") as file:
            try:
                while True:
                    at = draw.randrange(size // MIB) * MIB
                    end = at + MIB
                    while at < end:
                        at += os.sendfile(connection.fileno(), file.fileno(), at, end - at)
            except OSError:
                connection.close()

    threads = []
    for _ in range(count):
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threads.append(threading.Thread(target=serve, args=(connection,)))
        threads[-1].start()
    for thread in threads:
        thread.join()


def receiver(port, seconds, out):
    connection = socket.create_connection(("127.0.0.1", port))
    buffer = memoryview(bytearray(MIB))
    total, start = 0, time.monotonic()
    while time.monotonic() - start < seconds:
        total += connection.recv_into(buffer, MIB, socket.MSG_WAITALL)
    took = time.monotonic() - start
    connection.close()
    os.write(out, f"{total} {took}\n".encode())


def by_sendfile(path, sockets, seconds):
    """Returns MiB/s, and CPU seconds per GiB of both ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    read, write = os.pipe()
    pids = []
    for job in [lambda: sendfile_server(path, listener, sockets)] + [lambda: receiver(port, seconds, write)] * sockets:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            job()
            os._exit(0)
        pids.append(pid)
    listener.close()
    cpu = 0.0
    for pid in pids[1:] + pids[:1]:
        _, _, usage = os.wait4(pid, 0)
        cpu += usage.ru_utime + usage.ru_stime
    os.close(write)
    lines = os.read(read, 65536).decode().split("\n")[:sockets]
    os.close(read)
    total = sum(int(line.split()[0]) for line in lines)
    took = max(float(line.split()[1]) for line in lines)
    return total / MIB / took, cpu / (total / (1 << 30))


class Target:
    def __init__(self, program, path, block):
        self.process = subprocess.Popen(
            [program, "target", path, "--listen", "127.0.0.1:0", "--nqn", "nqn.bench", "--block", str(block)],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        self.port = int(re.search(r"127\.0\.0\.1:(\d+)", self.process.stderr.readline())[1])

    def tcpbench(self, program, sockets, size, depth, seconds):
        """The C host: a process per socket."""
        command = [program, "tcp", "127.0.0.1", str(self.port), "nqn.bench", "1", str(size), str(depth), str(seconds)]
        return self.run([command] * sockets, seconds)

    def ours(self, program, sockets, size, depth, seconds):
        """Our host: a lane per socket."""
        return self.run(
            [[program, f"127.0.0.1:{self.port}", "nqn.bench", "1", str(size), str(depth), str(seconds), str(sockets)]],
            seconds,
        )

    def run(self, commands, seconds):
        """Returns MiB/s, and CPU seconds per GiB of both ends."""
        before = cpu_of(self.process.pid)
        runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
        rate, cpu = 0.0, 0.0
        for run in runs:
            text = run.stdout.read()
            _, status, usage = os.wait4(run.pid, 0)
            if status:
                sys.exit(f"{run.args[0]} failed: {text}")
            cpu += usage.ru_utime + usage.ru_stime
            rate += float(re.search(r"([\d.]+) MiB/s", text)[1])
        cpu += cpu_of(self.process.pid) - before
        return rate, cpu / (rate * seconds / 1024)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def compare(name, sockets, depth, pairs):
    """A row: the medians of both sides and of their ratios. A pair has the rate and CPU time of sendfile, then ours."""

    def median(figure):
        return statistics.median(figure(theirs, ours) for theirs, ours in pairs)

    return {
        "work": f"1 MiB reads from the page cache, depth {depth}",
        "host": name,
        "sockets": sockets,
        "sendfile_mib_per_s": median(lambda theirs, ours: theirs[0]),
        "nvme_mib_per_s": median(lambda theirs, ours: ours[0]),
        "rate_ratio": median(lambda theirs, ours: ours[0] / theirs[0]),
        "sendfile_cpu_s_per_gib": median(lambda theirs, ours: theirs[1]),
        "nvme_cpu_s_per_gib": median(lambda theirs, ours: ours[1]),
        "cpu_ratio": median(lambda theirs, ours: ours[1] / theirs[1]),
        "rate_ratios": [round(ours[0] / theirs[0], 3) for theirs, ours in pairs],
        "cpu_ratios": [round(ours[1] / theirs[1], 3) for theirs, ours in pairs],
    }


def main():
    options = parser(__doc__, "nvme-tcp.json")
    options.add_argument("--seconds", type=float, default=3)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--mib", type=int, default=1024)
    options.add_argument("--depth", type=int, default=4)
    options.add_argument("--sockets", type=int, nargs="*", default=[1, 2, 4])
    options.add_argument("--note", default="", help="a remark for the result, such as the kind of build")
    args = options.parse_args()
    program = os.environ.get("STRAIGHTWAY", "straightway")
    host = os.environ.get("NVME_READ") or os.path.join(os.path.dirname(program), "examples", "nvme-read")
    rows = []

    def keep(row):
        rows.append(row)
        print(row, flush=True)

    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        tcpbench = build_tcpbench(folder)
        path = os.path.join(folder, "data")
        make_file(path, args.mib * MIB, MIB, is_repeated=False)
        target = Target(program, path, 4096)
        hosts = {
            "straightway": lambda *work: target.ours(host, *work, args.seconds),
            "tcpbench.c": lambda *work: target.tcpbench(tcpbench, *work, args.seconds),
        }
        for sockets in args.sockets:
            pairs = {name: [] for name in hosts}
            for _ in range(args.rounds):
                theirs = by_sendfile(path, sockets, args.seconds)
                for name, run in hosts.items():
                    pairs[name].append((theirs, run(sockets, MIB, args.depth)))
            for name in hosts:
                keep(compare(name, sockets, args.depth, pairs[name]))
        for size, depth in ((4096, 32), (131072, 8)):
            for name, run in hosts.items():
                rate, cpu = run(1, size, depth)
                row = {"work": f"{size} B reads, depth {depth}", "host": name, "sockets": 1, "nvme_mib_per_s": rate}
                row |= {"nvme_iops": rate * MIB / size, "nvme_cpu_us_per_io": cpu * size / (1 << 30) * 1e6}
                keep(row)
        target.stop()
    result = facts({"straightway": version(program)}) | {
        "load": os.getloadavg(),
        "note": args.note,
        "depth": args.depth,
        "rounds": args.rounds,
        "seconds": args.seconds,
        "rows": rows,
    }
    write(args.out, result)


if __name__ == "__main__":
    main()

"""The parts that every benchmark here needs: rounds, comparisons, result files, child processes and test files.

A script parses its options with `parser`, runs its configurations in `rounds` or `alternate`, compares medians with
`compared` or pairs with `ratio_of_pairs`, and writes one file with `write`. The file begins with `facts`: the date, the
commit, the machine and the versions. It is named by what was measured, without a date, so that a new run replaces the
old result; older results are in the git history.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
RESULTS = os.path.join(HERE, "results")
MIB = 1 << 20
#: Bootstrap samples of a lower bound.
RESAMPLES = 10_000


# Options and result files.


def parser(text, out=None, shown=""):
    """A parser with the script's text as its help and the option `--out`. `out` names its default in bench/results/.
    A default that depends on other options is chosen later; then `shown` describes it."""
    options = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    shown = f" [default: bench/results/{shown or out}]" if shown or out else ""
    options.add_argument("--out", default=out and result_path(out), help=f"file for the result{shown}")
    return options


def result_path(name):
    """The path of a result file."""
    return os.path.join(RESULTS, name)


def facts(versions=None, device="cpu"):
    """The facts that every result begins with. `commit` is absent outside a git checkout."""
    known = {"date": datetime.date.today().isoformat()}
    if commit():
        known["commit"] = commit()
    return known | {"machine": machine(device), "versions": versions or {"python": platform.python_version()}}


@functools.cache
def commit():
    """The short hash of HEAD, with "-dirty" if a tracked file outside bench/results/ differs from it. `None` outside a
    git checkout."""

    def git(*arguments):
        done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    try:
        head = git("rev-parse", "--short", "HEAD")
    except FileNotFoundError:
        return None
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results")
    return head and head + ("-dirty" if changed else "")


def machine(device="cpu"):
    """The properties of the machine that matter for a result, with the GPU's name if the device is one."""
    with open("/proc/cpuinfo") as file:
        processor = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown")
    found = {
        "processor": processor,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
    }
    if device == "cpu":
        return found
    import torch

    return found | {"gpu": torch.cuda.get_device_name(device)}


def packages(*names, python=sys.executable):
    """The version of an interpreter, and those of the named packages that it has."""
    script = (
        "import importlib.metadata as metadata, json, platform, sys\n"
        "found = {'python': platform.python_version()}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = metadata.version(name)\n"
        "    except metadata.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    return json.loads(sh(python, "-c", script, *names))


def write(path, result):
    """Writes a result as JSON. The file is replaced as a whole, so an interrupted run leaves the old one."""
    with open(f"{path}.part", "w") as file:
        json.dump(result, file, indent=1, ensure_ascii=False)
        file.write("\n")
    os.replace(f"{path}.part", path)


# Rounds and comparisons.


def rounds(count):
    """Numbers the rounds, and reports each on stderr."""
    for number in range(count):
        print(f"round {number + 1} of {count}", file=sys.stderr, flush=True)
        yield number


def alternate(sides, count, warm_up=True):
    """Yields every side once per round, in alternating order, and whether the round counts. With `warm_up` one more
    round comes first and does not count: it creates lanes, rings and caches."""
    for number in range(0 if warm_up else 1, count + 1):
        for side in list(sides)[:: 1 if number % 2 else -1]:
            yield side, number > 0


def lower_bound(ratios):
    """The 2.5 % quantile of the median of `ratios`, by bootstrap with a fixed seed."""
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return medians[int(RESAMPLES * 0.025)]


def ratio_of_pairs(theirs, ours):
    """The median of the ratios of paired times, and its lower bound. Above 1, ours is faster."""
    ratios = [their / our for their, our in zip(theirs, ours)]
    return statistics.median(ratios), lower_bound(ratios)


def is_met(value, bar, better):
    """Whether a value is "at least" or "at most" its bar."""
    return value >= bar if better == "at least" else value <= bar


def compared(what, ours, theirs, bar, better="at least"):
    """A row that compares two figures: their ratio, its bar, and whether the bar is met."""
    ratio = ours / theirs
    return {
        "what": what,
        "ours": ours,
        "theirs": theirs,
        "ratio": round(ratio, 3),
        "bar": f"{better} {bar}",
        "met": is_met(ratio, bar, better),
    }


def missed(met):
    """The end of a printed row: it says whether the bar was missed."""
    return "" if met else "  MISSED"


def show_compared(rows, width, figure):
    """Prints rows of `compared`. `figure` formats a value."""
    for row in rows:
        ours, theirs = (figure(row[side]) for side in ("ours", "theirs"))
        print(f"{row['what']:{width}} {ours:>10} {theirs:>10} {row['ratio']:>7.3f}  {row['bar']}{missed(row['met'])}")


def billions(value):
    """A rate as a multiple of 1e9, and a smaller value as it is."""
    return f"{value / 1e9:.3f}e9" if value > 1e6 else f"{value:.3f}"


class Bench:
    """A run of one script: its options, its measurements by name, and the rows that compare them."""

    def __init__(self, args):
        self.args, self.runs, self.rows = args, {}, []

    def note(self, name, run):
        """Keeps one measurement."""
        self.runs.setdefault(name, []).append(run)

    def median(self, name, figure):
        """The median of a figure over all measurements of that name."""
        return statistics.median(run[figure] for run in self.runs[name])

    def compare(self, *row, **more):
        """Keeps a row of `compared`."""
        self.rows.append(compared(*row, **more))


# Programs and child processes.


def sh(*command, **more):
    """The output of a command that must succeed."""
    return subprocess.run(command, check=True, capture_output=True, text=True, **more).stdout


def version(program):
    """What a program prints as its version."""
    return sh(program, "--version").strip()


def program(variable, what, name=None):
    """The program that an environment variable names, or `name` on the path."""
    found = os.environ.get(variable) or (name and shutil.which(name))
    return found or sys.exit(f"set {variable} to {what}")


def straightway():
    """The binary to measure."""
    return program("STRAIGHTWAY", "the binary to measure", "straightway")


def transfer():
    """The example program that runs one transfer, without the rest of the command."""
    return program("TRANSFER", "the example `transfer` of the crate straightway-probe")


def receipt(*command, env=None):
    """The receipt that a command prints as JSON."""
    return json.loads(sh(*command, env=env))


def speed(receipt):
    """The bytes per second and the CPU seconds per 10^9 bytes of a receipt."""
    return {"rate": receipt["rate_bytes_per_s"], "cpu": receipt["cpu_s_per_gb"]}


def learned(state):
    """What the last transfer learned about its drive. `state` is the XDG_STATE_HOME that it ran with."""
    with open(os.path.join(state, "straightway/learned.toml")) as file:
        return file.read().rpartition("[drives.")[2]


def fio_jobs(*options):
    """Runs fio once, and returns its jobs by name."""
    out = sh("fio", "--output-format=json", *options)
    # fio prints its warnings before the JSON.
    return {job["jobname"]: job for job in json.loads(out[out.index("{") :])["jobs"]}


def fio(file, size, *options):
    """Runs one job of fio on a file. Returns bytes per second, and CPU seconds per 10^9 bytes."""
    common = ("--name=job", f"--filename={file}", f"--size={size}", "--group_reporting", "--thread")
    job = fio_jobs(*common, *options)["job"]
    side = job["write"] if job["write"]["io_bytes"] else job["read"]
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
    return {"rate": side["io_bytes"] / (side["runtime"] / 1000), "cpu": cpu / (side["io_bytes"] / 1e9)}


def child(script, *arguments, **more):
    """Runs a script in a new Python process, and returns the JSON on its last line. Fails with the last line of stderr,
    if that is captured."""
    command = [sys.executable, os.path.abspath(script), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, **more)
    if done.returncode:
        raise RuntimeError(((done.stderr or "").strip().splitlines() or [f"it ended with {done.returncode}"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


class Worker:
    """A Python process that answers each line on its stdin with a line of JSON. It keeps its state between requests, as
    a job does."""

    def __init__(self, script, *arguments, env=None):
        command = [sys.executable, os.path.abspath(script), *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def tell(self, line):
        """Sends a request."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self):
        """The next answer. Lines that libraries print are skipped."""
        for line in self.process.stdout:
            try:
                return json.loads(line)
            except ValueError:
                continue
        raise RuntimeError(f"the worker ended: {' '.join(self.process.args[1:])}")

    def ask(self, line):
        self.tell(line)
        return self.answer()

    def close(self, timeout=None):
        """Ends the process, and returns its exit code."""
        self.process.stdin.close()
        return self.process.wait(timeout)

    def kill(self):
        self.process.kill()


def timed(work, before=None, after=None):
    """The seconds of a call, and its result. `before` runs before the clock starts, `after` before it stops: both are
    for waiting for the GPU."""
    if before:
        before()
    start = time.perf_counter()
    result = work()
    if after:
        after()
    return time.perf_counter() - start, result


# Memory and files.


def drop_caches():
    """Drops the page cache, which needs root."""
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3\n")


def touch_memory(nbytes):
    """Uses this much memory once, in a process that ends, so that the next process finds it quickly.

    The host of a virtual machine takes back memory that is free for seconds, and returns it at the first use. That was
    seen at 1.6 GB/s, slower than the drive; memory that was just in use is returned at 13 GB/s.
    """
    # 23 is MADV_POPULATE_WRITE, from Linux 5.14 on. Before, the memory stays as it is.
    script = "import mmap, sys; mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE).madvise(23)"
    subprocess.run([sys.executable, "-c", script, str(nbytes)], stderr=subprocess.DEVNULL, check=False)


def warm(path):
    """Brings a file or folder into the page cache. A separate process reads it, so that this one's memory stays as it
    is."""
    subprocess.run(["find", "-H", path, "-type", "f", "-exec", "cat", "{}", "+"], stdout=subprocess.DEVNULL, check=True)


def remove(path):
    """Removes a file or folder and waits until the file system has freed its blocks. Discarding the blocks of 4 GB
    takes a second, which would otherwise slow the next write down."""
    shutil.rmtree(path, ignore_errors=True)
    if os.path.isfile(path):
        os.remove(path)
    os.sync()


def make_file(path, nbytes, block_bytes=64 * MIB, is_repeated=True):
    """Writes whole blocks of noise, at most `nbytes`. With `is_repeated` all blocks are the same."""
    block = os.urandom(block_bytes)
    with open(path, "wb") as file:
        for _ in range(nbytes // block_bytes):
            file.write(block if is_repeated else os.urandom(block_bytes))


def safetensors_header(tensors, align_bytes=4096):
    """The start of a safetensors file, before the data. A tensor is a name, a type, a shape and its bytes."""
    header, at = {}, 0
    for name, dtype, shape, nbytes in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % align_bytes)
    return len(text).to_bytes(8, "little") + text

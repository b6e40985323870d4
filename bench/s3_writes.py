"""Compares writes to S3 on loopback with other clients: CPU of uploads, and saves by several ranks.

    python3 bench/s3_writes.py --programs target/release [--python PYTHON] [--only NAME,…] [--small] [--bytes N]
        [--out FILE]

As in bench/s3.py, the server is SeaweedFS, pinned to one core. The clients run on the other core, one after another.
With `--device cuda:0` saved states are in GPU memory; `--server-cores` and `--client-cores` are for larger machines.
The script prints each requirement, the measured value and whether it is met, and writes all figures to bench/results/.
`--bytes` is the size of a save over all ranks [default: 4 GiB] or of an upload [default: 1 GiB]. Each round of uploads
and each save has a new server, because a server does not free the space of removed objects. `--data /dev/shm` keeps its
data in memory, so that the drive does not limit the clients; 4 GiB then need 14 GB of memory. A run takes about
twenty minutes.

To build the programs: `cargo build --release -p straightway-cli -p straightway-s3 --bins --examples`, and for
object_store `cargo build --release --manifest-path bench/object_store/Cargo.toml`.
The other clients (pip): boto3, torch, s3torchconnector[dcp], s3fs. `--python` is an interpreter that has them and this
package.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import s3_bench
from s3_bench import BUCKET, CLIENT_S_MAX, HERE, MIB, S3, Row, ratio
from weed import Weed, free_port

PART_BYTES = 8 * MIB
RANKS = 4


def part_urls(bench: S3, key: str, count: int) -> tuple[list[str], str]:
    """Presigned URLs for the parts of a new upload, and its id."""
    client = s3_bench.client(bench.server)
    upload = client.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]

    def url(number: int) -> str:
        params = {"Bucket": BUCKET, "Key": key, "UploadId": upload, "PartNumber": number}
        return str(client.generate_presigned_url("upload_part", Params=params))

    return [url(number + 1) for number in range(count)], upload


def bare(bench: S3, size: int, connections: int) -> Row:
    """Runs the bare loop. Its parts go to an upload that is aborted afterwards."""
    urls, upload = part_urls(bench, "bare", size // PART_BYTES)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("\n".join(urls))
        file.flush()
        done = figures(s3_bench.run([bench.send, "bare", file.name, "1", str(connections)], bench.server.url))
    s3_bench.client(bench.server).abort_multipart_upload(Bucket=BUCKET, Key="bare", UploadId=upload)
    return done


def figures(done: Row) -> Row:
    """The CPU and wall seconds that a program printed."""
    if "error" in done:
        return done
    return dict(zip(("cpu_s", "wall_s"), map(float, done["out"].split())))


def put(bench: S3) -> Row:
    """CPU per GiB of an upload from memory with CRC-64/NVME, 8 connections × 8 MiB."""
    size = 64 * MIB if bench.small else bench.args.bytes or 1024 * MIB
    rows: dict[str, list[Row]] = {}
    for _ in range(1 if bench.small else bench.args.rounds or 5):
        with fresh_server(bench):
            ours = [bench.send, "ours", BUCKET, "ours", str(size // MIB), "1"]
            some = {"straightway": figures(s3_bench.run(ours, bench.server.url)), "bare send": bare(bench, size, 8)}
            if bench.object_store:
                command = [bench.object_store, "object-store", str(size), "1", "put"]
                some["object_store"] = figures(s3_bench.run(command, bench.server.url))
        for name, row in some.items():
            rows.setdefault(name, []).append(row)
    answer = s3_bench.summary(rows, ("cpu_s", "wall_s"))
    for peer, most in (("bare send", 1.15), ("object_store", 1.0)):
        cpu = ratio(answer["straightway"]["cpu_s"], answer.get(peer, {}).get("cpu_s"))
        bench.require(f"PUT: CPU per GiB / {peer}", cpu, None, most)
    return {"bytes": size, "clients": answer}


@contextlib.contextmanager
def fresh_server(bench: S3) -> Iterator[None]:
    """Replaces the bench's server with a new one, and removes it with its data at the end."""
    first = bench.server
    with tempfile.TemporaryDirectory(dir=bench.args.data) as folder:
        bench.server = Weed(Path(folder), BUCKET, [s3_bench.IDENTITY], before=tuple(s3_bench.ON_SERVER))
        try:
            yield
        finally:
            bench.server.stop()
            bench.server = first


def ranks(bench: S3, name: str, size: int) -> Row:
    """Saves with one process per rank. The time is from the first start to the last end."""
    port, prefix = str(free_port()), f"saves-{name.replace(':', '')}-{os.getpid()}"
    script = [bench.args.python, str(HERE / "s3_savers.py"), name, prefix, str(size // RANKS), port, bench.args.device]
    children = [
        subprocess.Popen(
            [*s3_bench.ON_CLIENT, *script, str(rank), str(RANKS)],
            env=s3_bench.environment(bench.server.url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    told = []
    try:
        for child in children:
            out, err = child.communicate(timeout=CLIENT_S_MAX)
            if child.returncode:
                return {"error": err.strip()[-600:] or "it failed"}
            told.append(json.loads(out.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {CLIENT_S_MAX} s"}
    finally:
        for child in children:
            child.kill()
    return {"wall_s": max(end for _, end in told) - min(start for start, _ in told)}


def upload(bench: S3, name: str, size: int) -> Row:
    """One client's save, or the bare loop with as many connections as all ranks together."""
    return bare(bench, size, 8 * RANKS) if name == "bare send" else ranks(bench, name, size)


def save(bench: S3) -> Row:
    """A save by 4 ranks, compared with a bare upload of the same bytes and with torch.distributed.checkpoint."""
    size = 64 * MIB if bench.small else bench.args.bytes or 4 << 30
    rounds = 1 if bench.small else bench.args.rounds or 2
    rows: dict[str, list[Row]] = {}
    for _ in range(rounds):
        for name in ("straightway", "bare send", "DCP s3torchconnector", "DCP s3fs"):
            with fresh_server(bench):
                # A new server's memory grows during its first uploads, which costs it a third of its time. The bare
                # loop uploads everything once before its measured round.
                bare(bench, size // 4, 8 * RANKS)
                done = s3_bench.with_server(bench, lambda name=name: upload(bench, name, size))  # type: ignore[misc]
            rows.setdefault(name, []).append(done)
            # Progress: a round takes minutes, and the table is printed at the end.
            print(f"save, {name}: {done}", file=sys.stderr, flush=True)
    answer = s3_bench.summary(rows, ("wall_s", "server_cpu_s"))
    wall = {name: answer[name]["wall_s"] for name in rows}
    work = f"save of {size / (1 << 30):g} GiB by {RANKS} ranks"
    bench.require(f"{work}: rate / bare upload", ratio(wall["bare send"], wall["straightway"]), 0.9, None)
    peers = [wall[name] for name in ("DCP s3torchconnector", "DCP s3fs") if wall[name]]
    # The faster of the two.
    bench.require(f"{work}: speed / DCP", ratio(min(peers, default=None), wall["straightway"]), 2.0, None)
    return {"bytes": size, "ranks": RANKS, "clients": answer, "rounds": rows}


if __name__ == "__main__":
    if shutil.which("taskset") is None:
        sys.exit("s3_writes.py: taskset is needed")
    s3_bench.main(__doc__, {"put": put, "save": save}, "s3-writes")

"""Writes to S3 on loopback beside other clients: CPU of uploads, and saves by several ranks.

    python3 bench/s3_writes.py --programs target/release [--python PYTHON] [--only NAME,…] [--small] [--bytes N] [--out FILE]

As in bench/s3.py, SeaweedFS serves, pinned to one core; each client runs on the other, in turns. It prints each requirement,
what was measured and whether it is met, and keeps all of it in bench/results/. `--bytes` is how much a save has over all
ranks [default: 4 GiB] or an upload [default: 1 GiB]. Each round has a server of its own, and a save each client, since a
server keeps the room of removed objects. `--data /dev/shm` keeps its data in memory, so that the clients are compared and
not the drive; 4 GiB then need 14 GB of memory. A run takes some ten minutes.

The programs: `cargo build --release -p straightway-cli -p straightway-s3 --bins --examples`, and for object_store
`cargo build --release --manifest-path bench/object_store/Cargo.toml`.
The peers (pip): boto3, torch, s3torchconnector[dcp], s3fs; `--python` is one that has them and this package.
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

import s3
from s3 import BUCKET, CLIENT_S_MAX, HERE, MIB, Bench, Row, ratio
from weed import Weed, free_port

PART_BYTES = 8 * MIB
RANKS = 4


def part_urls(bench: Bench, key: str, count: int) -> tuple[list[str], str]:
    """URLs that parts of a new upload can be put to, and its number."""
    client = s3.client(bench.server)
    upload = client.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]

    def url(number: int) -> str:
        params = {"Bucket": BUCKET, "Key": key, "UploadId": upload, "PartNumber": number}
        return str(client.generate_presigned_url("upload_part", Params=params))

    return [url(number + 1) for number in range(count)], upload


def bare(bench: Bench, size: int, connections: int) -> Row:
    """The bare loop, with its parts put to an upload that is aborted afterwards."""
    urls, upload = part_urls(bench, "bare", size // PART_BYTES)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("\n".join(urls))
        file.flush()
        done = figures(s3.run([bench.send, "bare", file.name, "1", str(connections)], bench.server.url))
    s3.client(bench.server).abort_multipart_upload(Bucket=BUCKET, Key="bare", UploadId=upload)
    return done


def figures(done: Row) -> Row:
    """CPU and wall seconds as the programs print them."""
    if "error" in done:
        return done
    return dict(zip(("cpu_s", "wall_s"), map(float, done["out"].split())))


def put(bench: Bench) -> Row:
    """CPU per GiB of an upload from memory with CRC-64/NVME, 8 connections × 8 MiB."""
    size = 64 * MIB if bench.small else bench.args.bytes or 1024 * MIB
    rows: dict[str, list[Row]] = {}
    for _ in range(1 if bench.small else bench.args.rounds or 5):
        with fresh_server(bench):
            ours = [bench.send, "ours", BUCKET, "ours", str(size // MIB), "1"]
            some = {"straightway": figures(s3.run(ours, bench.server.url)), "bare send": bare(bench, size, 8)}
            if bench.object_store:
                command = [bench.object_store, "object-store", str(size), "1", "put"]
                some["object_store"] = figures(s3.run(command, bench.server.url))
        for name, row in some.items():
            rows.setdefault(name, []).append(row)
    answer = s3.summary(rows, ("cpu_s", "wall_s"))
    for peer, most in (("bare send", 1.15), ("object_store", 1.0)):
        cpu = ratio(answer["straightway"]["cpu_s"], answer.get(peer, {}).get("cpu_s"))
        bench.require(f"PUT: CPU per GiB / {peer}", cpu, None, most)
    return {"bytes": size, "clients": answer}


@contextlib.contextmanager
def fresh_server(bench: Bench) -> Iterator[None]:
    """A new server in the place of the bench's. It goes with its data."""
    first = bench.server
    with tempfile.TemporaryDirectory(dir=bench.args.data) as folder:
        bench.server = Weed(Path(folder), BUCKET, [s3.IDENTITY], before=tuple(s3.ON_SERVER))
        try:
            yield
        finally:
            bench.server.stop()
            bench.server = first


def ranks(bench: Bench, name: str, size: int) -> Row:
    """Saves by ranks in processes of their own: from the first that begins to the last that is done."""
    port, prefix = str(free_port()), f"saves-{name.replace(':', '')}-{os.getpid()}"
    script = [bench.args.python, str(HERE / "s3_savers.py"), name, prefix, str(size // RANKS), port]
    children = [
        subprocess.Popen(
            [*s3.ON_CLIENT, *script, str(rank), str(RANKS)],
            env=s3.environment(bench.server.url),
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


def upload(bench: Bench, name: str, size: int) -> Row:
    """One client's save, or the bare loop with as many connections as all ranks have."""
    return bare(bench, size, 8 * RANKS) if name == "bare send" else ranks(bench, name, size)


def save(bench: Bench) -> Row:
    """A save by 4 ranks beside a bare upload of the same bytes and beside torch.distributed.checkpoint."""
    size = 64 * MIB if bench.small else bench.args.bytes or 4 << 30
    rounds = 1 if bench.small else bench.args.rounds or 2
    rows: dict[str, list[Row]] = {}
    for _ in range(rounds):
        for name in ("straightway", "bare send", "DCP s3torchconnector", "DCP s3fs"):
            with fresh_server(bench):
                done = s3.with_server(bench, lambda name=name: upload(bench, name, size))  # type: ignore[misc]
            rows.setdefault(name, []).append(done)
            # A round takes minutes, and the table comes at the end.
            print(f"save, {name}: {done}", file=sys.stderr, flush=True)
    answer = s3.summary(rows, ("wall_s", "server_cpu_s"))
    wall = {name: answer[name]["wall_s"] for name in rows}
    work = f"save of {size / (1 << 30):g} GiB by {RANKS} ranks"
    bench.require(f"{work}: rate / bare upload", ratio(wall["bare send"], wall["straightway"]), 0.9, None)
    peers = [wall[name] for name in ("DCP s3torchconnector", "DCP s3fs") if wall[name]]
    # The better of the two.
    bench.require(f"{work}: speed / DCP", ratio(min(peers, default=None), wall["straightway"]), 2.0, None)
    return {"bytes": size, "ranks": RANKS, "clients": answer, "rounds": rows}


if __name__ == "__main__":
    if shutil.which("taskset") is None:
        sys.exit("s3_writes.py: taskset is needed")
    s3.main(__doc__, {"put": put, "save": save}, "s3-writes")

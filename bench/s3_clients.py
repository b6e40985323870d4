"""The clients that bench/s3.py compares, each in a separate process: `s3_clients.py NAME ARGUMENT…`.

Each prints a JSON object with the wall and CPU seconds of the read, without imports and the creation of clients. The
object also has the memory before the read and its peak. The service and the credentials come from the environment.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

BUCKET = "bench"
CONNECTIONS = 8
RANGE_BYTES = 8 << 20


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def status_bytes(field: str) -> int:
    """A field of /proc/self/status, in bytes."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(field))
    return int(line.split()[1]) << 10


def measured(read: Callable[[], object]) -> dict[str, float]:
    before_bytes, cpu, start = status_bytes("VmRSS"), cpu_s(), time.monotonic()
    # The data stays alive until the figures are taken.
    kept = read()
    figures = {"wall_s": time.monotonic() - start, "cpu_s": cpu_s() - cpu}
    figures |= {"before_bytes": before_bytes, "peak_bytes": status_bytes("VmHWM")}
    del kept
    return figures


def obstore(key: str, size: str) -> dict[str, float]:
    """obstore: ranges on 8 threads, copied into one buffer."""
    import obstore as client
    from obstore.store import S3Store

    store = S3Store(BUCKET, endpoint=os.environ["AWS_ENDPOINT_URL"], client_options={"allow_http": True})
    whole = memoryview(bytearray(int(size)))

    def get(at: int) -> None:
        end = min(at + RANGE_BYTES, len(whole))
        whole[at:end] = memoryview(client.get_range(store, key, start=at, end=end))

    def read() -> None:
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(get, range(0, len(whole), RANGE_BYTES)))

    return measured(read)


def crt(key: str, size: str) -> dict[str, float]:
    """The AWS CRT's S3 client: parts of 8 MiB, copied into one buffer as they arrive."""
    from awscrt.auth import AwsCredentialsProvider
    from awscrt.http import HttpHeaders, HttpRequest
    from awscrt.io import ClientBootstrap, DefaultHostResolver, EventLoopGroup
    from awscrt.s3 import S3Client, S3RequestTlsMode, S3RequestType, create_default_s3_signing_config

    group = EventLoopGroup(1)
    bootstrap = ClientBootstrap(group, DefaultHostResolver(group))
    provider = AwsCredentialsProvider.new_static(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
    region = os.environ["AWS_REGION"]
    client = S3Client(
        bootstrap=bootstrap,
        region=region,
        tls_mode=S3RequestTlsMode.DISABLED,
        signing_config=create_default_s3_signing_config(region=region, credential_provider=provider),
        part_size=RANGE_BYTES,
        # It assumes 0.4 Gbit/s per connection.
        throughput_target_gbps=0.4 * CONNECTIONS,
    )
    whole = memoryview(bytearray(int(size)))

    def take(chunk: bytes, offset: int, **_: Any) -> None:
        whole[offset : offset + len(chunk)] = chunk

    host = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
    request = HttpRequest("GET", f"/{BUCKET}/{key}", HttpHeaders([("host", host)]))

    def read() -> None:
        made = client.make_request(type=S3RequestType.GET_OBJECT, request=request, on_body=take)
        made.finished_future.result()

    return measured(read)


def in_gpu_memory(device: str, read: Callable[[], object]) -> Callable[[], object]:
    """The read, followed by a wait for the GPU's copies. The GPU's context is made before: all loaders need it."""
    if device == "cpu":
        return read
    import torch

    torch.empty(1, device=device)

    def read_all() -> object:
        kept = read()
        torch.cuda.synchronize()
        return kept

    return read_all


def straightway(prefix: str, _: str, device: str) -> dict[str, float]:
    """This package."""
    import straightway as client

    source = f"s3://{BUCKET}/{prefix}"
    if device == "cpu":
        return measured(lambda: client.load_model(source, framework="np"))
    return measured(in_gpu_memory(device, lambda: client.load_model(source, device=device)))


def runai(prefix: str, count: str, device: str) -> dict[str, float]:
    """Run:ai's streamer. It reuses its buffers, so a tensor is copied to be kept."""
    from runai_model_streamer import SafetensorsStreamer

    names = [f"s3://{BUCKET}/{prefix}/model-{number}.safetensors" for number in range(int(count))]

    def read() -> object:
        with SafetensorsStreamer() as streamer:
            streamer.stream_files(names)
            return {name: tensor.to(device, copy=True) for name, tensor in streamer.get_tensors()}

    return measured(in_gpu_memory(device, read))


def s3torchconnector(prefix: str, count: str, device: str) -> dict[str, float]:
    """s3torchconnector: whole objects, parsed by safetensors."""
    import safetensors.torch
    from s3torchconnector import S3Checkpoint, S3ClientConfig

    store = S3Checkpoint(
        region=os.environ["AWS_REGION"],
        endpoint=os.environ["AWS_ENDPOINT_URL"],
        s3client_config=S3ClientConfig(force_path_style=True),
    )

    def read() -> object:
        kept = {}
        for number in range(int(count)):
            with store.reader(f"s3://{BUCKET}/{prefix}/model-{number}.safetensors") as reader:
                loaded = safetensors.torch.load(reader.read())
                kept.update({name: tensor.to(device) for name, tensor in loaded.items()})
        return kept

    return measured(in_gpu_memory(device, read))


CLIENTS = {
    "obstore": obstore,
    "CRT": crt,
    "straightway": straightway,
    "Run:ai": runai,
    "s3torchconnector": s3torchconnector,
}


def main() -> None:
    if "--help" in sys.argv:
        return print(__doc__)
    name, *arguments = sys.argv[1:]
    json.dump(CLIENTS[name](*arguments), sys.stdout)


if __name__ == "__main__":
    main()

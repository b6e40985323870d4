"""Loads from a real S3 server: SeaweedFS, installed where it is missing, on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import straightway

ROOT = Path(__file__).resolve().parents[3]
KEYS = {"access_key_id": "LABACCESSKEYID", "secret_access_key": "lab-secret-access-key"}
#: Ends the server when the test's process does.
KEEPER = '"$@" & pid=$!; cat >/dev/null; kill $pid; wait $pid'


def free_port() -> int:
    """A port that is free, and so is the one 10,000 above it."""
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


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server's address, and a folder whose files are put into its bucket `lab` by name."""
    found = subprocess.run([ROOT / "tools/weed"], capture_output=True, text=True)
    if found.returncode:
        pytest.skip(f"no S3 server: {found.stderr.strip()}")
    folder = tmp_path_factory.mktemp("weed")
    (folder / "s3.json").write_text(
        '{"identities":[{"name":"lab","credentials":[{"accessKey":"%s","secretKey":"%s"}],'
        '"actions":["Admin","Read","Write","List"]},{"name":"anonymous","actions":["Write:lab"]}]}'
        % (KEYS["access_key_id"], KEYS["secret_access_key"])
    )
    ports = [free_port() for _ in range(4)]
    arguments = [
        found.stdout.strip(),
        "server",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-volume.max=32",
        # By default it takes nothing where less than a hundredth of the drive is free.
        "-volume.minFreeSpace=64MiB",
        f"-master.port={ports[0]}",
        f"-volume.port={ports[1]}",
        "-filer",
        f"-filer.port={ports[2]}",
        "-s3",
        f"-s3.port={ports[3]}",
        f"-s3.config={folder / 's3.json'}",
    ]
    with open(folder / "log", "w") as log:
        keeper = subprocess.Popen(
            ["sh", "-c", KEEPER, "keeper", *arguments], stdin=subprocess.PIPE, stdout=log, stderr=log
        )
    try:
        # The filer takes uploads without a signature: what is below /buckets is in a bucket.
        filer = f"http://127.0.0.1:{ports[2]}/buckets/lab/"
        deadline = time.monotonic() + 90
        while upload(filer + "ready", b"yes") != 0:
            assert time.monotonic() < deadline and keeper.poll() is None, (folder / "log").read_text()[-2000:]
            time.sleep(0.2)
        for name, content in objects().items():
            assert upload(filer + name, content) == 0
        # The gateway begins after the filer, and finds what was put there.
        options = {"endpoint_url": f"http://127.0.0.1:{ports[3]}", **KEYS}
        while not is_served(options):
            assert time.monotonic() < deadline and keeper.poll() is None, (folder / "log").read_text()[-2000:]
            time.sleep(0.2)
        yield f"http://127.0.0.1:{ports[3]}", folder
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        keeper.wait(30)


def is_served(options: dict[str, str]) -> bool:
    """Whether the gateway shows what was uploaded."""
    try:
        with straightway.safe_open("s3://lab/model/model-3.safetensors", "np", storage_options=options) as file:
            return bool(file.keys())
    except OSError:
        return False


def upload(url: str, content: bytes) -> int:
    """Puts bytes under a URL; 0 where that worked."""
    import urllib.request

    request = urllib.request.Request(url, data=content, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return 0 if answer.status < 300 else answer.status
    except OSError:
        return -1


def tensors(shard: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(shard)
    return {
        f"layer.{shard}.weight": random.standard_normal((300, 257)).astype(np.float32),
        f"layer.{shard}.bias": random.integers(0, 9, 1000 + shard),
    }


def objects() -> dict[str, bytes]:
    from straightway.numpy import save

    return {f"model/model-{shard}.safetensors": save(tensors(shard)) for shard in range(4)}


@pytest.fixture
def options(bucket: tuple[str, Path]) -> dict[str, str | bool]:
    return {"endpoint_url": bucket[0], **KEYS}


def test_a_model_in_shards_is_loaded_byte_for_byte(options: dict[str, str | bool]) -> None:
    weights = straightway.load_model("s3://lab/model", framework="np", storage_options=options)
    expected = {name: tensor for shard in range(4) for name, tensor in tensors(shard).items()}
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(weights[name], tensor)
    assert {row["route"] for row in weights.receipt.routes} == {"socket"}


def test_filters_and_slices_ask_for_their_bytes_only(options: dict[str, str | bool]) -> None:
    weights = straightway.load_model(
        "s3://lab/model",
        framework="np",
        filter="layer.2.weight",
        slices=[(None, 0, 10, 20)],
        storage_options=options,
    )
    np.testing.assert_array_equal(weights["layer.2.weight"], tensors(2)["layer.2.weight"][10:20])
    assert weights.receipt.bytes == 10 * 257 * 4


def test_safe_open_reads_tensors_and_rows(options: dict[str, str | bool]) -> None:
    with straightway.safe_open("s3://lab/model/model-1.safetensors", "np", storage_options=options) as file:
        assert set(file.keys()) == tensors(1).keys()
        np.testing.assert_array_equal(file.get_tensor("layer.1.bias"), tensors(1)["layer.1.bias"])
        np.testing.assert_array_equal(
            file.get_slice("layer.1.weight")[5:9, 3:200], tensors(1)["layer.1.weight"][5:9, 3:200]
        )


def test_the_environment_counts_also_after_it_changed(
    options: dict[str, str | bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "s3://lab/model/model-0.safetensors"
    for variable in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", str(options["endpoint_url"]))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises((OSError, ValueError, RuntimeError)) as raised:
        straightway.load_file(name, framework="np")
    assert "secret key from the environment is wrong" in str(raised.value)
    assert KEYS["access_key_id"] not in str(raised.value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["secret_access_key"])
    assert straightway.load_file(name, framework="np").keys() == tensors(0).keys()


def test_a_copy_is_the_same(options: dict[str, str | bool], tmp_path: Path) -> None:
    receipt = straightway.copy("s3://lab/model", tmp_path, storage_options=options)
    assert receipt.bytes == sum(len(content) for content in objects().values())
    for name, content in objects().items():
        assert (tmp_path / name).read_bytes() == content


def test_what_is_missing_or_unknown_is_told(options: dict[str, str | bool]) -> None:
    with pytest.raises(FileNotFoundError):
        straightway.load_file("s3://lab/none.safetensors", framework="np", storage_options=options)
    with pytest.raises(ValueError, match="no such option"):
        straightway.load_file("s3://lab/x.safetensors", storage_options={"secret": "hush"})

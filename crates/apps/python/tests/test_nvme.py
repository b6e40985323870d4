"""Models that ``straightway target`` serves over NVMe/TCP: loaded like a path, byte for byte."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import straightway
from test_load import child

NQN = "nqn.2026-11.org.example:python"

#: The command of this package.
COMMAND = [sys.executable, "-c", "from straightway._command import main; main()"]

#: A folder with the stand-in for the CUDA driver, as in test_gpu_memory.py.
STANDIN = os.environ.get("STRAIGHTWAY_STANDIN_FOLDER")


@pytest.fixture
def served(model: tuple[Path, dict[str, numpy.ndarray]]) -> Iterator[tuple[str, dict[str, numpy.ndarray]]]:
    """The URI of a served model, and its tensors."""
    folder, expected = model
    options = ["--listen", "127.0.0.1:0", "--nqn", NQN, str(folder)]
    target = subprocess.Popen([*COMMAND, "target", *options], stderr=subprocess.PIPE, text=True)
    try:
        assert target.stderr is not None
        said = target.stderr.readline()
        address = said.split()[-1]
        assert address.startswith("127.0.0.1:"), said
        yield f"nvme-tcp://{address}/{NQN}/{folder.name}", expected
    finally:
        target.kill()
        target.wait()


def same(found: dict[str, numpy.ndarray], expected: dict[str, numpy.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        numpy.testing.assert_array_equal(found[name], tensor)
        assert found[name].dtype == tensor.dtype


def test_a_model_is_loaded_byte_for_byte(served: tuple[str, dict[str, numpy.ndarray]]) -> None:
    uri, expected = served
    weights = straightway.load_model(uri, framework="np")
    same(weights, expected)
    assert {(row["route"], row["reason"]) for row in weights.receipt.routes} == {("socket", "tcp")}
    sockets = weights.receipt.to_dict()["sockets"]
    assert sockets["connections"] > 0 and sockets["interfaces"][0]["name"] == "lo"


def test_digests_and_files_and_slices(served: tuple[str, dict[str, numpy.ndarray]]) -> None:
    uri, expected = served
    options = {"nvme_digests": "both", "nvme_keep_alive": "2"}
    second = f"{uri}/model-00002-of-00002.safetensors"
    found = straightway.load_file(second, framework="np", storage_options=options)
    same(found, {name: expected[name] for name in ("layers.0.weight", "scale", "empty")})
    with straightway.safe_open(second, "np", storage_options=options) as file:
        assert set(file.keys()) == set(found)
        numpy.testing.assert_array_equal(file.get_tensor("layers.0.weight"), expected["layers.0.weight"])
        rows = file.get_slice("layers.0.weight")[5:1001, 3:77]
        numpy.testing.assert_array_equal(rows, expected["layers.0.weight"][5:1001, 3:77])


def test_a_copy_is_the_same(served: tuple[str, dict[str, numpy.ndarray]], tmp_path: Path) -> None:
    uri, _ = served
    straightway.copy(uri, tmp_path / "copied")
    source = [path for path in tmp_path.iterdir() if path.is_file()]
    assert len(source) == 3
    for path in source:
        assert (tmp_path / "copied" / path.name).read_bytes() == path.read_bytes()


def test_errors_are_reported_quickly(served: tuple[str, dict[str, numpy.ndarray]]) -> None:
    uri, _ = served
    start = time.monotonic()
    with pytest.raises(FileNotFoundError, match="none.safetensors"):
        straightway.load_file(f"{uri}/none.safetensors", framework="np")
    with pytest.raises((OSError, ValueError), match="no subsystem"):
        straightway.load_model(uri.replace(NQN, "nqn.2026-11.org.example:other"), framework="np")
    with pytest.raises(ValueError, match="nvme_digests"):
        straightway.load_model(uri, framework="np", storage_options={"nvme_digests": "some"})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"nvme-tcp://127.0.0.1:{free.getsockname()[1]}/{NQN}/x.safetensors"
        with pytest.raises((OSError, RuntimeError), match="nobody listens"):
            straightway.load_file(nobody, framework="np")
    assert time.monotonic() - start < 20


def test_memory_of_a_gpu_is_filled_through_the_ring(served: tuple[str, dict[str, numpy.ndarray]]) -> None:
    if STANDIN is None:
        pytest.skip("STRAIGHTWAY_STANDIN_FOLDER is not set: it names the folder of the stand-in for the CUDA driver")
    code = """
        import sys
        import straightway
        weights = straightway.load_model(sys.argv[1], framework="dlpack", device="cuda:0", memory="driver")
        receipt = weights.receipt.to_dict()
        print({row["route"] for row in receipt["routes"]} == {"socket"}, receipt["staging_bytes_peak"] > 0)
    """
    uri, _ = served
    plan = {"LD_LIBRARY_PATH": STANDIN, "STRAIGHTWAY_STANDIN": "seed=3 delay_us_max=50"}
    assert child(code, uri, **plan) == "True True"


def test_a_fork_loads_by_connections_of_its_own(served: tuple[str, dict[str, numpy.ndarray]]) -> None:
    uri, expected = served
    same(straightway.load_model(uri, framework="np"), expected)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            same(straightway.load_model(uri, framework="np"), expected)
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + 30
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        assert time.monotonic() < deadline, "the child hangs"
        time.sleep(0.02)
    assert os.waitstatus_to_exitcode(status) == 0
    same(straightway.load_model(uri, framework="np"), expected)

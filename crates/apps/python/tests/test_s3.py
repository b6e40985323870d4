"""Loads from a real S3 server: SeaweedFS on loopback, installed if it is missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import straightway
import weed

KEYS = {"access_key_id": "LABACCESSKEYID", "secret_access_key": "lab-secret-access-key"}
IDENTITIES: list[dict[str, object]] = [
    {
        "name": "lab",
        "credentials": [{"accessKey": KEYS["access_key_id"], "secretKey": KEYS["secret_access_key"]}],
        "actions": ["Admin", "Read", "Write", "List"],
    },
    {"name": "anonymous", "actions": ["Write:lab"]},
]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server whose bucket `lab` has the objects."""
    try:
        server = weed.Weed(tmp_path_factory.mktemp("weed"), "lab", IDENTITIES)
    except weed.Missing as why:
        pytest.skip(f"no S3 server: {why}")
    try:
        for name, content in objects().items():
            assert server.put(name, content)
        # The gateway starts after the filer, and finds the uploaded objects.
        while not is_served({"endpoint_url": server.url, **KEYS}):
            server.wait()
        yield server.url
    finally:
        server.stop()


def is_served(options: dict[str, str]) -> bool:
    """Whether the gateway lists the uploaded objects."""
    try:
        with straightway.safe_open("s3://lab/model/model-3.safetensors", "np", storage_options=options) as file:
            return bool(file.keys())
    except OSError:
        return False


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
def options(bucket: str) -> dict[str, str | bool]:
    return {"endpoint_url": bucket, **KEYS}


def test_a_model_in_shards_is_loaded_byte_for_byte(options: dict[str, str | bool]) -> None:
    weights = straightway.load_model("s3://lab/model", framework="np", storage_options=options)
    expected = {name: tensor for shard in range(4) for name, tensor in tensors(shard).items()}
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(weights[name], tensor)
    assert {row["route"] for row in weights.receipt.routes} == {"socket"}


def test_filters_and_slices_request_only_their_bytes(options: dict[str, str | bool]) -> None:
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


def test_changes_of_the_environment_take_effect(
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


def test_missing_objects_and_unknown_options_raise(options: dict[str, str | bool]) -> None:
    with pytest.raises(FileNotFoundError):
        straightway.load_file("s3://lab/none.safetensors", framework="np", storage_options=options)
    with pytest.raises(ValueError, match="no such option"):
        straightway.load_file("s3://lab/x.safetensors", storage_options={"secret": "hush"})


def check_loaded(options: dict[str, str | bool]) -> straightway.Receipt:
    """Loads the model, compares every byte and returns the receipt."""
    weights = straightway.load_model("s3://lab/model", framework="np", storage_options=options)
    for shard in range(4):
        for name, tensor in tensors(shard).items():
            np.testing.assert_array_equal(weights[name], tensor)
    return weights.receipt


def test_the_second_load_comes_from_the_cache(options: dict[str, str | bool], tmp_path: Path) -> None:
    cached = {**options, "cache": str(tmp_path / "cache"), "cache_size": "1GiB"}
    ways = lambda receipt: {(row["route"], row["reason"]) for row in receipt.routes}
    assert ways(check_loaded(cached)) == {("socket", "tcp")}
    assert ways(check_loaded(cached)) == {("buffered", "local_cache")}
    for entry in (tmp_path / "cache").glob("*/*"):
        entry.write_bytes(entry.read_bytes()[:-3] + b"bad")
    assert ways(check_loaded(cached)) == {("socket", "tcp")}
    with straightway.safe_open("s3://lab/model/model-1.safetensors", "np", storage_options=cached) as file:
        rows = file.get_slice("layer.1.weight")[5:9]
    np.testing.assert_array_equal(rows, tensors(1)["layer.1.weight"][5:9])
    tmp_path.chmod(0o777)
    with pytest.raises(ValueError, match="others may write"):
        check_loaded({**options, "cache": str(tmp_path)})


def test_a_child_that_is_forked_after_a_load_loads_too(options: dict[str, str | bool], tmp_path: Path) -> None:
    cached = {**options, "cache": str(tmp_path / "cache")}
    check_loaded(options)
    check_loaded(cached)
    ends = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            code = 1
            try:
                check_loaded(options)
                check_loaded(cached)
                code = 0
            finally:
                os._exit(code)
        ends.append(os.waitpid(child, 0)[1])
        # The connections of the parent still work.
        check_loaded(options)
    assert ends == [0] * 4


#: Prints keys. Its first call waits for a file, as a helper does that waits for the user or the network.
HELPER = """#!/bin/sh
if mkdir "{folder}/first" 2>/dev/null; then
    while [ ! -e "{folder}/go" ]; do sleep 0.05; done
fi
echo '{{"Version": 1, "AccessKeyId": "{access_key_id}", "SecretAccessKey": "{secret_access_key}"}}'
"""


def test_a_child_that_is_forked_while_its_parent_waits_for_credentials_loads(bucket: str, tmp_path: Path) -> None:
    helper = tmp_path / "helper"
    helper.write_text(HELPER.format(folder=tmp_path, **KEYS))
    helper.chmod(0o755)
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {helper}\n")
    # In a process of its own: it forks, and this one has threads.
    code = """
        import os, pathlib, signal, sys, threading, time
        import straightway
        folder = pathlib.Path(sys.argv[1])
        load = lambda: straightway.load_model("s3://lab/model/model-1.safetensors", framework="np")
        found = []
        thread = threading.Thread(target=lambda: found.append(load()))
        thread.start()
        deadline = time.monotonic() + 60
        while not (folder / "first").exists():
            assert time.monotonic() < deadline, "the helper was not called"
            time.sleep(0.01)
        child = os.fork()
        if child == 0:
            signal.alarm(45)
            os._exit(0 if set(load().keys()) == {"layer.1.weight", "layer.1.bias"} else 1)
        end = os.waitpid(child, 0)[1]
        (folder / "go").touch()
        thread.join()
        assert end == 0, end
        assert len(found) == 1
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    variables |= {
        "AWS_ENDPOINT_URL_S3": bucket,
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
    }
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def environment(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the bucket's address and keys in the environment."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", bucket)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["secret_access_key"])


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("items", [0, 1, 7_000, 1_100_003, 5_000_000])
def test_a_file_saved_to_a_bucket_is_loaded_byte_for_byte(items: int) -> None:
    saved = {"a": np.random.default_rng(items).integers(0, 255, items, dtype=np.uint8), "b": np.arange(items % 1000)}
    name = f"s3://lab/saved/{items}.safetensors"
    for _ in range(2):
        straightway.save_file(saved, name)
    loaded = straightway.load_model(name, framework="np")
    for key, tensor in saved.items():
        np.testing.assert_array_equal(loaded[key], tensor)


@pytest.mark.usefixtures("environment")
def test_checkpoints_in_a_bucket_are_saved_restored_and_pruned() -> None:
    torch = pytest.importorskip("torch")
    state = {"w": torch.randn(900, 1000), "step": torch.tensor(3)}
    checkpointer = straightway.Checkpointer("s3://lab/run", keep_last=2)
    for step in range(1, 5):
        state["step"].fill_(step)
        checkpointer.save(step, state)
        checkpointer.wait()
    # Older steps are removed in the background after a newer one is committed, without another save.
    deadline = time.monotonic() + 30
    while checkpointer.steps() != [3, 4]:
        assert time.monotonic() < deadline, checkpointer.steps()
        time.sleep(0.05)
    for step in (3, 4):
        found = {"w": torch.zeros(900, 1000), "step": torch.tensor(0)}
        checkpointer.restore(step, into=found)
        assert torch.equal(found["w"], state["w"]) and found["step"] == step
    with pytest.raises(OSError):
        checkpointer.restore(1, into=state)


@pytest.mark.usefixtures("environment")
def test_torch_distributed_checkpoint_saves_to_a_bucket_and_loads_from_it() -> None:
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    from straightway.torch import StorageReader, StorageWriter

    state = {"w": torch.randn(3000, 1000), "b": torch.arange(7)}
    dcp.save(state, storage_writer=StorageWriter("s3://lab/dcp/step-1"))
    found = {"w": torch.zeros(3000, 1000), "b": torch.zeros(7, dtype=torch.int64)}
    dcp.load(found, storage_reader=StorageReader("s3://lab/dcp/step-1"))
    assert torch.equal(found["w"], state["w"]) and torch.equal(found["b"], state["b"])


def test_all_writers_take_storage_options(
    options: dict[str, str | bool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path))
    array = np.arange(1000.0)
    spec = straightway.TensorSpec(
        dtype="float64", shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes
    )
    straightway.save_file({"a": array}, "s3://lab/writers/1.safetensors", storage_options=options)
    straightway.serialize_file({"a": spec}, "s3://lab/writers/2.safetensors", storage_options=options)
    for number in (1, 2):
        loaded = straightway.load_file(f"s3://lab/writers/{number}.safetensors", framework="np", storage_options=options)
        np.testing.assert_array_equal(loaded["a"], array)
    checkpointer = straightway.Checkpointer("s3://lab/writers/run", keep_last=1, storage_options=options)
    for step in (1, 2):
        assert checkpointer.save(step, {"a": array}).result(60).step == step
    checkpointer.tag(2, "kept")
    np.testing.assert_array_equal(checkpointer.load()["a"], array)
    assert checkpointer.tags(2) == ["kept"] and checkpointer.tensors()["a"].shape == (1000,)
    checkpointer.close()
    assert checkpointer.steps() == [2]
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    from straightway.torch import StorageReader, StorageWriter, load_file, save_file

    save_file({"w": torch.ones(3)}, "s3://lab/writers/3.safetensors", storage_options=options)
    assert load_file("s3://lab/writers/3.safetensors", storage_options=options)["w"].all()
    writer = StorageWriter("s3://lab/writers/dcp", storage_options=options)
    found = {"w": torch.zeros(9)}
    dcp.save({"w": torch.ones(9)}, storage_writer=writer, no_dist=True)
    dcp.load(found, storage_reader=StorageReader("s3://lab/writers/dcp", storage_options=options), no_dist=True)
    assert found["w"].all()
    # Without the options nothing is found, so they were used.
    with pytest.raises((OSError, ValueError, RuntimeError)):
        straightway.Checkpointer("s3://lab/writers/run").load()


def test_an_engines_loader_reads_a_bucket_once_with_a_cache(
    options: dict[str, str | bool], tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from straightway._engine_options import parse
    from straightway._engine_weights import EngineWeights

    expected = {name: tensor for shard in range(4) for name, tensor in tensors(shard).items()}
    settings = {"storage_options": {**options, "cache": str(tmp_path / "cache")}}
    for way in (("socket", "tcp"), ("buffered", "local_cache")):
        weights = EngineWeights(parse(settings)[0], "cpu", is_shared=True)
        found = {name: t.clone() for name, t in weights.read("s3://lab/model", weights.open("s3://lab/model"))}
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], torch.from_numpy(tensor)) for name, tensor in expected.items())
        rows = [row for receipt in weights.receipts for row in receipt.routes if row["bytes"]]
        assert {(row["route"], row["reason"]) for row in rows} == {way}
    wrong = EngineWeights(parse({"storage_options": options})[0], "cpu", is_shared=False)
    with pytest.raises(FileNotFoundError, match="lab/absent"):
        wrong.open("s3://lab/absent")

"""Exceptions: a program can tell what happened, and catches them as before."""

import os
import pickle
import threading
import time

import numpy
import pytest
import straightway
from straightway import BusyError, ChangedError, DamagedError, ExistsError, SafetensorError, _weights


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_each_class_is_what_was_raised_before():
    for kind, bases in [
        (ExistsError, (ValueError, SafetensorError, FileExistsError)),
        (BusyError, (ValueError, SafetensorError, OSError)),
        (DamagedError, (ValueError, SafetensorError)),
        (ChangedError, (ValueError, SafetensorError)),
    ]:
        assert issubclass(kind, bases) and kind.__module__ == "straightway"
        error = pickle.loads(pickle.dumps(kind("why")))
        assert type(error) is kind and str(error) == "why"
    assert not issubclass(ChangedError, DamagedError)


def test_a_step_that_exists_and_a_folder_in_use_are_told_apart(tmp_path):
    with straightway.Checkpointer(tmp_path) as one:
        one.save(1, {"n": 1}, async_=False)
        with pytest.raises(ExistsError, match="there already"):
            one.save(1, {"n": 2}, async_=False)
        with pytest.raises(BusyError, match="another job saves there"):
            straightway.Checkpointer(tmp_path).save(2, {"n": 2})
    with straightway.Checkpointer(tmp_path / "slow", busy="refuse", rate_bytes_per_s=20e6) as slow:
        slow.save(1, {"t": numpy.ones(1 << 20)})
        with pytest.raises(BusyError, match="still under way") as caught:
            slow.save(2, {"t": numpy.ones(1 << 20)})
        assert not isinstance(caught.value, ExistsError)


def test_damage_is_told_apart_from_wrong_arguments(tmp_path):
    with straightway.Checkpointer(tmp_path / "c") as checkpointer:
        checkpointer.save(1, {"w": numpy.arange(1000.0)}, async_=False)
        checkpointer.save(2, {"w": numpy.arange(1000.0)}, async_=False)
    (shard,) = (tmp_path / "c/step-1").glob("*.safetensors")
    flip(shard)
    with pytest.raises(DamagedError, match="its checksum is"):
        checkpointer.load(1)
    flip(tmp_path / "c/step-2/manifest.json")
    with pytest.raises(DamagedError, match="manifest.json"):
        checkpointer.load(2)
    path = tmp_path / "m.safetensors"
    straightway.save_file({"a": numpy.ones(100)}, path)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(DamagedError, match="m.safetensors"):
        straightway.load_file(path, framework="np")
    with pytest.raises(DamagedError):
        straightway.deserialize(b"{}")
    straightway.save_file({"a": numpy.ones(100)}, path)
    with pytest.raises(ValueError) as caught:
        straightway.load_file(path, framework="np", priority="never")
    assert not isinstance(caught.value, DamagedError)


def test_a_file_that_changed_since_it_was_opened_is_told_apart_from_damage(tmp_path):
    path = tmp_path / "m.safetensors"
    straightway.save_file({"a": numpy.ones(100)}, path)
    with straightway.safe_open(path, "np", backend="pread") as file:
        time.sleep(0.02)
        straightway.save_file({"a": numpy.zeros(100)}, path)
        with pytest.raises(ChangedError, match="replaced or written to since"):
            file.get_tensor("a")
    model = straightway.Model(path)
    os.truncate(path, 100)
    with pytest.raises(ChangedError):
        _weights.load(model, "cpu", "np")


def test_a_file_that_changes_during_a_load_is_a_changed_error(tmp_path):
    path = tmp_path / "m.safetensors"
    straightway.save_file({"a": numpy.ones(4 << 20)}, path)
    stop = threading.Event()

    def touch():
        with open(path, "r+b") as file:
            while not stop.is_set():
                os.pwrite(file.fileno(), b" ", 4000)

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        with pytest.raises(ChangedError, match="m.safetensors"):
            for _ in range(200):
                straightway.load_file(path, framework="np", route="buffered")
    finally:
        stop.set()
        thread.join()

"""Saving: files that safetensors reads, aligned to 4 KiB, complete or absent."""

import json

import numpy
import pytest
import safetensors
import safetensors.numpy
import straightway
import straightway.numpy

TYPES = ["bool", "uint8", "int8", "int16", "uint16", "float16", "int32", "uint32", "float32", "float64", "int64", "uint64", "complex64"]


def test_every_dtype_is_saved_and_loaded_unchanged(tmp_path):
    rng = numpy.random.default_rng(3)
    tensors = {t: rng.integers(0, 2, (3, 5)).astype(t) for t in TYPES}
    tensors |= {"scalar": numpy.array(7.0), "empty": numpy.zeros((2, 0, 3), dtype="int8")}
    path = tmp_path / "all.safetensors"
    receipt = straightway.save_file(tensors, path, {"why": "a test"})
    assert receipt.bytes == sum(t.nbytes for t in tensors.values())
    for found in [safetensors.numpy.load_file(path), straightway.load_file(path, framework="np")]:
        assert sorted(found) == sorted(tensors)
        for name, tensor in tensors.items():
            assert found[name].dtype == tensor.dtype
            numpy.testing.assert_array_equal(found[name], tensor)
    with safetensors.safe_open(path, "np") as f:
        assert f.metadata() == {"why": "a test"}


def test_data_begins_on_a_page_and_nothing_else_is_left_behind(tmp_path):
    path = tmp_path / "a.safetensors"
    straightway.numpy.save_file({"a": numpy.arange(10_000)}, path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    assert (8 + length) % 4096 == 0 and header["a"]["data_offsets"] == [0, 80_000]
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.safetensors"
    straightway.save_file({"a": numpy.ones(5)}, path)
    before = path.read_bytes()
    array = numpy.arange(12).reshape(3, 4)
    for tensors, error, words in [
        ({"t": array.T}, ValueError, "contiguous"),
        ({"t": "text"}, TypeError, "not a tensor"),
        ({3: array}, TypeError, "is a string"),
        ({"t": array.astype(object)}, ValueError, "object"),
        ({"__metadata__": array}, ValueError, "__metadata__"),
    ]:
        with pytest.raises(error, match=words):
            straightway.save_file(tensors, path)
    with pytest.raises(FileNotFoundError):
        straightway.save_file({"a": array}, tmp_path / "no/such/folder.safetensors")
    assert path.read_bytes() == before


def test_big_endian_arrays_are_byte_swapped(tmp_path):
    path = tmp_path / "a.safetensors"
    straightway.save_file({"a": numpy.arange(5, dtype=">i4")}, path)
    numpy.testing.assert_array_equal(safetensors.numpy.load_file(path)["a"], numpy.arange(5))

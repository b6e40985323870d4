"""Tensors that are mapped pages of their file: which functions return them, and what happens if the file changes."""

import json
import os
import signal
import struct

import numpy
import pytest
import safetensors.numpy
import straightway
import straightway.numpy
import straightway.torch
from test_load import child

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

TENSORS = {
    "a": numpy.arange(3 << 10, dtype="float32").reshape(3, 1024),
    "b": numpy.arange(5, dtype="int64"),
    "empty": numpy.zeros((0, 4), "float16"),
    "scalar": numpy.array(2.5, "float32"),
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file(TENSORS, path)
    return path


def routes(weights):
    return {row["route"]: row["bytes"] for row in weights.receipt.routes}


def same(weights):
    assert set(weights) == set(TENSORS)
    for name, array in TENSORS.items():
        got = numpy.asarray(weights[name])
        assert got.dtype == array.dtype and got.shape == array.shape
        numpy.testing.assert_array_equal(got, array)


def is_mapped(path, array):
    """Whether the memory of an array is a mapping of the file."""
    address = array.ctypes.data
    with open("/proc/self/maps") as maps:
        for line in maps:
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            if first <= address < last:
                return line.rstrip().endswith(str(path))
    return False


BYTES = sum(array.nbytes for array in TENSORS.values())


@pytest.mark.parametrize(
    "load",
    [
        lambda path: straightway.load_file(path, framework="np"),
        lambda path: straightway.load_file(path, framework="pt"),
        straightway.torch.load_file,
        straightway.numpy.load_file,
    ],
)
def test_the_functions_of_safetensors_map_the_file_and_the_receipt_says_so(path, load):
    weights = load(path)
    same(weights)
    assert is_mapped(path, numpy.asarray(weights["a"]))
    receipt = weights.receipt
    assert routes(weights) == {"mapped": BYTES} and receipt.bytes == BYTES
    assert {row["reason"] for row in receipt.routes} == {"file_pages"}
    # Nothing was moved: there is no rate, no I/O and no bottleneck.
    assert (receipt.rate_bytes_per_s, receipt.ios, receipt.storage_bytes, receipt.bound_by) == (0, 0, 0, "nothing")
    assert "mapped in" in str(receipt) and "/s" not in str(receipt).splitlines()[0]
    assert "no promise about later changes" in str(receipt)


@pytest.mark.parametrize(
    "load",
    [
        lambda path: straightway.load_model(path, framework="np"),
        lambda path: straightway.load_file(path, framework="np", route="auto"),
        lambda path: straightway.load_file(path, framework="np", route="buffered"),
        lambda path: straightway.torch.load_file(path, backend="pread"),
        lambda path: straightway.numpy.load_file(path, backend="pread"),
    ],
)
def test_load_model_a_route_and_pread_read_into_memory_of_the_process(path, load):
    weights = load(path)
    same(weights)
    assert "mapped" not in routes(weights) and weights.receipt.rate_bytes_per_s > 0
    assert not is_mapped(path, numpy.asarray(weights["a"]))
    # Later changes of the file have no effect.
    with open(path, "r+b") as file:
        file.truncate(100)
    same(weights)


def test_a_write_to_a_tensor_changes_the_memory_of_the_process_and_not_the_file(path):
    before = path.read_bytes()
    weights = straightway.torch.load_file(path)
    again = straightway.torch.load_file(path)
    weights["a"][0, 0] = 7
    weights["a"].add_(1)
    assert weights["a"][0, 0] == 8 and again["a"][0, 0] == 0
    assert path.read_bytes() == before


def test_tensors_outlive_the_rest_and_a_file_that_was_replaced_or_removed(path):
    tensor = straightway.torch.load_file(path).pop("a")
    straightway.numpy.save_file({"a": numpy.zeros(7, "float32")}, path)
    numpy.testing.assert_array_equal(tensor, TENSORS["a"])
    os.remove(path)
    numpy.testing.assert_array_equal(tensor, TENSORS["a"])


def test_a_change_of_the_file_in_place_shows_in_tensors_that_were_not_written_to(path):
    weights = straightway.torch.load_file(path)
    with straightway.safe_open(path, framework="np") as opened:
        held = opened.get_tensor("a")
    read = straightway.load_model(path, framework="np")
    with open(path, "r+b") as file:
        start = path.read_bytes().find(TENSORS["a"].tobytes())
        file.seek(start)
        file.write(numpy.float32(-1).tobytes())
    assert weights["a"][0, 0] == held[0, 0] == -1
    assert read["a"][0, 0] == 0


def test_truncating_a_mapped_file_kills_only_a_process_that_uses_its_pages(tmp_path):
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file({"t": numpy.ones(64 << 10, "uint8")}, path)
    code = """
        import os, sys, straightway
        load = {"mapped": straightway.load_file, "read": straightway.load_model}[sys.argv[2]]
        tensor = load(sys.argv[1], framework="np")["t"]
        child = os.fork()
        if child == 0:
            os.truncate(sys.argv[1], 4096)
            os._exit(0 if int(tensor[-1]) == 1 else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert child(code, path, "read") == "0"
    safetensors.numpy.save_file({"t": numpy.ones(64 << 10, "uint8")}, path)
    assert child(code, path, "mapped") == str(-signal.SIGBUS)


def test_unaligned_tensors_are_read_and_the_receipt_lists_both_routes(tmp_path):
    header = {
        "aligned": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "odd": {"dtype": "U8", "shape": [1], "data_offsets": [8, 9]},
        "shifted": {"dtype": "F32", "shape": [2], "data_offsets": [9, 17]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    values = numpy.array([1.5, -2], "float32").tobytes()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + values + b"x" + values)
    weights = straightway.load_file(path, framework="np")
    assert weights["aligned"].tolist() == weights["shifted"].tolist() == [1.5, -2]
    assert weights["odd"].tolist() == [ord("x")]
    found = routes(weights)
    assert found.pop("mapped") == 9 and sum(found.values()) == 8
    assert weights.receipt.bytes == 17 and weights.receipt.rate_bytes_per_s > 0


def test_a_filter_and_a_callback_work_on_mapped_files(path):
    calls = []
    weights = straightway.load_file(path, framework="np", filter="a", progress=lambda *numbers: calls.append(numbers))
    assert list(weights) == ["a"] and calls[-1] == (TENSORS["a"].nbytes, TENSORS["a"].nbytes)
    with pytest.raises(KeyError, match="nowhere"):
        straightway.load_file(path, filter="nowhere")


def test_a_file_that_cannot_be_mapped_is_read_with_a_warning(path):
    code = """
        import resource, sys, straightway
        import numpy
        straightway.load_model(sys.argv[1], framework="np")
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        limit = pages * 4096 + (32 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        receipt = straightway.load_file(sys.argv[2], framework="np", filter="small").receipt
        print({row["route"] for row in receipt.routes} & {"mapped"}, any("not mapped" in w for w in receipt.warnings))
    """
    large = path.parent / "large.safetensors"
    safetensors.numpy.save_file({"large": numpy.zeros(256 << 20, "uint8"), "small": numpy.zeros(4, "uint8")}, large)
    assert child(code, path, large) == "set() True"


def test_a_header_is_checked_before_anything_is_mapped(tmp_path):
    path = tmp_path / "bad.safetensors"
    text = json.dumps({"t": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"too short")
    with pytest.raises(ValueError, match="bad.safetensors"):
        straightway.load_file(path)

"""PyTorch: code written for ``safetensors.torch`` works when its import is changed."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import numpy
import safetensors.torch
import straightway
import straightway.torch

TYPES = [
    "bool", "uint8", "int8", "int16", "uint16", "float16", "bfloat16", "int32", "uint32", "float32", "float64",
    "int64", "uint64", "complex64", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu",
]


def tensors():
    torch.manual_seed(1)
    return {
        t: torch.randint(0, 255, (6, 16), dtype=torch.uint8).view(getattr(torch, t))
        for t in TYPES
        if t != "bool" and hasattr(torch, t)
    } | {"bool": torch.rand(4, 4) > 0.5}


def same(found, expected):
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert torch.equal(found[name].contiguous().view(torch.uint8), tensor.contiguous().view(torch.uint8))


def test_every_dtype_is_exchanged_with_safetensors_in_both_directions(tmp_path):
    expected = tensors()
    safetensors.torch.save_file(expected, tmp_path / "theirs.safetensors")
    straightway.torch.save_file(expected, tmp_path / "ours.safetensors", metadata={"format": "pt"})
    for name in ["theirs", "ours"]:
        path = tmp_path / f"{name}.safetensors"
        same(straightway.torch.load_file(path), expected)
        same(safetensors.torch.load_file(path), expected)
    same(straightway.torch.load(straightway.torch.save(expected)), expected)
    # safetensors can write this dtype but not read it from bytes.
    expected.pop("float8_e8m0fnu", None)
    same(safetensors.torch.load(straightway.torch.save(expected)), expected)


def test_loaded_tensors_can_be_saved_again_and_trained(tmp_path):
    path = tmp_path / "a.safetensors"
    straightway.torch.save_file({"w": torch.ones(3, 4), "b": torch.zeros(4)}, path)
    weights = straightway.torch.load_file(path)
    weights["w"].requires_grad_(True)
    (weights["w"].sum() * 2).backward()
    assert torch.equal(weights["w"].grad, torch.full((3, 4), 2.0))
    with torch.no_grad():
        weights["w"] += 1
    safetensors.torch.save_file({n: t.detach() for n, t in weights.items()}, tmp_path / "b.safetensors")
    assert safetensors.torch.load_file(tmp_path / "b.safetensors")["w"][0, 0] == 2


def test_a_module_is_saved_and_loaded_with_its_tied_weights(tmp_path):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(10, 4)
            self.head = torch.nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

    one, other = Tied(), Tied()
    path = tmp_path / "tied.safetensors"
    with pytest.raises(RuntimeError, match="share memory"):
        straightway.torch.save_file(one.state_dict(), path)
    straightway.torch.save_model(one, path)
    for load_model in [straightway.torch.load_model, safetensors.torch.load_model]:
        assert load_model(other, path) == (set(), [])
        assert torch.equal(one.head.weight, other.head.weight)
    with pytest.raises(RuntimeError, match="Missing key"):
        straightway.torch.load_model(torch.nn.Linear(2, 2), path)


def test_an_open_file_gives_torch_tensors(tmp_path):
    path = tmp_path / "a.safetensors"
    expected = torch.arange(600, dtype=torch.bfloat16).reshape(20, 30)
    safetensors.torch.save_file({"x": expected}, path)
    with straightway.safe_open(path, framework="pt", device="cpu") as f:
        assert torch.equal(f.get_tensor("x"), expected)
        assert torch.equal(f.get_slice("x")[3:5, 7:], expected[3:5, 7:])


def test_our_tensors_support_dlpack(tmp_path):
    path = tmp_path / "a.safetensors"
    safetensors.torch.save_file({"x": torch.arange(6.0).reshape(2, 3), "q": torch.ones(2).to(torch.float8_e5m2)}, path)
    weights = straightway.load_file(path, framework="dlpack")
    assert torch.equal(torch.from_dlpack(weights["x"]), torch.arange(6.0).reshape(2, 3))
    assert weights["x"].__dlpack_device__() == (1, 0) and "F32 [2, 3]" in repr(weights["x"])
    with pytest.raises(TypeError, match="F8_E5M2"):
        weights["q"].__dlpack__()
    # A capsule that is not consumed frees its memory.
    for _ in range(1000):
        weights["x"].__dlpack__()


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_get_slice_takes_every_index_that_safetensors_takes(tmp_path, backend):
    tensors = {"a": torch.arange(12).reshape(3, 4), "v": torch.arange(5.0), "e": torch.zeros(0, 3), "s": torch.tensor(7.0)}
    safetensors.torch.save_file(tensors, tmp_path / "x")
    indices = [
        True, False, (True, 0), torch.tensor(1), torch.tensor(True), torch.tensor([0, 2]), torch.tensor([True, False, True]), tensors["a"] > 5,
        numpy.array([0, 2]), numpy.int64(1), [0, 2], [-1, 0], [], [True, False, True], ([0, 2], [1, 3]), (slice(None), [0, 2]), range(2),
        slice(5, 9), slice(0, 9), (slice(None), slice(9, None)), slice(-9, None), slice(0, 1 << 70), 3, -4, slice(None, None, 2), None, (None, 0), ..., (),
        (..., ...), (0, 0, 0), (..., 1), slice(None, None, -1), slice(None, None, 0), 1.5,
    ]  # fmt: skip

    def outcome(get):
        try:
            return get()
        except (IndexError, OverflowError, TypeError, ValueError, safetensors.SafetensorError) as error:
            return error

    arguments = (tmp_path / "x", "pt")
    with straightway.safe_open(*arguments, backend=backend) as ours, safetensors.safe_open(*arguments, backend=backend) as theirs:
        for name in tensors:
            for index in indices:
                mine, other = outcome(lambda: ours.get_slice(name)[index]), outcome(lambda: theirs.get_slice(name)[index])
                if isinstance(other, Exception):
                    # None and negative bounds are allowed here by every backend, as in PyTorch.
                    assert isinstance(mine, Exception) or torch.equal(mine, tensors[name][index]), (name, index)
                else:
                    assert isinstance(mine, torch.Tensor) and mine.shape == other.shape and torch.equal(mine, other), (name, index, mine)

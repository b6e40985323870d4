"""``straightway.tensorflow``, ``paddle`` and ``mlx`` read what safetensors writes, and the other way round.

These libraries are large: each test is skipped where its library is not installed.
"""

import importlib
import importlib.util
import subprocess
import sys

import numpy
import pytest
import safetensors.numpy
import straightway


def arrays():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rng = numpy.random.default_rng(5)
    return {
        "f32": rng.random((3, 4), dtype="float32"),
        "i64": numpy.arange(7),
        "bool": numpy.array([True, False]),
        "bf16": rng.random((2, 5)).astype(ml_dtypes.bfloat16),
        "scalar": numpy.array(2.5, dtype="float32"),
        "empty": numpy.zeros((0, 3), dtype="float32"),
    }


def check(name, folder):
    """Tests one library in a process of its own: some of them crash if another one is imported."""
    importlib.import_module("mlx.core" if name == "mlx" else name)
    ours = importlib.import_module(f"straightway.{name}")
    expected = arrays()
    path = f"{folder}/a.safetensors"
    safetensors.numpy.save_file(expected, path)
    loaded = ours.load_file(path)
    assert loaded.keys() == expected.keys() and loaded.receipt.bytes == sum(a.nbytes for a in expected.values())
    assert all(tuple(loaded[n].shape) == expected[n].shape for n in expected)
    ours.save_file(loaded, f"{folder}/b.safetensors", {"k": "v"})
    for saved in (safetensors.numpy.load_file(f"{folder}/b.safetensors"), straightway.numpy.load(ours.save(loaded))):
        for n, array in expected.items():
            assert saved[n].dtype == array.dtype and saved[n].tobytes() == array.tobytes(), n
    with open(path, "rb") as file:
        assert ours.save(ours.load(file.read())) == ours.save(loaded)
    with straightway.safe_open(path, framework=name) as file:
        assert type(file.get_tensor("f32")) is type(loaded["f32"])
        assert tuple(file.get_slice("f32")[1:, :2].shape) == (2, 2)
    with pytest.raises(straightway.SafetensorError, match="backend"):
        ours.load_file(path, backend="pigeon")


@pytest.mark.parametrize("name", ["tensorflow", "paddle", "mlx"])
def test_tensors_of_other_libraries_are_loaded_and_saved(tmp_path, name):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    command = [sys.executable, "-W", "ignore", __file__, name, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("name, package", [("tf", "tensorflow"), ("paddle", "paddlepaddle"), ("mlx", "mlx")])
def test_a_library_that_is_not_installed_is_named(tmp_path, name, package):
    if importlib.util.find_spec({"tf": "tensorflow"}.get(name, name)) is not None:
        pytest.skip(f"{package} is installed")
    safetensors.numpy.save_file({"a": numpy.ones(2)}, tmp_path / "a.safetensors")
    with pytest.raises(ImportError, match=f"hint: pip install .*{package}"):
        straightway.safe_open(tmp_path / "a.safetensors", framework=name)


if __name__ == "__main__":
    check(*sys.argv[1:])

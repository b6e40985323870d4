import numpy
import pytest
import safetensors.numpy


@pytest.fixture
def model(tmp_path):
    """A folder with two files and an index, and its tensors by name."""
    import json

    rng = numpy.random.default_rng(7)
    files = {
        "model-00001-of-00002.safetensors": {
            "embed.weight": rng.random((300, 40), dtype=numpy.float32),
            "layers.0.bias": rng.integers(-9, 9, 17, dtype=numpy.int16),
        },
        "model-00002-of-00002.safetensors": {
            "layers.0.weight": rng.integers(0, 255, (1025, 1031), dtype=numpy.uint8),
            "scale": numpy.array(3.5, dtype=numpy.float64),
            "empty": numpy.zeros((0, 5), dtype=numpy.int32),
        },
    }
    weight_map = {}
    for file, tensors in files.items():
        safetensors.numpy.save_file(tensors, tmp_path / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    expected = {name: t for tensors in files.values() for name, t in tensors.items()}
    return tmp_path, expected


@pytest.fixture
def slow(tmp_path):
    """A sparse file of 8 GB: it takes a while to load, and no space on the drive."""
    path = tmp_path / "large.safetensors"
    with open(path, "wb") as file:
        header = b'{"a":{"dtype":"U8","shape":[8589934592],"data_offsets":[0,8589934592]}}'
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + (8 << 30))
    return path

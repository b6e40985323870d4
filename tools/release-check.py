"""Imports the installed package, and saves and loads with it. Used by `tools/release` and `tools/release-old`."""

import ctypes
import os
import subprocess
import sys
import tempfile

import straightway

# CPU time, which does not include other work of the machine.
TIMED = "import time; start = time.process_time(); import straightway; print(time.process_time() - start)"
isolated = ["-I"] if sys.flags.isolated else []
# The best of five, because the first one reads the files from the drive.
took = min(float(subprocess.check_output([sys.executable, *isolated, "-c", TIMED])) for _ in range(5))
assert took < 0.015, f"the import took {took * 1000:.1f} ms"
for name in straightway.__all__:
    getattr(straightway, name)

with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "a.safetensors")
    data = bytearray(range(24))
    address = ctypes.addressof(ctypes.c_char.from_buffer(data))
    spec = straightway.TensorSpec(dtype="uint8", shape=[4, 6], data_ptr=address, data_len=24)
    straightway.serialize_file({"a": spec}, path, {"k": "v"})
    loaded = straightway.load_file(path, framework="dlpack")
    assert loaded["a"].shape == (4, 6) and loaded.receipt.bytes == 24
    with open(path, "rb") as file:
        assert bytes(dict(straightway.deserialize(file.read()))["a"]["data"]) == bytes(data)
    with straightway.Checkpointer(os.path.join(folder, "run"), rank=0, world_size=1, run="r") as checkpointer:
        checkpointer.save(1, {"n": 7, "when": [1.5, "x"]}, async_=False)
        assert checkpointer.load() == {"n": 7, "when": [1.5, "x"]}
    try:
        import numpy
    except ImportError:
        pass
    else:
        array = numpy.arange(1000.0).reshape(10, 100)
        straightway.save_file({"x": array}, path)
        assert (straightway.load_file(path, framework="np")["x"] == array).all()
        with straightway.safe_open(path, framework="np") as file:
            assert (file.get_slice("x")[3:5] == array[3:5]).all()
python = sys.version.split()[0]
print(f"straightway {straightway.__version__} on Python {python}: imported in {took * 1000:.1f} ms, saved, loaded")

"""The names of safetensors, dictionaries of weights that behave as such, receipts, progress and time limits."""

import copy
import ctypes
import os
import pathlib
import pickle
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections import OrderedDict

import numpy
import pytest
import safetensors
import safetensors.numpy
import straightway
import straightway.numpy
from straightway import SafetensorError, TensorSpec


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file({"a": numpy.arange(12.0).reshape(3, 4), "b": numpy.ones(5, "int16")}, path, {"k": "v"})
    return path


def test_every_public_name_of_safetensors_is_here():
    import safetensors.numpy

    for name in dir(safetensors):
        if not name.startswith("__") and not isinstance(getattr(safetensors, name), type(sys)):
            assert hasattr(straightway, name), name
    for name in ("load", "load_file", "save", "save_file"):
        assert callable(getattr(straightway.numpy, name))
    assert issubclass(SafetensorError, ValueError)
    assert pickle.loads(pickle.dumps(SafetensorError("x"))).args == ("x",)


def test_bytes_in_memory_are_those_of_safetensors(file):
    tensors = {
        name: numpy.ones((2, 3), dtype)
        for name, dtype in [("z", "i1"), ("a", "f8"), ("m", "u2"), ("é\n", "f4"), ("q", "?")]
    }
    tensors |= {"empty": numpy.zeros((0, 2)), "scalar": numpy.array(2.0)}
    for metadata in (None, {"k": 'v"'}):
        data = straightway.numpy.save(tensors, metadata)
        assert data == safetensors.numpy.save(tensors, metadata)
    loaded = straightway.numpy.load(data)
    assert sorted(loaded) == sorted(tensors)
    for name, array in tensors.items():
        numpy.testing.assert_array_equal(loaded[name], array)
    ours, theirs = dict(straightway.deserialize(data)), dict(safetensors.deserialize(data))
    assert ours == theirs
    for broken in (b"", data[:-1], data + b" ", b"\xff" * 20):
        with pytest.raises(SafetensorError):
            straightway.deserialize(broken)


def test_tensors_are_given_by_their_address(tmp_path):
    array = numpy.arange(6, dtype="float32").reshape(2, 3)
    spec = TensorSpec(dtype="float32", shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes)
    assert (spec.dtype, spec.shape, spec.data_len) == ("F32", [2, 3], 24) and "F32" in repr(spec)
    assert straightway.serialize({"a": spec}) == safetensors.numpy.save({"a": array})
    assert straightway.serialize_file({"a": spec}, tmp_path / "a.safetensors", {"k": "v"}) is None
    numpy.testing.assert_array_equal(safetensors.numpy.load_file(tmp_path / "a.safetensors")["a"], array)
    assert TensorSpec(dtype="float4_e2m1fn_x2", shape=[2, 2], data_ptr=0, data_len=4).shape == [2, 4]
    with pytest.raises(SafetensorError, match="nonsense"):
        TensorSpec(dtype="nonsense", shape=[1], data_ptr=0, data_len=0)
    with pytest.raises(SafetensorError):
        straightway.serialize({"a": TensorSpec(dtype="float32", shape=[7], data_ptr=array.ctypes.data, data_len=24)})
    # The length is checked before the memory is read.
    with pytest.raises(SafetensorError, match="has 1099511627776 bytes, but F32 of shape \\[7\\] has 28"):
        straightway.serialize({"a": TensorSpec(dtype="float32", shape=[7], data_ptr=8, data_len=1 << 40)})
    for write in (straightway.serialize, lambda specs: straightway.serialize_file(specs, tmp_path / "b")):
        with pytest.raises(SafetensorError, match="tensor 'a' has 28 bytes at address 0"):
            write({"a": TensorSpec(dtype="float32", shape=[7], data_ptr=0, data_len=28)})
    with pytest.raises(TypeError, match="'a'"):
        straightway.serialize({"a": {"dtype": "float32"}})


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_safe_open_accepts_the_indices_of_safetensors(file, backend):
    with straightway.safe_open(filename=file, framework="numpy", device="cpu", backend=backend) as f:
        assert f.get_tensors().keys() == {"a", "b"} and f.metadata() == {"k": "v"}
        part = f.get_slice("a")
        whole = numpy.arange(12.0).reshape(3, 4)
        for index in [..., (), [], None, (None, 1), (slice(None), None, 2), slice(0, 3, 2)]:
            numpy.testing.assert_array_equal(part[index], whole[tuple(index) if index == () else index])
        with pytest.raises(SafetensorError, match="does not contain|has no tensor"):
            f.get_tensor("c")
        for index, words in [
            ([0], "Non empty lists"),
            (slice(0, 9), "out of bounds"),
            (-4, "Invalid index"),
            ((0, 0, 0), "more slicing"),
        ]:
            with pytest.raises(SafetensorError, match=words):
                part[index]
    with pytest.raises(SafetensorError, match="backend"):
        straightway.safe_open(file, "np", backend="carrier pigeon")
    with pytest.raises(FileNotFoundError, match="^No such file or directory: absent$") as caught:
        straightway.safe_open("absent", "np")
    assert caught.value.errno == 2


def test_writes_to_mapped_tensors_stay_in_the_process(file):
    before = file.read_bytes()
    with straightway.safe_open(file, framework="np") as f:
        array, again = f.get_tensor("a"), f.get_tensor("a")
    array[0, 0] = 77
    # Both share memory, as in safetensors, and the file is unchanged.
    assert again[0, 0] == 77 and file.read_bytes() == before
    os.remove(file)
    assert array[2, 3] == 11
    # A tensor whose bytes are not aligned for its elements is read into memory of its own.
    header = b'{"a":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}}'
    file.write_bytes(len(header).to_bytes(8, "little") + header + numpy.array([1.5, 2.5]).tobytes())
    with straightway.safe_open(file, framework="np") as f:
        array = f.get_tensor("a")
        assert array.flags.aligned and list(array) == [1.5, 2.5] and f.receipt.bytes == 16


def test_weights_are_a_dictionary(file):
    weights = straightway.load_file(file, framework="np")
    receipt = weights.receipt
    for made in (copy.copy(weights), copy.deepcopy(weights), weights.copy()):
        assert type(made) is straightway.Weights and made.receipt == receipt and sorted(made) == ["a", "b"]
    deep = copy.deepcopy(weights)
    deep["a"][0, 0] = 99
    assert weights["a"][0, 0] == 0
    assert type(weights)({"x": 1}, y=2) == {"x": 1, "y": 2} and type(weights)([("x", 1)]).receipt is None
    for protocol in range(3, pickle.HIGHEST_PROTOCOL + 1):
        back = pickle.loads(pickle.dumps(weights, protocol))
        assert type(back) is straightway.Weights and back.keys() == weights.keys() and back.receipt == receipt
        numpy.testing.assert_array_equal(back["a"], weights["a"])
    assert pickle.loads(pickle.dumps(straightway.Weights(x=1))).receipt is None
    assert {**weights} == dict(weights) and (weights | {"c": 1}).keys() == {"a", "b", "c"}


def test_weights_are_nodes_of_the_trees_of_pytorch(file, tmp_path):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from torch.utils import _pytree as pytree

    weights = straightway.load_file(file, framework="pt")
    doubled = pytree.tree_map(lambda t: t * 2, {"w": weights})["w"]
    assert type(doubled) is straightway.Weights and torch.equal(doubled["a"], weights["a"] * 2)
    leaves, spec = pytree.tree_flatten(weights)
    assert len(leaves) == 2 and pytree.tree_unflatten(leaves, spec).keys() == weights.keys()
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec
    torch.save(weights, tmp_path / "w.pt")
    back = torch.load(tmp_path / "w.pt", weights_only=True)
    assert type(back) is OrderedDict and all(torch.equal(back[name], weights[name]) for name in weights)
    assert back.receipt == weights.receipt.to_dict() and b"cstraightway" not in pickle.dumps(weights, 2)


def test_weights_are_nodes_of_the_trees_of_jax(file):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    weights = straightway.load_file(file, framework="jax")
    doubled = jax.tree_util.tree_map(lambda t: t * 2, weights)
    assert type(doubled) is straightway.Weights
    numpy.testing.assert_array_equal(doubled["a"], numpy.arange(12.0).reshape(3, 4) * 2)
    assert len(jax.tree_util.tree_leaves(weights)) == 2
    path = jax.tree_util.tree_flatten_with_path(weights)[0][0][0]
    assert jax.tree_util.keystr(path) == "['a']"


def test_a_receipt_is_pickled_compared_completed_and_shown(file):
    receipt = straightway.load_file(file, framework="np").receipt
    for made in (pickle.loads(pickle.dumps(receipt)), copy.deepcopy(receipt), straightway.Receipt(receipt.to_json())):
        assert made == receipt and made.bytes == receipt.bytes and hash(made) == hash(receipt)
    assert receipt != 3 and {"bytes", "routes", "warnings", "to_json"} <= set(dir(receipt))
    html = receipt._repr_html_()
    assert html.startswith("<table>") and "bound by" in html and html.count("<tr>") == html.count("</tr>") > 4
    with pytest.raises(ValueError, match="receipt"):
        straightway.Receipt("{}")


def test_a_callback_gets_the_progress_and_can_stop_a_load(file, slow):
    told = []
    straightway.load_file(file, framework="np", progress=lambda moved, total: told.append((moved, total)))
    assert told[-1] == (106, 106)

    class Enough(Exception):
        pass

    def end(moved, total):
        assert 0 <= moved <= total == 8 << 30
        raise Enough

    before = time.monotonic()
    with pytest.raises(Enough):
        straightway.load_model(slow, framework="np", progress=end)
    assert time.monotonic() - before < 3
    told.clear()
    stream = straightway.iterate(
        file, framework="np", progress=lambda moved, total: told.append((moved, total)), batch_bytes=8
    )
    assert len(dict(stream)) == 2 and told[-1] == (106, 106)


def test_a_load_stops_after_its_timeout(slow):
    before = time.monotonic()
    with pytest.raises(TimeoutError, match="large.safetensors took longer than 0.2 s"):
        straightway.load_model(slow, framework="np", timeout=0.2)
    assert time.monotonic() - before < 3
    with pytest.raises(TimeoutError, match="0.05 s"):
        for _ in straightway.iterate(slow, framework="np", timeout=0.05, batch_bytes=8 << 30):
            pass


def test_ctrl_c_ends_a_load_with_a_bar_at_once(slow):
    code = """
        import os, signal, sys, threading, time, numpy, straightway
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        try:
            straightway.load_model(sys.argv[1], framework="np", progress=lambda moved, total: None)
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - start < 2)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(slow)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "interrupted True", done.stderr


def shown(path, *, terminal):
    """The stderr of a load of 8 GB that is stopped after 1.6 s."""
    code = """
        import sys, straightway
        try:
            straightway.load_model(sys.argv[1], framework="np", timeout=1.6)
        except TimeoutError:
            pass
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(path)]
    if not terminal:
        return subprocess.run(command, capture_output=True, timeout=120).stderr
    master, slave = os.openpty()
    process = subprocess.Popen(command, stderr=slave)
    os.close(slave)
    found = b""
    while process.poll() is None or found[-1:] != b"K":
        try:
            found += os.read(master, 65536)
        except OSError:
            break
    process.wait(60)
    os.close(master)
    return found


def test_a_bar_is_shown_in_a_terminal_and_nowhere_else(slow):
    found = shown(slow, terminal=True)
    if b"B/s" not in found:
        pytest.skip("8 GB were loaded within a second")
    # The bar is cleared at the end.
    assert "░".encode() in found and found.rstrip().endswith(b"\x1b[K")
    assert shown(slow, terminal=False) == b""


def test_the_bar_has_the_units_of_a_receipt_and_the_time_left():
    from straightway import _progress

    assert _progress._size(694_157_312) == "662 MiB"
    assert _progress._size(24) == "24 B"
    assert _progress._rate(94_390_000) == "94.4 MB/s"
    assert _progress._rate(999_999_999) == "1 GB/s"
    assert _progress._left(25, 100, 10.0) == ", 30 s left"
    assert _progress._left(10, 100, 60.0) == ", 9 min left"
    assert _progress._left(0, 100, 60.0) == ""


def test_a_bar_is_shown_in_a_notebook(slow):
    pytest.importorskip("IPython", reason="IPython is not installed")
    code = """
        import sys
        from IPython.core.interactiveshell import InteractiveShell
        import IPython
        class ZMQInteractiveShell(InteractiveShell):
            pass
        shell = ZMQInteractiveShell.instance()
        from straightway import _progress
        bar = _progress._bar()
        print(type(bar).__name__)
        bar.show("1 of 2", 0.5)
        bar.show("2 of 2", 1.0)
        bar.close()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("Notebook"), done.stderr
    assert "IPython.core.display.HTML" in done.stdout, done.stdout


def test_the_import_is_quick_and_imports_no_library():
    code = """
        import sys, time
        start = time.process_time()
        import straightway
        took = time.process_time() - start
        assert "numpy" not in sys.modules and "torch" not in sys.modules
        print(took)
    """
    took = [
        float(
            subprocess.run(
                [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
            ).stdout
        )
        for _ in range(5)
    ]
    # CPU time, which does not depend on other processes.
    assert min(took) < 0.015, took


def test_the_import_fails_on_other_platforms():
    code = "import sys; sys.platform = 'darwin'; import straightway"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "straightway runs on Linux only, and this is darwin" in done.stderr


@pytest.mark.parametrize("call", [straightway.Model, straightway.load_model, straightway.load_file, straightway.safe_open])
def test_a_uri_of_an_unsupported_store_is_refused_with_a_hint(call):
    with pytest.raises(RuntimeError, match="memory:x/a: this program has no such store\nhint: copy it"):
        call("memory:x/a")
    with pytest.raises(SafetensorError, match='the scheme "gs" is not supported'):
        call("gs://bucket/a.safetensors")
    # A local file with such a name.
    with pytest.raises(FileNotFoundError):
        call("./s3://bucket/a.safetensors")


def test_files_are_saved_to_stores_that_exist():
    with pytest.raises(RuntimeError, match="this program has no such store\nhint: copy it"):
        straightway.save_file({"a": numpy.ones(2)}, "memory:x/a")
    with pytest.raises(RuntimeError, match="https://host/: this kind of store does not support it"):
        straightway.save_file({"a": numpy.ones(2)}, "https://host/a.safetensors")


def test_invalid_arguments_are_refused_by_name(file, tmp_path):
    for arguments, kind, words in [
        ({"progress": "yes"}, TypeError, "progress is None, True, False or a function, not 'yes'"),
        ({"timeout": -1}, ValueError, "timeout is a number of seconds"),
        ({"timeout": float("nan")}, ValueError, "timeout is a number of seconds"),
        ({"filter": "absent*"}, KeyError, "no tensor matches"),
        ({"framework": "keras"}, ValueError, "framework keras"),
    ]:
        with pytest.raises(kind, match=words):
            straightway.load_file(file, **{"framework": "np"} | arguments)
    with pytest.raises(TypeError, match="dictionary of tensors by name, not list"):
        straightway.save_file([numpy.ones(2)], tmp_path / "b")
    with pytest.raises(TypeError, match="'k' is 1"):
        straightway.save_file({"a": numpy.ones(2)}, tmp_path / "b", {"k": 1})
    with pytest.raises(TypeError, match="a step is a whole number, not 'x'"):
        straightway.Checkpointer(tmp_path / "run", rank=0, world_size=1, run="r").save("x", {})


def test_a_receipt_has_the_attributes_that_its_stub_names(file):
    receipt = straightway.load_file(file, framework="np", route="auto").receipt
    stub = (pathlib.Path(straightway.__file__).parent / "_straightway.pyi").read_text()
    fields = re.findall(r"^    (\w+): ", stub.split("class Receipt:")[1].split("def ")[0], re.MULTILINE)
    assert len(fields) > 20 and set(receipt.to_dict()) <= set(fields)
    for name in fields:
        assert getattr(receipt, name) == receipt.to_dict().get(name) and name in dir(receipt)
    with pytest.raises(AttributeError, match="absent"):
        receipt.absent


def test_cuda_is_the_current_device(monkeypatch):
    from straightway import _framework

    class Cuda:
        def __init__(self, number):
            self.number = number

        def is_initialized(self):
            return self.number is not None

        def current_device(self):
            return self.number

    class Library:
        def __init__(self, cuda):
            self.cuda = cuda

    class Device:
        id = 5

    cupy = Library(type("cuda", (), {"Device": Device}))
    for torch, other, expected in [(None, None, "cuda:0"), (3, None, "cuda:3"), (3, cupy, "cuda:3"), (None, cupy, "cuda:5")]:
        monkeypatch.setitem(sys.modules, "torch", Library(Cuda(torch)))
        monkeypatch.setitem(sys.modules, "cupy", other)
        assert _framework.device_name("cuda") == expected and _framework.device_name("cuda:2") == _framework.device_name(2) == "cuda:2"
        assert _framework.device_name("cpu") == "host:"


def test_objects_show_what_they_are(file):
    weights = straightway.load_file(file, framework="np")
    assert repr(weights) == "<Weights: 2 tensors {'a': float64 [3, 4], 'b': int16 [5]}>"
    many = straightway.Weights({f"t{i}": numpy.ones(2) for i in range(9)})
    assert repr(many).startswith("<Weights: 9 tensors {'t0': float64 [2], ") and repr(many).endswith(", …}>")
    assert repr(straightway.Weights(x=1)) == "<Weights: 1 tensors {'x': 1}>"
    assert repr(straightway.Model(file)) == f'<Model "{file}": 2 tensors, 106 B>'
    assert re.fullmatch(r"<Receipt: 106 B in .* by \[mapped\], bound by \w+>", repr(weights.receipt))
    opened = straightway.safe_open(file, "np")
    assert repr(opened) == f"<safe_open {str(file)!r}: 2 tensors for np>"
    assert repr(opened.get_slice("a")) == "<Slice of 'a': F64 [3, 4]>"
    with opened:
        pass
    assert repr(opened) == f"<safe_open {str(file)!r}: closed>"
    stream = straightway.iterate(file, framework="np", batch_bytes=8)
    assert repr(stream) == "<Stream: 0 batches so far, 0 of 106 bytes>"
    next(stream)
    assert repr(stream).startswith("<Stream: 1 batches so far, ") and repr(stream).endswith(" of 106 bytes>")

"""Tensors on a GPU in memory that a library allocates.

PyTorch's own allocator needs a GPU. Without one, the stand-in for the CUDA driver is the GPU, and a small library of the
test's own allocates: what crosses the border between the two languages is the same.
"""

import gc
import os
import sys
from types import SimpleNamespace

import numpy
import pytest
import safetensors.numpy
import straightway
from test_load import child

#: A folder with the stand-in under the name libcuda.so.1: `target/debug/standin` after the tests of Rust.
STANDIN = os.environ.get("STRAIGHTWAY_STANDIN_FOLDER")

#: A library that allocates by the driver, for tensors that are only addresses.
LIBRARY = """
    import ctypes, gc, sys, weakref
    import numpy
    import straightway
    from straightway import _framework, _weights

    cuda = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0

    class Block:
        allocated = 0

        def __init__(self, nbytes, dtype=None, shape=None):
            address = ctypes.c_uint64()
            if dtype is not None:
                sizes = {"U8": 1, "I16": 2, "F32": 4, "I64": 8}
                nbytes = sizes[dtype] * int(numpy.prod(shape))
            cuda.cuCtxPushCurrent_v2(context)
            assert nbytes == 0 or cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(nbytes)) == 0
            cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
            self.address, self.nbytes, self.dtype, self.shape = address.value, nbytes, dtype, shape
            Block.allocated += nbytes

        def __del__(self):
            Block.allocated -= self.nbytes
            assert self.nbytes == 0 or cuda.cuMemFree_v2(ctypes.c_uint64(self.address)) == 0

    def read(address, nbytes):
        bytes = ctypes.create_string_buffer(nbytes)
        cuda.cuCtxPushCurrent_v2(context)
        assert nbytes == 0 or cuda.cuMemcpyDtoH_v2(bytes, ctypes.c_uint64(address), ctypes.c_size_t(nbytes)) == 0
        cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        return bytes.raw[:nbytes]

    asked = []

    def allocate(wanted):
        asked.append(len(wanted))
        blocks = [Block(*block) for block in wanted]
        return [(block, block.address, block.dtype is not None) for block in blocks], 0

    class Small:
        "A tensor in a block that others are in too."

        def __init__(self, tensor):
            capsule = tensor.__dlpack__()
            name, pointer = b"dltensor", ctypes.pythonapi.PyCapsule_GetPointer
            pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
            self.address = ctypes.cast(pointer(capsule, name), ctypes.POINTER(ctypes.c_uint64))[0]
            self.nbytes, self.kept = tensor.nbytes, capsule

    library = _framework.Framework("test", None, Small, allocator=lambda device: allocate)
    _framework.find = lambda name: library
    expected = {}
    import safetensors.numpy
    expected = safetensors.numpy.load_file(sys.argv[1])

    def same(tensors):
        return {name: read(t.address, t.nbytes) for name, t in tensors.items()} == {
            name: array.tobytes() for name, array in expected.items()
        }
"""


@pytest.fixture
def path(tmp_path):
    rng = numpy.random.default_rng(3)
    tensors = {f"large.{n}": rng.integers(0, 255, (3 << 20) + 4096 * n, numpy.uint8) for n in range(10)}
    tensors |= {f"small.{n}": rng.integers(0, 255, (n, 3), numpy.int16) for n in range(40)}
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file(tensors, path)
    return path


def run(code, path, plan=""):
    if STANDIN is None:
        pytest.skip("STRAIGHTWAY_STANDIN_FOLDER is not set: it names the folder of the stand-in for the CUDA driver")
    import textwrap

    variables = {"LD_LIBRARY_PATH": STANDIN, "STRAIGHTWAY_STANDIN": f"seed=3 delay_us_max=50 {plan}"}
    return child(textwrap.dedent(LIBRARY) + textwrap.dedent(code), path, **variables)


def test_a_load_fills_memory_of_the_library_and_each_large_tensor_is_freed_alone(path):
    code = """
        weights = straightway.load_file(sys.argv[1], device="cuda:0")
        print(same(weights), type(weights["large.3"]).__name__, type(weights["small.3"]).__name__)
        print(max(asked) > 1 and asked[0] == 1, weights.receipt.bytes == sum(a.nbytes for a in expected.values()))
        before = Block.allocated
        freed = sum(weights.pop(f"large.{n}").nbytes for n in range(9))
        print(before - Block.allocated == freed)
        weights.clear()
        print(Block.allocated)
    """
    assert run(code, path).splitlines() == ["True Block Small", "True True", "True", "0"]


def test_driver_memory_can_be_selected_and_other_values_are_refused(path):
    code = """
        weights = straightway.load_file(sys.argv[1], device="cuda:0", memory="driver")
        print(same(weights), asked, Block.allocated)
        try:
            straightway.load_model(sys.argv[1], device="cuda:0", memory="own")
        except ValueError as error:
            print(error)
    """
    assert run(code, path).splitlines() == ["True [] 0", "memory is \"framework\" or \"driver\", not 'own'"]


@pytest.mark.parametrize("mode", ["compat", "p2p"])
def test_memory_of_the_library_is_used_unless_the_route_is_proven_to_be_direct(path, mode):
    code = """
        # The demand opens cuFile. From then on it is tried for loads of any size.
        try:
            straightway.load_file(sys.argv[1], device="cuda:0", route="direct")
            print("direct", asked)
        except RuntimeError:
            print("refused", asked)
        for _ in range(2):
            asked.clear()
            weights = straightway.load_file(sys.argv[1], device="cuda:0")
            print(same(weights), bool(asked), "direct" in {row["route"] for row in weights.receipt.routes})
        asked.clear()
        names = {name for name, tensor in straightway.iterate(sys.argv[1], device="cuda:0", batch_bytes=8 << 20)}
        print(names == set(expected), bool(asked))
    """
    lines = run(code, path, f"cufile={mode}").splitlines()
    if mode == "compat":
        assert lines == ["refused []", "True True False", "True True False", "True True"]
        return
    if lines[0] == "refused []":
        pytest.skip("no O_DIRECT here, which cuFile needs")
    assert lines == ["direct []", "True False True", "True False True", "True False"]


def test_a_stream_holds_at_most_two_batches(path):
    code = """
        found, peak = {}, 0
        stream = straightway.iterate(sys.argv[1], device="cuda:0", batch_bytes=4 << 20)
        for name, tensor in stream:
            found[name] = read(tensor.address, tensor.nbytes)
            del tensor
            peak = max(peak, Block.allocated)
        print(found == {name: array.tobytes() for name, array in expected.items()}, peak <= 2 * (4 << 20) + (1 << 20))
        print(sum(receipt.bytes for receipt in stream.receipts) == sum(a.nbytes for a in expected.values()))
        del stream
        print(Block.allocated)
        stream = straightway.iterate(sys.argv[1], device="cuda:0", batch_bytes=4 << 20)
        next(stream)
        del stream
        gc.collect()
    """
    assert run(code, path).splitlines() == ["True True", "True", "0"]


def test_a_load_waits_for_queued_work_of_the_library_s_stream(path):
    code = """
        import threading
        stream, host = ctypes.c_void_p(), ctypes.create_string_buffer(8192)
        page = (ctypes.addressof(host) + 4095) // 4096 * 4096
        ctypes.memset(page, 0xEE, 4096)
        cuda.cuCtxPushCurrent_v2(context)
        assert cuda.cuMemHostRegister_v2(ctypes.c_void_p(page), ctypes.c_size_t(4096), 1) == 0
        assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
        cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

        def allocates(is_named):
            def allocate_busy(wanted):
                given, _ = allocate(wanted)
                cuda.cuCtxPushCurrent_v2(context)
                for block, address, _ in given:
                    for _ in range(30 if block.nbytes else 0):
                        nbytes = ctypes.c_size_t(min(block.nbytes, 4096))
                        work = cuda.cuMemcpyHtoDAsync_v2(ctypes.c_uint64(address), ctypes.c_void_p(page), nbytes, stream)
                        assert work == 0
                cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
                return given, stream.value if is_named else 0
            return allocate_busy

        def loaded(is_named):
            library.allocator = lambda device: allocates(is_named)
            cuda.standin_hold(1)
            threading.Timer(0.3, cuda.standin_hold, (0,)).start()
            weights = straightway.load_file(sys.argv[1], device="cuda:0")
            assert cuda.cuStreamSynchronize(stream) == 0
            return same(weights)

        print(loaded(True), loaded(False))
    """
    # The second load names an idle stream, which shows that the first one did wait.
    assert run(code, path).splitlines() == ["True False"]


def test_single_tensors_and_parts_of_them_are_in_memory_of_the_library(path):
    code = """
        with straightway.safe_open(sys.argv[1], framework="test", device="cuda:0") as f:
            tensor = f.get_tensor("large.2")
            part = f.get_slice("large.4")[100:300]
            print(type(tensor).__name__, read(tensor.address, tensor.nbytes) == expected["large.2"].tobytes())
            print(type(part).__name__, read(part.address, part.nbytes) == expected["large.4"][100:300].tobytes())
    """
    assert run(code, path).splitlines() == ["Block True", "Block True"]


def test_an_exception_of_an_allocator_ends_the_load(path):
    code = """
        def fails(wanted):
            if len(asked) == 2:
                raise MemoryError("no more")
            return allocate(wanted)
        library.allocator = lambda device: fails
        try:
            straightway.load_file(sys.argv[1], device="cuda:0")
        except MemoryError as error:
            print(error)
        for _ in range(100):
            straightway.load_model(sys.argv[1], framework="test", filter="small.1")
            gc.collect()
            if Block.allocated == 0:
                break
        print(Block.allocated)
    """
    assert run(code, path).splitlines() == ["no more", "0"]


def test_a_checkpoint_is_loaded_into_memory_of_the_library(path, tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    code = """
        import os, torch
        state = {"w": torch.arange(5000, dtype=torch.float32), "n": torch.tensor(7), "empty": torch.zeros(0, 3), "x": 5}
        folder = os.path.join(os.path.dirname(sys.argv[1]), "run")
        with straightway.Checkpointer(folder, rank=0, world_size=1, run="r") as checkpointer:
            checkpointer.save(1, state, async_=False)
            loaded = checkpointer.load(1, device="cuda:0")
        print({name: type(value).__name__ for name, value in loaded.items()})
        print(all(read(loaded[n].address, loaded[n].nbytes) == state[n].numpy().tobytes() for n in ("w", "n", "empty")))
        loaded.clear()
        print(Block.allocated)
    """
    kinds = {"w": "Block", "n": "Block", "empty": "Block", "x": "int"}
    assert run(code, path).splitlines() == [str(kinds), "True", "0"]


def test_torch_owns_its_tensors(path):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("no GPU: PyTorch's allocator needs one")
    expected = safetensors.numpy.load_file(path)
    before = torch.cuda.memory_allocated()
    weights = straightway.load_file(path, device="cuda:0", framework="pt")
    for name, array in expected.items():
        numpy.testing.assert_array_equal(weights[name].cpu().numpy(), array)
    total = sum(array.nbytes for array in expected.values())
    taken = torch.cuda.memory_allocated() - before
    assert total <= taken < total * 1.05
    deleted = sum(weights.pop(f"large.{n}").nbytes for n in range(9))
    gc.collect()
    assert taken - (torch.cuda.memory_allocated() - before) >= deleted
    weights.clear()
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    # Memory that PyTorch's stream still uses is written to only after that work.
    busy = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    for _ in range(200):
        busy.fill_(7)
    del busy
    weights = straightway.load_file(path, device="cuda:0", framework="pt")
    torch.cuda.synchronize()
    for name, array in expected.items():
        numpy.testing.assert_array_equal(weights[name].cpu().numpy(), array)
    del weights
    driver = straightway.load_file(path, device="cuda:0", framework="pt", memory="driver")
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    numpy.testing.assert_array_equal(driver["large.1"].cpu().numpy(), expected["large.1"])


class FakeTorch:
    """A stand-in for the parts of PyTorch that the reserve uses, with a record of its requests."""

    class OutOfMemoryError(Exception):
        pass

    uint8 = "uint8"

    def __init__(self, cached, free=1 << 40):
        stats = {"reserved_bytes": {"all": {"current": cached}}, "allocated_bytes": {"all": {"current": 0}}}
        self.cuda = SimpleNamespace(
            get_allocator_backend=lambda: "native", memory_stats_as_nested_dict=lambda place: stats
        )
        self.free, self.asked = free, []

    def empty(self, nbytes, dtype, device):
        if nbytes > self.free:
            raise self.OutOfMemoryError
        self.asked.append(nbytes)


MIB = 1 << 20


def test_memory_is_taken_from_the_driver_in_sections(monkeypatch):
    from straightway._allocators import _Reserve

    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    reserve = _Reserve(FakeTorch(0), "cuda:0")
    # Small tensors have a pool of their own, and a single tensor needs no section.
    assert reserve.sections([4096, 100 * MIB + 1, 8192, 50 * MIB]) == {0: 150 * MIB + 512}
    assert reserve.sections([700 * MIB]) == {}
    assert reserve.sections([700 * MIB, 600 * MIB, 300 * MIB]) == {1: 900 * MIB}
    assert reserve.sections([0, 512, MIB]) == {}
    # PyTorch's cache is used first.
    assert _Reserve(FakeTorch(200 * MIB), "cuda:0").sections([100 * MIB, 50 * MIB]) == {}
    full = _Reserve(FakeTorch(0, free=MIB), "cuda:0")
    full.take(100 * MIB)
    assert full.sections([100 * MIB, 50 * MIB]) == {}, "tensors may find room one by one"
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert _Reserve(FakeTorch(0), "cuda:0").sections([100 * MIB, 50 * MIB]) == {}


def test_cupy_s_arrays_are_filled_in_memory_of_its_pool(path):
    """CuPy itself needs a GPU: a module with its names allocates by the stand-in."""
    code = """
        import types
        from straightway import _allocators

        class Array:
            def __init__(self, shape, dtype):
                shape = (shape,) if isinstance(shape, int) else shape
                nbytes = int(numpy.prod(shape)) * numpy.dtype(dtype).itemsize
                self.block, self.nbytes, self.dtype, self.shape = Block(nbytes), nbytes, dtype, shape
                self.address = self.block.address
                self.data = types.SimpleNamespace(ptr=self.address)

        class Device:
            def __init__(self, number):
                assert number == 0
            def __enter__(self):
                return self
            def __exit__(self, *raised):
                return False

        stream = types.SimpleNamespace(ptr=0)
        cupy = types.SimpleNamespace(
            empty=Array, cuda=types.SimpleNamespace(Device=Device, get_current_stream=lambda: stream)
        )
        library.allocator = _allocators.of_cupy(cupy, _framework._NUMPY_NAMES)
        weights = straightway.load_file(sys.argv[1], device="cuda:0")
        large = weights["large.3"]
        print(same(weights), type(large).__name__, large.dtype, large.shape == expected["large.3"].shape)
        del large
        weights.clear()
        gc.collect()
        print(Block.allocated)
    """
    assert run(code, path).splitlines() == ["True Array uint8 True", "0"]


class CupyArray:
    """An array like those of CuPy, with a record of writes by the library."""

    def __init__(self, values, events):
        self.values, self.events = values, events
        self.dtype, self.shape, self.strides = values.dtype, values.shape, values.strides
        self.flags, self.nbytes = values.flags, values.nbytes
        self.__cuda_array_interface__ = {"data": (values.ctypes.data, False)}

    def __dlpack_device__(self):
        return (2, 0)

    def __setitem__(self, index, values):
        self.events.append("assign")


def test_saves_and_restores_wait_for_all_streams_of_cupy(monkeypatch, tmp_path):
    """A kernel on a stream that is not the current one may still write to the array."""
    from straightway import _restoring, _saving

    events = []
    # Only the wait for a device covers all of its streams, so the stand-in has no other.
    device = lambda number: SimpleNamespace(synchronize=lambda: events.append(f"wait for {number}"))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(Device=device)))
    monkeypatch.setattr(_saving, "save", lambda *given, **options: events.append("save"))
    _saving.save_file({"a": CupyArray(numpy.ones(3, "float32"), events)}, tmp_path / "a.safetensors")
    assert events == ["wait for 0", "save"]

    class Opened:
        step = 1

        def find(self, name):
            return "F32", (3,)

        def restore(self, targets):
            events.append("read")
            return _restoring.nothing()

    # The second one is not contiguous: its values are read into host memory first, and CuPy copies them.
    for values, more in [(numpy.ones(3, "float32"), []), (numpy.ones(6, "float32")[::2], ["assign"])]:
        events.clear()
        _restoring.filler(Opened(), [("a", CupyArray(values, events), False)])()
        assert events == ["wait for 0", "read", *more]

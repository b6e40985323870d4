"""The values of tensors: a save stores the visible values, and a restore fills its target or refuses it by name."""

import subprocess
import sys
import textwrap

import numpy
import pytest
import safetensors.numpy
import straightway
import straightway.numpy

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import straightway.torch


@pytest.fixture
def saved(tmp_path):
    """A function that saves a value under the name ``a`` and returns the checkpointer."""

    def save(value):
        checkpointer = straightway.Checkpointer(tmp_path / "c")
        checkpointer.save((checkpointer.latest() or 0) + 1, {"a": value, "z": torch.ones(3)}, async_=False)
        checkpointer.close()
        return checkpointer

    return save


def restored(checkpointer, target, **options):
    checkpointer.restore(into={"a": target}, **options)
    return target


def refused(checkpointer, target, words, error=ValueError, **options):
    """Checks that a restore is refused by name, before it writes anything."""
    other = torch.zeros(3)
    with pytest.raises(error, match=words):
        checkpointer.restore(into={"z": other, "a": target}, **options)
    assert not other.any()


class Foreign:
    """An array like those of JAX: it has only ``__array__`` and ``__dlpack__``, which return copies."""

    def __init__(self, array):
        self.array, self.dtype, self.shape = array, array.dtype, array.shape

    def __array__(self, dtype=None, copy=None):
        return self.array.copy()

    def __dlpack__(self, **options):
        return self.array.copy().__dlpack__()

    def __dlpack_device__(self):
        return (1, 0)


FIVE = numpy.arange(1, 6, dtype=numpy.int32)


@pytest.mark.parametrize(
    "target",
    [
        numpy.zeros(5, "<i4"),
        numpy.zeros(5, ">i4"),
        numpy.zeros(10, ">i4")[::2],
        numpy.zeros(5, "i4")[::-1],
        numpy.zeros(5, "i4").view(numpy.recarray),
        torch.zeros(5, dtype=torch.int32),
        torch.zeros(10, dtype=torch.int32)[1::2],
        torch.inference_mode()(lambda: torch.zeros(5, dtype=torch.int32))(),
        torch.inference_mode()(lambda: torch.zeros(10, dtype=torch.int32)[::2])(),
    ],
    ids=str,
)
def test_a_restore_fills_memory_of_any_layout(saved, target):
    assert restored(saved(FIVE), target).tolist() == [1, 2, 3, 4, 5]


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_a_restore_fills_tensors_that_require_grad_matrices_and_scalars(saved):
    parameter = torch.nn.Parameter(torch.zeros(2, 3))
    loss = (parameter**2).sum()
    restored(saved(torch.arange(6.0).reshape(2, 3)), parameter)
    assert parameter.tolist() == [[0, 1, 2], [3, 4, 5]] and parameter.requires_grad
    # Autograd notices that the values were overwritten.
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    base = torch.zeros(2, 6)
    view = base[:, ::2]
    base.requires_grad_()
    assert restored(saved(torch.arange(6.0).reshape(2, 3)), view).tolist() == [[0, 1, 2], [3, 4, 5]]
    matrix = numpy.matrix(numpy.zeros((2, 3)))
    assert restored(saved(numpy.matrix([[1.0, 2, 3], [4, 5, 6]])), matrix).tolist() == [[1, 2, 3], [4, 5, 6]]
    for value in (numpy.array(2 + 3j), torch.tensor(2 + 3j, dtype=torch.complex128), numpy.array(7.5, ">f8")):
        target = value.clone().zero_() if isinstance(value, torch.Tensor) else numpy.zeros_like(value)
        assert restored(saved(value), target) == value


def test_complex_numbers_of_halves_are_restored_into_wider_ones(saved):
    pairs = torch.tensor([[1.5, -2], [0, float("inf")], [3, 4]], dtype=torch.float16)
    expected = [complex(1.5, -2), complex(0, float("inf")), complex(3, 4)]
    checkpointer = saved(torch.view_as_complex(pairs))
    whole, strided = torch.zeros(3, dtype=torch.complex128), torch.zeros(6, dtype=torch.complex128)[::2]
    for target in (whole, strided, torch.zeros(3, dtype=torch.complex128).conj()):
        assert restored(checkpointer, target).resolve_conj().tolist() == expected
    assert restored(checkpointer, numpy.zeros(3, "complex128")).tolist() == expected


def test_complex64_is_restored_into_complex128(saved):
    expected = [[complex(0.1, -2), complex(0, float("inf"))], [complex(3, 4), complex(-0.0, 1e-45)]]
    value = torch.tensor(expected, dtype=torch.complex64)
    expected = value.to(torch.complex128).tolist()
    for checkpointer in (saved(value), saved(value.numpy())):
        whole, strided = torch.zeros(2, 2, dtype=torch.complex128), torch.zeros(2, 4, dtype=torch.complex128)[:, ::2]
        for target in (whole, strided, torch.zeros(2, 2, dtype=torch.complex128).conj()):
            assert restored(checkpointer, target).resolve_conj().tolist() == expected
        for order in "<>":
            assert restored(checkpointer, numpy.zeros((2, 2), f"{order}c16")).tolist() == expected
        refused(checkpointer, torch.zeros(2, 3, dtype=torch.complex128), r"shape \(2, 2\), but the target has shape \(2, 3\)")
        # Narrower and real numbers cannot hold every value.
        refused(checkpointer, torch.zeros(2, 2, dtype=torch.complex32), "'a' was saved as C64, and goes to complex32.*\nhint: .*cast=True")
        refused(checkpointer, torch.zeros(2, 2, dtype=torch.float64), "'a' was saved as C64, and goes to F64.*\nhint: .*cast=True")
        narrow = restored(checkpointer, torch.zeros(2, 2, dtype=torch.complex32), cast=True)
        assert narrow.to(torch.complex64).tolist() == value.to(torch.complex32).to(torch.complex64).tolist()
    # Into memory that overlaps itself, and of one number.
    window = torch.arange(6.0).to(torch.complex64).as_strided((4, 3), (1, 1))
    target = torch.zeros(6, dtype=torch.complex128).as_strided((4, 3), (1, 1))
    assert restored(saved(window), target).tolist() == window.tolist()
    assert restored(saved(torch.tensor(1 + 2j)), torch.zeros((), dtype=torch.complex128)) == 1 + 2j


def complex_targets(shape, dtype):
    """Targets of a complex dtype in several layouts."""
    yield torch.zeros(shape, dtype=dtype)
    yield torch.zeros(*shape[:-1], shape[-1] * 2, dtype=dtype)[..., ::2]
    yield torch.zeros(shape, dtype=dtype).conj()
    if dtype != torch.complex32:
        name = str(dtype).removeprefix("torch.")
        yield numpy.zeros(shape, name)
        yield numpy.zeros(shape, numpy.dtype(name).newbyteorder(">"))


def numbers(tensor):
    return tensor.tolist() if isinstance(tensor, numpy.ndarray) else tensor.resolve_conj().to(torch.complex128).tolist()


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:ComplexHalf")
def test_complex_numbers_of_every_width_go_into_every_other(saved):
    exact = [[complex(1.5, -2), complex(0, float("inf"))], [complex(-0.0, 3), complex(0.25, 1024)]]
    widths = [torch.complex32, torch.complex64, torch.complex128]
    for wide, source in enumerate(widths):
        value = torch.tensor(exact, dtype=torch.complex128).to(source)
        checkpointer = saved(value)
        loaded = checkpointer.load()["a"]
        assert loaded.dtype == source and numbers(loaded) == exact
        for narrow, dtype in enumerate(widths):
            for target in complex_targets((2, 2), dtype):
                if narrow >= wide:
                    assert numbers(restored(checkpointer, target)) == exact
                else:
                    names = f"{'C64' if wide == 1 else 'complex128'}, and goes to {'complex32' if narrow == 0 else 'C64'}"
                    refused(checkpointer, target, f"'a' was saved as {names}, which cannot hold.*\nhint: .*cast=True")
                    # The saved values are within the narrower range, so that the conversion is exact.
                    assert numbers(restored(checkpointer, target, cast=True)) == exact
    # complex128 with more digits than complex64 has is rounded with `cast`.
    value = torch.tensor([0.1 + 1e-300j, 1e300 + 3j], dtype=torch.complex128)
    for target in complex_targets((2,), torch.complex64):
        assert numbers(restored(saved(value), target, cast=True)) == value.to(torch.complex64).to(torch.complex128).tolist()


def test_pairs_of_complex_numbers_are_not_taken_for_real_ones(saved):
    pairs, complex_numbers = torch.arange(6.0, dtype=torch.float64).reshape(3, 2), torch.tensor([1 + 2j, 3 + 4j, 5 + 6j], dtype=torch.complex128)
    refused(saved(pairs), torch.zeros(3, dtype=torch.complex128), r"'a' was saved with shape \(3, 2\), but the target has shape \(3,\)")
    refused(saved(complex_numbers), torch.zeros(3, 2, dtype=torch.float64), r"'a' was saved with shape \(3,\), but the target has shape \(3, 2\)")
    refused(saved(complex_numbers), torch.zeros(3, dtype=torch.float64), "'a' was saved as complex128, and goes to F64.*\nhint: .*cast=True")
    # A complex number holds every real one.
    for target in (torch.zeros(3, 2, dtype=torch.complex128), numpy.zeros((3, 2), "complex128")):
        assert restored(saved(pairs), target).tolist() == pairs.to(torch.complex128).tolist()


def test_complex32_is_complex64_where_pytorch_is_missing():
    from straightway._tree import _complex

    found = _complex(numpy.array([[1.5, -2], [0, 4]], "float16"))
    assert found.dtype == "complex64" and found.tolist() == [1.5 - 2j, 4j]


def test_a_target_that_only_returns_copies_is_refused_by_name(saved):
    checkpointer = saved(FIVE)
    refused(checkpointer, Foreign(numpy.zeros(5, "i4")), "'a' cannot be restored in place: Foreign gives copies")
    refused(checkpointer, numpy.broadcast_to(numpy.int32(0), 5), "'a' cannot be restored in place: it is read-only")
    refused(checkpointer, numpy.ma.array(FIVE * 0, mask=[1, 0, 0, 0, 0]), "a is a masked array, and a tensor was saved")
    # Its values can be saved.
    assert saved(Foreign(FIVE)).load()["a"].tolist() == [1, 2, 3, 4, 5]


class Wrapper(torch.Tensor):
    """Like quantized tensors of libraries: no storage of its own; ``detach`` returns its values as a copy."""

    gives_copies = False

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        if function is torch.ops.aten.detach.default:
            return arguments[0].inner.clone() if cls.gives_copies else cls(arguments[0].inner)
        return function(*[a.inner if isinstance(a, Wrapper) else a for a in arguments], **(options or {}))


class Copying(Wrapper):
    gives_copies = True


def without_memory(kind):
    if kind == "wrapper":
        return Wrapper(torch.ones(8))
    if kind == "fake":
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            return torch.zeros(8)
    if kind in ("freed", "short"):
        tensor = torch.arange(1_000_000.0)
        tensor.untyped_storage().resize_(0 if kind == "freed" else 4000)
        return tensor
    if kind == "functional":
        return torch._to_functional_tensor(torch.ones(8))
    if kind == "zero":
        return torch._efficientzerotensor(8)
    if kind == "meta":
        return torch.zeros(8, device="meta")
    if kind == "sparse":
        return torch.eye(3).to_sparse()
    if kind == "nested":
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    if kind == "jagged":
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    if kind == "quantized":
        return torch.quantize_per_tensor(torch.ones(8), 0.1, 0, torch.qint8)
    assert kind == "mkldnn"
    return torch.ones(8).to_mkldnn()


WITHOUT = ["wrapper", "fake", "freed", "short", "functional", "zero", "meta", "sparse", "nested", "jagged", "quantized", "mkldnn"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", WITHOUT)
def test_tensors_without_plain_memory_of_their_own_are_refused_by_name(saved, tmp_path, kind):
    tensor = without_memory(kind)
    with pytest.raises((TypeError, ValueError), match="'a'"):
        saved(tensor)
    path = tmp_path / "a.safetensors"
    for save_file in (straightway.save_file, straightway.torch.save_file):
        with pytest.raises((TypeError, ValueError), match="'a'"):
            save_file({"a": tensor}, path)
    module = torch.nn.Module()
    module.register_buffer("a", tensor)
    with pytest.raises((TypeError, ValueError), match="'a'"):
        straightway.torch.save_model(module, path)
    assert not path.exists()
    refused(saved(torch.ones(8)), tensor, "'a'", error=(TypeError, ValueError))


def test_tensors_inside_transforms_are_refused_by_name(tmp_path):
    def save(tensor):
        with pytest.raises(ValueError, match="'a'.*no memory of its own"):
            straightway.Checkpointer(tmp_path / "c").save(1, {"a": tensor})
        with pytest.raises(ValueError, match="'a'.*no memory of its own"):
            straightway.save_file({"a": tensor}, tmp_path / "a.safetensors")
        return tensor.sum()

    torch.vmap(save)(torch.ones(3, 2))
    torch.func.grad(save)(torch.ones(3))


def test_a_wrapper_that_returns_a_copy_is_saved_but_not_restored_into(saved):
    checkpointer = saved(Copying(torch.arange(8.0)))
    assert checkpointer.load()["a"].tolist() == list(range(8))
    refused(checkpointer, Copying(torch.zeros(8)), "'a' cannot be restored in place: Copying gives a copy")


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_conjugate_and_negative_views_are_saved_and_restored_by_their_values(saved, tmp_path, dtype):
    x = torch.randn(6, dtype=dtype)
    state = {"x": x, "conj": x.conj(), "imag": x.imag, "neg": x.conj().imag, "real": x.real, "both": x.conj()[::2]}
    assert state["neg"].is_neg() and state["conj"].is_conj()
    expected = {name: tensor.resolve_conj().resolve_neg().clone() for name, tensor in state.items()}
    checkpointer = saved(state)
    found = checkpointer.load()["a"]
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    # Into views of the same kind, each in memory of its own.
    for name in state:
        y = torch.zeros(6, dtype=dtype)
        into = {"x": y, "conj": y.conj(), "imag": y.imag, "neg": y.conj().imag, "real": y.real, "both": y.conj()[::2]}
        assert torch.equal(restored(checkpointer, {name: into[name]})[name].resolve_conj().resolve_neg(), expected[name]), name
    # All into one memory, without conflicts.
    restored(checkpointer, state | {})
    assert torch.equal(x, expected["x"])
    if dtype == torch.complex64:
        files = {name: tensor.contiguous() for name, tensor in state.items() if name in ("x", "conj", "neg")}
        straightway.torch.save_file(files, tmp_path / "a.safetensors")
        loaded = straightway.torch.load_file(tmp_path / "a.safetensors")
        for name in files:
            assert torch.equal(loaded[name], expected[name]), name
        module = torch.nn.Module()
        for name in ("x", "conj"):
            module.register_buffer(name, state[name])
        straightway.torch.save_model(module, tmp_path / "b.safetensors")
        loaded = straightway.torch.load_file(tmp_path / "b.safetensors")
        assert torch.equal(loaded["x"], expected["x"]) and torch.equal(loaded["conj"], expected["conj"])


@pytest.mark.parametrize(
    "array",
    [
        numpy.ma.array([1.0, 2, 3], mask=[0, 1, 0]),
        numpy.ma.array([1, 2, 3], mask=[0, 1, 0], fill_value=-9, hard_mask=True),
        numpy.ma.array([[1, 2], [3, 4]], dtype=">i2"),
        numpy.ma.array(["2026-01-02", "2026-01-03"], mask=[1, 0], dtype="datetime64[D]"),
        numpy.ma.array([(1, 2.5), (3, 4.5)], mask=[(0, 1), (1, 0)], dtype=[("a", "i4"), ("b", "f8")]),
    ],
    ids=str,
)
def test_masked_arrays_keep_their_masks(saved, tmp_path, array):
    checkpointer = saved(array)
    into = {"a": numpy.ma.masked_all_like(array)}
    checkpointer.restore(into=into)
    for found in (checkpointer.load()["a"], into["a"]):
        assert type(found) is numpy.ma.MaskedArray and str(found.fill_value) == str(array.fill_value) and found.hardmask == array.hardmask
        numpy.testing.assert_array_equal(numpy.ma.getmaskarray(found), numpy.ma.getmaskarray(array))
        numpy.testing.assert_array_equal(found.data, array.data)
    with pytest.raises(TypeError, match="'a' is a masked array, and its mask would be lost"):
        straightway.save_file({"a": array}, tmp_path / "a.safetensors")


def test_a_masked_array_is_restored_in_place_and_only_into_masked_arrays(saved):
    checkpointer = saved(numpy.ma.array([1.0, 2, 3], mask=[0, 1, 0]))
    target = numpy.ma.array([0.0, 0, 0], mask=[1, 1, 1], hard_mask=True)
    memory = target.data
    restored(checkpointer, target)
    assert memory.tolist() == [1, 2, 3] and target.mask.tolist() == [False, True, False]
    refused(checkpointer, numpy.zeros(3), "a is a tensor, but a masked array was saved there")


def test_a_lossy_conversion_is_refused_without_cast(saved):
    checkpointer = saved(torch.tensor([1.0, 1e-300, 0.1], dtype=torch.float64))
    for target in (torch.zeros(3), numpy.zeros(3, "f4"), torch.zeros(3, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.int64)):
        refused(checkpointer, target, "'a' was saved as F64, and goes to .*\nhint: .*cast=True")
        assert not target.any()
        assert restored(checkpointer, target, cast=True)[0] == 1
    # A wider dtype is filled without `cast`.
    for value, target in [
        (torch.arange(3, dtype=torch.bfloat16), torch.zeros(3)),
        (numpy.array([1, 2, 3], "u1"), numpy.zeros(3, ">i2")),
        (torch.arange(3, dtype=torch.int8), torch.zeros(3, dtype=torch.float16)),
        (torch.tensor([True, False, True]), torch.zeros(3, dtype=torch.uint8)),
    ]:
        assert restored(saved(value), target).tolist() == value.tolist()
    refused(saved(torch.zeros(4, dtype=torch.float8_e4m3fn).view(torch.uint8)), torch.zeros(4, dtype=torch.int8), "U8, and goes to I8")


def test_lossless_conversions_are_the_safe_ones_of_numpy():
    from straightway._conversion import is_lossless

    names = {"BOOL": "?", "U8": "u1", "I8": "i1", "U16": "u2", "I16": "i2", "F16": "f2", "U32": "u4", "I32": "i4", "F32": "f4", "U64": "u8", "I64": "i8", "F64": "f8", "C64": "c8"}
    for one, first in names.items():
        for other, second in names.items():
            # NumPy considers 64-bit integers safe in a double, which has only 53 bits of precision.
            exact = numpy.can_cast(first, second) and not (first in ("u8", "i8") and second == "f8")
            assert is_lossless(one, other) == exact, (one, other)


def test_tensors_that_overlap_themselves_are_saved_and_restored(saved):
    window = torch.arange(6.0).as_strided((4, 3), (1, 1))
    for value, target in [
        (torch.ones(3).expand(4, 3), torch.zeros(3).expand(4, 3)),
        (window, torch.zeros(6).as_strided((4, 3), (1, 1))),
        (window.numpy().copy(), numpy.lib.stride_tricks.as_strided(numpy.zeros(6, "f4"), (4, 3), (4, 4))),
        (window.to(torch.complex128), torch.zeros(6, dtype=torch.complex128).as_strided((4, 3), (1, 1))),
        (window.to(torch.float8_e5m2).contiguous(), torch.zeros(6).to(torch.float8_e5m2).as_strided((4, 3), (1, 1))),
    ]:
        checkpointer = saved(value)
        expected = value.tolist() if isinstance(value, numpy.ndarray) else value.to(torch.complex128).tolist()
        for found in (checkpointer.load()["a"], restored(checkpointer, target)):
            assert (found.tolist() if isinstance(found, numpy.ndarray) else found.to(torch.complex128).tolist()) == expected
    # Different values cannot share memory.
    for target in (torch.zeros(3).expand(4, 3), numpy.lib.stride_tricks.as_strided(numpy.zeros(6, "f4"), (4, 3), (0, 4))):
        refused(saved(torch.arange(12.0).reshape(4, 3)), target, "'a' cannot be restored in place: different values")
        assert not target.any()


def test_views_that_overlap_each_other_are_saved_and_restored(saved):
    def views(base):
        grid = base.reshape(4, 5)
        return {"head": base[:8], "tail": base[5:], "left": grid[:, :3], "right": grid[:, 3:], "again": base[:8]}

    base = torch.arange(20.0)
    checkpointer = saved(views(base))
    target = torch.zeros(20)
    restored(checkpointer, views(target))
    assert torch.equal(target, base)
    # One memory for two names with different values: refused, and the target is unchanged.
    checkpointer = saved({"head": torch.ones(8), "tail": torch.full((15,), 2.0), "left": torch.ones(4, 3), "right": torch.ones(4, 2), "again": torch.ones(8)})
    target = torch.full((20,), 7.0)
    refused(checkpointer, views(target), "cannot be restored in place: different values would go to the same memory")
    assert bool((target == 7).all())
    tied = torch.zeros(8)
    refused(saved({"x": torch.ones(8), "y": torch.zeros(8)}), {"x": tied, "y": tied}, "'a.x' cannot be restored in place")
    checkpointer = saved({"x": torch.ones(8), "y": torch.ones(8)})
    assert restored(checkpointer, {"x": tied, "y": tied})["y"].all()


def test_dtypes_that_numpy_does_not_have_are_refused(tmp_path):
    header = b'{"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]},"b":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[2,5]},"c":{"dtype":"U8","shape":[1],"data_offsets":[5,6]}}'
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(range(6)))
    for name, dtype in [("a", "F4"), ("b", "F6_E2M3")]:
        with pytest.raises(ValueError, match=f"NumPy has no {dtype}\nhint: .*dlpack"):
            straightway.load_file(path, framework="np", filter=name)
        tensor = straightway.load_file(path, framework="dlpack")[name]
        with pytest.raises(TypeError, match=f"NumPy has no {dtype}: take `as_bytes\\(\\)`"):
            numpy.asarray(tensor)
        assert numpy.asarray(tensor.as_bytes()).dtype == numpy.uint8
    assert straightway.load_file(path, framework="np", filter="c")["c"].tolist() == [5]


def test_saving_changing_memory_does_not_crash(tmp_path):
    """Threads that write to a tensor while it is saved produce a mixture of values, nothing worse."""
    code = """
        import sys, threading, numpy, straightway
        array = numpy.zeros(4 << 20)
        stop = threading.Event()
        def write():
            while not stop.is_set():
                array[:] += 1
        writer = threading.Thread(target=write)
        writer.start()
        with straightway.Checkpointer(sys.argv[1]) as checkpointer:
            for step in range(5):
                checkpointer.save(step, {"a": array}, async_=False)
        straightway.save_file({"a": array}, sys.argv[1] + "/a.safetensors")
        stop.set()
        writer.join()
        assert checkpointer.verify() == [] and len(checkpointer.load()["a"]) == 4 << 20
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr

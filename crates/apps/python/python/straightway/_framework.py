"""The libraries whose tensors the package returns, most of them without a copy."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from . import _allocators, _arguments
from ._errors import SafetensorError
from ._straightway import Tensor

#: The names of the float dtypes that NumPy does not have, in PyTorch and in ml_dtypes.
_TORCH_NAMES = {
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
_ML_DTYPES_NAMES = _TORCH_NAMES | {"BF16": "bfloat16"}

#: The NumPy names of dtypes.
_NUMPY_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}

#: The accepted names of each library.
_NAMES = {
    "pt": ("pt", "torch", "pytorch"),
    "np": ("np", "numpy"),
    "cupy": ("cupy", "cp"),
    "jax": ("jax", "flax"),
    "tf": ("tf", "tensorflow"),
    "paddle": ("paddle", "paddlepaddle"),
    "mlx": ("mlx",),
    "dlpack": ("dlpack",),
}


class Framework:
    """The conversion of our tensors to those of a library.

    ``take`` gets a DLPack capsule, for the dtypes that DLPack has. ``convert`` gets the tensor, for all other dtypes,
    or for all dtypes if ``take`` is ``None``. A library that ``may_copy`` gets tensors only after their bytes are
    loaded; others get them while the load runs. A library that ``maps`` can use the pages of a mapped file; the arrays
    of others must not change with the file. ``allocator`` allocates GPU memory of the library; without it the driver
    does.
    """

    def __init__(
        self,
        name: str,
        take: Callable[[Any], Any] | None,
        convert: Callable[[Tensor], Any],
        may_copy: bool = False,
        maps: bool = True,
        allocator: Callable[[str], _allocators.Allocate] | None = None,
    ) -> None:
        self.name = name
        self.take = take
        self.convert = convert
        self.may_copy = may_copy
        self.maps = maps
        self.allocator = allocator

    def allocate(self, device: str, memory: _arguments.Owner) -> _allocators.Allocate | None:
        """The allocator for a device; ``None`` for the driver's allocator and for host memory."""
        _allocators.check(memory)
        if memory == "driver" or self.allocator is None or not device.startswith("cuda:"):
            return None
        return self.allocator(device)


def find(name: str | None) -> Framework:
    """The framework of that name; for ``None``, PyTorch if it is installed, else NumPy."""
    if name is None:
        name = "pt" if importlib.util.find_spec("torch") else "np"
    for ours, names in _NAMES.items():
        if name in names:
            return _MAKERS[ours]()
    known = ", ".join(_NAMES)
    raise SafetensorError(f"framework {name} is invalid (expected one of: {known})")


def _need(module: str, framework: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = {"paddle": "paddlepaddle", "mlx.core": "'mlx[cpu]'"}.get(module, module.partition(".")[0])
        raise ImportError(f"framework={framework!r} needs {module}\nhint: pip install {package}") from error


def _torch() -> Framework:
    torch = _need("torch", "pt")
    from_dlpack = _need("torch.utils.dlpack", "pt").from_dlpack

    def convert(tensor: Tensor) -> Any:
        flat = from_dlpack(tensor.as_bytes())
        if tensor.dtype == "F4" and hasattr(torch, "float4_e2m1fn_x2"):
            # Two elements per byte: the last dimension counts bytes.
            *front, last = tensor.shape
            if last % 2 == 0:
                return flat.view(torch.float4_e2m1fn_x2).reshape(*front, last // 2)
        dtype = getattr(torch, _TORCH_NAMES.get(tensor.dtype, ""), None)
        if dtype is None:
            raise ValueError(
                f"PyTorch {torch.__version__} has no {tensor.dtype}\nhint: framework='dlpack' gives its bytes"
            )
        return flat.view(dtype).reshape(tensor.shape)

    # The private function does all the work. With hundreds of thousands of tensors the extra call of the public one
    # is measurable.
    take = getattr(torch._C, "_from_dlpack", from_dlpack)
    return Framework("pt", take, convert, allocator=_allocators.of_torch(torch, _torch_types(torch)))


def _torch_types(torch: Any) -> dict[str, Any]:
    """The PyTorch dtypes whose elements correspond one to one to those of a file."""
    names = _NUMPY_NAMES | {"BF16": "bfloat16"} | _TORCH_NAMES
    return {ours: getattr(torch, theirs) for ours, theirs in names.items() if hasattr(torch, theirs)}


def _numpy() -> Framework:
    numpy = _need("numpy", "np")

    def convert(tensor: Tensor) -> Any:
        name = _ML_DTYPES_NAMES.get(tensor.dtype)
        if tensor.device != "cpu":
            raise ValueError(f"NumPy has no tensors on {tensor.device}\nhint: device='cpu', or framework='cupy'")
        if name is None:
            try:
                return numpy.asarray(tensor)
            except TypeError as error:
                raise ValueError(f"NumPy has no {tensor.dtype}\nhint: framework='dlpack' gives its bytes") from error
        dtype = getattr(_need("ml_dtypes", "np"), name)
        return numpy.asarray(tensor.as_bytes()).view(dtype).reshape(tensor.shape)

    return Framework("np", None, convert)


def ndarray(dtype: str, shape: list[int], data: bytearray) -> Any:
    """A NumPy array on top of these bytes, without a copy."""
    numpy = _need("numpy", "np")
    if dtype in _NUMPY_NAMES:
        kind = numpy.dtype(_NUMPY_NAMES[dtype])
    elif dtype in _ML_DTYPES_NAMES:
        kind = getattr(_need("ml_dtypes", "np"), _ML_DTYPES_NAMES[dtype])
    else:
        raise SafetensorError(f"NumPy has no {dtype}")
    return numpy.frombuffer(data, dtype=kind).reshape(shape)


def _cupy() -> Framework:
    cupy = _need("cupy", "cupy")
    allocator = _allocators.of_cupy(cupy, _NUMPY_NAMES)
    return Framework("cupy", None, lambda tensor: cupy.from_dlpack(tensor), allocator=allocator)


def _jax() -> Framework:
    dlpack = _need("jax.dlpack", "jax")

    def convert(tensor: Tensor) -> Any:
        if tensor.dtype in _TORCH_NAMES and tensor.device == "cpu":
            # DLPack does not have these dtypes.
            return _need("jax.numpy", "jax").asarray(_numpy().convert(tensor))
        return dlpack.from_dlpack(tensor)

    # JAX copies data that is not aligned to its needs, and assumes that an array never changes.
    return Framework("jax", None, convert, may_copy=True, maps=False)


def _copied(name: str, module: str) -> Framework:
    """A library that copies NumPy arrays."""
    _need(module, name)
    return Framework(name, None, lambda tensor: from_numpy(name, _numpy().convert(tensor)), may_copy=True)


def from_numpy(name: str, array: Any) -> Any:
    """A tensor of JAX, TensorFlow, PaddlePaddle or MLX with the values of an array."""
    if name == "jax":
        return _need("jax.numpy", "jax").asarray(array)
    if name == "tf":
        return _need("tensorflow", "tf").convert_to_tensor(array)
    if name == "mlx":
        return _need("mlx.core", "mlx").array(array)
    paddle = _need("paddle", "paddle")
    kind = array.dtype.name
    if kind == "bfloat16":
        # PaddlePaddle represents bfloat16 as uint16 in NumPy.
        return paddle.to_tensor(array.view("uint16"), place="cpu")
    if kind.startswith("float8"):
        return paddle.to_tensor(array.view("uint8"), place="cpu").view(kind)
    if kind in ("uint16", "uint32", "uint64"):
        raise ValueError(f"PaddlePaddle has no {kind}\nhint: framework='np' gives arrays of NumPy")
    return paddle.to_tensor(array, place="cpu")


def to_numpy(name: str, tensor: Any) -> Any:
    """An array with the values of a tensor of TensorFlow, PaddlePaddle or MLX. Arrays of JAX are saved as they are."""
    if name == "jax":
        return tensor
    numpy = _need("numpy", name)
    if name == "tf":
        return tensor.numpy()
    kind = str(tensor.dtype).rpartition(".")[2]
    if kind != "bfloat16" and not kind.startswith("float8"):
        return numpy.asarray(tensor) if name == "mlx" else tensor.numpy()
    # NumPy has these dtypes only through ml_dtypes: the raw bytes are viewed as such.
    raw = numpy.asarray(tensor.view(_need("mlx.core", name).uint16)) if name == "mlx" else tensor.numpy()
    return raw.view(getattr(_need("ml_dtypes", name), kind))


def _plain() -> Framework:
    return Framework("dlpack", None, lambda tensor: tensor)


_MAKERS: dict[str, Callable[[], Framework]] = {
    "pt": _torch,
    "np": _numpy,
    "cupy": _cupy,
    "jax": _jax,
    "tf": lambda: _copied("tf", "tensorflow"),
    "paddle": lambda: _copied("paddle", "paddle"),
    "mlx": lambda: _copied("mlx", "mlx.core"),
    "dlpack": _plain,
}


def device_name(device: Any) -> str:
    """A device in our notation: ``host:``, or ``cuda:`` and a number. Accepts ``torch.device`` and integers too."""
    text = f"cuda:{device}" if isinstance(device, int) else str(device)
    if text in ("cpu", "host", "host:"):
        return "host:"
    if text in ("cuda", "gpu"):
        return f"cuda:{_current_gpu()}"
    return text


def _current_gpu() -> int:
    """The current device of PyTorch or CuPy, if one of them is in use, else 0."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.current_device())
    if cupy is not None:
        return int(cupy.cuda.Device().id)
    return 0

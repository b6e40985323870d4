"""An open file, from which tensors and parts of them are read one at a time."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

from . import _framework
from ._straightway import Loading, Model, Receipt


class safe_open:
    """Opens a safetensors file, as ``safetensors.safe_open`` does; a folder or an index as well.

    ``receipt`` says how what was read last came.
    """

    def __init__(
        self, filename: str | os.PathLike[str], framework: str | None = None, device: Any = "cpu", *, route: str = "auto"
    ) -> None:
        self._model: Model | None = Model(filename)
        self._framework = _framework.find(framework)
        self._device = _framework.device_name(device)
        self._route = route
        self.receipt: Receipt | None = None

    def __enter__(self) -> safe_open:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._model = None

    @property
    def _open(self) -> Model:
        if self._model is None:
            raise ValueError("the file is closed")
        return self._model

    def keys(self) -> list[str]:
        """The names of the tensors, sorted."""
        return self._open.keys()

    def offset_keys(self) -> list[str]:
        """The names of the tensors, in the order of their bytes."""
        return self._open.offset_keys()

    def metadata(self) -> dict[str, str] | None:
        """What the file says about itself."""
        return self._open.metadata()

    def get_tensor(self, name: str) -> Any:
        """A tensor, whole."""
        return self._get(name, None)

    def get_slice(self, name: str) -> Slice:
        """A tensor of which only the part that is asked for is read: ``get_slice(name)[2:4, :]``."""
        return Slice(self, name)

    def _get(self, name: str, part: tuple[list[int], list[int]] | None) -> Any:
        loading = Loading.of(self._open, name, part, device=self._device, route=self._route)
        tensors = loading.tensors(self._framework.take, self._framework.convert)
        self.receipt = loading.wait()
        return tensors[name]


class Slice:
    """A tensor of which only the part that is asked for is read."""

    def __init__(self, opened: safe_open, name: str) -> None:
        self._opened = opened
        self._name = name
        self._shape: tuple[int, ...] = opened._open.shape(name)

    def get_shape(self) -> list[int]:
        """Its shape."""
        return list(self._shape)

    def get_dtype(self) -> str:
        """Its type, as safetensors names it."""
        return self._opened._open.dtype(self._name)

    def __getitem__(self, index: Any) -> Any:
        index = self._spelled_out(index if isinstance(index, tuple) else (index,))
        starts: list[int] = []
        lengths: list[int] = []
        rest: list[slice | int] = []
        for i, size in zip(index, self._shape):
            if isinstance(i, slice):
                chosen = range(size)[i]
                low, high = (min(chosen), max(chosen) + 1) if len(chosen) else (0, 0)
                # The part that has all of it is read; what is to be left out of that is done here.
                rest.append(slice(None) if chosen.step == 1 else _within(chosen, low))
                starts.append(low)
                lengths.append(high - low)
            else:
                starts.append(range(size)[i])
                lengths.append(1)
                rest.append(0)
        part = self._opened._get(self._name, (starts, lengths))
        return part[tuple(rest)] if any(r != slice(None) for r in rest) else part

    def _spelled_out(self, index: tuple[Any, ...]) -> tuple[Any, ...]:
        """The index with every dimension in it."""
        for i in index:
            if not (i is Ellipsis or isinstance(i, slice) or hasattr(i, "__index__")):
                raise TypeError(f"a tensor is cut by integers and slices, not by {i!r}")
        named = len(index) - index.count(Ellipsis)
        if named > len(self._shape) or index.count(Ellipsis) > 1:
            raise IndexError(f"{self._name} has {len(self._shape)} dimensions, not {named}")
        missing = (slice(None),) * (len(self._shape) - named)
        at = index.index(Ellipsis) if Ellipsis in index else len(index)
        spelled = index[:at] + missing + index[at + 1 :]
        return tuple(i if isinstance(i, slice) else i.__index__() for i in spelled)


def _within(chosen: range, low: int) -> slice:
    """What `chosen` is, counted from `low`."""
    stop = chosen.stop - low
    return slice(chosen.start - low, None if stop < 0 else stop, chosen.step)

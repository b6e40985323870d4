"""Encodes values that are not tensors as plain data. The decoder, in Rust, also documents the encoding.

The types are a closed list, so that an untrusted checkpoint can be loaded. Values of other types are pickled, and
loaded only if their writer is trusted.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import json
import pathlib
import sys
import uuid
from collections.abc import Callable
from typing import Any

#: The maximum depth of the decoder.
_DEPTH_MAX = 40
#: The maximum length and number of values of the decoder.
_BYTES_MAX = 256 << 20
_VALUES_MAX = 1 << 23

#: Larger integers are not written as JSON numbers.
_LONG_MAX = 1 << 63


class NotPlain(TypeError):
    """A value has a type that is not plain data."""


def encoded(value: Any) -> str:
    """A value as text. Raises ``NotPlain`` if it contains an object of another type."""
    text = json.dumps(_value(value, 0), separators=(",", ":"))
    if len(text) > _BYTES_MAX or text.count(",") > _VALUES_MAX:
        raise ValueError(
            f"it is longer than {_BYTES_MAX} bytes or {_VALUES_MAX} values\nhint: save it as a tensor, or in parts"
        )
    return text


def _value(value: Any, depth: int) -> Any:
    if depth > _DEPTH_MAX:
        raise NotPlain(f"it is deeper than {_DEPTH_MAX}, or contains itself")
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    encode = _ENCODERS.get(kind)
    if encode is not None:
        return encode(value, depth + 1)
    if isinstance(value, type):
        return _type(value)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        if isinstance(value, numpy.dtype):
            return ["dtype", _numpy_type(value)]
        if isinstance(value, numpy.generic):
            return ["scalar", _numpy_type(value.dtype), numpy.asarray(value).tobytes().hex()]
        if kind is numpy.ndarray:
            return ["array", _numpy_type(value.dtype), list(value.shape), value.tobytes().hex()]
    if torch is not None:
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return ["name", "torch", str(value).removeprefix("torch.")]
        if kind is torch.Size:
            return ["torch.Size", ["tuple", *value]]
        if kind is torch.device:
            return ["torch.device", value.type] if value.index is None else ["torch.device", value.type, value.index]
    raise NotPlain(f"{kind.__module__}.{kind.__qualname__}")


def _int(value: int, depth: int) -> Any:
    if -_LONG_MAX <= value < _LONG_MAX:
        return value
    return ["int", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True).hex()]


def _text(value: str, depth: int) -> Any:
    if has_surrogates(value):
        return ["surrogates", value.encode("utf-8", "surrogatepass").hex()]
    return value


def has_surrogates(text: str) -> bool:
    """Whether a text has surrogates. UTF-8 cannot encode them, and JSON joins two of them to one character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _items(tag: str) -> Callable[[Any, int], Any]:
    return lambda value, depth: [tag, *(_value(item, depth) for item in value)]


def _pairs(value: Any, depth: int) -> Any:
    return ["dict", *(_value(part, depth) for pair in value.items() for part in pair)]


def _arguments(tag: str, arguments: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, int], Any]:
    return lambda value, depth: [tag, *(_value(argument, depth) for argument in arguments(value))]


def _zone(value: Any) -> Any:
    if value is None or type(value) is datetime.timezone:
        return value
    raise NotPlain(f"{type(value).__module__}.{type(value).__qualname__}")


def _type(value: type) -> Any:
    numpy = sys.modules.get("numpy")
    names = (
        "bool",
        "bytearray",
        "bytes",
        "complex",
        "dict",
        "float",
        "frozenset",
        "int",
        "list",
        "range",
        "set",
        "slice",
        "str",
        "tuple",
    )
    if value.__module__ == "builtins" and value.__name__ in names:
        return ["name", "builtins", value.__name__]
    if numpy is not None and value is numpy.ndarray:
        return ["name", "numpy", "ndarray"]
    raise NotPlain(f"type {value.__module__}.{value.__qualname__}")


def _numpy_type(dtype: Any) -> Any:
    """The encoding of a NumPy dtype. Raises ``NotPlain`` if its elements hold pointers."""
    numpy = sys.modules["numpy"]
    if dtype.hasobject:
        raise NotPlain(f"NumPy's {dtype}")
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return ["rows", _numpy_type(base), *shape]
    if dtype.names is not None:
        if dtype.type is not numpy.void:
            raise NotPlain(f"NumPy's {dtype.type.__name__}")
        return ["fields", dtype.itemsize, *(_field(name, *dtype.fields[name]) for name in dtype.names)]
    if dtype.type.__module__ == "ml_dtypes":
        return ["ml", dtype.name]
    if dtype.kind in "biufcSUmM" or dtype.type is numpy.void:
        return dtype.str
    raise NotPlain(f"NumPy's {dtype}")


def _field(name: str, dtype: Any, offset: int, title: Any = None) -> Any:
    """The encoding of a field of a record."""
    if has_surrogates(name):
        raise NotPlain(f"a NumPy dtype with the field {name!r}")
    if title is None:
        return [name, _numpy_type(dtype), offset]
    if type(title) is not str or has_surrogates(title):
        raise NotPlain(f"a NumPy dtype with the title {title!r}")
    return [name, _numpy_type(dtype), offset, title]


#: The encoder of each built-in type.
_ENCODERS: dict[type, Callable[[Any, int], Any]] = {
    int: _int,
    str: _text,
    float: lambda value, depth: ["float", repr(value)],
    bytes: lambda value, depth: ["bytes", value.hex()],
    bytearray: _arguments("bytearray", lambda value: (bytes(value),)),
    complex: _arguments("complex", lambda value: (value.real, value.imag)),
    slice: _arguments("slice", lambda value: (value.start, value.stop, value.step)),
    range: _arguments("range", lambda value: (value.start, value.stop, value.step)),
    list: _items("list"),
    tuple: _items("tuple"),
    set: _items("set"),
    frozenset: _items("frozenset"),
    dict: _pairs,
    collections.OrderedDict: _arguments("OrderedDict", lambda value: (dict(value),)),
    collections.Counter: _arguments("Counter", lambda value: (dict(value),)),
    collections.defaultdict: _arguments("defaultdict", lambda value: (value.default_factory, dict(value))),
    collections.deque: _arguments("deque", lambda value: (list(value), value.maxlen)),
    datetime.date: _arguments("date", lambda value: (value.year, value.month, value.day)),
    datetime.time: _arguments("time", lambda t: (t.hour, t.minute, t.second, t.microsecond, _zone(t.tzinfo), t.fold)),
    datetime.datetime: _arguments(
        "datetime",
        lambda t: (t.year, t.month, t.day, t.hour, t.minute, t.second, t.microsecond, _zone(t.tzinfo), t.fold),
    ),
    datetime.timedelta: _arguments("timedelta", lambda value: (value.days, value.seconds, value.microseconds)),
    datetime.timezone: _arguments("timezone", lambda value: value.__getinitargs__()),
    decimal.Decimal: _arguments("Decimal", lambda value: (str(value),)),
    fractions.Fraction: _arguments("Fraction", lambda value: (value.numerator, value.denominator)),
    uuid.UUID: _arguments("UUID", lambda value: (value.hex,)),
    pathlib.PosixPath: _arguments("PosixPath", lambda value: (str(value),)),
    pathlib.PurePosixPath: _arguments("PurePosixPath", lambda value: (str(value),)),
}

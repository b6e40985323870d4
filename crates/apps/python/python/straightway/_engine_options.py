"""The settings of an engine's loader: what ``--model-loader-extra-config`` takes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from ._arguments import Route, StorageOptions

#: The memory for batches of tensors, unless the settings have another value.
_MEMORY_BYTES = 256 << 20

#: Below this, a batch has fewer bytes than a drive needs to reach its speed.
_MEMORY_BYTES_MIN = 16 << 20

_UNITS = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?)?b?\s*", re.IGNORECASE)


@dataclass(frozen=True)
class EngineOptions:
    """The settings of an engine's loader.

    Attributes:
        route: the route of the bytes; ``None`` is ``"auto"`` on a GPU, and maps local files on the CPU.
        verify: whether every tensor is read again by another route and compared.
        memory_bytes: the memory for the batch in use and the one that loads. A tensor larger than a batch is loaded
            alone and takes its own size.
        device: ``"auto"`` (the engine's device) or ``"cpu"``: the engine then copies to its device itself.
        share: whether the ranks of a machine read each file once; ``None`` if there are several ranks.
        uri: the location of the weights, if it is not that of the engine's model.
        storage_options: settings of the store of the URI.
        pattern: the file names of a ``sharded_state`` folder.
    """

    route: Route | None = None
    verify: bool = False
    memory_bytes: int = _MEMORY_BYTES
    device: str = "auto"
    share: bool | None = None
    uri: str | None = None
    storage_options: StorageOptions | None = None
    pattern: str | None = None

    @property
    def batch_bytes(self) -> int:
        """The size of a batch. A quarter of the memory is left to the allocator, which rounds up."""
        return self.memory_bytes * 3 // 8


#: The keys of the settings.
KEYS = ("route", "verify", "memory", "device", "share", "uri", "storage_options", "pattern")


def parse(
    settings: Mapping[str, Any] | None, engine_keys: tuple[str, ...] = ()
) -> tuple[EngineOptions, dict[str, Any]]:
    """The options, and the settings that the engine's own loader takes. Unknown keys are refused by name."""
    if settings is None:
        settings = {}
    if not isinstance(settings, Mapping):
        raise ValueError(f"the settings of the loader are a JSON object, not {settings!r}")
    for key in settings:
        if key not in KEYS and key not in engine_keys:
            raise ValueError(_unknown(key, (*KEYS, *engine_keys)))
    kept = {key: settings[key] for key in engine_keys if key in settings}
    return _options({key: settings[key] for key in KEYS if settings.get(key) is not None}), kept


def _unknown(key: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(str(key), known, n=1)
    meant = f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(known)}"
    return f"the loader straightway has no setting {key!r}\nhint: {meant}"


def _options(given: dict[str, Any]) -> EngineOptions:
    if "route" in given and given["route"] not in get_args(Route):
        raise ValueError(f"route is one of {', '.join(get_args(Route))}, not {given['route']!r}")
    for key in ("verify", "share"):
        if key in given and not isinstance(given[key], bool):
            raise ValueError(f"{key} is true or false, not {given[key]!r}")
    if given.get("device", "auto") not in ("auto", "cpu"):
        raise ValueError(f"device is auto or cpu, not {given['device']!r}")
    for key in ("uri", "pattern"):
        if key in given and not isinstance(given[key], str):
            raise ValueError(f"{key} is a text, not {given[key]!r}")
    stores = given.get("storage_options")
    if stores is not None and not isinstance(stores, Mapping):
        raise ValueError(f"storage_options is a JSON object of settings by name, not {stores!r}")
    if "memory" in given:
        given["memory_bytes"] = _bytes(given.pop("memory"))
    return EngineOptions(**given)


def _bytes(size: Any) -> int:
    """A number of bytes, as a number or with a unit such as ``"256MiB"``."""
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if found is not None:
        count = int(float(found[1]) * _UNITS[(found[2] or "").lower()])
    elif isinstance(size, int) and not isinstance(size, bool):
        count = size
    else:
        raise ValueError(f"memory is a size such as \"256MiB\", not {size!r}")
    if count < _MEMORY_BYTES_MIN:
        raise ValueError(f"memory is at least {_MEMORY_BYTES_MIN >> 20}MiB, not {size!r}")
    return count

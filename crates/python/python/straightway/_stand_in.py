"""``sys.modules["safetensors"] = straightway`` gives every program this package in the place of safetensors.

A program then imports ``safetensors.torch`` and the like, which Python would look for in this package's folder and load
a second time under that name. The finder here gives the modules that are there.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec

# `typing` and `importlib.abc` take longer to import than all of this package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_PREFIX = "safetensors."


class Finder:
    """Finds ``safetensors.x`` as ``straightway.x`` where this package stands in for safetensors."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not fullname.startswith(_PREFIX) or sys.modules.get("safetensors") is not sys.modules.get("straightway"):
            return None
        from importlib.util import find_spec

        own = "straightway." + fullname[len(_PREFIX) :]
        if find_spec(own) is None:
            return None
        return ModuleSpec(fullname, _Alias(own))  # type: ignore[arg-type]


class _Alias:
    """Loads a module by giving one that has another name."""

    def __init__(self, own: str) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        import importlib

        # What is in `sys.modules` after this is what is imported.
        sys.modules[module.__name__] = importlib.import_module(self._own)


def install() -> None:
    """Makes Python ask the finder, before any other."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())

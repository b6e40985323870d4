"""The import hook behind ``sys.modules["safetensors"] = straightway``, which replaces safetensors by this package.

A program then imports ``safetensors.torch`` and the like. Python would find those in this package's folder and load
them a second time under that name. The finder here returns the modules that are already loaded.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec

# Importing `typing` and `importlib.abc` takes longer than importing this package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_PREFIX = "safetensors."


class Finder:
    """Finds ``safetensors.x`` as ``straightway.x`` if this package replaces safetensors."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not fullname.startswith(_PREFIX) or sys.modules.get("safetensors") is not sys.modules.get("straightway"):
            return None
        from importlib.util import find_spec

        own = "straightway." + fullname[len(_PREFIX) :]
        if find_spec(own) is None:
            return None
        return ModuleSpec(fullname, _Alias(own))  # type: ignore[arg-type]


class _Alias:
    """Loads a module as an alias of one with another name."""

    def __init__(self, own: str) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        import importlib

        # The import returns the entry that `sys.modules` has afterwards.
        sys.modules[module.__name__] = importlib.import_module(self._own)


def install() -> None:
    """Puts the finder in front of all others."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())

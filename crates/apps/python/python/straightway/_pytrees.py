"""Registers ``Weights`` as a pytree node with PyTorch and JAX, which treat an unregistered class as a leaf.

The registration happens when weights are made, with those of the two libraries that are imported by then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

_REGISTERED: set[str] = set()


def register(kind: type) -> None:
    """Registers the class once with each library that is imported."""
    if "torch" not in _REGISTERED and "torch.utils._pytree" in sys.modules:
        _REGISTERED.add("torch")
        _register_torch(kind)
    if "jax" not in _REGISTERED and "jax.tree_util" in sys.modules:
        _REGISTERED.add("jax")
        _register_jax(kind)


def _register_torch(kind: Any) -> None:
    pytree = sys.modules["torch.utils._pytree"]
    pytree.register_pytree_node(
        kind,
        lambda weights: (list(weights.values()), list(weights)),
        lambda values, names: kind(zip(names, values)),
        serialized_type_name="straightway.Weights",
        to_dumpable_context=lambda names: names,
        from_dumpable_context=lambda names: names,
        flatten_with_keys_fn=lambda weights: (
            [(pytree.MappingKey(name), value) for name, value in weights.items()],
            list(weights),
        ),
    )


def _register_jax(kind: Any) -> None:
    tree_util = sys.modules["jax.tree_util"]

    def flatten(weights: dict[str, Any]) -> tuple[Iterable[Any], tuple[str, ...]]:
        # Sorted by name, as JAX flattens dictionaries.
        names = tuple(sorted(weights))
        return [(tree_util.DictKey(name), weights[name]) for name in names], names

    tree_util.register_pytree_with_keys(kind, flatten, lambda names, values: kind(zip(names, values)))

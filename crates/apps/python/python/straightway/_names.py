"""The names of tensors in a checkpoint.

A path is the sequence of keys from the root of a state to a tensor. A tensor has a *plain* name and an *exact* name:

- The plain name joins the keys with dots: ``model.layers.0.weight``. Several paths may have the same plain name:
  ``{"a.b": …}`` and ``{"a": {"b": …}}``, or ``{1: …}`` and ``{"1": …}``.
- The exact name is a one-to-one function of the path. It escapes what the plain name leaves ambiguous.

A checkpoint uses the plain name if no other path of the rank's state has it, and the exact name otherwise. So the order
of a dictionary has no influence, and tensors of modules keep the names that other programs expect. Two ranks that use
one plain name for different paths are refused: see ``_ranks.Share`` and the commit.

An exact name joins the tokens of the keys with dots. The token of

- an integer, as a key or as the index of a list, is its digits;
- a text is the text. ``%`` and ``.`` become ``%25`` and ``%2E``, a lone surrogate becomes ``%uD800``. The first
  character of a text that looks like an integer is escaped too (``%31``), and the empty text is ``%``;
- any other key is ``%(…)``, with its ``repr``, its encoding as plain data, or a digest of its pickle.

For keys that are texts without ``%`` and dots, and for indices of lists, both names are the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

#: Names with this beginning are those of the trees of ranks.
TREE_PREFIX = "straightway.tree."

#: A name that safetensors files do not allow.
_METADATA = "__metadata__"

_SPECIAL = re.compile("[%.\ud800-\udfff]")
_NEVER_PLAIN = re.compile("[%\ud800-\udfff]")
_INTEGER = re.compile("0|-?[1-9][0-9]*")


class Path(NamedTuple):
    """The path of a value, as the texts that names are made of."""

    #: The keys joined with dots. It is also the path in messages.
    plain: str
    #: The tokens of the keys, joined with dots.
    exact: str
    #: Whether the plain name may be used.
    may_be_plain: bool


ROOT = Path("", "", True)


def member(path: Path, key: Any) -> Path:
    """The path of a member of a list, by its index, or of a dictionary, by a key that is a text or an integer."""
    exact, may_be_plain = _text_token(key) if type(key) is str else (str(key), True)
    return _join(path, str(key), exact, may_be_plain)


def member_by_leaf(path: Path, key: Any, node: Sequence[Any]) -> Path:
    """The path of a member of a dictionary whose key has another type. ``node`` is the key in the tree."""
    if node[0] == "v":
        text = repr(key)
    elif node[0] == "e":
        text = json.dumps(_sorted_sets(json.loads(node[1])), separators=(",", ":"))
    else:
        text = f"{type(key).__name__}:{hashlib.blake2b(node[1].encode(), digest_size=16).hexdigest()}"
    return _join(path, str(key), f"%({_escaped(text)})", False)


def masked_member(path: Path, field: str) -> Path:
    """The path of the data or the mask of a masked array."""
    return _join(path, field, f"%({field})", True)


def assigned(paths: Sequence[Path]) -> list[str]:
    """The name of each path of a state. Raises for two paths that no checkpoint can tell apart."""
    holders: dict[str, Path] = {}
    shared: set[str] = set()
    for path in paths:
        if path.may_be_plain and holders.setdefault(path.plain, path) is not path:
            shared.add(path.plain)

    def is_plain(path: Path) -> bool:
        return path.may_be_plain and path.plain not in shared and not _is_reserved(path.plain)

    names = [(path.plain or "state") if is_plain(path) else exact_name(path) for path in paths]
    if len(set(names)) != len(names):
        first = next(path for path, name in zip(paths, names) if names.count(name) > 1)
        raise ValueError(
            f"{first.plain} is there twice: two keys on the way to it are equal when they are saved\n"
            "hint: use keys that are texts or integers"
        )
    return names


def exact_name(path: Path) -> str:
    """The exact name of a path."""
    exact = path.exact or "%()"
    return f"%{ord(exact[0]):02X}{exact[1:]}" if _is_reserved(exact) else exact


def _is_reserved(name: str) -> bool:
    return name == _METADATA or name.startswith(TREE_PREFIX)


def _join(path: Path, plain: str, exact: str, may_be_plain: bool) -> Path:
    if path is ROOT:
        return Path(plain, exact, may_be_plain)
    return Path(f"{path.plain}.{plain}", f"{path.exact}.{exact}", path.may_be_plain and may_be_plain)


def _text_token(key: str) -> tuple[str, bool]:
    """The token of a text, and whether a name with the text itself may be plain."""
    if not key:
        return "%", False
    if _INTEGER.fullmatch(key):
        return f"%{ord(key[0]):02X}{key[1:]}", True
    if not _SPECIAL.search(key):
        return key, True
    return _escaped(key), not _NEVER_PLAIN.search(key)


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: _ESCAPES.get(found[0]) or f"%u{ord(found[0]):04X}", text)


_ESCAPES = {"%": "%25", ".": "%2E"}


def _sorted_sets(encoded: Any) -> Any:
    """Plain data with the members of sets in a fixed order, which differs from process to process otherwise."""
    if not isinstance(encoded, list):
        return encoded
    tag, *members = [_sorted_sets(part) for part in encoded]
    return [tag, *(sorted(members, key=json.dumps) if tag in ("set", "frozenset") else members)]

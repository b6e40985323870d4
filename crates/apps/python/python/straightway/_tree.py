"""The tree of a state in a checkpoint: JSON whose leaves are plain data, pickles, and the names of tensors.

A node is a list. Its first member is its kind:

    ["d", [[key, node], …]]   a dictionary; ["o", …] an OrderedDict
    ["l", [node, …]]          a list; ["t", …] a tuple
    ["v", value]              None, a bool, a number or a string without surrogates, which JSON would change
    ["e", text]               a value of other types that are plain data; see ``_plain``
    ["p", text]               anything else, pickled
    ["x", name, library]      a tensor: ``pt`` or ``np``; with ``-complex`` behind it, the last dimension holds the
                              two halves of a complex number
    ["m", data, mask, more]   a masked array of NumPy: two nodes (the mask may be null), and a leaf with its fill value
                              and whether its mask is hard
"""

from __future__ import annotations

import inspect
import json
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from . import _memory, _names, _parts
from ._errors import DamagedError
from ._pickling import pickled, unpickled
from ._plain import NotPlain, encoded, has_surrogates
from ._straightway import plain_decoded

Node = list[Any]

_JSON = (type(None), bool, int, float, str)

#: The end of the library of a tensor whose complex numbers are stored as pairs.
_PAIRS = "-complex"

#: The maximum depth of a state. Python's recursion limit is a multiple of it.
_DEPTH_MAX = 200

#: The largest integer, in bits, that Python writes in decimal digits.
_INT_BITS_MAX = 8192


def is_stateful(value: Any) -> bool:
    """Whether a value has ``state_dict`` and ``load_state_dict``, as modules and optimizers have."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


class StateTree:
    """A state split into its tree and its tensors by name."""

    def __init__(self, state: Any) -> None:
        #: The tensors, each with its path and the nodes that refer to it.
        self._found: list[tuple[Any, _names.Path, list[Node]]] = []
        self._memories: dict[Any, list[Node]] = {}
        #: What is saved as a pickle, each with the first path that has it.
        self.pickled: dict[str, str] = {}
        self._depth = 0
        self.tree = self._node(state, _names.ROOT)
        names = _names.assigned([path for _, path, _ in self._found])
        self.tensors: dict[str, Any] = {}
        #: The exact names of tensors whose name is another one.
        self.exact: dict[str, str] = {}
        for name, (tensor, path, nodes) in zip(names, self._found):
            self.tensors[name] = tensor
            exact = _names.exact_name(path)
            if exact != name:
                self.exact[name] = exact
            for node in nodes:
                node[1] = name

    def _member(self, value: Any, path: _names.Path) -> Node:
        # The most frequent case first: a state has many tensors and few other values.
        if _memory.is_exact(value) and _parts.is_tensor(value):
            return self._tensor(value, path)
        return self._node(value, path)

    def _node(self, value: Any, path: _names.Path) -> Node:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise ValueError(f"{path.plain[:200]}… is deeper than {_DEPTH_MAX}, or contains itself")
        node = self._inner(value, path)
        self._depth -= 1
        return node

    def _inner(self, value: Any, path: _names.Path) -> Node:
        if is_stateful(value):
            value = value.state_dict()
        if _is_json(value):
            return ["v", value]
        if isinstance(value, dict):
            pairs = [self._pair(k, v, path) for k, v in value.items()]
            return ["o" if isinstance(value, OrderedDict) else "d", pairs]
        if type(value) in (list, tuple):
            nodes = [self._member(v, _names.member(path, i)) for i, v in enumerate(value)]
            return ["l" if type(value) is list else "t", nodes]
        if _parts.is_tensor(value):
            return self._tensor(value, path)
        if _memory.is_masked(value):
            return self._masked(value, path)
        return self._leaf(value, path)

    def _pair(self, key: Any, value: Any, path: _names.Path) -> list[Node]:
        """An entry of a dictionary."""
        is_json = _is_json(key)
        node: Node = ["v", key] if is_json else self._leaf(key, path, "a key of ")
        if type(key) is str or (type(key) is int and is_json):
            return [node, self._member(value, _names.member(path, key))]
        return [node, self._member(value, _names.member_by_leaf(path, key, node))]

    def _tensor(self, value: Any, path: _names.Path) -> Node:
        """The node of a tensor. Its name is assigned when all paths are known.

        Tensors with identical memory, such as tied weights, share one name.
        """
        kind = _memory.library(value) + (_PAIRS if _parts.is_complex(value) else "")
        node: Node = ["x", "", kind]
        memory = _identity(value)
        nodes = None if memory is None else self._memories.get(memory)
        if nodes is not None:
            nodes.append(node)
            return node
        self._found.append((value, path, [node]))
        if memory is not None:
            self._memories[memory] = self._found[-1][2]
        return node

    def _leaf(self, value: Any, path: _names.Path, role: str = "") -> Node:
        where = role + (path.plain or "the state")
        try:
            node, reason = _leaf(value)
        except Exception as error:
            raise TypeError(f"{where} is a {type(value).__name__}, which cannot be saved: {error}") from error
        if reason is not None:
            self.pickled.setdefault(reason, where)
        return node

    def _masked(self, array: Any, path: _names.Path) -> Node:
        numpy = sys.modules["numpy"]
        if type(array) is not numpy.ma.MaskedArray:
            raise TypeError(
                f"{path.plain or 'the state'} is a {type(array).__name__}\nhint: save its view(numpy.ma.MaskedArray)"
            )
        mask = None if array.mask is numpy.ma.nomask else self._node(array.mask, _names.masked_member(path, "mask"))
        fill = None if array._fill_value is None else array.fill_value
        data = self._node(array.data, _names.masked_member(path, "data"))
        return ["m", data, mask, self._leaf((fill, array.hardmask), path)]


def _is_json(value: Any) -> bool:
    """Whether JSON returns a value unchanged. It would join two surrogates to one character."""
    kind = type(value)
    if kind is str:
        return value.isascii() or not has_surrogates(value)
    return kind in _JSON and (kind is not int or value.bit_length() <= _INT_BITS_MAX)


def leaf(value: Any) -> Node:
    """A leaf: plain data if the value has only such types, else a pickle."""
    return _leaf(value)[0]


def _leaf(value: Any) -> tuple[Node, str | None]:
    """A leaf, and if it is a pickle, what in it is not plain data."""
    try:
        return ["e", encoded(value)], None
    except NotPlain as error:
        return ["p", pickled(value)], str(error)


def leaf_value(node: Node, trust: bool) -> Any:
    """The value of a leaf."""
    return plain_decoded(node[1]) if node[0] == "e" else unpickled(node[1], trust)


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _identity(tensor: Any) -> tuple[Any, ...] | None:
    """A key that tensors with the same elements in memory share; ``None`` if there is no simple one."""
    if _memory.library(tensor) != "pt":
        return None
    if not _memory.is_exact(tensor) and (type(tensor).__name__ == "DTensor" or hasattr(tensor, "local_shards")):
        return None
    if tensor.is_nested or tensor.layout is not sys.modules["torch"].strided or not tensor.numel():
        return None
    # A conjugate view shares the memory of its base but has other values.
    kind = tensor.dtype, tensor.is_conj(), tensor.is_neg()
    try:
        return tensor.device, tensor.data_ptr(), kind, tuple(tensor.shape), tensor.stride()
    except RuntimeError:
        # It has no memory, and is refused when its memory is read.
        return None


def parsed(data: bytes) -> Node:
    """The tree of a checkpoint, parsed and with every node checked."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"the checkpoint's tree is not valid JSON: {error}") from error
    level, depth = [tree], 0
    while level:
        deeper: list[Any] = []
        for node in level:
            within = _members(node)
            if within is None or depth > _DEPTH_MAX:
                raise DamagedError(
                    f"the checkpoint's tree has an invalid node, or is deeper than {_DEPTH_MAX}: {str(node)[:80]}"
                )
            deeper += within
        level, depth = deeper, depth + 1
    return cast(Node, tree)


def _members(node: Any) -> list[Any] | None:
    """The nodes inside a node; ``None`` if it is not a valid node."""
    match node:
        case ["x", str(), str()]:
            return []
        case _ if _is_value(node):
            return []
        case ["d" | "o", list(pairs)] if all(_is_pair(pair) for pair in pairs):
            return [pair[1] for pair in pairs]
        case ["l" | "t", list(members)]:
            return members
        case ["m", ["x" | "e" | "p", *_] as data, None, ["e" | "p", str()]]:
            return [data]
        case ["m", ["x" | "e" | "p", *_] as data, ["x" | "e" | "p", *_] as mask, ["e" | "p", str()]]:
            return [data, mask]
    return None


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and _is_value(pair[0])


def _is_value(node: Any) -> bool:
    """Whether a node is a plain value or a leaf, as keys are."""
    match node:
        case ["v", str() | None | bool() | int() | float()] | ["e" | "p", str()]:
            return True
    return False


def merge(tree: Node, other: Node) -> None:
    """Adds the entries to a tree that only another rank's tree has."""
    if tree[0] not in ("d", "o") or other[0] not in ("d", "o"):
        return
    known = {_hashable(key): node for key, node in tree[1]}
    for key, node in other[1]:
        if _hashable(key) in known:
            merge(known[_hashable(key)], node)
        else:
            tree[1].append([key, node])


def _hashable(key: Node) -> tuple[str, str, Any]:
    # Python takes 1 and True for the same key, and so does this.
    return "key", key[0], key[1]


class Filled(NamedTuple):
    """A tensor to fill."""

    #: The name that it was saved under.
    name: str
    target: Any
    #: Whether the saved elements are the real and imaginary parts of complex numbers, in pairs.
    has_pairs: bool


class Plan:
    """The plan of a restore: which tensors are filled in place, and which are made.

    ``result`` returns the state after the bytes are read.
    """

    def __init__(
        self, tree: Node, into: Any, trust: bool, strict: bool = True, has_target: bool = True
    ) -> None:
        self._trust = trust
        self._strict = strict
        #: The paths of the targets that the checkpoint does not have, if it is not strict.
        self.missing: list[str] = []
        #: Tensors to fill.
        self.filled: list[Filled] = []
        #: Tensors to make, by name, with their library.
        self.made: dict[str, str] = {}
        #: The tensors that were made, by name.
        self.fresh: dict[str, Any] = {}
        self.result = self._follow(tree, into, "", is_fixed=True) if has_target else self._make(tree, "")

    def _follow(self, node: Node, target: Any, path: str, is_fixed: bool = False) -> Callable[[], Any]:
        """Restores into an existing value. A fixed one has no container in which it could be replaced."""
        if is_stateful(target):
            return self._load(node, target, path)
        kind = node[0]
        if kind in ("d", "o") and isinstance(target, dict):
            return self._follow_dict(node, target, path) if target else self._fill(node, target, path)
        if kind == "l" and isinstance(target, list) and (len(target) == len(node[1]) or not _is_filled(target)):
            return self._follow_list(node, target, path)
        if kind == "t" and isinstance(target, tuple) and len(target) == len(node[1]):
            makers = [self._follow(n, t, _join(path, i), is_fixed) for i, (n, t) in enumerate(zip(node[1], target))]
            return lambda: tuple(make() for make in makers)
        if kind == "x" and _parts.is_tensor(target):
            self.filled.append(_filled(node, target))
            return lambda: target
        if kind == "m" and node[1][0] == "x" and _memory.is_masked(target) and _is_filled(target):
            self.filled.append(_filled(node[1], target.data))
            mask = self._mask(node, path)
            return lambda: mask(target)
        where = path or "the state"
        if _parts.is_tensor(target):
            raise ValueError(f"{where} is a tensor, but {_saved_kind(node)} was saved there")
        if _is_filled(target):
            raise ValueError(f"{where} is {_kind(target)}, and {_saved_kind(node)} was saved there")
        if is_fixed:
            raise ValueError(
                f"{where} is {_kind(target)}, and nothing can be restored into that\n"
                "hint: put it into a dictionary, or use the result of load()"
            )
        return self._make(node, path)

    def _load(self, node: Node, target: Any, path: str) -> Callable[[], Any]:
        """Restores into an object with ``load_state_dict``, which gets all of the saved state."""
        state, options = target.state_dict(), {}
        if not self._strict and _takes_strict(target) and node[0] in ("d", "o") and isinstance(state, dict):
            # A module: it gets the entries that it has.
            saved = self._entries(node[1], path)
            known = dict(saved)
            self.missing += [_join(path, key) for key in state if key not in known]
            node = [node[0], [pair for pair, (key, _) in zip(node[1], saved) if key in state]]
            options = {"strict": False}
        make = self._fill(node, state, path)

        def load() -> Any:
            target.load_state_dict(make(), **options)
            return target

        return load

    def _fill(self, node: Node, target: Any, path: str) -> Callable[[], Any]:
        """Restores all saved entries: into existing tensors where they fit, else into new memory."""
        if node[0] == "x" and _parts.is_tensor(target) or node[0] == "m" and _memory.is_masked(target):
            return self._follow(node, target, path)
        if node[0] in ("d", "o") and isinstance(target, dict):
            entries = self._entries(node[1], path)
            makers = [(key, self._fill(n, target.get(key), _join(path, key))) for key, n in entries]

            def fill() -> Any:
                values = {key: make() for key, make in makers}
                target.clear()
                target.update(values)
                return target

            return fill
        if node[0] in ("l", "t") and isinstance(target, (list, tuple)) and len(target) == len(node[1]):
            members = [self._fill(n, t, _join(path, i)) for i, (n, t) in enumerate(zip(node[1], target))]
            kind: type = list if node[0] == "l" else tuple
            return lambda: kind(make() for make in members)
        return self._make(node, path)

    def _follow_dict(self, node: Node, target: dict[Any, Any], path: str) -> Callable[[], Any]:
        """Restores the keys that the target has. Entries that only the checkpoint has are not read."""
        saved = dict(self._entries(node[1], path))
        absent = [key for key in target if key not in saved]
        if absent and self._strict:
            shown = ", ".join(repr(_join(path, key)) for key in absent[:8])
            raise KeyError(f"the checkpoint has no {shown}" + (" and more" if len(absent) > 8 else ""))
        makers: list[tuple[Any, Callable[[], Any]]] = []
        for key, value in target.items():
            if key in saved:
                makers.append((key, self._follow(saved[key], value, _join(path, key))))
            else:
                self.missing.append(_join(path, key))

        def assign() -> Any:
            for key, make in makers:
                target[key] = make()
            return target

        return assign

    def _follow_list(self, node: Node, target: list[Any], path: str) -> Callable[[], Any]:
        if len(target) == len(node[1]):
            makers = [self._follow(n, t, _join(path, i)) for i, (n, t) in enumerate(zip(node[1], target))]
        else:
            makers = [self._make(n, _join(path, i)) for i, n in enumerate(node[1])]

        def assign() -> Any:
            target[:] = [make() for make in makers]
            return target

        return assign

    def _make(self, node: Node, path: str) -> Callable[[], Any]:
        """Makes a new value from a node."""
        kind, value = node[0], node[1]
        if kind == "v":
            return lambda: value
        if kind in ("e", "p"):
            # Decoded now, so that an error is raised before any tensor is written to.
            made = self._value(node, path)
            return lambda: made
        if kind in ("d", "o"):
            pairs = [(key, self._make(n, _join(path, key))) for key, n in self._entries(value, path)]
            maker: Callable[[Any], Any] = OrderedDict if kind == "o" else dict
            return lambda: maker((key, make()) for key, make in pairs)
        if kind in ("l", "t"):
            members = [self._make(n, _join(path, i)) for i, n in enumerate(value)]
            sequence: type = list if kind == "l" else tuple
            return lambda: sequence(make() for make in members)
        if kind == "m":
            return self._make_masked(node, path)
        library, _, is_complex = node[2].partition("-")
        self.made[value] = library
        return lambda: _complex(self.fresh[value]) if is_complex else self.fresh[value]

    def _make_masked(self, node: Node, path: str) -> Callable[[], Any]:
        import numpy

        data, mask = self._make(node[1], path), self._mask(node, path)
        return lambda: mask(numpy.ma.MaskedArray(data()))

    def _mask(self, node: Node, path: str) -> Callable[[Any], Any]:
        """The function that sets the saved mask and fill value of a masked array."""
        import numpy

        make = (lambda: numpy.ma.nomask) if node[2] is None else self._make(node[2], path)
        more = self._make(node[3], path)()
        if not isinstance(more, tuple) or len(more) != 2:
            raise DamagedError("the checkpoint's tree has an invalid masked array")
        fill, is_hard = more

        def mask(array: Any) -> Any:
            # A hard mask cannot be replaced.
            array.soften_mask()
            array.mask = make()
            array.fill_value = fill
            if is_hard:
                array.harden_mask()
            return array

        return mask

    def _entries(self, pairs: list[Any], path: str) -> list[tuple[Any, Node]]:
        """The keys and nodes of a dictionary."""
        return [(k[1] if k[0] == "v" else self._value(k, path), node) for k, node in pairs]

    def _value(self, node: Node, path: str) -> Any:
        """The value of a leaf. An error names its path."""
        try:
            return leaf_value(node, self._trust)
        except ValueError as error:
            kind = DamagedError if isinstance(error, DamagedError) else ValueError
            raise kind(f"{path or 'the state'}: {error}") from error


def _filled(node: Node, target: Any) -> Filled:
    """A tensor to fill from a node."""
    return Filled(node[1], target, node[2].endswith(_PAIRS))


def _takes_strict(target: Any) -> bool:
    """Whether ``load_state_dict`` has the option ``strict``, as that of a module has."""
    try:
        return "strict" in inspect.signature(target.load_state_dict).parameters
    except (TypeError, ValueError):
        return False


def _is_filled(target: Any) -> bool:
    """Whether a target contains tensors or stateful objects, which a restore fills. Other values are replaced."""
    if isinstance(target, dict):
        return any(map(_is_filled, target.values()))
    if type(target) in (list, tuple):
        return any(map(_is_filled, target))
    return is_stateful(target) or _parts.is_tensor(target.data if _memory.is_masked(target) else target)


def _kind(target: Any) -> str:
    """The kind of a target, for messages."""
    if type(target) in (list, tuple):
        return f"a {type(target).__name__} of {len(target)}"
    if _memory.is_masked(target):
        return "a masked array"
    return "a dictionary" if isinstance(target, dict) else f"a value of type {type(target).__name__}"


def _saved_kind(node: Node) -> str:
    """The kind of a saved node, for messages."""
    if node[0] in ("l", "t"):
        return f"a {'list' if node[0] == 'l' else 'tuple'} of {len(node[1])}"
    return {"d": "a dictionary", "o": "a dictionary", "x": "a tensor", "m": "a masked array"}.get(node[0], "a value")


def _complex(tensor: Any) -> Any:
    """The complex tensor of one whose last dimension holds real and imaginary halves."""
    if _memory.library(tensor) == "pt":
        import torch

        return torch.view_as_complex(tensor)
    if tensor.dtype == "float16":
        # NumPy has no complex32, which PyTorch saved.
        tensor = tensor.astype("float32")
    return tensor.view("complex64" if tensor.dtype == "float32" else "complex128").reshape(tensor.shape[:-1])

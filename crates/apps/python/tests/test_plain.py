"""Values that are not tensors: plain data is restored unchanged, and no code of an untrusted checkpoint is run."""

import base64
import collections
import datetime
import decimal
import fractions
import json
import math
import os
import pathlib
import pickle
import subprocess
import sys
import textwrap
import uuid

import numpy
import pytest
import straightway
import straightway.numpy
from straightway import _plain
from straightway._straightway import plain_decoded, plain_unpickled

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.distributed.checkpoint as dcp
import straightway.torch
from torch.distributed.checkpoint.api import CheckpointException

ZONE = datetime.timezone(datetime.timedelta(hours=-3, minutes=30), "here")
RECORD = numpy.dtype({"names": ["a", "b"], "formats": ["<i2", (">f4", (2, 3))], "offsets": [1, 8], "itemsize": 40})

VALUES = [
    None, True, False, 0, -1, 255, (1 << 63) - 1, 1 << 63, -(1 << 63), -(1 << 63) - 1, 1 << 80, -(1 << 100_000),
    0.1, -0.0, 1e300, 5e-324, math.inf, -math.inf, complex(1, -0.0), complex(math.inf, 2),
    "", "text", "é\u202e\x00", "\ud800 by itself", "\ud83d\ude00", "\U0001f600", b"", b"\x00\xff", bytearray(b"ab"), bytearray(),
    [], [1, [2, [3]]], (), (1,), (1, 2, 3, 4), set(), {1, "a", (2, 3)}, frozenset(), frozenset({1, None}),
    {}, {1: 2, "a": {None: True}, (1, 2): []}, collections.OrderedDict(b=1, a=2), collections.Counter("abca"),
    collections.defaultdict(list, {1: [2]}), collections.defaultdict(None, {1: 2}), collections.deque([1, 2, 3], 2), collections.deque(),
    slice(1, None, -1), range(3, 10**30, 7), int, dict, numpy.ndarray,
    datetime.date(2026, 1, 2), datetime.time(23, 59, 58, 999_999, fold=1), datetime.time(1, tzinfo=datetime.timezone.utc),
    datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, ZONE, fold=1),
    datetime.timedelta(-999_999_999, 3, 4), datetime.timezone.utc, ZONE,
    decimal.Decimal("1.50"), decimal.Decimal("-Infinity"), decimal.Decimal("1E+999999"), fractions.Fraction(-1, 3), fractions.Fraction(10**40, 3),
    uuid.UUID(int=5), uuid.UUID(int=(1 << 128) - 1), uuid.UUID(int=1 << 63), pathlib.Path("/a/b c"), pathlib.Path(), pathlib.PurePosixPath("x/../y"),
    torch.Size([]), torch.Size([2, 3]), torch.float32, torch.bfloat16, torch.uint8, torch.float8_e4m3fn, torch.bool, torch.strided, torch.sparse_coo,
    torch.channels_last, torch.contiguous_format, torch.device("cpu"), torch.device("cuda", 3), torch.device("meta"),
    numpy.dtype("f4"), numpy.dtype(">i8"), numpy.dtype("U7"), numpy.dtype("S0"), numpy.dtype("M8[25us]"), numpy.dtype("m8"), RECORD,
    numpy.dtype("?"), numpy.dtype("V5"), numpy.dtype("clongdouble"),
    numpy.float32(1.25), numpy.int64(-5), numpy.bool_(True), numpy.datetime64("2026-01-02T03"), numpy.timedelta64(5, "ns"), numpy.str_("héllo"),
    numpy.bytes_(b"by"), numpy.longdouble("1.1"), numpy.void(b"abc"), numpy.complex128(1 + 2j), numpy.zeros((), RECORD)[()],
    numpy.array(["2026-01-02", "NaT"], "M8[D]"), numpy.array(["a", "bcd"]), numpy.array([b"x", b"yz"]), numpy.arange(6, dtype="longdouble").reshape(2, 3),
    numpy.zeros(3, RECORD), numpy.asfortranarray(numpy.array([["a", "b"], ["c", "d"]])), numpy.zeros((0, 3), "M8[s]"),
]


def same(a, b):
    assert type(a) is type(b), (a, b)
    if isinstance(a, numpy.ndarray):
        assert a.dtype == b.dtype and a.shape == b.shape
        numpy.testing.assert_array_equal(a, b)
    elif isinstance(a, numpy.generic):
        assert a.dtype == b.dtype and (a == b or a.tobytes() == b.tobytes())
    elif isinstance(a, (list, tuple, collections.deque)):
        assert len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
        assert getattr(a, "maxlen", None) == getattr(b, "maxlen", None)
    elif isinstance(a, dict):
        assert list(a) == list(b) and all(same(a[key], b[key]) for key in a)
        assert getattr(a, "default_factory", None) is getattr(b, "default_factory", None)
    elif isinstance(a, (float, complex, datetime.datetime, datetime.time)):
        assert repr(a) == repr(b) and getattr(a, "fold", 0) == getattr(b, "fold", 0)
    else:
        assert a == b
    return True


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_plain_values_survive_the_encoding_and_pickles(value):
    same(plain_decoded(_plain.encoded(value)), value)
    same(plain_decoded(_plain.encoded([value, (value,)])), [value, (value,)])
    # PyTorch saves with protocol 2, which cannot represent `fold` and memory formats.
    for protocol in (4,) if isinstance(value, torch.memory_format) or getattr(value, "fold", 0) else (4, 2):
        same(plain_unpickled(pickle.dumps(value, protocol)), value)
        same(plain_unpickled(pickle.dumps([value, (value,)], protocol)), [value, (value,)])


SURROGATES = ["\ud83d\ude00", "\U0001f600", "\ud800", "\ude00\ud83d", "\\ud83d"]


def test_texts_with_surrogates_survive_as_values_and_keys(tmp_path):
    state = {"list": SURROGATES, "tensors": {text: numpy.full(2, n) for n, text in enumerate(SURROGATES)}, "set": set(SURROGATES)}
    state |= {text: text for text in SURROGATES}
    with straightway.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state, async_=False)
        same(checkpointer.load(), state)
        into = {"tensors": {text: numpy.zeros(2, int) for text in SURROGATES}, SURROGATES[0]: None}
        checkpointer.restore(into=into)
        same(into["tensors"], state["tensors"])
        assert into[SURROGATES[0]] == SURROGATES[0] and len(into[SURROGATES[0]]) == 2


def test_names_with_surrogates_are_refused_by_name_in_files(tmp_path):
    pair = "a\ud83d\ude00"
    spec = straightway.TensorSpec(dtype="uint8", shape=[0], data_ptr=0, data_len=0)
    for call in (
        lambda: straightway.save_file({pair: numpy.ones(2)}, tmp_path / "a"),
        lambda: straightway.save_file({"a": numpy.ones(2)}, tmp_path / "a", {"k": pair}),
        lambda: straightway.numpy.save({pair: numpy.ones(2)}),
        lambda: straightway.serialize({pair: spec}),
        lambda: straightway.serialize_file({"a": spec}, tmp_path / "a", {pair: "v"}),
        lambda: dcp.save({pair: torch.ones(2)}, storage_writer=straightway.torch.StorageWriter(tmp_path / "c"), no_dist=True),
    ):
        with pytest.raises((ValueError, CheckpointException), match=r"(name .*\\ud83d|metadata).* has half of a surrogate pair at index [01]"):
            call()
    assert not (tmp_path / "a").exists()


@pytest.mark.filterwarnings("ignore:.*trust=True")
def test_titles_of_numpy_dtypes_survive_or_are_refused_by_path(tmp_path):
    dtype = numpy.dtype({"names": ["a", "b"], "formats": ["<i2", [(("T", "x"), "?"), ("y", "u1")]], "titles": ["first", None], "itemsize": 8})
    assert dtype.fields["first"][0] == "i2"
    array = numpy.array([(1, (True, 2)), (3, (False, 4))], dtype)
    state = {"dtype": dtype, "array": array, "scalar": array[1], "masked": numpy.ma.array(array, mask=[(1, (0, 1)), (0, (1, 0))])}
    with straightway.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state, async_=False)
        found = checkpointer.load()
    for value in (found["dtype"], found["array"].dtype, found["scalar"].dtype, found["masked"].dtype, plain_unpickled(pickle.dumps(dtype))):
        assert value.fields == dtype.fields and value.itemsize == 8, value
    assert found["array"]["first"].tolist() == [1, 3] and found["array"]["b"]["T"].tolist() == [True, False]
    # Titles of other types, surrogates in names, and records with attributes need trust.
    others = {
        "title": numpy.dtype([(((1, 2), "a"), "i4")]),
        "pair": numpy.dtype([("\ud83d\ude00", "i4")]),
        "record": numpy.zeros(1, "i4,i4").view(numpy.recarray)[0],
    }
    for name, value in others.items():
        with straightway.Checkpointer(tmp_path / name) as checkpointer:
            checkpointer.save(1, {"at": [value]}, async_=False)
            with pytest.raises(ValueError, match="^at.0: "):
                checkpointer.load()
        back = straightway.Checkpointer(tmp_path / name, trust=True).load()["at"][0]
        assert type(back) is type(value) and (back.fields == value.fields if name != "record" else back.f0 == 0)


def test_nans_and_scalars_of_ml_dtypes_survive_the_encoding():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert math.isnan(plain_decoded(_plain.encoded(math.nan))) and math.isnan(plain_unpickled(pickle.dumps(math.nan)))
    for name in ("bfloat16", "float8_e5m2", "float4_e2m1fn", "int4"):
        value = numpy.array([1, 0, 1], getattr(ml_dtypes, name))
        same(plain_decoded(_plain.encoded(value)), value)
        same(plain_decoded(_plain.encoded(value[0])), value[0])


def test_a_state_of_plain_values_needs_no_trust_and_has_no_pickle(tmp_path):
    state = {"values": [v for v in VALUES if type(v) not in (collections.Counter, collections.defaultdict)], (1, datetime.date(2026, 1, 2)): 5}
    with straightway.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state, async_=False)
        same(checkpointer.load(), state)
        opened = straightway._straightway.Store(tmp_path).open(1)
        tree = opened.contents(["straightway.tree.00000"])["straightway.tree.00000"]
    assert b'["p",' not in tree and b'["e",' in tree


class Own:
    """A user-defined class."""


@pytest.mark.parametrize("value", [Own(), Own, lambda: 0, numpy.array([Own()], object), {Own()}, numpy.dtype("O"), os.system, numpy.array(["a"], object)], ids=[str(number) for number in range(8)])
def test_other_values_are_not_plain(value):
    with pytest.raises(_plain.NotPlain):
        _plain.encoded(value)


def test_a_recursive_value_is_not_plain():
    value = collections.deque()
    value.append(value)
    with pytest.raises(_plain.NotPlain):
        _plain.encoded(value)
    with pytest.raises(ValueError, match="contains itself"):
        plain_unpickled(pickle.dumps(value))


# Hostile checkpoints.


def written(folder, node):
    """A handmade checkpoint whose state is ``{"x": …}``."""
    from straightway import _parts
    from straightway._straightway import Saver

    tree = node if isinstance(node, bytes) else json.dumps(["d", [[["v", "x"], node]]]).encode()
    saver = Saver(
        folder, rank=0, world=1, run="r", incremental=False, compression=None, parity=0, memory_bytes_max=None, timeout_s=9.0, busy="wait",
        rate_bytes_per_s=None,
    )
    saver.save(1, [_parts.opaque("straightway.tree.00000", tree)], "null")
    saver.wait()
    saver.close()
    return straightway.Checkpointer(folder)


def op(*parts):
    return b"".join(p if isinstance(p, bytes) else pickle.dumps(p, 2)[2:-1] for p in parts)


def name(module, attribute):
    return f"c{module}\n{attribute}\n".encode()


DTYPE = (
    name("numpy", "dtype") + op("V8") + b"\x89\x88\x87R(" + op(3) + op("|") + b"N(" + op("f") + b"t}" + op("f") + b"("
    + name("numpy", "dtype") + op("O8") + b"\x89\x88\x87R" + op(0) + b"ts" + op(8) + op(1) + op(0) + b"tb"
)

HOSTILE = {
    # BUILD on a class sets attributes of a class of the process.
    "patch": name("pathlib", "Path") + b"N}" + op("exists") + name("builtins", "bool") + b"s\x86b.",
    "patch-instance": name("pathlib", "Path") + op("a") + b"\x85R}" + op("exists") + name("builtins", "bool") + b"sb.",
    # A dtype with an object field whose flags say that there is none: raw bytes become pointers.
    "forged-dtype": name("builtins", "tuple") + name("numpy._core.multiarray", "scalar") + DTYPE + b"C\x08" + b"A" * 8 + b"\x86R\x85R.",
    "forged-scalar": name("numpy._core.multiarray", "scalar") + DTYPE + b"C\x08" + b"A" * 8 + b"\x86R.",
    "object-array": name("numpy", "dtype") + op("O") + b"\x89\x88\x87R.",
    # Eight thousand million numbers of twenty bytes.
    "bomb": name("builtins", "list") + name("builtins", "range") + op(1 << 33) + b"\x85R\x85R.",
    "zeros": name("builtins", "bytes") + op(1 << 40) + b"\x85R.",
    "bytearray": name("builtins", "bytearray") + op(1 << 40) + b"\x85R.",
    "fraction": name("fractions", "Fraction") + op("1e9999999999") + b"\x85R.",
    "laughs": b"]q\x000" + b"".join(b"](h" + bytes([i]) + b"h" + bytes([i]) + b"eq" + bytes([i + 1]) + b"0" for i in range(38)) + b"h\x26.",
    "system": name("os", "system") + op("touch PWNED") + b"\x85R.",
    "posix": name("posix", "system") + op("touch PWNED") + b"\x85R.",
    "eval": name("builtins", "eval") + op("open('PWNED','w')") + b"\x85R.",
    "getattr": name("builtins", "getattr") + name("builtins", "dict") + op("mro") + b"\x86R.",
    "nested-name": name("torch", "serialization.os.system") + b".",
    "shape": name("numpy._core.multiarray", "_reconstruct") + name("numpy", "ndarray") + op((0,)) + op(b"b") + b"\x87R(" + op(1) + op((1 << 60,))
    + name("numpy", "dtype") + op("V0") + b"\x89\x88\x87R" + b"\x89" + b"C\x00" + b"tb.",
    "length": b"\x8e" + b"\xff" * 8 + b".",
    "loop": b"]q\x00h\x00a.",
    "deep": b"(" * 1000 + b"N" + b"t" * 1000 + b".",
    "empty": b".",
    "nothing": b"",
    "datetime": name("datetime", "datetime") + b"C\x0a" + b"\xff" * 10 + b"\x85R.",
    "key": b"}]Ns.",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_pickle_is_refused_and_does_nothing(tmp_path, kind):
    code = """
        import pathlib, resource, sys
        import straightway, numpy
        before = vars(pathlib.Path).copy()
        # Counts 8 MiB of stack for each thread. 2 GiB more are enough for a valid checkpoint.
        used = int(open("/proc/self/statm").read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30),) * 2)
        try:
            straightway.Checkpointer(sys.argv[1]).load(1)
        except ValueError as error:
            assert str(error)
        else:
            sys.exit("it was not refused")
        assert vars(pathlib.Path) == before
    """
    data = base64.b64encode(b"\x80\x03" + HOSTILE[kind]).decode()
    folder = tmp_path / "c"
    written(folder, ["p", data])
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(folder)], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "PWNED").exists()


@pytest.mark.parametrize(
    "node",
    [
        ["e", '["name","os","system"]'], ["e", '["deque",["list"],-1]'], ["e", "["], ["e", '["datetime",1,13,1,0,0,0,0,null,0]'], ["e", 5], ["e"],
        ["e", '["set",["list"]]'], ["e", '["array","<f8",[1099511627776],""]'], ["q", 1], ["v"], ["v", []], ["d", [1]], ["d", [[["v", []], ["v", 1]]]],
        ["d", [[["d", []], ["v", 1]]]], ["l", 5], ["x", "a"], ["x", 5, "pt"], ["x", "nothing", "pt"], ["m", ["v", 1], None, ["e", "[\"tuple\",null,false]"]],
        5, [], [[]], None, "text", ["p", "?"], ["p", None],
        b"[" * 100_000, b'["l",[' * 5000 + b"]]" * 5000, b"", b"\xff", b"{}",
    ],
    ids=lambda node: repr(node)[:40],
)
def test_a_hostile_tree_is_refused_with_a_message(tmp_path, node):
    checkpointer = written(tmp_path / "c", node)
    with pytest.raises((ValueError, KeyError), match="."):
        checkpointer.load(1)
    with pytest.raises((ValueError, KeyError), match="."):
        checkpointer.restore(1, into={})


def test_pickles_of_trusted_writers_are_run(tmp_path):
    data = base64.b64encode(pickle.dumps(Own)).decode()
    written(tmp_path, ["p", data])
    with pytest.raises(ValueError, match="Own.*\nhint: trust=True"):
        straightway.Checkpointer(tmp_path).load()
    assert straightway.Checkpointer(tmp_path, trust=True).load()["x"] is Own

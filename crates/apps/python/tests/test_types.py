"""The types of arguments: a type checker finds wrong words, and the words are those that are accepted."""

import re
import subprocess
import sys
import textwrap
import typing

import numpy
import pytest
import straightway
from straightway import _arguments, _framework

#: Lines with a wrong word, each with the name of its argument.
WRONG = {
    "route": 'straightway.load_model("m", route="buffer")',
    "framework": 'straightway.load_file("m", framework="keras")',
    "priority": 'straightway.iterate("m", priority="later")',
    "memory": 'straightway.load_file("m", memory="pool")',
    "backend": 'straightway.safe_open("m", "pt", backend="read")',
    "copy": 'straightway.copy("a", "b", route="cached")',
    "compression": 'straightway.Checkpointer("c", compression="gzip")',
    "busy": 'straightway.SaveOptions(busy="never")',
    "step": 'checkpointer.load("last")',
    "into": 'checkpointer.restore("newest", into={})',
    "options": 'straightway.save_file({}, "m", storage_options={"region": 5})',
    "writer": 'straightway.numpy.load_file("m", backend="file")',
}

#: Lines without a mistake.
RIGHT = """
    checkpointer = straightway.Checkpointer("c", compression="zstd", options=straightway.SaveOptions(busy="refuse"), storage_options={"anonymous": True})
    future: straightway.SaveFuture = checkpointer.save(1, {})
    saved: straightway.Saved = checkpointer.save(2, {}, async_=False)
    info: straightway.TensorInfo = checkpointer.tensors("latest")["w"]
    missing: list[str] = checkpointer.restore(3, into={}, strict=False).missing
    weights = straightway.load_model("m", framework="torch", route="direct", priority="now", memory="driver")
    straightway.load_file("m", framework=None, route=None)
    straightway.save_file(weights, "s3://b/m", storage_options={"region": "eu-west-3"})
    for error in (straightway.ExistsError, straightway.BusyError, straightway.DamagedError, straightway.ChangedError):
        kind: type[ValueError] = error
"""


def test_mypy_finds_every_wrong_word(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    lines = ["import straightway, straightway.numpy", *textwrap.dedent(RIGHT).strip().splitlines()]
    first = len(lines) + 1
    (tmp_path / "user.py").write_text("\n".join([*lines, *WRONG.values()]) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache"), "user.py"]
    # In another folder, so that the installed package is checked.
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    found = {int(line) for line in re.findall(r"^user\.py:(\d+): error:", done.stdout, re.M)}
    assert found == set(range(first, first + len(WRONG))), done.stdout + done.stderr


def test_the_words_are_those_that_are_accepted(tmp_path):
    words = {name: typing.get_args(getattr(_arguments, name)) for name in ("Route", "Priority", "Compression", "Busy", "Backend", "Owner")}
    straightway.save_file({"a": numpy.ones(3)}, tmp_path / "m")
    accepted = {
        "Route": lambda word: straightway.copy(tmp_path / "m", tmp_path / "copy", route=word),
        "Priority": lambda word: straightway.load_model(tmp_path / "m", framework="np", priority=word),
        "Compression": lambda word: straightway.Checkpointer(tmp_path / "c", compression=word),
        "Busy": lambda word: straightway.Checkpointer(tmp_path / "c", busy=word),
        "Backend": lambda word: straightway.safe_open(tmp_path / "m", "np", backend=word),
        "Owner": lambda word: straightway.load_model(tmp_path / "m", framework="np", memory=word),
    }
    for name, call in accepted.items():
        assert words[name], name
        for word in words[name]:
            try:
                call(word)
            except RuntimeError as error:
                # A file system without that route.
                assert name == "Route" and word == "direct", (name, word, error)
        with pytest.raises(ValueError, match="nonsense"):
            call("nonsense")
    assert set(typing.get_args(_arguments.FrameworkName)) == {word for known in _framework._NAMES.values() for word in known}
    assert typing.get_args(_arguments.Latest) == ("latest",)

"""The examples of raw bytes in docs/python.md, each run as it stands there."""

import asyncio
import pathlib
import re

import numpy
import pytest
import straightway

DOCS = pathlib.Path(__file__).parents[4] / "docs/python.md"
EXAMPLES = (
    dict(re.findall(r"^```python\n# raw: (\w+)\n(.*?)^```", DOCS.read_text(), flags=re.M | re.S)) if DOCS.exists() else {}
)


@pytest.fixture
def given(tmp_path):
    source = tmp_path / "source"
    numpy.random.default_rng(5).integers(0, 256, 6_000_000, numpy.uint8).tofile(source)
    names = {"source": str(source), "target": str(tmp_path / "target"), "folder": str(tmp_path)}
    return names | {"straightway": straightway, "numpy": numpy, "asyncio": asyncio}


def run(name, given):
    if not EXAMPLES:
        pytest.skip("docs/python.md is not here")
    exec(compile(EXAMPLES[name], f"the example {name}", "exec"), given)
    return given


def test_every_example_is_tested():
    assert not EXAMPLES or sorted(EXAMPLES) == ["asyncio", "convenience", "files", "fsspec"]


def test_files(given):
    after = run("files", given)
    content = pathlib.Path(given["source"]).read_bytes()
    written = pathlib.Path(given["target"]).read_bytes()
    assert written == content[4096:4_004_096] + content[:1000]
    assert after["receipt"].bytes == 100_000


def test_asyncio(given):
    arrays, moved = asyncio.run(run("asyncio", given)["load"]([given["source"]] * 2))
    assert moved == 12_000_000 and arrays[1].tobytes() == pathlib.Path(given["source"]).read_bytes()


def test_convenience(given):
    after = run("convenience", given)
    assert numpy.array_equal(after["again"], after["data"]) and after["trace"].receipt.bytes == 7_048_576


def test_fsspec(given):
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    run("fsspec", given)
    content = pathlib.Path(given["source"]).read_bytes()
    assert pathlib.Path(given["target"]).read_bytes() == content[:100] + content[-100:]

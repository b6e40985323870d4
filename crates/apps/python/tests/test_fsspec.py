"""The file system of fsspec: fsspec's own test classes, PyArrow's Parquet and Zarr 3 through it."""

import io
import os
import pathlib

import numpy as np
import pytest
import straightway

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
abstract = pytest.importorskip("fsspec.tests.abstract", reason="fsspec has no test classes")

from fsspec.implementations.local import make_path_posix  # noqa: E402
from straightway.fsspec import StraightwayFileSystem  # noqa: E402


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self):
        return StraightwayFileSystem(auto_mkdir=True)

    @pytest.fixture
    def fs_path(self, tmp_path):
        return str(tmp_path)

    @pytest.fixture
    def fs_sanitize_path(self):
        return make_path_posix


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


@pytest.fixture
def fs():
    return StraightwayFileSystem()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(np.random.default_rng(1).bytes(10_000_001))
    return str(path)


def test_urls_are_found_by_their_protocol(path):
    # The entry points of the installed package say the same.
    fsspec.register_implementation("straightway+file", StraightwayFileSystem, clobber=True)
    with fsspec.open(f"straightway+file://{path}") as file:
        assert file.read() == pathlib.Path(path).read_bytes()
    fs, name = fsspec.url_to_fs(f"straightway+file://{path}")
    assert isinstance(fs, StraightwayFileSystem) and name == path
    assert fs.unstrip_protocol(name) == f"straightway+file://{path}"
    assert fs._strip_protocol("straightway+s3://bucket/key/") == "s3://bucket/key"
    assert fs._parent("straightway+s3://bucket/folder/key") == "s3://bucket/folder"


def test_ranges_of_many_files_are_those_of_local_reads(fs, path, tmp_path):
    (tmp_path / "small").write_bytes(b"0123456789")
    small = str(tmp_path / "small")
    content = pathlib.Path(path).read_bytes()
    paths = [path, small, path, path, small, small, small]
    starts = [5, 0, 9_000_000, 0, -3, None, 4]
    ends = [4105, 4, 10_000_001, 0, None, -2, 100]
    found = fs.cat_ranges(paths, starts, ends)
    expected = [content[5:4105], b"0123", content[9_000_000:], b"", b"789", b"01234567", b"456789"]
    assert found == expected
    found = fs.cat_ranges([small, small + "x"], 0, 2)
    assert found[0] == b"01" and isinstance(found[1], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges([small + "x"], 0, 2, on_error="raise")
    with straightway.trace() as trace:
        fs.cat_ranges([path] * 50, list(range(0, 5_000_000, 100_000)), [n + 9000 for n in range(0, 5_000_000, 100_000)])
    assert len(trace.receipts) == 1 and trace.receipt.bytes == 50 * 9000


def test_files_are_read_from_a_position_on(fs, path):
    content = pathlib.Path(path).read_bytes()
    with fs.open(path) as file:
        assert file.read(10) == content[:10] and file.tell() == 10
        assert file.seek(-5, os.SEEK_END) == len(content) - 5 and file.read() == content[-5:]
        file.seek(100)
        assert file.read(9_000_000) == content[100:9_000_100]
        assert file.seek(1 << 40) == 1 << 40 and file.read() == b""
        file.seek(7)
        assert io.BufferedReader(file).read(3) == content[7:10]
    with pytest.raises(ValueError):
        file.read()


def test_a_file_that_is_written_appears_when_it_is_closed(fs, tmp_path):
    path = str(tmp_path / "new")
    content = np.random.default_rng(2).bytes(9_000_000)
    with fs.open(path, "wb") as file:
        for at in range(0, len(content), 1_234_567):
            file.write(content[at : at + 1_234_567])
        assert not os.path.exists(path) and file.tell() == len(content)
    assert pathlib.Path(path).read_bytes() == content
    with pytest.raises(KeyError), fs.open(path, "wb") as file:
        file.write(b"partial")
        raise KeyError
    assert pathlib.Path(path).read_bytes() == content
    with fs.open(path, "wb"):
        pass
    assert pathlib.Path(path).read_bytes() == b""


def test_parquet_is_read_and_written_through_it(fs, tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="PyArrow is not installed")
    import pyarrow.dataset
    import pyarrow.parquet

    table = pyarrow.table({"n": np.arange(300_000), "x": np.random.default_rng(3).random(300_000)})
    path = str(tmp_path / "rows.parquet")
    pyarrow.parquet.write_table(table, path, filesystem=fs, row_group_size=50_000)
    assert pyarrow.parquet.read_table(path).equals(table)
    assert pyarrow.parquet.read_table(path, filesystem=fs, columns=["x"]).equals(table.select(["x"]))
    with straightway.trace() as trace:
        found = pyarrow.dataset.dataset(str(tmp_path), filesystem=fs, format="parquet").to_table()
    assert found.equals(table) and trace.receipts is not None


def test_zarr_is_read_and_written_through_it(fs, tmp_path):
    zarr = pytest.importorskip("zarr", minversion="3", reason="Zarr 3 is not installed")
    values = np.random.default_rng(4).random((500, 300))
    store = zarr.storage.FsspecStore.from_url(f"straightway+file://{tmp_path}/z.zarr", storage_options={"auto_mkdir": True})
    array = zarr.create_array(store, shape=values.shape, chunks=(128, 100), dtype="f8")
    array[:] = values
    again = zarr.open_array(zarr.storage.FsspecStore.from_url(f"straightway+file://{tmp_path}/z.zarr", read_only=True))
    assert np.array_equal(again[:], values) and np.array_equal(again[17:400, ::7], values[17:400, ::7])
    assert np.array_equal(zarr.open_array(str(tmp_path / "z.zarr"))[:], values)

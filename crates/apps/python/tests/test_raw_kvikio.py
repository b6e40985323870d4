"""The cases of KvikIO's tests of ``CuFile`` and of its remote files that have a counterpart, through an adapter.

KvikIO's counters of threads, task sizes and bounce buffers have none: this package chooses them. Its tests run with CuPy
and NumPy; these with NumPy, and ``test_raw_random`` has memory of a GPU.
"""

import http.server
import os
import threading

import numpy as np
import pytest
import straightway


class CuFile:
    """``kvikio.CuFile`` on top of ``straightway.open``: methods return the number of bytes."""

    def __init__(self, path, flags="r"):
        self._path, self._flags = path, flags
        self._file = straightway.open(path, flags)

    def read(self, buf, size=None, file_offset=0):
        return self.pread(buf, size, file_offset).get()

    def write(self, buf, size=None, file_offset=0):
        return self.pwrite(buf, size, file_offset).get()

    def pread(self, buf, size=None, file_offset=0):
        return _Future(self._file.read_into(_part(buf, size), file_offset, wait=False))

    def pwrite(self, buf, size=None, file_offset=0):
        return _Future(self._file.write_from(_part(buf, size), file_offset, wait=False))

    def closed(self):
        return self._file.closed

    def close(self):
        self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.close()


class RemoteFile(CuFile):
    """``kvikio.RemoteFile``."""

    def nbytes(self):
        return self._file.size


class _Future:
    def __init__(self, transfer):
        self._transfer = transfer

    def get(self):
        return self._transfer.result(30).bytes

    def done(self):
        return self._transfer.done()


def _part(buf, size):
    return buf if size is None else memoryview(buf).cast("B")[:size]


@pytest.fixture
def filename(tmp_path):
    return tmp_path / "test-file"


@pytest.mark.parametrize("size", [1, 10, 100, 1000, 1024, 4096, 4096 * 10])
def test_write_and_read(filename, size):
    a = np.arange(size)
    with CuFile(filename, "w") as f:
        assert not f.closed()
        assert f.write(a) == a.nbytes
    assert f.closed()
    assert np.array_equal(np.fromfile(filename, a.dtype), a)
    b = np.empty_like(a)
    with CuFile(filename, "r") as f:
        assert f.read(b) == b.nbytes
    assert np.array_equal(a, b)


def test_a_handle_in_a_context_writes_and_reads_again(filename):
    a = np.arange(200)
    b = np.empty_like(a)
    with CuFile(filename, "w+") as f:
        assert f.write(a) == a.nbytes
        assert f.read(b) == b.nbytes
        assert np.array_equal(a, b)
    assert f.closed()


def test_no_file_is_an_error_with_its_name(filename):
    with pytest.raises(FileNotFoundError, match="test-file"):
        CuFile(filename, "r")


def test_the_wrong_mode_is_an_error(filename):
    filename.write_bytes(bytes(80))
    with CuFile(filename, "r") as f, pytest.raises(ValueError, match="open for reading"):
        f.write(np.arange(10))


def test_a_file_is_written_in_chunks(filename):
    a = np.arange(200)
    with CuFile(filename, "w") as f:
        for start in (0, 50, 99, 150):
            end = {0: 50, 50: 99, 99: 150, 150: 200}[start]
            assert f.write(a[start:end], file_offset=start * a.itemsize) == a[start:end].nbytes
    b = np.empty_like(a)
    with CuFile(filename, "r") as f:
        assert f.read(b) == b.nbytes
    assert np.array_equal(a, b)


@pytest.mark.parametrize("start, end", [(0, 10 * 4096), (1, int(1.3 * 4096)), (int(2.1 * 4096), int(5.6 * 4096))])
def test_slices_are_read_and_written(filename, start, end):
    a = np.arange(10 * 4096)
    b = a.copy()
    a[start:end] = 42
    with CuFile(filename, "w") as f:
        assert f.write(a[start:end]) == a[start:end].nbytes
    with CuFile(filename, "r") as f:
        assert f.read(b[start:end]) == b[start:end].nbytes
    assert np.array_equal(a, b)


def test_part_of_a_buffer_at_an_offset(filename):
    a = np.arange(1000, dtype="u1")
    with CuFile(filename, "w") as f:
        assert f.write(a, size=700) == 700
    b = np.zeros(1000, "u1")
    with CuFile(filename, "r") as f:
        assert f.read(b, size=100, file_offset=600) == 100
    assert np.array_equal(b[:100], a[600:700]) and not b[100:].any()


def test_futures_of_reads_and_writes(filename):
    a, chunk = np.arange(40_000), 10_000
    with CuFile(filename, "w") as f:
        futures = [f.pwrite(a[at : at + chunk], file_offset=at * 8) for at in range(0, len(a), chunk)]
        assert sum(future.get() for future in futures) == a.nbytes
        assert all(future.done() for future in futures)
    b = np.empty_like(a)
    with CuFile(filename, "r") as f:
        futures = [f.pread(b[at : at + chunk], file_offset=at * 8) for at in range(0, len(a), chunk)]
        assert sum(future.get() for future in futures) == a.nbytes
    assert np.array_equal(a, b)


class Server(http.server.ThreadingHTTPServer):
    """A web server with ranges. ``failures`` of its next requests are answered with 503."""

    def __init__(self, folder, has_ranges=True):
        self.folder, self.has_ranges, self.failures, self.requests = folder, has_ranges, 0, 0
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self, name):
        return f"http://127.0.0.1:{self.server_port}/{name}"

    def handle_error(self, request, client_address):
        pass


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.do_GET(is_head=True)

    def do_GET(self, is_head=False):
        self.server.requests += 1
        path = self.server.folder / self.path.lstrip("/")
        wanted = self.headers.get("Range")
        if wanted and self.server.failures:
            self.server.failures -= 1
            return self.answer(503, b"", {})
        if not path.exists():
            return self.answer(404, b"", {})
        content, headers = path.read_bytes(), {"ETag": f'"{path.stat().st_mtime_ns}"'}
        if self.headers.get("If-Match", headers["ETag"]) != headers["ETag"]:
            return self.answer(412, b"", headers)
        if self.server.has_ranges:
            headers["Accept-Ranges"] = "bytes"
        if wanted and self.server.has_ranges:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            last = min(int(last or len(content) - 1), len(content) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            return self.answer(206, content[int(first) : last + 1], headers, is_head)
        self.answer(200, content, headers, is_head)

    def answer(self, status, content, headers, is_head=False):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if not is_head:
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Server(tmp_path)
    yield server
    server.shutdown()
    server.server_close()


def test_remote_size(server, tmp_path):
    np.arange(200).tofile(tmp_path / "a")
    with RemoteFile(server.url("a")) as f:
        assert f.nbytes() == 1600


@pytest.mark.parametrize("size", [1, 10, 100, 1000, 1024, 4096, 4096 * 10, 1 << 20])
def test_remote_read(server, tmp_path, size):
    a = np.arange(size)
    a.tofile(tmp_path / "a")
    b = np.empty_like(a)
    with RemoteFile(server.url("a")) as f:
        assert f.read(b) == a.nbytes
    assert np.array_equal(a, b)


@pytest.mark.parametrize("start, end", [(0, 40_960), (1, 5000), (8191, 22_937)])
def test_remote_read_with_an_offset(server, tmp_path, start, end):
    a = np.arange(40_960)
    a.tofile(tmp_path / "a")
    b = np.zeros(end - start, a.dtype)
    with RemoteFile(server.url("a")) as f:
        assert f.read(b, file_offset=start * a.itemsize) == b.nbytes
    assert np.array_equal(a[start:end], b)


def test_a_remote_read_beyond_the_end_is_an_error(server, tmp_path):
    (tmp_path / "a").write_bytes(bytes(10))
    with RemoteFile(server.url("a")) as f:
        with pytest.raises(ValueError, match="has 10 bytes"):
            f.read(np.empty(20, "u1"))
        with pytest.raises(ValueError, match="has 10 bytes"):
            f.read(np.empty(20, "u1"), size=5, file_offset=100)


def test_a_missing_object_and_a_wrong_scheme_are_errors(server):
    with pytest.raises(FileNotFoundError):
        RemoteFile(server.url("absent"))
    with pytest.raises(ValueError, match="scheme"):
        RemoteFile("ftp://127.0.0.1/a")


def test_a_server_that_is_busy_is_asked_again(server, tmp_path):
    a = np.arange(50_000)
    a.tofile(tmp_path / "a")
    with RemoteFile(server.url("a")) as f:
        server.failures = 2
        b = np.empty_like(a)
        assert f.read(b) == a.nbytes
    assert np.array_equal(a, b) and server.failures == 0


def test_a_server_without_ranges_is_refused(tmp_path, server):
    server.has_ranges = False
    (tmp_path / "a").write_bytes(bytes(1000))
    with pytest.raises((ValueError, OSError, RuntimeError)):
        with RemoteFile(server.url("a")) as f:
            f.read(np.empty(10, "u1"), file_offset=10)


def test_a_remote_object_that_changes_is_an_error(server, tmp_path):
    (tmp_path / "a").write_bytes(bytes(5000))
    with RemoteFile(server.url("a")) as f:
        (tmp_path / "a").write_bytes(b"x" * 5000)
        os.utime(tmp_path / "a", (1, 1))
        with pytest.raises((ValueError, OSError)):
            f.read(np.empty(5000, "u1"))

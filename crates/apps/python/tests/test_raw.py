"""Raw bytes between files and arrays: ``straightway.open``, ``read``, ``write``, ``load_npy``, ``save_npy``."""

import array
import asyncio
import concurrent.futures
import gc
import os
import select
import sys
import threading

import numpy as np
import pytest
import straightway
from test_load import child

RNG = np.random.default_rng(40)


def content(size):
    return RNG.integers(0, 256, size, np.uint8)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "data.bin"
    content(5_000_003).tofile(path)
    return path


def test_bytes_are_read_into_all_kinds_of_host_memory(path):
    expected = path.read_bytes()
    targets = [np.empty(999, np.int32), bytearray(77), array.array("d", [0.0] * 11), memoryview(bytearray(5))]
    with straightway.open(path) as file:
        assert file.size == len(expected) and file.mode == "r" and not file.closed
        for target in targets:
            receipt = file.read_into(target, 1001)
            raw = bytes(memoryview(target).cast("B"))
            assert raw == expected[1001 : 1001 + len(raw)] and receipt.bytes == len(raw)
        whole = np.empty(len(expected), np.uint8)
        receipt = file.read_into(whole)
        assert whole.tobytes() == expected and sum(row["bytes"] for row in receipt.routes) == len(expected)
    assert file.closed
    with pytest.raises(ValueError, match="is closed"):
        file.read_into(whole)


def test_dtypes_without_a_buffer_format_are_bytes_too(tmp_path):
    import ml_dtypes

    for kind in ("datetime64[ns]", "float16", ml_dtypes.bfloat16, np.dtype([("a", "<i4"), ("b", "u1")])):
        values = np.frombuffer(content(30 * np.dtype(kind).itemsize).tobytes(), kind)
        straightway.write(tmp_path / "x", values)
        again = np.zeros_like(values)
        with straightway.open(tmp_path / "x") as file:
            file.read_into(again)
        assert again.tobytes() == values.tobytes()


def test_tensors_of_pytorch_are_read_and_written(path, tmp_path):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    expected = path.read_bytes()
    with straightway.open(path) as file:
        for kind in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex64):
            tensor = torch.zeros(100, 7, dtype=kind)
            file.read_into(tensor[::3], 13)
            size = 34 * 7 * tensor.element_size()
            found = tensor[::3].contiguous().view(torch.uint8).numpy().tobytes()
            assert found == expected[13 : 13 + size], kind
        with pytest.raises(ValueError, match="conjugate"):
            file.read_into(torch.zeros(4, dtype=torch.complex64).conj())
    parameter = torch.nn.Parameter(torch.arange(9.0))
    straightway.write(tmp_path / "p", parameter)
    assert (tmp_path / "p").read_bytes() == parameter.detach().numpy().tobytes()


def test_the_first_dimension_may_have_gaps_and_other_bytes_stay(path, tmp_path):
    expected = path.read_bytes()
    grid = np.full((50, 8, 10), 7, np.uint8)
    views = [np.s_[::2], np.s_[::-1], np.s_[40:2:-3], np.s_[3:9], np.s_[5:6]]
    with straightway.open(path) as file:
        for view in views:
            grid[:] = 7
            file.read_into(grid[view], 99)
            other = np.full_like(grid, 7)
            other[view] = np.frombuffer(expected[99:], np.uint8)[: other[view].size].reshape(other[view].shape)
            assert np.array_equal(grid, other), view
        with pytest.raises(ValueError, match="only the first dimension"):
            file.read_into(grid[:, ::2])
        with pytest.raises(ValueError, match="overlap"):
            file.read_into(np.lib.stride_tricks.as_strided(grid, (5, 20), (10, 1)))
    straightway.write(tmp_path / "rows", grid[::-2])
    assert (tmp_path / "rows").read_bytes() == grid[::-2].tobytes()


def test_what_is_out_of_range_is_an_error_and_what_is_empty_is_not(path):
    size = path.stat().st_size
    with straightway.open(path) as file:
        with pytest.raises(ValueError, match=f"has {size} bytes"):
            file.read_into(bytearray(2), size - 1)
        with pytest.raises(ValueError, match="has"):
            file.read_ranges([(0, bytearray(5)), (size, bytearray(1))])
        with pytest.raises(OverflowError):
            file.read_into(bytearray(2), -1)
        assert file.read_into(bytearray(), size).bytes == 0
        assert file.read_into(np.empty((0, 5))).bytes == 0
        with pytest.raises(BufferError):
            file.read_into(b"read-only")
        with pytest.raises(TypeError, match="not an array"):
            file.read_into(object())
        with pytest.raises(ValueError, match="open for reading"):
            file.write_from(b"x")
    with pytest.raises(FileNotFoundError):
        straightway.open(path.parent / "absent")
    with pytest.raises(ValueError, match="a mode is"):
        straightway.open(path, "a")


def test_many_ranges_have_one_receipt(path):
    expected = path.read_bytes()
    offsets = RNG.integers(0, len(expected) - 4096, 1000)
    arrays = [np.empty(int(size), np.uint8) for size in RNG.integers(1, 4096, 1000)]
    with straightway.open(path) as file:
        receipt = file.read_ranges(zip(offsets.tolist(), arrays))
        assert receipt.bytes == sum(a.nbytes for a in arrays) and isinstance(receipt, straightway.Receipt)
        for offset, found in zip(offsets, arrays):
            assert found.tobytes() == expected[offset : offset + found.nbytes]
        transfer = file.read_ranges([(0, np.empty(1 << 20, np.uint8)), (7, np.empty(2 << 20, np.uint8))], wait=False)
        assert transfer.result().bytes == transfer.nbytes == 3 << 20


def test_small_reads_from_the_page_cache_use_no_lane(path):
    path.read_bytes()
    with straightway.open(path) as file:
        receipt = file.read_into(bytearray(4096), 4096)
        if not receipt.lanes:
            assert [row["route"] for row in receipt.routes] == ["buffered"]
            assert receipt.engine == "pread" and receipt.bound_by == "page_cache"
        # A limit is kept by the lanes.
        assert file.read_into(bytearray(4096), limit=1e9).lanes == 1


def test_a_new_file_has_its_name_only_when_it_is_complete(tmp_path):
    path, values = tmp_path / "new", content(300_001)
    with straightway.open(path, "w") as file:
        file.write_from(values[100_000:], 100_000)
        assert not path.exists() and file.size == 300_001
        file.write_from(values[:100_000])
        assert len(os.listdir(tmp_path)) == 1
    assert path.read_bytes() == values.tobytes() and os.listdir(tmp_path) == ["new"]
    with pytest.raises(KeyError):
        with straightway.open(path, "w", size=10) as file:
            file.write_from(b"0123456789")
            raise KeyError
    assert path.read_bytes() == values.tobytes() and os.listdir(tmp_path) == ["new"]
    with straightway.open(path, "w", size=10_000) as file:
        file.write_from(b"abc", 5000)
    assert path.read_bytes() == bytes(5000) + b"abc" + bytes(4997)
    with straightway.open(path, "w") as file:
        file.write_from(b"", 1000)
    assert path.read_bytes() == b""
    values.tofile(path)
    abandoned = straightway.open(tmp_path / "other", "w")
    abandoned.write_from(b"x")
    del abandoned
    gc.collect()
    assert os.listdir(tmp_path) == ["new"]


def test_writes_keep_the_bytes_around_them(tmp_path):
    path = tmp_path / "file"
    model = bytearray(content(1_000_000).tobytes())
    path.write_bytes(model)
    with straightway.open(path, "r+") as file:
        inode = path.stat().st_ino
        for _ in range(60):
            offset, size = int(RNG.integers(0, 990_000)), int(RNG.choice([1, 100, 4096, 5000, 70_000, 200_000]))
            data = content(size).tobytes()
            model[offset : offset + size] = data
            file.write_from(data, offset)
            back = bytearray(min(size + 200, len(model) - max(offset - 100, 0)))
            file.read_into(back, max(offset - 100, 0))
            assert back == model[max(offset - 100, 0) :][: len(back)]
    assert path.read_bytes() == model and path.stat().st_ino == inode
    with pytest.raises(FileNotFoundError):
        straightway.open(tmp_path / "absent", "r+")


def test_concurrent_writes_to_neighbouring_bytes_of_a_new_file(tmp_path):
    values = content(3_000_000)
    cuts = sorted({0, 3_000_000, *RNG.integers(0, 3_000_000, 40).tolist()})
    with straightway.open(tmp_path / "new", "w") as file:
        parts = [(start, values[start:end]) for start, end in zip(cuts, cuts[1:])]
        transfers = [file.write_from(part, start, wait=False) for start, part in RNG.permutation(np.array(parts, object))]
        del transfers
    assert (tmp_path / "new").read_bytes() == values.tobytes()


def test_a_write_that_fails_or_is_cancelled_leaves_no_file(tmp_path):
    import resource

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    import signal

    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
    try:
        with pytest.raises(OSError):
            with straightway.open(tmp_path / "new", "w") as file:
                file.write_from(content(2 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    file = straightway.open(tmp_path / "new", "w", limit=2e6)
    transfer = file.write_from(content(8 << 20), wait=False)
    transfer.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        transfer.result()
    assert transfer.done() and isinstance(transfer.exception(), concurrent.futures.CancelledError)
    with pytest.raises(Exception, match="not given its name"):
        file.close()
    assert os.listdir(tmp_path) == []


def test_transfers_are_awaited_by_their_descriptor(path):
    expected = path.read_bytes()
    threads = threading.active_count()

    async def run():
        with straightway.open(path) as file:
            arrays = [np.empty(1_000_000, np.uint8) for _ in range(5)]
            transfers = [file.read_into(a, n * 1_000_000, wait=False) for n, a in enumerate(arrays)]
            receipts = await asyncio.gather(*transfers)
            assert [r.bytes for r in receipts] == [1_000_000] * 5
            assert b"".join(a.tobytes() for a in arrays) == expected[:5_000_000]
            both = file.read_ranges([(0, arrays[0]), (5, arrays[1])], wait=False)
            first, second = await asyncio.gather(_of(both), _of(both))
            assert first == second
            slow = file.read_into(np.empty(5_000_000, np.uint8), limit=1e6, wait=False)
            task = asyncio.create_task(_of(slow))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(concurrent.futures.CancelledError):
                slow.result()

    async def _of(transfer):
        return await transfer

    asyncio.run(run())
    assert threading.active_count() == threads
    with straightway.open(path) as file:
        transfer = file.read_into(bytearray(300_000), wait=False)
        assert select.select([transfer], [], [], 10)[0] == [transfer] and transfer.result(1).bytes == 300_000
        ended = file.read_into(bytearray(3), wait=False)
        assert select.select([ended], [], [], 10)[0] == [ended] and ended.result().bytes == 3


def test_the_array_lives_and_keeps_its_size_while_a_transfer_runs(path):
    with straightway.open(path, limit=4e6) as file:
        target = bytearray(5_000_000)
        transfer = file.read_into(target, wait=False)
        with pytest.raises(BufferError):
            target.extend(b"x")
        with pytest.raises(TimeoutError):
            transfer.result(0.01)
        weak = np.empty(4_000_000, np.uint8)
        references = sys.getrefcount(weak)
        file.read_into(weak, wait=False)
        assert sys.getrefcount(weak) > references
        transfer.cancel()
    # The file waited for all of its transfers.
    target.extend(b"x")
    assert weak.tobytes() == path.read_bytes()[:4_000_000]
    assert sys.getrefcount(weak) == references


def test_memory_is_given_back_after_each_call(path):
    target = np.empty(4096, np.uint8)
    references = sys.getrefcount(target)
    with straightway.open(path) as file:
        for size in (1, 4096):
            file.read_into(target[:size])
        file.read_ranges([(0, target), (1, np.empty(900_000, np.uint8))])
        with pytest.raises(ValueError):
            file.read_into(target, 1 << 40)
        with pytest.raises(ValueError):
            file.read_ranges([(0, target), (1 << 40, target)])
    straightway.write(path, target)
    assert sys.getrefcount(target) == references


def test_a_file_that_changes_is_not_read_as_if_nothing_happened(path):
    with straightway.open(path) as file:
        file.read_into(bytearray(100))
        with open(path, "r+b") as other:
            other.write(b"changed")
        os.utime(path, (1, 1))
        with pytest.raises(ValueError, match="written to"):
            file.read_into(bytearray(100))
        with pytest.raises(ValueError, match="written to"):
            file.read_into(bytearray(900_000))


def test_a_forked_child_reads_and_its_parent_goes_on_writing(path):
    code = """
        import os, sys, numpy, straightway
        path = sys.argv[1]
        expected = open(path, "rb").read()
        file = straightway.open(path)
        new = straightway.open(path + ".new", "w")
        target = numpy.empty(900_000, numpy.uint8)
        file.read_into(target)
        new.write_from(target)
        child = os.fork()
        if child == 0:
            for size in (10, 900_000):
                again = numpy.zeros(size, numpy.uint8)
                file.read_into(again, 5)
                assert again.tobytes() == expected[5 : 5 + size]
            try:
                new.write_from(again)
            except RuntimeError as error:
                assert "forked" in str(error)
                del new
                sys.exit(7)
            sys.exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        new.write_from(target, 900_000)
        new.close()
        print(open(path + ".new", "rb").read() == expected[:900_000] * 2)
    """
    assert child(code, path) == "True"


def test_threads_share_a_file(path):
    expected = path.read_bytes()
    with straightway.open(path) as file, concurrent.futures.ThreadPoolExecutor(8) as pool:

        def read(number):
            target = bytearray(1000 + number * 1000)
            file.read_into(target, number)
            return bytes(target) == expected[number : number + len(target)]

        assert all(pool.map(read, range(200)))


def test_a_trace_sums_the_receipts_of_its_block(path, tmp_path):
    with straightway.open(path) as file:
        file.read_into(bytearray(9))
        with straightway.trace() as outer:
            file.read_into(bytearray(10))
            with straightway.trace() as inner:
                transfer = file.read_into(bytearray(500_000), wait=False)
                straightway.write(tmp_path / "x", b"12345")
            transfer.result()
        file.read_into(bytearray(11))
    assert inner.receipt.bytes == 500_005 and outer.receipt.bytes == 500_015
    assert {row["leg"] for row in outer.receipt.routes} == {"read", "write"}
    assert len(outer.receipts) == 3 and outer.receipt.seconds > 0
    with straightway.trace() as nothing:
        pass
    assert nothing.receipt.bytes == 0


def test_read_returns_an_array(path):
    expected = path.read_bytes()
    assert straightway.read(path, framework="np").tobytes() == expected
    assert straightway.read(f"file://{path}", offset=5, size=7, framework="np").tobytes() == expected[5:12]
    pytest.importorskip("torch", reason="PyTorch is not installed")
    assert straightway.read(path, size=9).numpy().tobytes() == expected[:9]
    with pytest.raises(ValueError):
        straightway.read(path, offset=len(expected) + 1)


def test_stat_says_what_the_file_is(path):
    with straightway.open(path) as file:
        assert file.stat() == {"uri": str(path), "size": 5_000_003, "version": None, "is_local": True}
        assert "data.bin" in repr(file)


@pytest.mark.parametrize(
    "values",
    [
        np.arange(12.0).reshape(3, 4),
        np.asfortranarray(np.arange(24, dtype=">i2").reshape(2, 3, 4)),
        np.array(5, np.uint8),
        np.zeros((0, 3), "complex64"),
        np.array(["a", "bcd"]),
        np.array([(1, 2.0)], [("a", "<i4"), ("b", "<f8")]),
        np.arange(40).astype("datetime64[s]")[::4],
        np.array([True, False]),
        np.ones((2, 3, 4), np.float16)[::-1],
    ],
    ids=str,
)
def test_npy_files_are_those_of_numpy(tmp_path, values):
    straightway.save_npy(tmp_path / "ours.npy", values)
    np.save(tmp_path / "theirs.npy", values)
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "theirs.npy").read_bytes()
    again = straightway.load_npy(tmp_path / "theirs.npy", framework="np")
    assert again.dtype == values.dtype and again.shape == values.shape and np.array_equal(again, values)


def test_npy_files_that_lie_or_run_code_are_refused(tmp_path):
    np.save(tmp_path / "objects.npy", np.array([{}], object))
    with pytest.raises(ValueError, match="Python objects"):
        straightway.load_npy(tmp_path / "objects.npy", framework="np")
    with pytest.raises(ValueError, match="Python objects"):
        straightway.save_npy(tmp_path / "x.npy", np.array([{}], object))
    np.save(tmp_path / "short.npy", np.zeros(1000))
    os.truncate(tmp_path / "short.npy", 5000)
    with pytest.raises(ValueError, match="truncated"):
        straightway.load_npy(tmp_path / "short.npy", framework="np")
    (tmp_path / "text.npy").write_bytes(b"hello")
    with pytest.raises(ValueError, match="magic"):
        straightway.load_npy(tmp_path / "text.npy", framework="np")


def test_npy_files_of_pytorch(tmp_path):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    tensor = torch.arange(20, dtype=torch.int32).reshape(4, 5)
    straightway.save_npy(tmp_path / "t.npy", tensor)
    assert np.array_equal(np.load(tmp_path / "t.npy"), tensor.numpy())
    assert torch.equal(straightway.load_npy(tmp_path / "t.npy"), tensor)
    np.save(tmp_path / "f.npy", np.asfortranarray(tensor.numpy()))
    assert torch.equal(straightway.load_npy(tmp_path / "f.npy"), tensor)
    with pytest.raises(ValueError, match="NumPy has no bfloat16"):
        straightway.save_npy(tmp_path / "b.npy", torch.zeros(3, dtype=torch.bfloat16))

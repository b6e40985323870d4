"""Random raw calls, compared byte for byte with a model in memory. ``STRAIGHTWAY_RAW_CALLS`` sets their number (10,000 for
the full run), ``STRAIGHTWAY_RAW_SEED`` repeats a run."""

import os
import textwrap

import pytest
from test_gpu_memory import LIBRARY, STANDIN
from test_load import child

CALLS = int(os.environ.get("STRAIGHTWAY_RAW_CALLS", "2000"))
SEED = int(os.environ.get("STRAIGHTWAY_RAW_SEED", "40"))

#: What the calls do. ``memory(nbytes)`` makes memory of a place: its exporter, and functions that read and fill it.
CALLS_CODE = """
    import concurrent.futures, gc, os, random, sys
    import numpy as np
    import straightway

    folder, calls, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    pool = np.random.default_rng(seed).integers(0, 256, 128 << 20, np.uint8)
    KINDS = ["u1", "i2", "f4", "f8", "c16", "V3"]

    def bytes_of(size):
        at = rng.randrange(len(pool) - size)
        return pool[at : at + size]

    def size():
        # Most are small, so that many calls take seconds. Every 400th is up to 64 MiB.
        top = rng.choice([0, 1, 100, 4095, 4096, 4097, 70_000, 300_000] + [1 << 21] * (rng.random() < 0.1))
        if rng.random() < 1 / 400:
            top = 64 << 20
        return rng.randint(top // 2, top)

    class Host:
        "An array of some dtype, perhaps with gaps."
        def __init__(self, nbytes):
            kind = np.dtype(rng.choice(KINDS))
            rows = rng.choice([1, 1, 2, 7])
            width = max(nbytes // kind.itemsize // rows, 0)
            step = rng.choice([1, 1, 2, 3, -1, -2])
            self.base = np.zeros((max(rows, 1) * abs(step), width), kind)
            self.array = self.base[::step]
            self.nbytes = self.array.nbytes
        def fill(self, data):
            self.array[...] = np.frombuffer(data, self.array.dtype).reshape(self.array.shape)
        def read(self):
            return self.array.tobytes()

    class File:
        def __init__(self, number):
            self.path = os.path.join(folder, f"file{number}")
            self.model = bytearray(bytes_of(rng.randint(1, 6 << 20)))
            with straightway.open(self.path, "w") as file:
                file.write_from(self.model)
            self.open()
        def open(self):
            self.file = straightway.open(self.path, rng.choice(["r+", "r+"]))

    files = [File(number) for number in range(4)]
    pending, writing, counts = [], set(), {"read": 0, "write": 0, "cancelled": 0, "refused": 0, "bytes": 0}

    def settle():
        for transfer, check in pending:
            try:
                receipt = transfer.result(60)
            except concurrent.futures.CancelledError:
                counts["cancelled"] += 1
                continue
            assert receipt.bytes == transfer.nbytes
            check()
        pending.clear()
        writing.clear()

    for call in range(calls):
        one = rng.choice(files)
        place = rng.choice(PLACES)
        target = place(size())
        waits, route = rng.random() < 0.6, rng.choice(["auto", "auto", "buffered"])
        length = len(one.model)
        if rng.random() < 0.65:
            offset = rng.randrange(length + 1)
            if rng.random() < 0.03:
                offset = length + rng.randrange(5000)
            counts["read"] += 1
            if offset + target.nbytes > length:
                if target.nbytes == 0 and offset <= length:
                    continue
                try:
                    one.file.read_into(target.array, offset, route=route)
                except ValueError:
                    counts["refused"] += 1
                    continue
                raise AssertionError("a read beyond the end succeeded")
            if one in writing:
                # A read beside a write of the same bytes would be a race of the caller.
                settle()
            expected = bytes(one.model[offset : offset + target.nbytes])
            done = one.file.read_into(target.array, offset, route=route, wait=waits)
            def check(target=target, expected=expected):
                assert target.read() == expected
            if waits:
                assert done.bytes == target.nbytes
                check()
            else:
                pending.append((done, check))
                if rng.random() < 0.1:
                    done.cancel()
        else:
            # A write must not overlap with transfers that are under way: that would be a race of the caller.
            settle()
            data = bytes(bytes_of(target.nbytes))
            if target.nbytes:
                target.fill(data)
            offset = rng.randrange(length + 1) if rng.random() < 0.9 else length + rng.randrange(9000)
            if offset + target.nbytes > 80 << 20:
                continue
            counts["write"] += 1
            if target.nbytes:
                end = offset + target.nbytes
                if end > length:
                    one.model.extend(bytes(end - length))
                one.model[offset:end] = data
            done = one.file.write_from(target.array, offset, route=route, wait=waits)
            if not waits:
                writing.add(one)
                pending.append((done, lambda: None))
                if rng.random() < 0.5:
                    # Another write beside it, at the same time.
                    near = offset + target.nbytes
                    more = bytes(bytes_of(rng.randint(1, 9000)))
                    if near + len(more) > len(one.model):
                        one.model.extend(bytes(near + len(more) - len(one.model)))
                    one.model[near : near + len(more)] = more
                    pending.append((one.file.write_from(more, near, wait=False), lambda: None))
        counts["bytes"] += target.nbytes
        if len(pending) > 40:
            settle()
    settle()
    for one in files:
        assert one.file.size == len(one.model)
        back = np.empty(len(one.model), np.uint8)
        one.file.read_into(back)
        assert back.tobytes() == one.model
        one.file.close()
        assert open(one.path, "rb").read() == one.model
    assert sorted(os.listdir(folder)) == [f"file{n}" for n in range(4)]
    assert counts["read"] and counts["write"] and counts["refused"], counts
    del one, target, files, check, done
    gc.collect()
"""

#: Memory of the stand-in GPU, by DLPack's rules or as ``__cuda_array_interface__``.
GPU_CODE = """
    class Gpu:
        def __init__(self, nbytes):
            self.rows, self.step = rng.choice([(1, 1), (1, 1), (5, 1), (5, 2), (4, -1)])
            self.width = nbytes // self.rows
            self.nbytes = self.width * self.rows
            self.block = Block(max(self.width * self.rows * abs(self.step), 1))
            self.array = self
        @property
        def __cuda_array_interface__(self):
            stride = self.width * self.step
            first = self.block.address + (self.width * (self.rows - 1) if self.step < 0 else 0)
            return {"shape": (self.rows, self.width), "typestr": "|u1", "data": (first, False), "version": 3,
                    "strides": (stride, 1), "stream": None}
        def offsets(self):
            base = self.width * (self.rows - 1) if self.step < 0 else 0
            return [base + row * self.width * self.step for row in range(self.rows)]
        def read(self):
            return b"".join(read(self.block.address + at, self.width) for at in self.offsets())
        def fill(self, data):
            cuda.cuCtxPushCurrent_v2(context)
            for number, at in enumerate(self.offsets()):
                row = data[number * self.width : (number + 1) * self.width]
                assert not row or cuda.cuMemcpyHtoD_v2(
                    ctypes.c_uint64(self.block.address + at), row, ctypes.c_size_t(len(row))) == 0
            cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
"""


def code_of(places, *parts):
    setup, calls = CALLS_CODE.split("    class File:", 1)
    return textwrap.dedent(setup) + "".join(map(textwrap.dedent, parts)) + f"\nPLACES = {places}\n" + textwrap.dedent(
        "    class File:" + calls
    )


def test_random_calls_with_host_memory_are_equal_byte_for_byte(tmp_path):
    code = code_of("[Host]") + "print(counts)\n"
    assert "cancelled" in child(code, tmp_path, CALLS, SEED)


def test_random_calls_with_the_stand_in_gpu_are_equal_byte_for_byte(tmp_path):
    if STANDIN is None:
        pytest.skip("STRAIGHTWAY_STANDIN_FOLDER is not set: it names the folder of the stand-in for the CUDA driver")
    library = textwrap.dedent(LIBRARY).split("asked = []")[0]
    code = library + code_of("[Host, Gpu]", GPU_CODE) + "print(counts, Block.allocated)\n"
    variables = {"LD_LIBRARY_PATH": STANDIN, "STRAIGHTWAY_STANDIN": "seed=3 delay_us_max=50"}
    assert child(code, tmp_path, CALLS // 2, SEED + 1, **variables).endswith(" 0")

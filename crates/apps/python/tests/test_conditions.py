"""Loads while files are truncated and processes fork; slices and rectangles compared with NumPy's."""

import os
import random
import shutil
import subprocess
import sys
import textwrap

import numpy
import straightway
from straightway._saving import describe
from straightway._straightway import Saver, Store
from straightway.numpy import save_file


def python(code, *arguments):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_truncating_a_file_during_a_load_never_raises_a_signal(tmp_path):
    code = """
        import json, os, random, struct, sys, time
        import straightway
        path, bytes_ = os.path.join(sys.argv[1], "m.safetensors"), 20 << 20
        header = json.dumps({"t": {"dtype": "U8", "shape": [bytes_], "data_offsets": [0, bytes_]}}).encode()
        blob = struct.pack("<Q", len(header)) + header + b"\\x07" * bytes_
        open(path, "wb").write(blob)
        end = time.time() + 4
        cutter = os.fork()
        if cutter == 0:
            file = os.open(path, os.O_RDWR)
            rng = random.Random(5)
            while time.time() < end:
                time.sleep(rng.uniform(0, 0.02))
                cut = rng.randrange(1000, len(blob))
                os.ftruncate(file, cut)
                time.sleep(rng.uniform(0, 0.01))
                os.pwrite(file, blob[cut:], cut)
            os._exit(0)
        right = refused = 0
        rng = random.Random(7)
        while time.time() < end:
            try:
                found = straightway.load_file(path, framework="np", route=rng.choice(["auto", "buffered", "direct", "staged"]))
            except (ValueError, OSError, RuntimeError):
                refused += 1
                continue
            assert (found["t"] == 7).all(), "it was wrong and not refused"
            right += 1
        os.waitpid(cutter, 0)
        assert right + refused > 10, (right, refused)
    """
    python(code, tmp_path)


def test_descriptors_that_other_code_closed_are_an_error_that_names_the_cause(tmp_path):
    code = """
        import os, sys
        import numpy, straightway
        from straightway.numpy import save_file
        folder = sys.argv[1]
        first, second = (os.path.join(folder, f"{n}.safetensors") for n in (1, 2))
        save_file({"t": numpy.full(8 << 20, 1, dtype=numpy.uint8)}, first)
        save_file({"t": numpy.full(8 << 20, 2, dtype=numpy.uint8)}, second)
        kept = []
        for route in ["direct", "auto"]:
            load = lambda: straightway.load_file(first, framework="np", route=route)["t"]
            assert (load() == 1).all()
            opened = straightway.safe_open(first, framework="np")
            os.closerange(3, 512)
            # The numbers are taken by other files.
            others = [open(second, "rb") for _ in range(64)]
            # Dropping these would close each other's descriptors.
            kept.append((opened, others))
            refused = 0
            for attempt in [lambda: opened.get_tensor("t"), load, load, load]:
                try:
                    assert (attempt() == 1).all(), "bytes of another file"
                except (OSError, RuntimeError, ValueError) as error:
                    assert "closed its descriptor" in str(error), error
                    refused += 1
            # Cached bytes are copied from a mapping, which needs no descriptor.
            assert refused >= 1 or route == "auto", route
            assert (load() == 1).all(), route
            assert all(other.read(8) for other in others), "they were not closed"
        os._exit(0)
    """
    python(code, tmp_path)


def test_a_child_that_is_forked_while_its_parent_loads_loads_too(tmp_path):
    code = """
        import os, signal, sys, threading
        import numpy, straightway
        from straightway.numpy import save_file
        path = os.path.join(sys.argv[1], "m.safetensors")
        save_file({f"t{i}": numpy.full(100_003, i, numpy.float32) for i in range(30)}, path)
        load = lambda: straightway.load_model(path, framework="np")
        load()
        stop = threading.Event()
        def others():
            while not stop.is_set():
                load()
        thread = threading.Thread(target=others)
        thread.start()
        ends = []
        for _ in range(12):
            child = os.fork()
            if child == 0:
                signal.alarm(15)
                found = load()
                os._exit(0 if all((found[f"t{i}"] == i).all() for i in range(30)) else 1)
            ends.append(os.waitpid(child, 0)[1])
        stop.set()
        thread.join()
        assert ends == [0] * 12, ends
    """
    python(code, tmp_path)


def test_a_child_that_is_forked_while_its_parent_looks_up_a_drive_loads_too(tmp_path):
    save_file({"a": numpy.arange(1000)}, tmp_path / "m.safetensors")
    # A profile of nearly the maximum length, of another machine: parsing it takes a while.
    machine = '[machine]\nprocessor = "none"\ncores = 1\nmemory_bytes = 1\nkernel = "none"\n'
    drives = "".join(f"[drives.d{i}]\nknees = []\n" for i in range(35_000))
    profile = tmp_path / "state/straightway/profile.toml"
    profile.parent.mkdir(parents=True)
    profile.write_text('schema = "straightway.profile/1"\n' + machine + drives)
    code = """
        import os, signal, sys, threading, time
        import straightway
        folder = sys.argv[1]
        copy, load = straightway.copy, straightway.load_model
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"
        # A copy looks up the drive on a thread without the interpreter's lock, so that this thread can fork meanwhile.
        thread = threading.Thread(target=copy, args=(f"{folder}/m.safetensors", f"{folder}/copy.safetensors"))
        thread.start()
        children = []
        for _ in range(10):
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                os.environ["XDG_STATE_HOME"] = f"{folder}/none"
                os._exit(0 if load(f"{folder}/m.safetensors", framework="np")["a"][999] == 999 else 1)
            children.append(child)
            time.sleep(0.002)
        ends = [os.waitpid(child, 0)[1] for child in children]
        thread.join()
        assert ends == [0] * 10, ends
        assert load(f"{folder}/copy.safetensors", framework="np")["a"][999] == 999
    """
    python(code, tmp_path)


def index(rng, size):
    kind = rng.random()
    if kind < 0.3 and size:
        return rng.randrange(-size, size)
    if kind < 0.5:
        return rng.choice([slice(None), Ellipsis])
    bound = lambda: rng.choice([None, rng.randrange(-size - 3, size + 1)])
    return slice(bound(), bound(), rng.choice([None, 1, 2, 3, -1, -2, 7, -100]))


def test_slices_are_those_of_numpy(tmp_path):
    rng = random.Random(3)
    shapes = [(1,), (17,), (5, 7), (3, 1, 9), (64, 33), (2, 3, 4, 5), (1000, 129), (0, 4), (4, 0, 3), ()]
    arrays = {f"t{i}": numpy.random.default_rng(i).integers(-9, 99, shape).astype(rng.choice(["i1", "i2", "f4", "f8"])) for i, shape in enumerate(shapes)}
    save_file(arrays, tmp_path / "m.safetensors")
    for backend in ("mmap", "pread"):
        check_slices(rng, straightway.safe_open(tmp_path / "m.safetensors", framework="np", backend=backend), arrays)


def check_slices(rng, opened, arrays):
    with opened as file:
        for _ in range(400):
            name = rng.choice(list(arrays))
            array = arrays[name]
            chosen = tuple(index(rng, size) for size in array.shape[: rng.randint(0, array.ndim)])
            if chosen.count(Ellipsis) > 1:
                continue
            try:
                wanted = array[chosen]
            except IndexError:
                wanted = None
            try:
                found = file.get_slice(name)[chosen]
            except IndexError:
                found = None
            assert (wanted is None) == (found is None), (name, chosen)
            if wanted is not None:
                assert numpy.shape(found) == numpy.shape(wanted)
                numpy.testing.assert_array_equal(found, wanted, err_msg=f"{name}{chosen}")


def cuts(rng, shape, count):
    """About ``count`` rectangles that together cover a shape."""
    rectangles = [((0,) * len(shape), shape)]
    for _ in range(2 * count):
        number = rng.randrange(len(rectangles))
        start, lengths = rectangles[number]
        dimension = rng.randrange(len(shape))
        if lengths[dimension] < 2 or len(rectangles) >= count:
            continue
        cut = rng.randrange(1, lengths[dimension])
        put = lambda old, new: tuple(new if d == dimension else o for d, o in enumerate(old))
        rectangles[number : number + 1] = [
            (start, put(lengths, cut)),
            (put(start, start[dimension] + cut), put(lengths, lengths[dimension] - cut)),
        ]
    return rectangles


def part(array, start, lengths):
    return array[tuple(slice(s, s + n) for s, n in zip(start, lengths))]


def test_rectangles_of_some_ranks_are_restored_as_those_of_others(tmp_path):
    for turn in range(12):
        rng = random.Random(turn)
        folder = tmp_path / str(turn)
        world = rng.choice([1, 2, 3, 5])
        shapes = [tuple(rng.choice([1, 2, 5, 33]) for _ in range(rng.randint(1, 4))) for _ in range(rng.randint(1, 4))]
        wholes = {f"w{i}": numpy.random.default_rng(turn + i).integers(0, 255, s).astype(rng.choice(["u1", "f4", "i8"])) for i, s in enumerate(shapes)}
        given, kept = [[] for _ in range(world)], []
        for name, whole in wholes.items():
            for start, lengths in cuts(rng, whole.shape, rng.choice([1, 2, 7, 20])):
                kept.append(numpy.ascontiguousarray(part(whole, start, lengths)))
                within = None if lengths == whole.shape else (list(whole.shape), list(start))
                given[rng.randrange(world)].append((describe(name, kept[-1]), False, within, None))
        parity = rng.choice([0, 1])
        options = {"incremental": False, "compression": rng.choice([None, "lz4", "zstd"]), "parity": parity, "memory_bytes_max": None}
        options |= {"timeout_s": 20.0, "busy": "wait", "rate_bytes_per_s": None}
        savers = [Saver(folder, rank=rank, world=world, run=f"x{turn}", **options) for rank in range(world)]
        for rank in reversed(range(world)):
            savers[rank].save(1, given[rank], "null")
        for saver in savers:
            saver.wait()
            saver.close()
        if parity:
            os.remove(rng.choice(sorted((folder / "step-1").glob("rank*"))))
        targets, expected = [], []
        for name, whole in wholes.items():
            for start, lengths in cuts(rng, whole.shape, rng.choice([1, 3, 9])):
                expected.append((numpy.full(lengths, 77, whole.dtype), part(whole, start, lengths)))
                targets.append((describe(name, expected[-1][0]), list(start)))
        Store(folder).open(1).restore(targets)
        for found, wanted in expected:
            numpy.testing.assert_array_equal(found, wanted, err_msg=str((turn, world, options)))
        shutil.rmtree(folder)

"""Loading: the same tensors as safetensors returns, with a receipt."""

import os
import subprocess
import sys
import textwrap
import threading

import numpy
import pytest
import safetensors.numpy
import straightway
import straightway.numpy


def same(found, expected):
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        numpy.testing.assert_array_equal(found[name], tensor)


def child(code, *args, **environment):
    """Runs code in a new process, and returns its output."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    environment = os.environ | {name: str(value) for name, value in environment.items()}
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize("route", ["auto", "direct", "staged", "buffered"])
def test_a_folder_has_the_tensors_of_all_its_files_by_every_route(model, route):
    folder, expected = model
    try:
        weights = straightway.load_model(folder, framework="np", route=route)
    except RuntimeError as error:
        pytest.skip(f"no O_DIRECT here: {error}")
    same(weights, expected)
    assert weights.receipt.bytes == sum(t.nbytes for t in expected.values())
    assert sum(r["bytes"] for r in weights.receipt.routes) == weights.receipt.bytes
    assert "GB/s" in str(weights.receipt) or "MB/s" in str(weights.receipt)


def test_a_load_of_priority_now_has_lanes_of_its_own_and_the_others_share_theirs(model):
    folder, expected = model
    code = """
        import os, sys, straightway

        def lanes_after(priority):
            weights = straightway.load_model(sys.argv[1], framework="np", priority=priority)
            names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
            lanes = [name for name in names if name.startswith(("straightway-dri", "straightway-cac"))]
            return weights.receipt.bytes, len(lanes)

        for priority in ["soon", "background", "now", "soon"]:
            print(*lanes_after(priority))
    """
    rows = [tuple(map(int, line.split())) for line in child(code, folder).splitlines()]
    assert {moved for moved, _ in rows} == {sum(t.nbytes for t in expected.values())}
    soon, background, now, again = (lanes for _, lanes in rows)
    assert 0 < soon == background < now == again
    same(dict(straightway.iterate(folder, framework="np", priority="background")), expected)
    with pytest.raises(ValueError, match="a priority is now, soon or background, not \"high\""):
        straightway.load_model(folder, framework="np", priority="high")


def test_an_index_and_a_single_file_are_models_too(model):
    folder, expected = model
    same(straightway.load_model(folder / "model.safetensors.index.json", framework="np"), expected)
    one = folder / "model-00001-of-00002.safetensors"
    same(straightway.load_file(one, framework="np"), safetensors.numpy.load_file(one))


def test_arrays_outlive_everything_else_and_can_be_written_to(model):
    folder, expected = model
    array = straightway.load_model(folder, framework="np").pop("layers.0.weight")
    array[0, 0] += 1
    assert array[0, 0] == expected["layers.0.weight"][0, 0] + 1
    numpy.testing.assert_array_equal(array[1:], expected["layers.0.weight"][1:])


def test_a_library_that_copies_gets_tensors_after_their_bytes_are_loaded(tmp_path):
    pytest.importorskip("jax", reason="JAX is not installed")
    # The small tensors are not aligned for JAX, which copies them; the large one keeps the load busy meanwhile.
    tensors = {f"small.{n}": numpy.full(n + 1, n + 1, "uint16") for n in range(50)}
    tensors["a.large"] = numpy.ones(64 << 20, "float32")
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file(tensors, path)
    loaded = straightway.load_file(path, framework="jax")
    for name, array in tensors.items():
        assert (numpy.asarray(loaded[name]) == array).all(), name
    with straightway.safe_open(path, framework="jax") as file:
        assert (numpy.asarray(file.get_tensor("small.7")) == 8).all()


def test_tensors_that_do_not_match_a_filter_are_not_read(model):
    folder, expected = model
    weights = straightway.load_model(folder, framework="np", filter=["layers.*", "regex:^sc"])
    same(weights, {n: t for n, t in expected.items() if n.startswith(("layers", "sc"))})
    assert weights.receipt.bytes < sum(t.nbytes for t in expected.values())
    with pytest.raises(KeyError, match="no_such"):
        straightway.load_model(folder, filter="no_such")


def test_a_rank_reads_its_rows_and_no_others(model):
    folder, expected = model
    weights = straightway.load_model(folder, framework="np", filter="embed.weight", slices=[(None, 0, 75, 150)])
    numpy.testing.assert_array_equal(weights["embed.weight"], expected["embed.weight"][75:150])
    assert weights.receipt.bytes == expected["embed.weight"].nbytes // 4


def test_a_stream_gives_every_tensor_once_in_batches(model):
    folder, expected = model
    stream = straightway.iterate(folder, framework="np", batch_bytes=4096)
    same(dict(stream), expected)
    assert len(stream.receipts) > 1
    assert sum(r.bytes for r in stream.receipts) == sum(t.nbytes for t in expected.values())


def test_an_open_file_gives_tensors_and_parts_of_them_one_at_a_time(model):
    folder, expected = model
    weight = expected["layers.0.weight"]
    with straightway.safe_open(folder, framework="np") as f:
        assert f.keys() == sorted(expected) and sorted(f.offset_keys()) == sorted(expected)
        assert f.metadata() == {"format": "pt"}
        assert f.get_tensor("scale") == 3.5
        part = f.get_slice("layers.0.weight")
        assert part.get_shape() == [1025, 1031] and part.get_dtype() == "U8"
        for index in [
            numpy.s_[3:7], numpy.s_[:, 5:9], numpy.s_[..., -3:], numpy.s_[17], numpy.s_[-1, 4], numpy.s_[10:2:-3, ::5],
            numpy.s_[5:5], numpy.s_[2:4, ...],
        ]:
            numpy.testing.assert_array_equal(part[index], weight[index])
        # Mapped: bytes are read at first use.
        assert f.receipt is None
        with pytest.raises(KeyError, match="nowhere"):
            f.get_tensor("nowhere")
        with pytest.raises(IndexError):
            part[1, 2, 3]
        with pytest.raises(IndexError):
            part[5000]
        with pytest.raises(straightway.SafetensorError, match="Unsupported"):
            part["a"]
    with pytest.raises(ValueError, match="closed"):
        f.keys()
    # A slice outlives the file that it was taken from, as in safetensors.
    numpy.testing.assert_array_equal(part[3:7], weight[3:7])
    with straightway.safe_open(folder, framework="np", backend="pread") as f:
        numpy.testing.assert_array_equal(f.get_slice("layers.0.weight")[5:7], weight[5:7])
        assert f.receipt.bytes == 2 * 1031


def test_errors_have_the_matching_exception_type(tmp_path, model):
    with pytest.raises(FileNotFoundError):
        straightway.load_file(tmp_path / "absent.safetensors")
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"\xff" * 8 + b"{}")
    with pytest.raises(ValueError, match="bad.safetensors"):
        straightway.load_file(bad)
    folder, _ = model
    with pytest.raises(ValueError, match="framework"):
        straightway.load_model(folder, framework="abacus")
    with pytest.raises(ValueError, match="tpu"):
        straightway.load_model(folder, device="tpu:0")
    with pytest.raises(ValueError, match="route"):
        straightway.load_model(folder, route="scenic")
    with pytest.raises(RuntimeError, match="(?i)cuda|driver|gpu"):
        straightway.load_model(folder, device="cuda:99")


def test_loading_needs_only_numpy(model):
    folder, _ = model
    code = """
        import sys
        sys.modules["torch"] = None
        import straightway
        weights = straightway.load_model(sys.argv[1], framework="np")
        print(type(weights["scale"]).__module__, len(weights))
    """
    assert child(code, folder) == "numpy 5"


def test_other_threads_run_while_bytes_move(tmp_path):
    path = tmp_path / "large.safetensors"
    safetensors.numpy.save_file({"a": numpy.ones(256 << 20, dtype=numpy.uint8)}, path)
    code = """
        import sys, threading, time, straightway
        gaps, going = [], True
        def watch():
            last = time.perf_counter()
            while going:
                time.sleep(0.001)
                now = time.perf_counter()
                gaps.append(now - last)
                last = now
        watcher = threading.Thread(target=watch)
        watcher.start()
        start = time.perf_counter()
        weights = straightway.load_model(sys.argv[1], framework="np")
        took = time.perf_counter() - start
        going = False
        watcher.join()
        # A thread that could not run during the load would see one gap as long as the load.
        print(max(gaps) < max(0.8 * took, 0.1), len(gaps) > 3)
    """
    assert child(code, path) == "True True"


def test_ctrl_c_ends_a_load_at_once(slow):
    code = """
        import os, signal, sys, threading, time, straightway
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run by nohup
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        start = time.perf_counter()
        try:
            for name, tensor in straightway.iterate(sys.argv[1], framework="np"):
                print("loaded")
        except KeyboardInterrupt:
            print("interrupted", time.perf_counter() - start < 2)
    """
    assert child(code, slow) == "interrupted True"


def test_a_forked_process_loads_by_itself(model):
    folder, _ = model
    code = """
        import os, sys, straightway
        straightway.load_model(sys.argv[1], framework="np")
        child = os.fork()
        if child == 0:
            ok = len(straightway.load_model(sys.argv[1], framework="np")) == 5
            os._exit(0 if ok else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert child(code, folder) == "0"


def test_memory_above_the_tensors_is_small(tmp_path):
    path = tmp_path / "large.safetensors"
    safetensors.numpy.save_file({f"t{i}": numpy.ones(64 << 20, dtype=numpy.uint8) for i in range(16)}, path)
    code = """
        import sys, straightway
        def peak_kib():
            with open("/proc/self/status") as status:
                return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
        before = peak_kib()
        weights = straightway.load_file(sys.argv[1], framework="np", route=sys.argv[2])
        print((peak_kib() - before) // 1024)
    """
    for route in ["auto", "buffered"]:
        mib = int(child(code, path, route))
        assert 1000 < mib < 1024 + 200, f"{mib} MiB for 1024 MiB of tensors by {route}"


def test_two_hundred_thousand_small_tensors(tmp_path):
    path = tmp_path / "many.safetensors"
    straightway.save_file({f"layer.{i:06}.w": numpy.full(3, i, dtype=numpy.int32) for i in range(200_000)}, path)
    weights = straightway.load_file(path, framework="np", route="auto")
    assert len(weights) == 200_000
    assert all(weights[f"layer.{i:06}.w"][2] == i for i in range(0, 200_000, 7919))
    assert weights.receipt.ios < 100


def test_the_profile_of_bench_is_used(tmp_path):
    path = tmp_path / "cold.safetensors"
    straightway.save_file({"t": numpy.ones(4 << 20, dtype=numpy.uint8)}, path)
    code = """
        import os, sys, straightway
        with open(sys.argv[1]) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        weights = straightway.load_model(sys.argv[1], framework="np")
        print(max(weights.receipt.routes, key=lambda r: r["bytes"])["route"])
    """
    state = tmp_path / "state"
    if child(code, path, XDG_STATE_HOME=state) != "direct":
        pytest.skip("no O_DIRECT here")
    with open("/proc/cpuinfo") as cpus:
        processor = next((line.split(":")[1].strip() for line in cpus if line.startswith("model name")), "unknown")
    (state / "straightway").mkdir(parents=True)
    for kernel, route in [(os.uname().release, "staged"), ("another machine's", "direct")]:
        text = f"""
            schema = "straightway.profile/1"
            machine = {{ processor = "{processor}", cores = 1, memory_bytes = 1, kernel = "{kernel}" }}
        """
        for drive in [*os.listdir("/sys/block"), "ext4", "xfs", "btrfs", "overlay"]:
            tuning = "{ chunk_bytes = 65536, depth = 8, ring_first = true }"
            text += f"\ndrives.{drive} = {{ knees = [], tuning = {tuning} }}"
        (state / "straightway/profile.toml").write_text(textwrap.dedent(text))
        assert child(code, path, XDG_STATE_HOME=state) == route


def test_copy_and_doctor(tmp_path, model):
    folder, expected = model
    target = tmp_path / "copies"
    target.mkdir()
    receipt = straightway.copy(folder / "model-00001-of-00002.safetensors", target, verify=True)
    assert receipt.bytes == os.path.getsize(folder / "model-00001-of-00002.safetensors")
    same(straightway.numpy.load_file(target / "model-00001-of-00002.safetensors"),
         safetensors.numpy.load_file(folder / "model-00001-of-00002.safetensors"))
    diagnosis = straightway.doctor(tmp_path)
    assert diagnosis["verdict"] in ("direct", "not_proven", "not_direct") and diagnosis["checks"]


def test_a_file_that_is_written_to_while_it_is_loaded_is_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    size = 64 << 20
    safetensors.numpy.save_file({"t": numpy.zeros(size, numpy.uint8)}, path)
    stop = threading.Event()

    def write():
        value = 0
        with open(path, "r+b") as file:
            while not stop.is_set():
                value = (value + 1) % 250
                for at in range(os.path.getsize(path) - size, os.path.getsize(path), 4 << 20):
                    os.pwrite(file.fileno(), bytes([value]) * (4 << 20), at)

    writer = threading.Thread(target=write)
    writer.start()
    refused = 0
    try:
        for _ in range(20):
            try:
                seen = straightway.load_model(path, framework="np")["t"]
            except ValueError:
                refused += 1
            else:
                assert seen.min() == seen.max()
    finally:
        stop.set()
        writer.join()
    assert refused > 0


def test_warnings_are_in_the_receipt_and_go_to_logging(tmp_path):
    switch = "/proc/sys/kernel/io_uring_disabled"
    try:
        with open(switch) as file:
            before = file.read()
        with open(switch, "w") as file:
            file.write("2")
    except OSError as error:
        pytest.skip(f"{switch}: {error}")
    path = tmp_path / "m.safetensors"
    code = """
        import logging, os, sys, straightway
        heard = []
        class Ear(logging.Handler):
            def emit(self, record):
                heard.append((record.name, record.levelname, record.getMessage()))
        logging.getLogger("straightway").addHandler(Ear())
        straightway.copy(sys.argv[1], sys.argv[1] + ".copy")
        fd = os.open(sys.argv[1], os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        receipt = straightway.load_model(sys.argv[1], framework="np").receipt
        print(any("io_uring" in warning for warning in receipt.warnings),
              "  warning: " in str(receipt),
              ("straightway", "WARNING") in {record[:2] for record in heard})
    """
    try:
        safetensors.numpy.save_file({"t": numpy.zeros(4 << 20, numpy.uint8)}, path)
        assert child(code, path) == "True True True"
    finally:
        with open(switch, "w") as file:
            file.write(before)


def test_a_single_file_counts_instead_of_an_index_that_does_not_name_it(model):
    folder, expected = model
    newer = {"scale": numpy.array(7.0), "other": numpy.ones(3)}
    safetensors.numpy.save_file(newer, folder / "model.safetensors")
    for call in (straightway.load_model, straightway.load_file):
        weights = call(folder, framework="np")
        same(weights, newer)
        (warning,) = weights.receipt.warnings
        assert "model.safetensors was taken, and not the files of" in warning and "model.safetensors.index.json" in warning
    assert [name for name, _ in straightway.iterate(folder, framework="np")] in (["scale", "other"], ["other", "scale"])
    assert straightway.safe_open(folder, "np").keys() == sorted(newer)
    # The index by its name is still the old model.
    weights = straightway.load_model(folder / "model.safetensors.index.json", framework="np")
    same(weights, expected)
    assert weights.receipt.warnings == []
    # Shards that the index names may be missing.
    (folder / "model-00001-of-00002.safetensors").unlink()
    same(straightway.load_model(folder, framework="np"), newer)


def test_an_index_counts_if_it_names_the_single_file(tmp_path):
    safetensors.numpy.save_file({"a": numpy.ones(2)}, tmp_path / "model.safetensors")
    safetensors.numpy.save_file({"b": numpy.ones(3)}, tmp_path / "more.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model.safetensors", "b": "more.safetensors"}}')
    weights = straightway.load_model(tmp_path, framework="np")
    assert sorted(weights) == ["a", "b"] and weights.receipt.warnings == []


def test_a_forked_child_cannot_go_on_with_the_iterator_of_its_parent(tmp_path):
    code = """
        import gc, os, signal, sys, numpy, straightway

        path = sys.argv[1] + "/m.safetensors"
        straightway.save_file({f"t{i}": numpy.full(1 << 18, i, "f4") for i in range(8)}, path)
        for begun in (False, True):
            stream = straightway.iterate(path, framework="np", batch_bytes=1 << 20)
            if begun:
                next(stream)
            if os.fork() == 0:
                signal.alarm(30)
                try:
                    list(stream)
                except RuntimeError as error:
                    assert "was forked from" in str(error) and "hint: call iterate() in the child" in str(error), error
                    # Dropping it neither waits nor complains, and the child has iterators of its own.
                    del stream, error
                    gc.collect()
                    assert len(list(straightway.iterate(path, framework="np", batch_bytes=1 << 20))) == 8
                    os._exit(7)
                os._exit(1)
            print(os.waitstatus_to_exitcode(os.wait()[1]), len(list(stream)) + begun)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["7", "8", "7", "8"] and "panicked" not in done.stderr, done


def test_a_load_does_not_need_stderr(model, monkeypatch):
    folder, expected = model

    class Odd:
        def write(self, text):
            pass

    closed = open(os.devnull, "w")
    closed.close()
    for stream in (None, Odd(), closed):
        monkeypatch.setattr(sys, "stderr", stream)
        same(straightway.load_model(folder, framework="np"), expected)
        same(dict(straightway.iterate(folder, framework="np")), expected)

    class Breaks(Odd):
        def isatty(self):
            return True

        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Breaks())
    monkeypatch.setattr("straightway._progress._BAR_DELAY_S", -1.0)
    same(straightway.load_model(folder, framework="np"), expected)


def test_options_that_select_nothing_are_not_ignored(model):
    folder, expected = model
    for empty in ([], ()):
        assert straightway.load_model(folder, framework="np", filter=empty) == {}
        assert list(straightway.iterate(folder, framework="np", filter=empty)) == []
    assert straightway.load_file(folder / "model-00001-of-00002.safetensors", framework="np", filter=[]) == {}
    for call in (straightway.load_model, lambda *a, **k: list(straightway.iterate(*a, **k))):
        with pytest.raises(KeyError, match='tensor "absent"'):
            call(folder, framework="np", slices=[("absent", 0, 0, 1)])
        with pytest.raises(KeyError, match='tensor "absent"'):
            call(folder, framework="np", slices=[("absent", 0, 0, 1)], filter=[])
    for call in (straightway.load_model, straightway.load_file, straightway.safe_open, straightway.iterate):
        with pytest.raises(FileNotFoundError):
            call("", framework="np")


def test_the_progress_of_a_filtered_stream_reaches_its_total(model):
    folder, expected = model
    seen = []
    stream = straightway.iterate(folder, framework="np", filter="layers.*", progress=lambda *now: seen.append(now), batch_bytes=1)
    assert sorted(name for name, _ in stream) == ["layers.0.bias", "layers.0.weight"]
    total = expected["layers.0.bias"].nbytes + expected["layers.0.weight"].nbytes
    assert seen[-1] == (total, total) and len(seen) == 2


def test_a_stream_on_the_cpu_reuses_memory_but_never_while_it_is_in_use(tmp_path):
    path = tmp_path / "m.safetensors"
    expected = {f"t{i}": numpy.full(1 << 18, i, "f4") for i in range(40)}
    straightway.save_file(expected, path)
    addresses = set()
    for name, array in straightway.iterate(path, framework="np", batch_bytes=2 << 20):
        addresses.add(array.ctypes.data)
        assert (array == expected[name]).all(), name
    # Forty arrays in twenty batches. A batch that came late had memory of its own.
    assert len(addresses) < 40
    # All of them, some of them, and a view of one are kept.
    for keeps in (lambda n: True, lambda n: n % 7 == 0, lambda n: n == 3):
        kept = {}
        for number, (name, array) in enumerate(straightway.iterate(path, framework="np", batch_bytes=2 << 20)):
            if keeps(number):
                kept[name] = array[5:]
        for name, array in kept.items():
            assert (array == expected[name][5:]).all(), name

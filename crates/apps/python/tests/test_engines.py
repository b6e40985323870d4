"""What the loaders of all engines share: settings, bounded reads, verification, and one reader per file and machine."""

import fcntl
import multiprocessing
import os
import time
import zlib

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import straightway  # noqa: E402
from straightway import _node_reads  # noqa: E402
from straightway._engine_options import EngineOptions, parse  # noqa: E402
from straightway._engine_weights import EngineWeights  # noqa: E402

MIB = 1 << 20


def write(folder, files=3, file_bytes=24 * MIB):
    """A model of several files, durable, and evicted from the page cache."""
    folder.mkdir(exist_ok=True)
    for number in range(files):
        torch.manual_seed(number)
        tensors = {f"f{number}.t{i}": torch.randint(0, 255, (file_bytes // 8,), dtype=torch.uint8) for i in range(8)}
        straightway.torch.save_file(tensors, folder / f"m-{number}.safetensors")
    return sorted(str(path) for path in folder.iterdir())


def evict(files):
    for path in files:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def stored():
    """The bytes that this process has read from storage."""
    with open("/proc/self/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("read_bytes"))


def rank(paths, has_stopped, pipe):
    """A rank. It loads all files, and sends the bytes that it read from storage, a checksum, and when it was its turn.
    One that has stopped takes its turn and reads nothing."""
    turns = []
    find_role = _node_reads._role
    _node_reads._role = lambda *arguments: (find_role(*arguments), turns.append(time.time()))[0]
    weights = EngineWeights(parse({"route": "auto", "memory": "16MiB"})[0], "cpu", is_shared=True)
    pipe.send("ready")
    pipe.recv()
    before, total = stored(), 0
    for path in paths:
        if has_stopped:
            with _node_reads.turn(path, weights.open(path), None) as role:
                pipe.send(role)
                time.sleep(600)
        for _, tensor in weights.read(path, weights.open(path)):
            total += zlib.crc32(tensor.numpy())
    pipe.send((stored() - before, total, turns[-1]))


class Ranks:
    """Processes that wait for a word before they load."""

    #: Its server imports PyTorch once for all ranks.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "straightway.torch"])

    def __init__(self, count, paths, has_stopped=False):
        self.pipes, self.all = [], []
        for _ in range(count):
            own, other = self.context.Pipe()
            self.pipes.append(own)
            self.all.append(self.context.Process(target=rank, args=(paths, has_stopped, other), daemon=True))
            self.all[-1].start()
        assert [self.said(pipe) for pipe in self.pipes] == ["ready"] * count

    def said(self, pipe):
        assert pipe.poll(120), "a rank says nothing"
        return pipe.recv()

    def start(self):
        for pipe in self.pipes:
            pipe.send("go")

    def results(self):
        return [self.said(pipe) for pipe in self.pipes]


def needs_a_drive(paths):
    evict(paths)
    total, cached = straightway.Model(paths[0]).cached(None)
    if cached:
        pytest.skip("the file system does not evict the files")
    return total


def test_four_ranks_read_each_byte_from_the_drive_once(tmp_path):
    paths = write(tmp_path / "model")
    needs_a_drive(paths)
    ranks = Ranks(4, paths)
    evict(paths)
    ranks.start()
    results = ranks.results()
    size = sum(os.path.getsize(path) for path in paths)
    assert size * 0.9 <= sum(stored for stored, _, _ in results) <= size * 1.05
    assert len({total for _, total, _ in results}) == 1


def test_a_killed_reader_delays_the_others_by_at_most_two_seconds(tmp_path):
    paths = write(tmp_path / "model", files=1)
    needs_a_drive(paths)
    reader, others = Ranks(1, paths, has_stopped=True), Ranks(2, paths)
    evict(paths)
    reader.start()
    assert reader.said(reader.pipes[0]) == "reader"
    others.start()
    assert not others.pipes[0].poll(0.3), "a rank did not wait for the reader"
    reader.all[0].kill()
    killed = time.time()
    results = others.results()
    # One of the two reads the file first.
    assert 0 < min(turn for _, _, turn in results) - killed < 2
    assert len({total for _, total, _ in results}) == 1


def test_a_rank_does_not_wait_for_a_reader_without_progress(tmp_path, monkeypatch, caplog):
    path = write(tmp_path / "model", files=1, file_bytes=MIB)[0]
    needs_a_drive([path])
    monkeypatch.setattr(_node_reads, "_STALL_S", 0.2)
    monkeypatch.setattr(_node_reads, "_COUNT_S", 0.05)
    holder = os.open(path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with _node_reads.turn(path, straightway.Model(path), None) as role:
        assert role == "alone"
    assert "reads nothing" in caplog.text
    os.close(holder)
    with _node_reads.turn(path, straightway.Model(path), None) as role:
        assert role == "reader"
    monkeypatch.setattr(_node_reads, "free_memory", lambda: 0)
    with _node_reads.turn(path, straightway.Model(path), None) as role:
        assert role == "alone"
    straightway.load_file(path, route="buffered")
    with _node_reads.turn(path, straightway.Model(path), None) as role:
        assert role == "cached"


@pytest.mark.parametrize("settings", [{}, {"route": "auto", "memory": "16MiB"}, {"device": "cpu", "verify": True}])
def test_selected_tensors_arrive_and_only_they_are_read(tmp_path, settings):
    path = write(tmp_path / "model", files=1, file_bytes=8 * MIB)[0]
    weights = EngineWeights(parse(settings)[0], "cpu", is_shared=False)
    model = weights.open(path)
    found = {name: t.clone() for name, t in weights.read(path, model, wants=lambda name: not name.endswith("t3"))}
    expected = straightway.load_file(path)
    assert list(found) == [name for name in model.offset_keys() if not name.endswith("t3")]
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())
    assert sum(receipt.bytes for receipt in weights.receipts) == 7 * MIB
    assert weights.summary().startswith("straightway: 7.3 MB in ")


def test_a_difference_found_by_verify_names_the_tensor_and_its_file(tmp_path, monkeypatch):
    path = write(tmp_path / "model", files=1, file_bytes=MIB)[0]
    weights = EngineWeights(EngineOptions(verify=True, route="auto"), "cpu", is_shared=False)
    from straightway import _weights

    load = _weights.load

    def wrong(*arguments, **more):
        found = load(*arguments, **more)
        found["f0.t5"][7] += 1
        return found

    monkeypatch.setattr(_weights, "load", wrong)
    with pytest.raises(straightway.DamagedError, match="tensor 'f0.t5' of .*m-0.safetensors differs"):
        list(weights.read(path, weights.open(path)))


def test_settings_are_checked():
    options, kept = parse({"memory": "1GiB", "num_threads": 3, "verify": True}, ("num_threads",))
    assert options == EngineOptions(memory_bytes=1 << 30, verify=True) and kept == {"num_threads": 3}
    assert parse(None)[0] == EngineOptions()
    assert parse({"memory": 64 * MIB})[0].memory_bytes == 64 * MIB
    for wrong, message in [
        ({"vrify": True}, "no setting 'vrify'\nhint: did you mean 'verify'"),
        ({"zzz": True}, "the keys are route, verify, memory"),
        ({"memory": "many"}, 'memory is a size such as "256MiB"'),
        ({"device": "cuda"}, "device is auto or cpu"),
        ({"uri": 3}, "uri is a text"),
        ({"storage_options": "x"}, "storage_options is a JSON object"),
        ("route", "a JSON object"),
    ]:
        with pytest.raises(ValueError, match=message):
            parse(wrong)

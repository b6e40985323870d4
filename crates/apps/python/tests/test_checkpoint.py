"""Checkpoints: a restore returns exactly the saved state."""

import collections
import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap
import threading
import warnings

import numpy
import pytest
import safetensors.numpy
import straightway
import straightway.numpy

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import straightway.torch


def equal(a, b):
    """Whether two states are equal byte for byte, including their objects."""
    assert type(a) is type(b), (type(a), type(b))
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))
    elif isinstance(a, numpy.ndarray):
        assert a.dtype == b.dtype
        numpy.testing.assert_array_equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            equal(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            equal(x, y)
    else:
        assert a == b
    return True


def nested():
    torch.manual_seed(3)
    bits = torch.randint(0, 120, (64, 32), dtype=torch.uint8)
    return {
        "tensors": [bits.view(getattr(torch, t)) for t in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "int64", "complex64")],
        "numbers": {1: 2.5, "inf": float("inf"), "none": None, "long": 1 << 80, True: "yes"},
        "tuple": (torch.tensor(3.5), [numpy.arange(7), numpy.float32(1.25)], ()),
        "strided": torch.arange(24).reshape(4, 6).T[1:, ::2],
        "complex": torch.randn(3, 2, dtype=torch.complex128),
        "array": numpy.arange(6, dtype="complex128").reshape(2, 3).T,
        "empty": torch.zeros(0, 4),
        "dots.in": {"names": torch.ones(2)},
        "dots": {"in.names": torch.zeros(2)},
        "ordered": collections.OrderedDict(b=1, a=torch.ones(1)),
        "others": [{1, 2}, torch.bfloat16, torch.device("cpu"), torch.Size([2, 3]), datetime.date(2026, 1, 2), b"bytes", numpy.random.RandomState(5).get_state()],
    }


def test_a_nested_state_is_restored_unchanged(tmp_path):
    state = nested()
    with straightway.Checkpointer(tmp_path / "made/here") as checkpointer:
        saved = checkpointer.save(7, state, async_=False, metadata={"loss": 0.5})
        assert (saved.step, saved.written_bytes) == (7, saved.bytes) and saved.receipt.bytes == saved.bytes
        equal(checkpointer.load(), state)
        assert checkpointer.metadata() == {"loss": 0.5} and checkpointer.steps() == [7] and checkpointer.verify() == []


def test_a_restore_writes_into_existing_tensors(tmp_path):
    state = nested()
    checkpointer = straightway.Checkpointer(tmp_path)
    checkpointer.save(1, state, async_=False, metadata=["m"])
    into = nested()
    kept = [into["strided"], into["complex"], into["tensors"][0], into["tuple"][0]]
    for tensor in [*kept, *into["tensors"]]:
        tensor.zero_()
    into["numbers"] = {}
    into["array"] = numpy.zeros((3, 2), "complex128")
    restored = checkpointer.restore(into=into)
    assert (restored.step, restored.metadata, restored.rebuilt) == (1, ["m"], [])
    equal(into, state)
    assert into["strided"] is kept[0] and into["complex"] is kept[1] and into["tensors"][0] is kept[2] and into["tuple"][0] is kept[3]


def test_only_requested_entries_are_restored_and_errors_name_the_entry(tmp_path):
    checkpointer = straightway.Checkpointer(tmp_path)
    checkpointer.save(1, {"a": torch.ones(3), "b": {"c": torch.ones(5), "d": 4}}, async_=False)
    into = {"b": {"c": torch.zeros(5, dtype=torch.float64)}}
    checkpointer.restore(into=into)
    assert into["b"].keys() == {"c"} and into["b"]["c"].sum() == 5
    for wrong, error, words in [
        ({"b": {"x": 1}}, KeyError, "b.x"),
        ({"a": torch.zeros(4)}, ValueError, r"'a' was saved with shape \(3,\)"),
        ({"b": {"d": torch.zeros(1)}}, ValueError, "is a tensor, but a .* was saved there"),
        ({"a": numpy.broadcast_to(numpy.zeros(1, "f4"), 3)}, ValueError, "read-only"),
    ]:
        with pytest.raises(error, match=words):
            checkpointer.restore(into=wrong)
    with pytest.raises(FileNotFoundError, match="step 9"):
        checkpointer.restore(9, into=into)
    with pytest.raises(ValueError, match="latest"):
        checkpointer.restore("last", into=into)


def test_an_unusable_target_is_refused_by_its_path_and_plain_values_are_replaced(tmp_path):
    checkpointer = straightway.Checkpointer(tmp_path)
    model = torch.nn.Linear(3, 2)
    state = {"model": model, "list": [torch.ones(2), torch.ones(3)], "losses": [0.5, 0.25], "epoch": 3, "best": (1, {"at": 2}), "none": None}
    checkpointer.save(1, state, async_=False)
    zeros = torch.zeros(2)
    for wrong, words in [
        ([model], "the state is a list of 1, and a dictionary was saved"),
        ((model,), "the state is a tuple of 1, and a dictionary was saved"),
        (5, "the state is a value of type int, and nothing"),
        ({"list": [zeros]}, "^list is a list of 1, and a list of 2 was saved"),
        ({"list": (zeros, zeros)}, "^list is a tuple of 2, and a list of 2"),
        ({"list": {"a": zeros}}, "^list is a dictionary, and a list of 2"),
        ({"model": {"weight": [zeros]}}, "^model.weight is a list of 1, and a tensor"),
        ({"best": [zeros, {}]}, "^best is a list of 2, and a tuple of 2"),
    ]:
        with pytest.raises(ValueError, match=words):
            checkpointer.restore(into=wrong)
    assert not zeros.any()
    losses, fresh = [], {}
    into = {"list": None, "losses": losses, "epoch": None, "best": 0, "none": {"was": "none"}, "model": fresh}
    checkpointer.restore(into=into)
    assert into["losses"] is losses and losses == [0.5, 0.25] and into["best"] == (1, {"at": 2}) and into["epoch"] == 3
    assert into["none"] is None and torch.equal(into["list"][1], torch.ones(3)) and torch.equal(fresh["weight"], model.weight)
    # A tuple of tensors can be a target, like a list; a number in it could not be replaced.
    checkpointer.save(2, (torch.ones(2), 7), async_=False)
    with pytest.raises(ValueError, match="^1 is a value of type int, and nothing"):
        checkpointer.restore(into=(zeros, 0))
    into = [()]
    checkpointer.save(3, [(torch.ones(2), 7)], async_=False)
    checkpointer.restore(into=into)
    assert into[0][1] == 7


def test_a_module_and_its_optimizer_resume(tmp_path):
    def train(model, optimizer, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(2, 16)).square().sum().backward()
            optimizer.step()

    def fresh(seed):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return {"model": model, "optimizer": optimizer, "schedule": torch.optim.lr_scheduler.StepLR(optimizer, 3)}

    one = fresh(1)
    train(one["model"], one["optimizer"], 3)
    with straightway.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(3, one)
        train(one["model"], one["optimizer"], 3)
        checkpointer.wait()
        # A new optimizer has no state yet, and a used one has other values.
        for other in [fresh(2), fresh(3)]:
            checkpointer.restore(into=other)
            train(other["model"], other["optimizer"], 3)
            equal(other["model"].state_dict(), one["model"].state_dict())
            equal(other["optimizer"].state_dict(), one["optimizer"].state_dict())
        # Into existing memory, and through `load_state_dict`.
        checkpointer.restore(3, into={"model": other["model"]})
        assert not torch.equal(other["model"][0].weight, one["model"][0].weight)


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path):
    weight = torch.randn(1000, 100)
    with straightway.Checkpointer(tmp_path) as checkpointer:
        saved = checkpointer.save(1, {"embed": weight, "head": weight}, async_=False)
        assert saved.bytes < 500_000
        found = checkpointer.load()
        assert found["embed"].data_ptr() == found["head"].data_ptr()
        apart = {"embed": torch.zeros(1000, 100), "head": torch.zeros(1000, 100)}
        checkpointer.restore(into=apart)
        assert torch.equal(apart["embed"], weight) and torch.equal(apart["head"], weight)
        tied = torch.zeros(1000, 100)
        restored = checkpointer.restore(into={"embed": tied, "head": tied})
        assert torch.equal(tied, weight) and restored.bytes == weight.nbytes


def test_a_tensor_changed_right_after_save_is_saved_as_it_was(tmp_path):
    tensor, array = torch.ones(4 << 20), numpy.ones(1 << 20)
    with straightway.Checkpointer(tmp_path, rate_bytes_per_s=100e6) as checkpointer:
        for step in range(1, 4):
            tensor.fill_(step)
            array.fill(step)
            checkpointer.save(step, {"t": tensor, "a": array})
            tensor.fill_(-1)
            array.fill(-1)
            assert checkpointer.progress.step == step and checkpointer.progress.bytes > 24 << 20
        checkpointer.wait()
        assert not checkpointer.progress.is_busy and checkpointer.progress.written_bytes >= 24 << 20
        for step in range(1, 4):
            found = checkpointer.load(step)
            assert bool((found["t"] == step).all()) and bool((found["a"] == step).all())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_tensors_of_a_gpu_are_saved_as_they_were_and_restored_where_they_are(tmp_path):
    model = torch.nn.Linear(700, 900, device="cuda", dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3, 700, device="cuda", dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    tensors = {"large": torch.randn(6 << 20, device="cuda"), "strided": torch.randn(50, 60, device="cuda").T, "host": torch.randn(9), "none": torch.zeros(0, device="cuda")}
    state = {"model": model, "optimizer": optimizer, "tensors": tensors}
    before = {name: tensor.clone() for name, tensor in [*tensors.items(), *model.state_dict().items()]}
    with straightway.Checkpointer(tmp_path) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, state)
            for tensor in [*tensors.values(), *model.parameters()]:
                tensor.data.zero_()
            checkpointer.wait()
            assert not tensors["large"].any()
            checkpointer.restore(step, into=state)
            for name, tensor in [*tensors.items(), *model.state_dict().items()]:
                assert torch.equal(tensor, before[name]), (step, name)
        found = checkpointer.load(device="cuda")
        assert found["tensors"]["large"].is_cuda and torch.equal(found["tensors"]["large"], before["large"])
        assert torch.equal(found["optimizer"]["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])


def test_a_save_during_another_waits_or_is_refused(tmp_path):
    state = {"t": torch.ones(2 << 20)}
    with straightway.Checkpointer(tmp_path, busy="refuse", rate_bytes_per_s=20e6) as checkpointer:
        checkpointer.save(1, state)
        with pytest.raises(OSError, match="still under way"):
            checkpointer.save(2, state)
    assert checkpointer.steps() == [1]


def test_an_incremental_save_writes_what_changed(tmp_path):
    state = {"frozen": torch.randn(4, 1 << 20), "small": torch.zeros(1000)}
    with straightway.Checkpointer(tmp_path, incremental=True, keep_last=1) as checkpointer:
        full = checkpointer.save(1, state, async_=False)
        state["frozen"][3, -1] = 7
        part = checkpointer.save(2, state, async_=False)
        assert full.written_bytes > 16 << 20 and part.written_bytes <= 8 << 20
        # The parent of a kept step is kept.
        assert checkpointer.steps() == [1, 2]
        equal(checkpointer.load(), state)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_checkpoints_are_smaller_and_the_same(tmp_path, codec):
    state = {"t": torch.zeros(1 << 20)}
    with straightway.Checkpointer(tmp_path, compression=codec) as checkpointer:
        assert checkpointer.save(1, state, async_=False).written_bytes < 1 << 20
        equal(checkpointer.load(), state)


def test_steps_that_are_not_kept_are_removed(tmp_path):
    with straightway.Checkpointer(tmp_path, keep_last=2, options=straightway.SaveOptions(keep_every=4)) as checkpointer:
        for step in range(1, 9):
            checkpointer.save(step, {"t": torch.ones(3)})
            if step == 3:
                checkpointer.wait()
                checkpointer.tag(3, "good")
    # Older steps are removed in the background; after `close` they are gone.
    again = straightway.Checkpointer(tmp_path)
    assert again.steps() == [3, 4, 7, 8] and again.latest() == 8


def test_a_step_committed_during_pruning_is_pruned_for_too(tmp_path, monkeypatch):
    """A prune that runs while a step is committed runs once more, without another save."""
    begun, go, calls = threading.Event(), threading.Event(), []

    class Slow:
        """A folder whose first prune lasts until all steps are committed."""

        def __init__(self, *arguments):
            self._store = straightway._straightway.Store(*arguments)

        def __getattr__(self, name):
            return getattr(self._store, name)

        def prune(self, *arguments):
            calls.append(arguments)
            begun.set()
            assert go.wait(30)
            return self._store.prune(*arguments)

    monkeypatch.setattr(straightway._checkpointer, "Store", Slow)
    checkpointer = straightway.Checkpointer(tmp_path, keep_last=2)
    for step in range(1, 5):
        checkpointer.save(step, {"n": step}, async_=False)
        assert begun.wait(30)
    go.set()
    checkpointer._pruning.join()
    assert checkpointer.steps() == [3, 4] and len(calls) == 2
    checkpointer.close()


def test_a_job_that_resumed_from_an_older_step_keeps_its_steps_and_is_warned(tmp_path):
    with straightway.Checkpointer(tmp_path, keep_last=2) as checkpointer:
        for step in (100, 101):
            checkpointer.save(step, {"n": step})
    with straightway.Checkpointer(tmp_path, keep_last=2) as checkpointer:
        with pytest.warns(UserWarning, match="step 5 is below step 101 .*, which stays the latest\n.*remove"):
            checkpointer.save(5, {"n": 5}, async_=False)
        # The warning is given once.
        for step in (6, 7):
            checkpointer.save(step, {"n": step}, async_=False)
    assert checkpointer.steps() == [6, 7, 100, 101]
    for step in (100, 101):
        checkpointer.remove(step)
    assert checkpointer.latest() == 7


def test_a_step_committed_before_pruning_lists_steps_is_not_removed(tmp_path, monkeypatch):
    with straightway.Checkpointer(tmp_path) as checkpointer:
        for step in (100, 101):
            checkpointer.save(step, {"n": step})
    go = threading.Event()

    class Late:
        """A folder whose prune begins after the next save is committed."""

        def __init__(self, *arguments):
            self._store = straightway._straightway.Store(*arguments)

        def __getattr__(self, name):
            return getattr(self._store, name)

        def prune(self, *arguments):
            assert go.wait(30)
            return self._store.prune(*arguments)

    with straightway.Checkpointer(tmp_path, keep_last=2) as checkpointer, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        monkeypatch.setattr(straightway._checkpointer, "Store", Late)
        for step in (5, 6):
            checkpointer.save(step, {"n": step}, async_=False)
        go.set()
        checkpointer._pruning.join()
        monkeypatch.undo()
    assert checkpointer.steps() == [5, 6, 100, 101]


@pytest.mark.filterwarnings("error")
def test_a_job_that_removed_the_later_steps_is_not_warned(tmp_path):
    with straightway.Checkpointer(tmp_path, keep_last=2) as checkpointer:
        checkpointer.save(100, {"n": 1}, async_=False)
        checkpointer.remove(100)
        for step in (5, 6):
            checkpointer.save(step, {"n": step})


def test_a_damaged_step_is_kept_with_a_warning_and_others_are_pruned(tmp_path):
    for kind in ("manifest", "tags"):
        folder = tmp_path / kind
        with straightway.Checkpointer(folder, keep_last=2) as checkpointer:
            for step in (1, 2):
                checkpointer.save(step, {"n": step}, async_=False)
            checkpointer.tag(1, "t")
            (folder / f"step-1/{kind}.json").write_text("{")
            with pytest.warns(UserWarning, match="step 1 stays: .*step-1/") as heard:
                for step in (3, 4, 5):
                    checkpointer.save(step, {"n": step}, async_=False)
                checkpointer.close()
        assert checkpointer.steps() == [1, 4, 5] and len(heard) == 1


def test_invalid_numbers_are_refused_before_anything_is_saved(tmp_path):
    for wrong, words in [
        ({"keep_last": 0}, "keep_last is at least 1"),
        ({"keep_last": 1, "keep_every": -1}, "keep_every is at least 1"),
        ({"keep_every": 5}, "keep_every needs keep_last\nhint: keep_last="),
        ({"world_size": 0}, "rank 0 is out of range"),
        ({"parity": -1}, "parity"),
        ({"memory_bytes_max": -1}, "memory_bytes_max"),
        ({"compression": "gzip"}, 'compression is zstd, lz4 or None, not "gzip"'),
        ({"busy": "never"}, "busy is wait or refuse"),
        ({"timeout_s": -1.0}, "timeout of -1 seconds"),
        ({"rate_bytes_per_s": 0}, "rate_bytes_per_s is above 0"),
    ]:
        with pytest.raises(ValueError, match=words):
            straightway.Checkpointer(tmp_path, **wrong)
    with pytest.raises(TypeError, match="Checkpointer has no argument 'keep'"):
        straightway.Checkpointer(tmp_path, keep=3)
    with straightway.Checkpointer(tmp_path) as checkpointer:
        for call in (lambda: checkpointer.save(-1, {}), lambda: checkpointer.load(-1), lambda: checkpointer.tag(-1, "t"), lambda: checkpointer.remove(-1)):
            with pytest.raises(ValueError, match="a step is at least 0"):
                call()
        checkpointer.save(0, {}, async_=False)
        assert checkpointer.latest() == 0


def test_an_incremental_save_works_after_a_step_was_removed_by_hand(tmp_path):
    state = {"frozen": torch.randn(2, 1 << 20), "n": 0}
    with straightway.Checkpointer(tmp_path, incremental=True) as checkpointer:
        for step in (1, 2):
            state["n"] = step
            checkpointer.save(step, state, async_=False)
        shutil.rmtree(tmp_path / "step-1")
        full = checkpointer.save(3, state, async_=False)
        part = checkpointer.save(4, state, async_=False)
        assert full.written_bytes == full.bytes > part.written_bytes
        equal(checkpointer.load(4), state)


def flip(folder, step):
    """Changes a byte in the middle of a step's shard."""
    (shard,) = (folder / f"step-{step}").glob("*.safetensors")
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    return shard.name


def test_a_corrupt_chunk_is_named_and_not_written_to_the_target(tmp_path):
    with straightway.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"weight": torch.ones(3 << 20)}, async_=False)
        shard = flip(tmp_path, 1)
        into = {"weight": torch.zeros(3 << 20)}
        with pytest.raises(ValueError, match=rf"chunk 1 of .*{shard}.*weight"):
            checkpointer.restore(into=into)
        # Good chunks may have been written; no byte of the bad one was.
        assert not into["weight"][1 << 20 : 2 << 20].all() and len(checkpointer.verify()) == 1


def test_parity_repairs_a_damaged_chunk(tmp_path):
    with straightway.Checkpointer(tmp_path, options=straightway.SaveOptions(parity=1)) as checkpointer:
        checkpointer.save(1, {"weight": torch.ones(3 << 20)}, async_=False)
        flip(tmp_path, 1)
        into = {"weight": torch.zeros(3 << 20)}
        restored = checkpointer.restore(into=into)
        assert into["weight"].all() and len(restored.rebuilt) == 1 and "chunk 1" in restored.rebuilt[0]


def test_latest_is_the_latest_complete_step(tmp_path):
    checkpointer = straightway.Checkpointer(tmp_path / "none/yet")
    assert checkpointer.steps() == [] and checkpointer.latest() is None
    with pytest.raises(FileNotFoundError):
        checkpointer.load()
    with straightway.Checkpointer(tmp_path) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, {"n": step})
        checkpointer.wait()
    os.remove(tmp_path / "step-2/manifest.json")
    (tmp_path / ".step-3.crashed-1").mkdir()
    (tmp_path / "step-4").mkdir()
    assert checkpointer.latest() == 1 and checkpointer.load() == {"n": 1}
    assert checkpointer.restore(into={"n": 0}).step == 1


def test_a_step_that_exists_is_not_replaced_and_a_second_job_is_refused(tmp_path):
    with straightway.Checkpointer(tmp_path) as one:
        one.save(1, {"n": 1}, async_=False)
        with pytest.raises(ValueError, match="there already"):
            one.save(1, {"n": 2})
        with pytest.raises((OSError, RuntimeError, ValueError), match="lock|another|saves"):
            straightway.Checkpointer(tmp_path).save(2, {"n": 2})
    # After `close` the folder is unlocked.
    with straightway.Checkpointer(tmp_path) as other:
        other.save(2, {"n": 2})
    assert other.steps() == [1, 2] and other.load(1) == {"n": 1}


class Own:
    """A user-defined class."""

    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return self.n == other.n


def test_objects_of_any_class_are_unpickled_only_with_trust(tmp_path):
    with straightway.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"own": Own(5), "t": torch.ones(2)}, async_=False)
        with pytest.raises(ValueError, match="Own.*\n.*trust=True"):
            checkpointer.load()
        into = {"t": torch.zeros(2), "own": None}
        with pytest.raises(ValueError, match="Own"):
            checkpointer.restore(into=into)
        # It was refused before any target was written to.
        assert not into["t"].any()
        into = {"t": torch.zeros(2)}
        checkpointer.restore(into=into)
        assert into["t"].all()
    assert straightway.Checkpointer(tmp_path, trust=True).load()["own"] == Own(5)


def test_shards_are_plain_safetensors_and_an_export_is_a_model(tmp_path):
    state = {"w": torch.randn(50, 7), "step": 3}
    with straightway.Checkpointer(tmp_path / "c") as checkpointer:
        checkpointer.save(1, state, async_=False)
    (shard,) = (tmp_path / "c/step-1").glob("*.safetensors")
    numpy.testing.assert_array_equal(safetensors.numpy.load_file(shard)["w"], state["w"].numpy())
    files = straightway._straightway.Store(tmp_path / "c").open(1).export(tmp_path / "model")
    assert files == ["model.safetensors"]
    equal(dict(straightway.load_model(tmp_path / "model")), {"w": state["w"]})


def python(code, *arguments, **more):
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], capture_output=True, text=True, timeout=60, **more)


def test_a_save_is_finished_if_the_program_ends(tmp_path):
    code = """
        import sys, numpy, straightway
        checkpointer = straightway.Checkpointer(sys.argv[1], rate_bytes_per_s=50e6)
        checkpointer.save(1, {"t": numpy.ones(2 << 20)})
    """
    done = python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert straightway.Checkpointer(tmp_path).steps() == [1]


def test_restores_and_loads_look_up_the_same_profile(tmp_path):
    state = {"t": numpy.ones(1000)}
    with straightway.Checkpointer(tmp_path / "steps") as checkpointer:
        checkpointer.save(1, state, async_=False)
    straightway.save_file(state, tmp_path / "m.safetensors")
    # A damaged profile is an error for loads and saves. It does not stop a restore, which warns.
    profile = tmp_path / "state/straightway/profile.toml"
    profile.parent.mkdir(parents=True)
    profile.write_text("damaged")
    code = """
        import logging, sys, numpy, straightway
        warnings = []
        handler = logging.Handler()
        handler.emit = lambda record: warnings.append(record.getMessage()) if record.levelname == "WARNING" else None
        logging.getLogger("straightway").addHandler(handler)
        folder = sys.argv[1]
        load = lambda: straightway.load_model(f"{folder}/m.safetensors", framework="np")
        # The profile is found for a folder that does not exist yet, too.
        save = lambda: straightway.Checkpointer(f"{folder}/new/steps").save(1, {"t": numpy.ones(9)}, async_=False)
        for work in (load, save):
            try:
                work()
            except ValueError as error:
                print("profile.toml" in str(error))
            else:
                print("not looked up")
        checkpointer = straightway.Checkpointer(f"{folder}/steps")
        into = {"t": numpy.zeros(1000)}
        for work in (checkpointer.load, checkpointer.verify, lambda: checkpointer.restore(into=into)):
            warnings.clear()
            work()
            print(any("profile.toml" in warning for warning in warnings))
        print(into["t"].sum() == 1000)
    """
    done = python(code, tmp_path, env=os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")})
    assert done.stdout.split() == ["True"] * 6, done.stdout + done.stderr


def test_a_target_whose_file_was_truncated_is_an_error_and_later_restores_work(tmp_path):
    with straightway.Checkpointer(tmp_path / "steps") as checkpointer:
        checkpointer.save(1, {"t": numpy.arange(1 << 18)}, async_=False)
    # In a process of its own, which a fault would end.
    code = """
        import os, sys, numpy, straightway
        folder = sys.argv[1]
        lost = numpy.memmap(f"{folder}/target", "int64", "w+", shape=(1 << 18,))
        os.truncate(f"{folder}/target", 0)
        checkpointer = straightway.Checkpointer(f"{folder}/steps")
        try:
            checkpointer.restore(into={"t": lost})
        except ValueError as error:
            print("pages of the target memory are gone" in str(error), "defect" in str(error))
        into = {"t": numpy.zeros(1 << 18, "int64")}
        checkpointer.restore(into=into)
        print((into["t"] == numpy.arange(1 << 18)).all())
    """
    done = python(code, tmp_path)
    assert done.stdout.split() == ["True", "False", "True"], done.stdout + done.stderr


FORKED = """
    import os, signal, sys, time, numpy, straightway
    folder, state = sys.argv[1], {"t": numpy.ones(2 << 20)}

    def child(work):
        # Runs in a child, and reports how it ends. A child that hangs is killed here.
        process = os.fork()
        if process == 0:
            signal.alarm(10)
            work()
            sys.exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
"""


def test_a_child_cannot_save_with_its_parents_checkpointer_but_with_its_own(tmp_path):
    code = FORKED + """
    checkpointer = straightway.Checkpointer(folder)
    checkpointer.save(1, state, async_=False)

    def refused():
        for call in (lambda: checkpointer.save(2, state), checkpointer.wait, lambda: checkpointer.progress):
            try:
                call()
            except RuntimeError as error:
                assert "make a Checkpointer of its own in the child" in str(error), error
            else:
                raise SystemExit("nothing was refused")
        assert checkpointer.load()["t"].all() and checkpointer.steps() == [1]
        checkpointer.close()

    def own():
        with straightway.Checkpointer(folder + "/child") as mine:
            mine.save(1, state)

    assert child(refused) == 0
    assert child(own) == 0
    # `close` in the child neither released the parent's lock nor harmed its saver.
    try:
        straightway.Checkpointer(folder).save(5, state)
    except ValueError as error:
        assert "another job saves there" in str(error)
    else:
        raise SystemExit("the lock is gone")
    checkpointer.save(2, state, async_=False)
    assert straightway.Checkpointer(folder + "/child").steps() == [1] and checkpointer.steps() == [1, 2]
    """
    done = python(code, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_child_ends_while_its_parent_saves(tmp_path):
    code = FORKED + """
    checkpointer = straightway.Checkpointer(folder, rate_bytes_per_s=5e6)
    checkpointer.save(1, state)

    def inside():
        with checkpointer:
            pass

    def forgotten():
        global checkpointer
        del checkpointer

    assert checkpointer.progress.is_busy
    for work in (lambda: None, inside, forgotten):
        assert child(work) == 0, work
    assert checkpointer.wait().step == 1
    """
    done = python(code, tmp_path)
    assert done.returncode == 0, done.stderr


def test_close_unlocks_the_folder_although_a_forked_child_lives(tmp_path):
    code = FORKED + """
    checkpointer = straightway.Checkpointer(folder)
    checkpointer.save(1, state)
    sleeper = os.fork()
    if sleeper == 0:
        time.sleep(60)
        os._exit(0)
    checkpointer.close()
    with straightway.Checkpointer(folder) as another:
        another.save(2, state)
    assert os.waitpid(sleeper, os.WNOHANG) == (0, 0)
    os.kill(sleeper, signal.SIGKILL)
    """
    done = python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert straightway.Checkpointer(tmp_path).steps() == [1, 2]


def test_the_example_of_the_docs_resumes(tmp_path, monkeypatch, capsys):
    docs = pathlib.Path(__file__).parents[4] / "docs/python.md"
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", docs.read_text(), re.S) if "Checkpointer(" in block]
    monkeypatch.chdir(tmp_path)
    for steps, trained in [(4, 4), (6, 2)]:
        model = torch.nn.Linear(3, 2)
        turns = []
        names = {"straightway": straightway, "model": model, "optimizer": torch.optim.AdamW(model.parameters()), "steps": steps, "train": turns.append}
        exec(example, names)
        assert len(turns) == trained and f"step={steps - 1}" in capsys.readouterr().out
    assert straightway.Checkpointer(tmp_path / "runs/llama").steps() == [3, 4, 5]


def test_ranks_that_share_only_the_file_system_save_together(tmp_path):
    code = """
        import sys, time, numpy, straightway
        folder, rank = sys.argv[1], int(sys.argv[2])
        with straightway.Checkpointer(folder, rank=rank, world_size=3, run="job-1", timeout_s=3) as checkpointer:
            # A save that fails on one rank makes no step, and does not harm the next one.
            try:
                checkpointer.save(9, {"bad": lambda: 0} if rank == 1 else {"good": 1}, async_=False)
            except (OSError, TypeError) as error:
                assert ("bad is a function" in str(error)) == (rank == 1), error
                # The others fail after their timeout.
                time.sleep(2.5 if rank == 1 else 0)
            else:
                raise SystemExit("it did not fail")
            for step in (1, 2):
                checkpointer.save(step, {f"own.{rank}": numpy.full(1000, rank + step), "all": numpy.ones(5), "rank": rank}, metadata=step)
            checkpointer.wait()
            assert checkpointer.load()["rank"] == rank
    """
    ranks = [subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), str(tmp_path), str(rank)]) for rank in range(3)]
    assert [rank.wait(60) for rank in ranks] == [0, 0, 0]
    one = straightway.Checkpointer(tmp_path)
    assert one.steps() == [1, 2] and one.metadata(1) == 1
    # One process restores the state of all ranks.
    found = one.load()
    assert [int(found[f"own.{rank}"][0]) for rank in range(3)] == [2, 3, 4] and found["rank"] == 0
    with pytest.raises(ValueError, match="run="):
        straightway.Checkpointer(tmp_path, rank=0, world_size=2).save(3, {})


def test_a_rank_that_dies_makes_the_save_fail_in_time(tmp_path):
    with straightway.Checkpointer(tmp_path, rank=0, world_size=2, run="job-2", timeout_s=0.5) as checkpointer:
        checkpointer.save(1, {"t": torch.ones(3)})
        with pytest.raises(OSError, match="nothing came from 1 of 2 ranks: 1"):
            checkpointer.wait()
        assert checkpointer.steps() == [] and checkpointer.wait() is None


def test_ctrl_c_ends_the_wait_and_not_the_save(tmp_path):
    code = """
        import os, signal, sys, threading, numpy, straightway
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run by nohup
        checkpointer = straightway.Checkpointer(sys.argv[1], rate_bytes_per_s=16e6)
        checkpointer.save(1, {"t": numpy.ones(2 << 20)})
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            checkpointer.wait()
        except KeyboardInterrupt:
            assert checkpointer.progress.is_busy
        else:
            raise SystemExit("Ctrl-C had no effect")
        checkpointer.close()
    """
    done = python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert straightway.Checkpointer(tmp_path).steps() == [1]


def test_the_interpreter_runs_while_bytes_move(tmp_path):
    with straightway.Checkpointer(tmp_path, rate_bytes_per_s=50e6) as checkpointer:
        checkpointer.save(1, {"t": torch.ones(4 << 20)})
        turns = 0
        while checkpointer.progress.is_busy:
            turns += 1
        assert turns > 100


def test_the_manifest_lists_shards_and_tensors(tmp_path):
    with straightway.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"a": {"b": torch.zeros(2, 3)}, "n": 1}, async_=False, metadata={"k": "v"})
    manifest = json.loads((tmp_path / "step-1/manifest.json").read_text())
    tensors = {t["name"]: t for t in manifest["tensors"]}
    assert tensors["a.b"]["shape"] == [2, 3] and manifest["metadata"] == {"k": "v"}
    assert tensors["straightway.tree.00000"]["opaque"] is True


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"lr": float("nan")}, r"metadata\['lr'\] is nan"),
        ([1, {"a": (2, float("-inf"))}], r"metadata\[1\]\['a'\]\[1\] is -inf"),
        ({1: "x"}, "metadata has the key 1"),
        ({"a": "\ud800"}, r"metadata\['a'\] has half of a surrogate pair"),
        ({"a": {1, 2}}, r"metadata\['a'\] is a set"),
        ({"n": 1 << 9000}, r"metadata\['n'\] is an integer of 9001 bits"),
    ],
)
def test_metadata_that_json_would_change_is_refused_by_its_path(tmp_path, metadata, said):
    with straightway.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"t": numpy.ones(3)}, metadata={"seed": 1 << 100, "f": 1e300, "s": "ü☃", "l": [None, True]})
        with pytest.raises((ValueError, TypeError), match=said):
            checkpointer.save(2, {"t": numpy.ones(3)}, metadata=metadata)
        checkpointer.save(3, {"t": numpy.ones(3)}, async_=False)
        assert checkpointer.steps() == [1, 3]
        assert checkpointer.metadata(1) == {"seed": 1 << 100, "f": 1e300, "s": "ü☃", "l": [None, True]}


def test_a_tagged_step_is_not_removed_until_its_tag_is_removed(tmp_path):
    with straightway.Checkpointer(tmp_path, keep_last=1) as checkpointer:
        checkpointer.save(1, {"t": numpy.ones(3)}, async_=False)
        checkpointer.tag(1, "best")
        checkpointer.tag(1, "v2")
        checkpointer.save(2, {"t": numpy.ones(3)}, async_=False)
    assert checkpointer.steps() == [1, 2] and checkpointer.tags(1) == ["best", "v2"]
    with pytest.raises(ValueError, match='it is tagged "best"'):
        checkpointer.remove(1)
    checkpointer.untag(1, "best")
    checkpointer.untag(1, "v2")
    checkpointer.remove(1)
    assert checkpointer.steps() == [2]


def test_ranks_whose_tensors_differ_under_one_name_are_named_and_nothing_is_committed(tmp_path):
    threads = []
    said = []

    def rank(number):
        state = {"w": numpy.ones(3, numpy.float32) if number == 0 else numpy.ones(4, numpy.float32)}
        with straightway.Checkpointer(tmp_path, rank=number, world_size=2, run="r", timeout_s=20) as checkpointer:
            try:
                checkpointer.save(1, state, async_=False)
            except (OSError, ValueError) as error:
                said.append(str(error))

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(said) == 2 and straightway.Checkpointer(tmp_path).steps() == []
    assert any('tensor "w"' in words and "rank 0 has" in words and "[3]" in words and "rank 1" in words and "[4]" in words for words in said), said


def test_a_prepared_checkpointer_has_its_memory_before_the_first_save(tmp_path):
    code = """
        import os, sys, time, numpy, straightway

        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * 4096

        state = {"w": numpy.arange(200 << 17, dtype="float64"), "n": 3}
        before = resident()
        checkpointer = straightway.Checkpointer(sys.argv[1], rank=0, world_size=1, run="r", like=state)
        started = time.monotonic()
        while resident() - before < 200 << 20 and time.monotonic() - started < 60:
            time.sleep(0.01)
        prepared = resident() - before
        state["w"][5] = -1
        checkpointer.save(1, state)
        checkpointer.wait()
        checkpointer.prepare(like=state)
        checkpointer.save(2, state)
        checkpointer.close()
        grown = resident() - before - prepared
        loaded = straightway.Checkpointer(sys.argv[1], rank=0, world_size=1, run="r2").load(1)
        print(prepared >= 200 << 20, grown < 100 << 20, (loaded["w"] == state["w"]).all(), loaded["n"])
    """
    done = python(code, tmp_path / "run")
    assert done.stdout.split() == ["True", "True", "True", "3"], done.stderr


def test_a_checkpointer_that_is_prepared_and_closed_leaves_nothing(tmp_path):
    state = {"w": numpy.ones(1000)}
    with straightway.Checkpointer(tmp_path / "run", rank=0, world_size=1, run="r") as checkpointer:
        checkpointer.prepare(like=state)
        checkpointer.prepare(like=state)
    assert checkpointer.steps() == []
    with straightway.Checkpointer(tmp_path / "run", rank=0, world_size=1, run="r", memory_bytes_max=100) as checkpointer:
        with pytest.raises(ValueError, match="memory are allowed"):
            checkpointer.prepare(like=state)


def test_the_first_saves_of_several_threads_share_one_saver(tmp_path):
    with straightway.Checkpointer(tmp_path) as checkpointer:
        errors = []

        def work(step):
            try:
                checkpointer.save(step, {"t": numpy.full(10, step)}, async_=False)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(step,)) for step in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == [] and checkpointer.steps() == list(range(8))


def test_a_refused_value_is_named_by_its_path(tmp_path):
    with straightway.Checkpointer(tmp_path) as checkpointer:
        with pytest.raises(TypeError, match="a key of outer.1 is a "):
            checkpointer.save(1, {"outer": [0, {(lambda: 0): torch.ones(1)}]})
        checkpointer.save(1, {"outer": [0, {"own": Own(5)}]}, async_=False)
        with pytest.raises(ValueError, match="outer.1.own: .*Own"):
            checkpointer.load()


@pytest.mark.filterwarnings("error")
def test_a_class_that_will_need_trust_is_warned_about_at_the_save(tmp_path):
    state = {"deep": [0, {"own": Own(5)}], "again": Own(6), "plain": {1, 2}, "t": torch.ones(2)}
    with straightway.Checkpointer(tmp_path) as checkpointer:
        with pytest.warns(UserWarning, match=r"^deep.1.own has .*Own, which is saved as a pickle and loaded only with trust=True\nhint: ") as heard:
            checkpointer.save(1, state, async_=False)
        # Once for each class, and at the line that saves.
        assert len(heard) == 1 and heard[0].filename == __file__
        checkpointer.save(2, state, async_=False)
        with pytest.warns(UserWarning, match="^a key of keys has .*Own"):
            straightway.Checkpointer(tmp_path / "keys").save(1, {"keys": {OwnKey(1): 2}}, async_=False)
    with straightway.Checkpointer(tmp_path, trust=True) as checkpointer:
        checkpointer.save(3, state, async_=False)
        assert checkpointer.load(3)["again"] == Own(6)


class OwnKey(Own):
    """A key of a class of the user."""

    def __hash__(self):
        return self.n


def test_named_tuples_of_optax_are_warned_about_and_loaded_with_trust(tmp_path):
    optax = pytest.importorskip("optax", reason="optax is not installed")
    state = {"params": {"w": numpy.ones(3, "float32")}}
    state["opt"] = optax.adam(0.1).init(state["params"])
    with straightway.Checkpointer(tmp_path) as checkpointer:
        with pytest.warns(UserWarning, match="^opt.0 has optax.*ScaleByAdamState"):
            checkpointer.save(1, state, async_=False)
        with pytest.raises(ValueError, match="^opt.0: .*ScaleByAdamState"):
            checkpointer.load()
    found = straightway.Checkpointer(tmp_path, trust=True).load()["opt"]
    assert type(found[0]) is type(state["opt"][0]) and found[0].mu["w"].tolist() == [0, 0, 0]


def test_a_listing_has_the_tensors_of_a_step(tmp_path):
    state = {"model": {"w": torch.zeros(3, 4, dtype=torch.bfloat16), "b": numpy.zeros(5, "int8")}, "z": torch.zeros(2, dtype=torch.complex128), "n": 3}
    with straightway.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state, async_=False)
        checkpointer.save(2, {"other": torch.zeros(0, 7)}, async_=False)
        found = checkpointer.tensors(1)
        assert found["model.w"] == straightway.TensorInfo("BF16", (3, 4), 24)
        assert {name: (info.dtype, info.shape, info.nbytes) for name, info in found.items()} == {
            "model.w": ("BF16", (3, 4), 24), "model.b": ("I8", (5,), 5), "z": ("F64", (2, 2), 32),
        }  # fmt: skip
        assert checkpointer.tensors() == {"other": straightway.TensorInfo("F32", (0, 7), 0)}
        with pytest.raises(FileNotFoundError, match="step 9"):
            checkpointer.tensors(9)


def test_a_restore_that_is_not_strict_leaves_what_the_checkpoint_does_not_have(tmp_path):
    torch.manual_seed(1)
    saved = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    checkpointer = straightway.Checkpointer(tmp_path)
    checkpointer.save(1, {"model": saved, "a": {"b": torch.ones(2)}, "list": [torch.ones(2)], "only": torch.ones(9)}, async_=False)

    def target():
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2), torch.nn.Linear(2, 5))
        torch.nn.init.zeros_(model[2].weight)
        return {"model": model, "a": {"b": torch.zeros(2), "new": torch.zeros(1)}, "optimizer": {"lr": 0.5}, "list": [torch.zeros(2)]}

    into = target()
    for strict in ({}, {"strict": True}):
        with pytest.raises(KeyError, match="optimizer"):
            checkpointer.restore(into=into, **strict)
    assert not into["a"]["b"].any()
    restored = checkpointer.restore(into=into, strict=False)
    assert restored.missing == ["model.2.weight", "model.2.bias", "a.new", "optimizer"]
    assert torch.equal(into["model"][0].weight, saved[0].weight) and not into["model"][2].weight.any()
    assert into["a"]["b"].all() and into["optimizer"] == {"lr": 0.5} and into["list"][0].all()
    assert checkpointer.restore(into={"a": {}}).missing == []
    # Entries of a module that only the checkpoint has are not read, and a wrong shape is an error as before.
    small = {"model": torch.nn.Sequential(torch.nn.Linear(3, 2))}
    restored = checkpointer.restore(into=small, strict=False)
    assert restored.missing == [] and restored.bytes == 8 * 4 and torch.equal(small["model"][0].bias, saved[0].bias)
    for wrong in ({"a": {"b": torch.zeros(3)}}, {"model": torch.nn.Sequential(torch.nn.Linear(4, 2))}, {"list": [torch.zeros(2)] * 2}):
        with pytest.raises(ValueError, match="shape|list of"):
            checkpointer.restore(into=wrong, strict=False)
    # Objects whose `load_state_dict` has no such option get their whole state.
    optimizer = torch.optim.SGD(saved.parameters(), lr=0.25)
    checkpointer.save(2, {"optimizer": optimizer}, async_=False)
    other = torch.optim.SGD(saved.parameters(), lr=0.5)
    assert checkpointer.restore(into={"optimizer": other}, strict=False).missing == [] and other.param_groups[0]["lr"] == 0.25


def test_a_checkpointer_shows_its_folder_and_rank(tmp_path):
    with straightway.Checkpointer(tmp_path, rank=1, world_size=3, run="r") as checkpointer:
        assert repr(checkpointer) == f"<Checkpointer {str(tmp_path)!r}: rank 1 of 3>"
    with straightway.Checkpointer(tmp_path / "slow", rate_bytes_per_s=20e6) as checkpointer:
        checkpointer.save(1, {"t": numpy.ones(1 << 20)})
        assert repr(checkpointer).endswith("rank 0 of 1, a save is under way>")


def test_wrong_storage_options_are_refused_when_it_is_made(tmp_path):
    with pytest.raises(ValueError, match="nonsense"):
        straightway.Checkpointer(tmp_path, storage_options={"nonsense": "x"})
    for write in (straightway.save_file, straightway.numpy.save_file, straightway.torch.save_file):
        with pytest.raises(ValueError, match="nonsense"):
            write({}, "s3://bucket/a", storage_options={"nonsense": "x"})

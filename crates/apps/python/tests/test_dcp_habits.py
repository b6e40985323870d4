"""Common uses of ``torch.distributed.checkpoint``: options, overwriting, resuming, other writers' checkpoints."""

import gc
import inspect
import io
import os
import pickle
import re
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.distributed.is_available():
    pytest.skip("PyTorch was built without torch.distributed", allow_module_level=True)

import torch.distributed.checkpoint as dcp
import straightway
from straightway.torch import Stager, StorageReader, StorageWriter, convert
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import SerializationFormat

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def state(seed=1):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(9, 7, generator=generator)
    return {
        "model": {"w": weight, "b": torch.randn(5, generator=generator).to(torch.bfloat16), "z": torch.empty(0, 3)},
        "optimizer": {
            "state": {"w": {"exp_avg": weight * 2, "step": torch.tensor(3.0)}},
            "groups": [{"lr": 0.1, "betas": (0.9, 0.99)}],
        },
        "wave": torch.randn(4, 3, dtype=torch.complex128, generator=generator),
        "epoch": 4,
    }


def zeros(value):
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, dict):
        return {key: zeros(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(zeros(item) for item in value)
    return type(value)()


def same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype and torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            same(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected):
            same(a, b)
    else:
        assert found == expected


def loaded(path, like=None, **options):
    target = zeros(like or state())
    dcp.load(target, storage_reader=StorageReader(path, **options), no_dist=True)
    return target


def test_complex128_and_all_other_values_are_restored_unchanged(tmp_path):
    dcp.save(state(), storage_writer=StorageWriter(tmp_path / "step-3"), no_dist=True)
    same(loaded(tmp_path / "step-3"), state())
    entry = StorageReader(tmp_path / "step-3").read_metadata().state_dict_metadata["wave"]
    assert entry.properties.dtype == torch.complex128 and entry.size == (4, 3) and entry.chunks[0].sizes == (4, 3)


def test_a_checkpoint_records_its_save_id_and_version(tmp_path):
    writer = StorageWriter(tmp_path / "step-3")
    first = writer.save_id
    dcp.save(state(), storage_writer=writer, checkpoint_id=tmp_path / "step-3", no_dist=True)
    # A `checkpoint_id` begins another checkpoint with its own save id.
    assert writer.save_id != first and writer.storage_meta().save_id == writer.save_id
    metadata = StorageReader(tmp_path / "step-3").read_metadata()
    assert metadata.version == "1.0.0" and metadata.storage_meta.save_id == writer.save_id
    reader = StorageReader(tmp_path / "step-3")
    meta = reader.read_metadata().storage_meta
    assert meta.load_id == reader.load_id and os.fspath(meta.checkpoint_id) == str(tmp_path / "step-3")
    dcp.save(state(), storage_writer=FileSystemWriter(tmp_path / "theirs"), no_dist=True)
    reader = StorageReader(tmp_path / "theirs")
    assert reader.read_metadata().storage_meta.load_id == reader.load_id


def resume_step(folder):
    """The step that a trainer would resume from: the highest folder ``step-N`` with a ``.metadata`` file."""
    steps = [int(found[1]) for name in os.listdir(folder) if (found := re.fullmatch(r"step-(\d+)", name))]
    return max((s for s in steps if os.path.isfile(os.path.join(folder, f"step-{s}", ".metadata"))), default=-1)


def test_a_trainer_that_looks_for_metadata_finds_the_last_step(tmp_path):
    os.makedirs(tmp_path / "step-30")
    for step in (10, 20):
        dcp.save(
            state(step), storage_writer=StorageWriter(tmp_path), checkpoint_id=tmp_path / f"step-{step}", no_dist=True
        )
    assert resume_step(tmp_path) == 20
    # The metadata as PyTorch's own reader returns it.
    theirs = FileSystemReader(tmp_path / "step-20").read_metadata()
    ours = StorageReader(tmp_path / "step-20").read_metadata()
    assert (
        theirs.state_dict_metadata.keys() == ours.state_dict_metadata.keys()
        and theirs.planner_data == ours.planner_data
    )
    same(loaded(tmp_path / f"step-{resume_step(tmp_path)}"), state(20))
    # A checkpoint without a number has it too.
    dcp.save(state(), storage_writer=StorageWriter(tmp_path / "last"), no_dist=True)
    assert (tmp_path / "last/.metadata").is_file() and (tmp_path / "last/step-1/.metadata").is_file()
    # It is removed with its step.
    straightway.Checkpointer(tmp_path).remove(20)
    assert not (tmp_path / "step-20").exists() and straightway.Checkpointer(tmp_path).steps() == [10]


def test_a_save_whose_step_is_removed_at_once_has_not_failed(tmp_path, monkeypatch):
    # The step is removed between the commit and the write of `.metadata`.
    writer = StorageWriter(tmp_path / "step-1")
    written = writer._write_metadata

    def remove_first(metadata):
        straightway.Checkpointer(tmp_path).remove(1)
        written(metadata)

    monkeypatch.setattr(writer, "_write_metadata", remove_first)
    dcp.save(state(), storage_writer=writer, no_dist=True)
    assert not (tmp_path / "step-1").exists()


def test_the_options_of_file_system_writer_are_accepted(tmp_path):
    writer = StorageWriter(tmp_path / "a", True, True, 4, 1 << 20, True, False)
    dcp.save(state(), storage_writer=writer, no_dist=True)
    writer = StorageWriter(
        tmp_path / "b",
        single_file_per_rank=False,
        sync_files=False,
        thread_count=2,
        per_thread_copy_ahead=1,
        cache_staged_state_dict=True,
        overwrite=True,
    )
    dcp.save(state(), storage_writer=writer, no_dist=True)
    same(loaded(tmp_path / "a"), loaded(tmp_path / "b"))


def test_overwrite_replaces_a_step(tmp_path):
    path = tmp_path / "step-5"
    dcp.save(state(1), storage_writer=StorageWriter(path), no_dist=True)
    with pytest.raises(CheckpointException, match="step"):
        dcp.save(state(2), storage_writer=StorageWriter(path), no_dist=True)
    same(loaded(path), state(1))
    dcp.save(state(2), storage_writer=StorageWriter(path, overwrite=True), no_dist=True)
    same(loaded(path), state(2))


def test_repeated_saves_with_overwrite_do_not_grow_the_folder(tmp_path):
    writer = StorageWriter(tmp_path / "last", overwrite=True)
    sizes = []
    for turn in range(5):
        dcp.save(state(turn), storage_writer=writer, no_dist=True)
        same(loaded(tmp_path / "last"), state(turn))
        sizes.append(
            sum(os.path.getsize(os.path.join(root, name)) for root, _, names in os.walk(tmp_path) for name in names)
        )
    assert len(straightway.Checkpointer(tmp_path / "last").steps()) == 1
    assert max(sizes) - min(sizes) < 100, sizes


@pytest.mark.parametrize("by", ["stager", "writer"])
def test_an_async_save_has_the_values_at_its_start(tmp_path, by):
    writer, stager = StorageWriter(tmp_path), Stager()
    options = {"async_stager": stager} if by == "stager" else {}
    futures = []
    live = state(0)
    for step in range(1, 4):
        new = state(step)
        live["model"]["w"].copy_(new["model"]["w"])
        live["model"]["b"].copy_(new["model"]["b"])
        live["optimizer"]["state"]["w"]["exp_avg"].copy_(new["optimizer"]["state"]["w"]["exp_avg"])
        live["wave"].copy_(new["wave"])
        futures.append(
            dcp.async_save(
                live, storage_writer=writer, checkpoint_id=tmp_path / f"step-{step}", no_dist=True, **options
            )
        )
        live["model"]["w"].zero_()
        futures[-1].result()
    for step in range(1, 4):
        same(loaded(tmp_path / f"step-{step}"), state(step))
    (stager if by == "stager" else writer).close()


def test_the_stager_reuses_memory_but_never_while_it_is_in_use():
    stager = Stager()
    live = {"a": torch.ones(1000, 1000), "tied": None, "n": [1, {"x": 2}], "o": torch.ones(3).t()}
    live["tied"] = live["a"]
    first = stager.stage(live)
    address = first["a"].data_ptr()
    assert first["tied"].data_ptr() == address
    live["a"].fill_(2)
    live["n"][1]["x"] = 5
    second = stager.stage(live)
    assert second["a"].data_ptr() != address
    assert bool((first["a"] == 1).all()) and bool((second["a"] == 2).all()) and first["n"] == [1, {"x": 2}]
    kept = first["a"][3]
    del first
    # A view of it still exists: its memory is not reused.
    assert stager.stage(live)["a"].data_ptr() != address
    assert bool((kept == 1).all())
    del kept
    seen = set()
    for _ in range(4):
        made = stager.stage(live)
        seen.add(made["a"].data_ptr())
        del made
    assert len(seen) <= 2
    stager.close()
    stager.prepare(live)
    assert bool((stager.stage(live)["a"] == 2).all())


def test_the_stager_copies_the_values_of_views_that_negate_or_conjugate():
    values = torch.complex(torch.arange(4.0), torch.arange(4.0) + 1)
    live = {"a": values.imag, "b": values.conj().imag, "c": values, "d": values.conj()}
    assert live["b"].is_neg() and live["a"].data_ptr() == live["b"].data_ptr()
    staged = Stager().stage(live)
    for name, tensor in live.items():
        assert staged[name].tolist() == tensor.tolist(), name


class Runtime:
    """The two functions of the CUDA runtime that pin memory, with a record of the pinned addresses."""

    def __init__(self):
        self.pinned = set()

    def cudaHostRegister(self, address, nbytes, flags):
        # As in CUDA: a pinned address cannot be pinned again, even after it was unmapped.
        if address in self.pinned:
            return 712
        self.pinned.add(address)
        return 0

    def cudaHostUnregister(self, address):
        self.pinned.remove(address)


def test_memory_is_unpinned_before_it_is_freed_also_without_close(monkeypatch):
    from straightway.torch import _stager

    runtime = Runtime()
    monkeypatch.setattr(_stager, "_has_gpu", lambda: True)
    monkeypatch.setattr(_stager, "_runtime", lambda: runtime)
    live = {"w": torch.ones(1000, 1000)}
    stager = Stager()
    staged = stager.stage(live)
    assert len(runtime.pinned) == 1
    # The copy outlives the stager, and its memory stays pinned until it is freed.
    del stager
    assert len(runtime.pinned) == 1 and staged["w"].all()
    del staged
    gc.collect()
    assert not runtime.pinned
    stager = Stager()
    stager.prepare(live)
    stager.close()
    assert not runtime.pinned


@pytest.mark.parametrize("step_folder", [False, True])
def test_checkpoints_of_file_system_writer_are_read_and_converted(tmp_path, step_folder):
    source = tmp_path / ("theirs/step-8" if step_folder else "theirs")
    dcp.save(state(), storage_writer=FileSystemWriter(source, thread_count=2), no_dist=True)
    same(loaded(source), state())
    convert(source, tmp_path / "ours/step-8", parity=0)
    same(loaded(tmp_path / "ours/step-8"), state())
    assert straightway.Checkpointer(tmp_path / "ours").steps() == [8]
    theirs, ours = FileSystemReader(source).read_metadata(), StorageReader(tmp_path / "ours").read_metadata()
    assert (
        theirs.planner_data == ours.planner_data
        and theirs.state_dict_metadata.keys() == ours.state_dict_metadata.keys()
    )
    with pytest.raises(ValueError, match="not a checkpoint of FileSystemWriter"):
        convert(tmp_path / "ours", tmp_path / "again")


class Harm:
    def __reduce__(self):
        return os.mkdir, (os.environ["HARM"],)


def test_an_untrusted_checkpoint_of_file_system_writer_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.setenv("HARM", str(tmp_path / "harm"))
    dcp.save({"w": torch.ones(2)}, storage_writer=FileSystemWriter(tmp_path / "a"), no_dist=True)
    metadata = pickle.loads((tmp_path / "a/.metadata").read_bytes())
    metadata.planner_data = Harm()
    (tmp_path / "a/.metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointException, match="posix.mkdir|trust"):
        loaded(tmp_path / "a", {"w": torch.ones(2)})
    dcp.save({"w": torch.ones(2), "v": Harm()}, storage_writer=FileSystemWriter(tmp_path / "b"), no_dist=True)
    with pytest.raises(CheckpointException, match="trust"):
        loaded(tmp_path / "b", {"w": torch.ones(2), "v": 0})
    with pytest.raises(CheckpointException, match="trust"):
        convert(tmp_path / "b", tmp_path / "c")
    assert not (tmp_path / "harm").exists()
    loaded(tmp_path / "b", {"w": torch.ones(2), "v": 0}, trust=True)
    assert (tmp_path / "harm").exists()


def test_the_pickled_planner_data_of_version_0_1_0_is_refused_by_name(tmp_path):
    from straightway.torch._writer import PLANNER_DATA

    with straightway.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"w": torch.ones(2)}, metadata={PLANNER_DATA: "gAR9lC4="}, async_=False)
    with pytest.raises(ValueError, match=r"0\.1\.0[\s\S]*checkpoint export"):
        StorageReader(tmp_path / "step-1").read_metadata()


class Progress:
    """State as trainers store it: numbers as tensors, and a list as the bytes of ``torch.save``."""

    def __init__(self, losses):
        self.losses = losses

    def state_dict(self):
        kept = io.BytesIO()
        torch.save(self.losses, kept)
        return {"count": torch.tensor(len(self.losses)), "losses": kept}

    def load_state_dict(self, state):
        state["losses"].seek(0)
        self.losses = torch.load(state["losses"])
        assert state["count"] == len(self.losses)


def test_stateful_objects_are_saved_and_loaded_in_place(tmp_path):
    dcp.save({"p": Progress([1.5, 2.5]), "none": {}}, storage_writer=StorageWriter(tmp_path), no_dist=True)
    target = {"p": Progress([]), "none": {}}
    kept = target["p"]
    dcp.load(target, storage_reader=StorageReader(tmp_path), no_dist=True)
    assert kept.losses == [1.5, 2.5] and target["p"] is kept
    # An empty state too, and a part of one.
    dcp.save({}, storage_writer=StorageWriter(tmp_path / "empty"), no_dist=True)
    dcp.load({}, storage_reader=StorageReader(tmp_path / "empty"), no_dist=True)
    dcp.save(state(), storage_writer=StorageWriter(tmp_path / "part"), no_dist=True)
    target = {"model": zeros(state()["model"])}
    dcp.load(target, storage_reader=StorageReader(tmp_path / "part"), no_dist=True)
    same(target["model"], state()["model"])
    with pytest.raises(CheckpointException, match="absent"):
        dcp.load({"absent": torch.ones(1)}, storage_reader=StorageReader(tmp_path / "part"), no_dist=True)
    with pytest.raises(CheckpointException, match="(?i)size|shape"):
        dcp.load(
            {"wave": torch.ones(9, dtype=torch.complex128)},
            storage_reader=StorageReader(tmp_path / "part"),
            no_dist=True,
        )


def test_values_are_narrowed_only_with_cast(tmp_path):
    dcp.save({"w": torch.full((3,), 1.001)}, storage_writer=StorageWriter(tmp_path), no_dist=True)
    with pytest.raises(CheckpointException, match="cast=True"):
        refusing = StorageReader(tmp_path, cast=False)
        dcp.load({"w": torch.zeros(3, dtype=torch.bfloat16)}, storage_reader=refusing, no_dist=True)
    target = {"w": torch.zeros(3, dtype=torch.bfloat16)}
    dcp.load(target, storage_reader=StorageReader(tmp_path, cast=True), no_dist=True)
    assert torch.equal(target["w"], torch.full((3,), 1.001).to(torch.bfloat16))
    wide = {"w": torch.zeros(3, dtype=torch.float64)}
    dcp.load(wide, storage_reader=StorageReader(tmp_path), no_dist=True)
    assert torch.equal(wide["w"], torch.full((3,), 1.001).double())


def test_a_separate_process_saves_the_staged_copy(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        textwrap.dedent("""
        import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
        from straightway.torch import StorageReader, StorageWriter
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        def main():
            folder = sys.argv[1]
            dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
            live = {"w": torch.arange(1000.0), "n": 3}
            writer = StorageWriter(folder + "/run")
            for step in (1, 2):
                live["w"].fill_(step)
                future = dcp.async_save(live, storage_writer=writer, checkpoint_id=f"{folder}/run/step-{step}",
                                        async_checkpointer_type=AsyncCheckpointerType.PROCESS)
                live["w"].zero_()
                future.result()
                dcp.load(live, storage_reader=StorageReader(f"{folder}/run/step-{step}"))
                assert bool((live["w"] == step).all()), step
            dist.destroy_process_group()

        if __name__ == "__main__":
            main()
    """)
    )
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29551"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_dtensors_are_staged_by_their_shards(tmp_path):
    code = """
        import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor
        from straightway.torch import Stager, StorageReader, StorageWriter
        rank, folder = int(sys.argv[1]), sys.argv[2]
        dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
        whole = torch.arange(30.0).reshape(5, 6)
        live = {"t": distribute_tensor(whole.clone(), init_device_mesh("cpu", (2,)), [Shard(0)])}
        stager = Stager()
        staged = stager.stage(live)["t"]
        assert staged.placements == live["t"].placements and staged.shape == whole.shape
        future = dcp.async_save(live, storage_writer=StorageWriter(folder + "/run"), async_stager=stager)
        live["t"].to_local().zero_()
        future.result()
        dcp.load(live, storage_reader=StorageReader(folder + "/run"))
        assert torch.equal(live["t"].full_tensor(), whole)
        dist.destroy_process_group()
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]
    ranks = [subprocess.Popen([*command, str(rank), str(tmp_path)]) for rank in range(2)]
    assert [rank.wait(100) for rank in ranks] == [0, 0]


def test_overwrite_false_refuses_an_existing_checkpoint_before_it_writes(tmp_path):
    for path in (tmp_path / "folder", tmp_path / "run/step-3"):
        writer = StorageWriter(path, overwrite=False)
        dcp.save(state(1), storage_writer=writer, no_dist=True)
        with pytest.raises(CheckpointException, match="Checkpoint already exists and self.overwrite=False") as caught:
            dcp.save(state(2), storage_writer=StorageWriter(path, overwrite=False), no_dist=True)
        (failure,) = caught.value.failures.values()
        assert isinstance(failure[0], straightway.ExistsError) and isinstance(failure[0], RuntimeError)
        same(loaded(path), state(1))
    # Without the option, a folder gets its next step.
    dcp.save(state(2), storage_writer=StorageWriter(tmp_path / "folder"), no_dist=True)
    assert straightway.Checkpointer(tmp_path / "folder").steps() == [1, 2]
    foreign = tmp_path / "foreign"
    dcp.save(state(1), storage_writer=FileSystemWriter(foreign), no_dist=True)
    with pytest.raises(CheckpointException, match="already exists"):
        dcp.save(state(2), storage_writer=StorageWriter(foreign, overwrite=False), no_dist=True)


def test_options_that_cannot_be_honoured_are_refused_by_name(tmp_path):
    for wrong, words in [
        ({"_extensions": [object()]}, "_extensions is not supported"),
        ({"serialization_format": "carrier pigeon"}, "serialization_format=carrier pigeon"),
        ({"storage_options": {"nonsense": "x"}}, "nonsense"),
        ({"compression": "gzip"}, "compression is zstd"),
        ({"rate_bytes_per_s": -1}, "rate_bytes_per_s"),
    ]:
        with pytest.raises(ValueError, match=words):
            StorageWriter(tmp_path, **wrong)
    # The defaults of PyTorch's own writer are accepted.
    defaults = inspect.signature(FileSystemWriter).parameters
    for given in (*SerializationFormat, "torch_save", "safetensors", defaults["serialization_format"].default):
        StorageWriter(tmp_path, _extensions=defaults["_extensions"].default, serialization_format=given)
    assert repr(StorageWriter(tmp_path / "step-3")) == f"<StorageWriter '{tmp_path}/step-3'>"
    assert repr(StorageReader(tmp_path)) == f"<StorageReader '{tmp_path}'>" and "Stager" in repr(Stager())


def test_a_load_without_our_reader_says_what_to_use(tmp_path):
    dcp.save(state(1), storage_writer=StorageWriter(tmp_path / "step-1"), no_dist=True)
    for reader in (None, FileSystemReader(tmp_path / "step-1")):
        with pytest.raises(CheckpointException, match="storage_reader=straightway.torch.StorageReader"):
            dcp.load(zeros(state()), storage_reader=reader, checkpoint_id=tmp_path / "step-1", no_dist=True)


class Plain:
    """A class of the user."""


@pytest.mark.filterwarnings("error:.*trust=True")
def test_a_value_that_will_need_trust_is_warned_about_at_the_save(tmp_path):
    writer = StorageWriter(tmp_path)
    values = {"w": torch.ones(2), "own": Plain(), "list": [1, {"x": (2.5, None)}], "bytes": io.BytesIO(b"x"), "tensor": [torch.ones(3)]}
    with pytest.warns(UserWarning, match="'own' is saved as a pickle and loaded only with trust=True: .*Plain") as heard:
        dcp.save(values, storage_writer=writer, no_dist=True)
    assert len([warning for warning in heard if "trust=True" in str(warning.message)]) == 1
    # Once for each name.
    dcp.save(values, storage_writer=writer, no_dist=True)
    with pytest.raises(CheckpointException, match="'own' is not loaded unless its writer is trusted"):
        dcp.load({"own": 0}, storage_reader=StorageReader(tmp_path), no_dist=True)


def test_complex_numbers_of_every_width_go_into_every_other(tmp_path):
    exact = [complex(1.5, -2), complex(0.25, 1024)]
    widths = [torch.complex32, torch.complex64, torch.complex128]
    for wide, source in enumerate(widths):
        folder = tmp_path / str(wide)
        dcp.save({"z": torch.tensor(exact, dtype=source)}, storage_writer=StorageWriter(folder), no_dist=True)
        for narrow, dtype in enumerate(widths):
            target = {"z": torch.zeros(2, dtype=dtype)}
            if narrow < wide:
                with pytest.raises(CheckpointException, match="'z' was saved as .*, and goes to "):
                    dcp.load(target, storage_reader=StorageReader(folder, cast=False), no_dist=True)
            dcp.load(target, storage_reader=StorageReader(folder, cast=True), no_dist=True)
            assert target["z"].to(torch.complex128).tolist() == exact

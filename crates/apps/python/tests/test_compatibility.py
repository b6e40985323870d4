"""Checkpoints of straightway 0.1.0 still load, and can be tagged, pruned and extended. `data/make_0_1_0.py` made them."""

import importlib.util
import pathlib
import tarfile

import numpy
import pytest

import straightway

torch = pytest.importorskip("torch")

DATA = pathlib.Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def made():
    """The script that made the archive, as a module."""
    spec = importlib.util.spec_from_file_location("make_0_1_0", DATA / "make_0_1_0.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def old(tmp_path):
    """The folder that 0.1.0 wrote."""
    with tarfile.open(DATA / "0.1.0.tar.xz") as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path


def same(found, wanted):
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(same(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, (numpy.ndarray, torch.Tensor)):
        found, wanted = numpy.asarray(found), numpy.asarray(wanted)
        return found.dtype == wanted.dtype and numpy.array_equal(found, wanted)
    return found == wanted and type(found) is type(wanted)


def test_plain_states_with_values_that_0_1_0_pickled_load_without_trust(old, made):
    checkpointer = straightway.Checkpointer(old / "plain")
    assert checkpointer.verify(1) == [] and checkpointer.metadata(1) == {"lr": 0.1}
    found = checkpointer.load(1)
    assert same(found["w"], numpy.arange(10))
    wanted = made.leaves()
    assert found["leaves"].keys() == wanted.keys()
    for name, value in wanted.items():
        assert same(found["leaves"][name], value), name


@pytest.mark.parametrize("kind", ["incremental", "compressed", "lz4"])
def test_incremental_steps_load_and_keep_their_tags_and_are_pruned_and_extended(old, made, kind):
    folder = old / kind
    checkpointer = straightway.Checkpointer(folder)
    for step in (1, 2, 3):
        assert checkpointer.verify(step) == []
        assert same(checkpointer.load(step), made.tensors(step))
    assert checkpointer.tags(2) == ["best", "v1.0"]
    with pytest.raises(ValueError, match="tagged"):
        checkpointer.remove(2)
    checkpointer.tag(3, "new")
    checkpointer.untag(2, "best")
    assert (checkpointer.tags(2), checkpointer.tags(3)) == (["v1.0"], ["new"])
    with straightway.Checkpointer(folder, incremental=True, keep_last=1) as job:
        saved = job.save(4, made.tensors(4), async_=False)
        # The chunks that did not change are those of 0.1.0.
        assert saved.written_bytes < 6 << 20
    # Two are tagged, the last refers to the first.
    assert checkpointer.steps() == [1, 2, 3, 4]
    assert same(checkpointer.load(4), made.tensors(4))
    checkpointer.untag(3, "new")
    with straightway.Checkpointer(folder, keep_last=1) as job:
        job.save(5, made.tensors(5), async_=False)
    # Step 2 has its tag, and refers to step 1.
    assert checkpointer.steps() == [1, 2, 5]
    assert same(checkpointer.load(2), made.tensors(2))


def test_steps_of_several_ranks_with_parity_load_even_where_a_shard_is_lost(old, made):
    folder = old / "ranks"
    wanted = {f"rank{number}": made.tensors(5, number) for number in (0, 1)}
    assert same(straightway.Checkpointer(folder).load(5), wanted)
    (folder / "step-5/rank-00001-of-00002.safetensors").unlink()
    assert same(straightway.Checkpointer(folder).load(5), wanted)


def test_steps_of_torch_distributed_checkpoint_load(old):
    import torch.distributed.checkpoint as dcp
    from straightway.torch import StorageReader

    state = {"w": torch.zeros(3, 4), "m": {"s": torch.zeros(3, dtype=torch.bfloat16)}, "step": 0}
    dcp.load(state, storage_reader=StorageReader(old / "dcp/step-4"), no_dist=True)
    assert torch.equal(state["w"], torch.arange(12.0).reshape(3, 4))
    assert torch.equal(state["m"]["s"], torch.ones(3, dtype=torch.bfloat16)) and state["step"] == 4


def test_a_step_that_0_1_0_had_put_into_the_trash_though_another_needs_it_is_put_back(old, made):
    folder = old / "trash"
    with straightway.Checkpointer(folder) as job:
        job.save(3, made.tensors(3), async_=False)
        assert job.steps() == [1, 2, 3]
    for step in (1, 2, 3):
        assert same(straightway.Checkpointer(folder).load(step), made.tensors(step))


def test_a_model_loads(old):
    found = straightway.load_file(old / "model.safetensors", framework="np")
    assert same(found["w"], numpy.arange(6.0).reshape(2, 3)) and same(found["b"], numpy.array([1, 2], numpy.int16))

"""The public behaviours that PyTorch's own tests of ``torch.distributed.checkpoint`` check, with our classes.

The tests are those of pytorch/pytorch, folder ``test/distributed/checkpoint``, read in November 2026. Each row is a
behaviour of a reader, a writer or a stager, and the test that checks it here (``habits``: test_dcp_habits.py).

| PyTorch's file | behaviour | here |
|---|---|---|
| test_file_system_checkpoint, _cpu | tensors of a module, any thread count, files per rank | habits: options |
| | sharded tensors, saved and loaded with every other way of sharding; by rows and by columns | `sharded` |
| | a sharded tensor loaded as a plain one, and a plain one as sharded | `sharded` |
| | values that are not tensors, and blobs of objects with a state | `sharded`, habits: stateful |
| | a target of a narrower dtype is filled; a strict planner refuses; a wider one is always filled | `dtypes` |
| test_checkpoint | a failure on one rank fails on all, by rank; any rank coordinates; without ranks too | `failures` |
| test_compatibility | metadata of older versions; `checkpoint_id`, `save_id`, `load_id` | habits: metadata, `older` |
| test_dtensor_checkpoint, _resharding | DTensors from any placement and mesh to any other | `meshes` |
| test_tp_checkpoint, test_2d_*, e2e/test_fsdp_ep | tensors that only some ranks have; extra state of modules | `meshes` |
| test_fsdp_*, test_hsdp_checkpoint | sharded models and optimizers, restored by other ranks | `wrapped`, `one_gpu`, \
test_dcp.py |
| test_optimizer, test_fsspec | `load_sharded_optimizer_state_dict` | `one_gpu` |
| e2e/test_e2e_save_and_load | train, save, load, train on: the same losses; DDP, FSDP, HSDP | `wrapped` |
| | objects with a state are loaded in place, others replaced; order of names does not matter | `failures`, `in_place` |
| | an empty state; a part of one; by names; the learning rate of an optimizer | `in_place`, habits: stateful |
| | a checkpoint is replaced, or refused | habits: overwrite |
| | saved asynchronously by a thread and by a process, with every stager | `stagers`, habits: process |
| e2e/test_fine_tuning | a part of a model is loaded, and saved without frozen parameters | `in_place` |
| test_planner | plans cached from save to save; the lowest rank writes what all have | `kept_plans` |
| test_state_dict_stager, _experimental/test_staging | the copy is complete and independent: dtypes, views, empty \
tensors, data classes | `staged`, habits: stager |
| test_async_process_executor, test_async_executor | a save that fails does not end the process that saves; the next \
works | `stagers` |
| test_list_stored_state_dict | stored entries are listed without loading them | `listed` |
| test_restricted_metadata_unpickler, test_metadata_warning | metadata runs no code | habits: untrusted |
| test_save_load_api | a URI of an unknown store is refused | `uris` |
| test_dcp_to_torch_save, test_torch_save_to_dcp, test_format_utils | from `torch.save` and back | `torch_save` |
| test_hf_storage, test_hf_safetensor_e2e, test_quantized_hf_storage | Hugging Face's files | test_stand_in.py |

Not applicable, because they check functions of PyTorch without a reader, writer or stager: test_state_dict,
test_state_dict_utils, test_nested_dict, test_traverse, test_utils, test_dedup_tensors, test_pg_transport,
test_cooperative_planner, test_pg_aware_planner, test_grad_dtype, test_optimizer_partial_state and the like,
test_consolidate_hf_safetensors, test_shared_and_pinned_memory, test_cuobj_rdma_storage, most of ``_experimental``
(private), and ``_extensions`` of ``FileSystemWriter`` (private).
"""

import dataclasses
import gc
import io
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.distributed.is_available():
    pytest.skip("PyTorch was built without torch.distributed", allow_module_level=True)

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import straightway
from many_ranks import play, ranks
from straightway.torch import Stager, StorageReader, StorageWriter, convert
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def gathered(tensor):
    """The whole of a sharded tensor, on every rank."""
    whole = torch.zeros(tensor.size()) if dist.get_rank() == 0 else None
    tensor.gather(out=whole)
    box = [whole]
    dist.broadcast_object_list(box)
    return box[0]


# With two ranks.


def scene_sharded(rank, world, folder):
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec, ShardMetadata

    def pieces(*sizes):
        offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        return EnumerableShardingSpec(
            [ShardMetadata([o, 0], [s, 6], f"rank:{i % 2}/cpu") for i, (o, s) in enumerate(zip(offsets, sizes))]
        )

    rows = ChunkShardingSpec(dim=0, placements=["rank:0/cpu", "rank:1/cpu"])
    four = ChunkShardingSpec(dim=0, placements=[f"rank:{r}/cpu" for r in (0, 1, 1, 0)])
    columns = ChunkShardingSpec(dim=1, placements=["rank:0/cpu", "rank:1/cpu"])
    writer = StorageWriter(folder + "/sharded")
    torch.manual_seed(rank)
    for saved_by in (rows, four, pieces(3, 1, 4, 2), pieces(9, 1)):
        saved = sharded_tensor.rand(saved_by, 10, 6)
        plain = torch.full((10, 6), 3.5)
        dcp.save({"st": saved, "plain": plain, "list": [1], "text": "x"}, storage_writer=writer)
        for loaded_by in (rows, four, columns, pieces(2, 8)):
            found = {"st": sharded_tensor.zeros(loaded_by, 10, 6), "list": [2], "text": "y"}
            dcp.load(found, storage_reader=StorageReader(folder + "/sharded"))
            assert torch.equal(gathered(found["st"]), gathered(saved)) and found["list"] == [1] and found["text"] == "x"
        # Plain and sharded exchanged.
        found = {"st": torch.zeros(10, 6), "plain": sharded_tensor.zeros(four, 10, 6)}
        dcp.load(found, storage_reader=StorageReader(folder + "/sharded"))
        assert torch.equal(found["st"], gathered(saved)) and torch.equal(gathered(found["plain"]), plain)
    # Asynchronously, with the values at its start.
    before = gathered(saved)
    future = dcp.async_save({"st": saved}, storage_writer=writer)
    for shard in saved.local_shards():
        shard.tensor.zero_()
    future.result()
    found = {"st": torch.zeros(10, 6)}
    dcp.load(found, storage_reader=StorageReader(folder + "/sharded"))
    assert torch.equal(found["st"], before)


class Meeting:
    """An object whose load is a collective operation."""

    def __init__(self, by):
        self.by = by

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        self.by(torch.ones(1))


def scene_failures(rank, world, folder):
    writer = StorageWriter(folder + "/fails")
    good = {"w": torch.arange(6.0), f"own.{rank}": torch.full((3,), rank)}
    # Any rank can be the coordinator.
    dcp.save_state_dict(good, storage_writer=writer, coordinator_rank=1)
    reader = StorageReader(folder + "/fails")
    found = {"w": torch.zeros(6), "own.0": torch.zeros(3, dtype=torch.int64)}
    dcp.load_state_dict(found, storage_reader=reader, coordinator_rank=1)
    assert torch.equal(found["w"], good["w"]) and not found["own.0"].any()
    # A failure of one rank to load is reported on all.
    wanted = {"w": torch.zeros(6)} | ({"absent": torch.zeros(2)} if rank == 1 else {})
    try:
        dcp.load(wanted, storage_reader=reader)
    except CheckpointException as error:
        assert list(error.failures) == [1] and "absent" in str(error)
    else:
        raise SystemExit("it did not fail")
    # A writer that cannot write: the path is a file, not a folder.
    if rank == 0:
        open(folder + "/file", "w").close()
    dist.barrier()
    try:
        dcp.save(good, storage_writer=StorageWriter(folder + "/file"))
    except CheckpointException as error:
        assert 0 in error.failures
    else:
        raise SystemExit("it did not fail")
    # The order of names does not matter.
    gather = Meeting(lambda t: dist.all_gather([torch.zeros(1) for _ in range(world)], t))
    reduce = Meeting(dist.all_reduce)
    state = {"A": gather, "B": reduce} if rank == 0 else {"B": reduce, "A": gather}
    dcp.save(state, storage_writer=writer)
    dcp.load(state, storage_reader=reader)


def scene_kept_plans(rank, world, folder):
    from torch.distributed.checkpoint.planner import SavePlanner

    def saved_and_loaded(state, path, writer):
        planner = DefaultSavePlanner(enable_plan_caching=True, dedup_save_to_lowest_rank=True)
        dcp.save(state, storage_writer=writer, checkpoint_id=path, planner=planner)
        found = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        dcp.load(found, storage_reader=StorageReader(path))
        assert all(torch.equal(found[name], tensor) for name, tensor in state.items())

    writer = StorageWriter(folder + "/kept")
    for step in range(1, 4):
        state = {"w": torch.full((50,), float(step)), f"own.{rank}": torch.full((7,), step + rank)}
        saved_and_loaded(state, f"{folder}/kept/step-{step}", writer)
    assert SavePlanner._cached_final_save_plan, "the planner kept no plan"
    # The plan of one rank changes, that of the other does not; and a folder, which gets its next step.
    state = {"w": torch.full((50,), 9.0), f"own.{rank}": torch.full((8 if rank else 7,), 4)}
    saved_and_loaded(state, f"{folder}/kept", writer)
    # Another writer, and the same plans.
    saved_and_loaded(state, f"{folder}/kept/step-9", StorageWriter(folder + "/kept"))
    assert straightway.Checkpointer(folder + "/kept").steps() == [1, 2, 3, 4, 9]
    # The first rank writes what both have.
    from safetensors import safe_open

    names = [safe_open(f"{folder}/kept/step-9/rank-0000{r}-of-00002.safetensors", "pt").keys() for r in (0, 1)]
    assert "w" in names[0] and "w" not in names[1]


def scene_stagers(rank, world, folder):
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    plain = StagingOptions(
        use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
    )
    for name, stager in (("own", None), ("stager", Stager()), ("default", DefaultStager(plain))):
        writer = StorageWriter(f"{folder}/stager-{name}")
        live = {"w": torch.full((1000,), 1.0 + rank), "n": 1}
        live[f"own.{rank}"] = live.pop("w")
        options = {} if stager is None else {"async_stager": stager}
        for step in (1, 2):
            live[f"own.{rank}"].fill_(step + rank)
            future = dcp.async_save(live, storage_writer=writer, **options)
            live[f"own.{rank}"].zero_()
            future.result()
        # A save that fails, and then one that does not.
        freed = torch.zeros(2)
        freed.untyped_storage().resize_(0)
        try:
            dcp.async_save(live | {"bad": freed}, storage_writer=writer, async_stager=Untouched()).result()
        except CheckpointException as error:
            assert "bad" in str(error)
        else:
            raise SystemExit("it did not fail")
        live[f"own.{rank}"].fill_(7)
        dcp.async_save(live, storage_writer=writer, **options).result()
        found = {"own.0": torch.zeros(1000), "own.1": torch.zeros(1000), "n": 0}
        dcp.load(found, storage_reader=StorageReader(f"{folder}/stager-{name}"))
        assert bool((found["own.0"] == 7).all() and (found["own.1"] == 7).all()) and found["n"] == 1
        assert straightway.Checkpointer(f"{folder}/stager-{name}").steps() == [1, 2, 3]


class Untouched:
    """A stager that copies nothing."""

    should_synchronize_after_execute = False

    def stage(self, state):
        return state

    def synchronize_staging(self):
        pass

    def close(self):
        pass


# With four ranks.


class Extra(torch.nn.Module):
    """A module with extra state besides its parameters."""

    def get_extra_state(self):
        return {"number": 1, "tensor": torch.zeros(2)}

    def set_extra_state(self, state):
        pass


def scene_meshes(rank, world, folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, zeros

    line, grid = init_device_mesh("cpu", (world,)), init_device_mesh("cpu", (2, world // 2))
    whole = torch.arange(30.0).reshape(6, 5)
    cuts = [
        (line, [Shard(0)]),
        (line, [Shard(1)]),
        (line, [Replicate()]),
        *((grid, [a, b]) for a in (Replicate(), Shard(0)) for b in (Replicate(), Shard(0), Shard(1))),
    ]
    for turn, (mesh, placements) in enumerate(cuts):
        writer = StorageWriter(f"{folder}/meshes/step-{turn + 1}")
        own = {f"expert.{rank}.w": torch.full((4,), rank)}
        state = {"t": distribute_tensor(whole, mesh, placements), **Extra().state_dict(), **own}
        dcp.save(state, storage_writer=writer)
        for other, into in cuts:
            found = {"t": zeros(6, 5, device_mesh=other, placements=into)}
            dcp.load(found, storage_reader=StorageReader(f"{folder}/meshes/step-{turn + 1}"))
            assert torch.equal(found["t"].full_tensor(), whole), (placements, into)
    found = {"_extra_state": {"number": 5, "tensor": torch.ones(2)}, "expert.3.w": torch.zeros(4, dtype=torch.int64)}
    dcp.load(found, storage_reader=StorageReader(f"{folder}/meshes"))
    extra = found["_extra_state"]
    assert extra["number"] == 1 and not extra["tensor"].any() and bool((found["expert.3.w"] == 3).all())


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))


def train(model, optimizer, steps, device="cpu"):
    torch.manual_seed(4)
    loss = torch.zeros(())
    for _ in range(steps):
        loss = model(torch.rand(8, 8).to(device)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach().cpu()


def resumed(wrap, folder):
    """Trains, saves and loads a wrapped model, and checks that it continues like one that was never saved."""
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def made():
        model = wrap(network())
        return model, torch.optim.Adam(model.parameters(), lr=0.1)

    alone = network()
    its = torch.optim.Adam(alone.parameters(), lr=0.1)
    train(alone, its, 2)
    model, optimizer = made()
    device = next(model.parameters()).device
    train(model, optimizer, 2, device)
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.async_save(state, storage_writer=StorageWriter(folder)).result()
    model, optimizer = made()
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.load(state, storage_reader=StorageReader(folder))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert torch.allclose(train(model, optimizer, 1, device), train(alone, its, 1), rtol=1e-3), folder


def scene_wrapped(rank, world, folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.nn.parallel import DistributedDataParallel

    line = init_device_mesh("cpu", (world,))
    grid = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))

    def parallel(model):
        model = parallelize_module(model, grid["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        return fully_shard(model, mesh=grid["dp"])

    resumed(DistributedDataParallel, folder + "/ddp")
    resumed(lambda model: fully_shard(model, mesh=line), folder + "/fsdp")
    resumed(lambda model: fully_shard(model, mesh=grid), folder + "/hsdp")
    resumed(parallel, folder + "/fsdp-tp")


def scene_one_gpu(rank, world, folder):
    """The older FSDP, which needs a GPU, and its sharded optimizers."""
    from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import StateDictType

    def wrap(model):
        return FSDP(model.cuda(), use_orig_params=True)

    resumed(wrap, folder + "/fsdp")
    model, other = wrap(network()), wrap(network())
    optimizer, its = (torch.optim.Adam(m.parameters(), lr=0.1) for m in (model, other))
    train(model, optimizer, 2, "cuda")
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = {"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optimizer)}
        dcp.save(state, storage_writer=StorageWriter(folder + "/older"))
    with FSDP.state_dict_type(other, StateDictType.SHARDED_STATE_DICT):
        found = {"model": other.state_dict()}
        reader = StorageReader(folder + "/older")
        dcp.load(found, storage_reader=reader)
        other.load_state_dict(found["model"])
        moments = load_sharded_optimizer_state_dict(
            model_state_dict=found["model"], optimizer_key="optim", storage_reader=reader
        )
        its.load_state_dict(FSDP.optim_state_dict_to_load(other, its, moments["optim"]))
    assert torch.allclose(train(model, optimizer, 1, "cuda"), train(other, its, 1, "cuda"))


def scene_two(rank, world, folder):
    """Runs all of these in one process per rank: a process takes seconds to start."""
    for scene in (scene_sharded, scene_failures, scene_kept_plans, scene_stagers):
        scene(rank, world, folder)


def scene_four(rank, world, folder):
    for scene in (scene_meshes, scene_wrapped):
        scene(rank, world, folder)


def test_two_ranks(tmp_path):
    assert ranks(__file__, 2, "two", tmp_path) == [0, 0]


def test_four_ranks(tmp_path):
    assert ranks(__file__, 4, "four", tmp_path) == [0] * 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_one_gpu(tmp_path):
    assert ranks(__file__, 1, "one_gpu", tmp_path) == [0]


# In a single process.


def save(state, path, **options):
    dcp.save(state, storage_writer=StorageWriter(path), no_dist=True, **options)


def load(state, path, **options):
    dcp.load(state, storage_reader=StorageReader(path), no_dist=True, **options)


class Strict(DefaultLoadPlanner):
    """A strict planner, which later versions of PyTorch have as an argument."""

    allow_unsafe_types = False


def test_dtypes_are_converted_and_a_lossy_conversion_warns_or_raises(tmp_path):
    values = torch.full((4, 3), 1.001)
    save({"w": values, "v": values, "half": values.to(torch.bfloat16)}, tmp_path)
    narrow = {"w": torch.zeros(4, 3, dtype=torch.bfloat16), "v": torch.zeros(4, 3, dtype=torch.float16)}
    with pytest.warns(UserWarning, match="saved as F32 and loaded as BF16|saved as F32 and loaded as F16"):
        load(narrow, tmp_path)
    assert torch.equal(narrow["w"], values.to(torch.bfloat16)) and torch.equal(narrow["v"], values.to(torch.float16))
    narrow = {"w": torch.zeros(4, 3, dtype=torch.bfloat16)}
    with pytest.raises(CheckpointException, match="'w' was saved as F32"):
        load(narrow, tmp_path, planner=Strict())
    assert not narrow["w"].any()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="tensor .* saved as")
        dcp.load(narrow, storage_reader=StorageReader(tmp_path, cast=True), no_dist=True)
        wide = {"half": torch.zeros(4, 3)}
        load(wide, tmp_path, planner=Strict())
    assert narrow["w"].all() and torch.equal(wide["half"], values.to(torch.bfloat16).float())


class Blob:
    """A stateful object that records its loads."""

    def __init__(self, value):
        self.value = value
        self.loads = 0

    def state_dict(self):
        return {"blob": self.value}

    def load_state_dict(self, state):
        self.value = state["blob"]
        self.loads += 1


class Watched(dict):
    """A dictionary that records assignments."""

    def __init__(self, items):
        super().__init__(items)
        self.was_set = []

    def __setitem__(self, key, value):
        self.was_set.append(key)
        super().__setitem__(key, value)


def test_a_state_is_loaded_in_place(tmp_path):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

    # A stateful object is kept; a value without state is replaced.
    blob = Blob(b"some bytes")
    save({"foo": blob, "bar": {"t": torch.ones(3), "l": [1, 2]}}, tmp_path / "a")
    state = Watched({"foo": Blob(b""), "bar": {"t": torch.zeros(3), "l": [0]}})
    kept = state["foo"]
    load(state, tmp_path / "a")
    assert state["foo"] is kept and kept.value == b"some bytes" and kept.loads == 1
    assert "foo" not in state.was_set and "bar" in state.was_set and state["bar"]["l"] == [1, 2]
    # The learning rate is restored, and dictionaries stay the same objects.
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    train(model, optimizer, 1)
    weights, moments = get_state_dict(model, optimizer)
    save({"model": weights, "optimizer": moments}, tmp_path / "b")
    other = network()
    its = torch.optim.Adam(other.parameters(), lr=0.2)
    found = dict(zip(("model", "optimizer"), get_state_dict(other, its)))
    before = found["model"], found["optimizer"]
    load(found, tmp_path / "b")
    assert found["model"] is before[0] and found["optimizer"] is before[1]
    set_state_dict(other, its, model_state_dict=before[0], optim_state_dict=before[1])
    assert its.param_groups[0]["lr"] == 0.1 and torch.equal(other[0].weight, model[0].weight)
    # By names, without a state to load into.
    reader = StorageReader(tmp_path / "b")
    by_name = _load_state_dict_from_keys("model", storage_reader=reader)["model"]
    assert by_name.keys() == model.state_dict().keys() and torch.equal(by_name["0.weight"], model[0].weight)
    part = _load_state_dict_from_keys("optimizer.state", storage_reader=StorageReader(tmp_path / "b"))["optimizer"]
    assert "param_groups" not in part and len(part["state"]) == 4
    # A part of a larger model, and a state without frozen parameters.
    whole = torch.nn.ModuleDict({"pretrained": network(), "head": torch.nn.Linear(8, 2)})
    whole["pretrained"].requires_grad_(False)
    target = {"model": dict(whole["pretrained"].state_dict())}
    load(target, tmp_path / "b")
    assert torch.equal(whole["pretrained"][0].weight, model[0].weight)
    its = torch.optim.Adam([p for p in whole.parameters() if p.requires_grad])
    trained, _ = get_state_dict(whole, its, options=StateDictOptions(ignore_frozen_params=True))
    save({"model": trained}, tmp_path / "c")
    assert StorageReader(tmp_path / "c").read_metadata().state_dict_metadata.keys() == {
        "model.head.weight",
        "model.head.bias",
    }
    # A missing entry is an error, or is left unchanged.
    target = {"model": dict(whole.state_dict()), "epoch": 5}
    with pytest.raises(CheckpointException, match="Missing key"):
        load(target, tmp_path / "c")
    load(target, tmp_path / "c", planner=DefaultLoadPlanner(allow_partial_load=True))
    assert target["epoch"] == 5


def test_plans_are_cached_in_a_single_process_too(tmp_path):
    for step in range(1, 4):
        state = {"w": torch.full((9,), float(step)), "n": step}
        save(state, tmp_path / f"step-{step}", planner=DefaultSavePlanner(enable_plan_caching=True))
        found = {"w": torch.zeros(9), "n": 0}
        load(found, tmp_path / f"step-{step}")
        assert torch.equal(found["w"], state["w"]) and found["n"] == step
    # A save without cached plans does not go to the last path.
    save({"other": torch.ones(2)}, tmp_path / "step-7")
    assert straightway.Checkpointer(tmp_path).steps() == [1, 2, 3, 7]


@dataclasses.dataclass
class Inner:
    tensor: object
    value: int = 42


@dataclasses.dataclass(frozen=True)
class Outer:
    tensor: object
    names: list
    inner: Inner


def test_a_staged_copy_is_complete_and_independent():
    base = torch.arange(100.0).reshape(10, 10)
    dtypes = (torch.float64, torch.int32, torch.int64, torch.bool, torch.bfloat16, torch.complex64, torch.float8_e5m2)
    live = {
        "views": [base, base.view(100), base[2:8, 2:8], base[:, :5], base.T],
        "dtypes": {str(dtype): torch.ones(4, 4).to(dtype) for dtype in dtypes},
        "empty": [torch.tensor([]), torch.zeros(0, 3), torch.zeros(0, 0, 0), torch.tensor(2.5)],
        "outer": Outer(base * 2, ["a"], Inner(base * 3)),
        "plain": (1, "x", {"y": None}),
    }
    stager = Stager()
    staged = stager.stage(live)
    expected = [view.clone() for view in live["views"]]
    base.fill_(-1)
    live["outer"].tensor.zero_()
    live["outer"].inner.tensor.zero_()
    live["outer"].names.append("b")
    for view, was in zip(staged["views"], expected):
        assert torch.equal(view, was)
    for name, tensor in live["dtypes"].items():
        assert staged["dtypes"][name].dtype == tensor.dtype
        assert torch.equal(staged["dtypes"][name].view(torch.uint8), tensor.view(torch.uint8))
    assert [t.shape for t in staged["empty"]] == [t.shape for t in live["empty"]] and staged["empty"][3] == 2.5
    outer = staged["outer"]
    assert type(outer) is Outer and outer.names == ["a"] and outer.inner.value == 42
    assert torch.equal(outer.tensor, expected[0] * 2) and torch.equal(outer.inner.tensor, expected[0] * 3)
    assert staged["plain"] == live["plain"]
    # States of other kinds, one after the other.
    for state in ({"a": torch.nn.Linear(5, 3).state_dict()}, {"optimizer": {"lr": 0.1}}, {}):
        assert stager.stage(state).keys() == state.keys()
    del staged, outer, view
    gc.collect()
    stager.close()


def test_stored_entries_are_listed_without_loading_them(tmp_path):
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata

    save({"w": torch.zeros(4, 4), "blob": io.BytesIO(b"epoch 4")}, tmp_path)
    listed = StorageReader(tmp_path).read_metadata().state_dict_metadata
    if hasattr(dcp, "list_stored_state_dict"):
        found = dcp.list_stored_state_dict(checkpoint_id=tmp_path, storage_reader=StorageReader(tmp_path))
        assert found.keys() == listed.keys()
    assert isinstance(listed["w"], TensorStorageMetadata) and isinstance(listed["blob"], BytesStorageMetadata)
    assert listed["w"].size == torch.Size([4, 4]) and listed["w"].properties.dtype == torch.float32


def test_metadata_of_older_versions_is_read(tmp_path, monkeypatch):
    from torch.distributed._shard.sharded_tensor.metadata import TensorProperties

    with monkeypatch.context() as patched:
        patched.setattr("torch.distributed.checkpoint.metadata.TensorProperties", TensorProperties)
        dcp.save({"a": torch.ones(4, 4)}, storage_writer=FileSystemWriter(tmp_path / "old"), no_dist=True)
    found = {"a": torch.zeros(4, 4)}
    load(found, tmp_path / "old")
    assert found["a"].all()


def test_uris_of_unknown_stores_are_refused(tmp_path):
    assert StorageWriter.validate_checkpoint_id("s3://bucket/run/step-1")
    assert not StorageWriter.validate_checkpoint_id("https://host/run/step-1")
    for address in ("abc://abc.abc", "nvme-tcp://127.0.0.1:9/nqn.run/step-1"):
        assert not StorageWriter.validate_checkpoint_id(address)
        with pytest.raises(CheckpointException, match="hint: "):
            save({"w": torch.ones(1)}, address)
        with pytest.raises(CheckpointException, match="hint: "):
            load({"w": torch.ones(1)}, address)
    assert StorageReader.validate_checkpoint_id(tmp_path)


def test_torch_save_files_convert_to_steps_and_back(tmp_path):
    from torch.distributed.checkpoint.format_utils import torch_save_to_dcp
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

    state = {"model": dict(network().state_dict()), "epoch": 3}
    torch.save(state, tmp_path / "model.pt")
    torch_save_to_dcp(tmp_path / "model.pt", tmp_path / "dcp")
    convert(tmp_path / "dcp", tmp_path / "run/step-1")
    found = {"model": {name: torch.zeros_like(t) for name, t in state["model"].items()}, "epoch": 0}
    load(found, tmp_path / "run/step-1")
    assert found["epoch"] == 3 and all(torch.equal(found["model"][n], t) for n, t in state["model"].items())
    torch.save(_load_state_dict_from_keys(storage_reader=StorageReader(tmp_path / "run")), tmp_path / "back.pt")
    back = torch.load(tmp_path / "back.pt", weights_only=True)
    assert back["epoch"] == 3 and torch.equal(back["model"]["0.weight"], state["model"]["0.weight"])
    # PyTorch's own reader can read the metadata of a step, but not its data.
    assert FileSystemReader(tmp_path / "run/step-1").read_metadata().state_dict_metadata.keys() >= {"epoch"}


if __name__ == "__main__":
    play(globals())

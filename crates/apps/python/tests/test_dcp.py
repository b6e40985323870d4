"""Many ranks, and ``torch.distributed.checkpoint``: saved by four processes, restored by two and by one."""

import os
import time

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.distributed.is_available():
    pytest.skip("PyTorch was built without torch.distributed", allow_module_level=True)

import torch.distributed.checkpoint as dcp
import straightway
from many_ranks import play, ranks
from straightway.torch import StorageReader, StorageWriter

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


# The code that ranks run.


def whole():
    """The whole tensors."""
    generator = torch.Generator().manual_seed(11)
    return {
        "rows": torch.randn(10, 6, generator=generator),
        "columns": torch.randn(7, 9, generator=generator).to(torch.bfloat16),
        "grid": torch.randint(0, 99, (9, 5), generator=generator),
        "alike": torch.randn(33, generator=generator),
        "few": torch.randn(2, 3, generator=generator),
    }


def distributed(world, fill):
    """The same tensors, each sharded differently among the ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    line = init_device_mesh("cpu", (world,))
    grid = init_device_mesh("cpu", (2, world // 2))
    cuts = {"rows": (line, [Shard(0)]), "columns": (line, [Shard(1)]), "grid": (grid, [Shard(0), Shard(1)]), "alike": (line, [Replicate()]), "few": (line, [Shard(0)])}
    tensors = {name: tensor if fill else torch.zeros_like(tensor) for name, tensor in whole().items()}
    return {name: distribute_tensor(tensors[name], *cut) for name, cut in cuts.items()}


def check(tensors):
    for name, expected in whole().items():
        assert torch.equal(tensors[name].full_tensor(), expected), name


def trained(steps):
    """A module and its optimizer, sharded by FSDP2."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(12, 10), torch.nn.Linear(10, 3))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = parameter.detach() * 0.5 + 1
        optimizer.step()
    return model, optimizer


def parallel_state(model, optimizer):
    from torch.distributed.checkpoint.state_dict import get_state_dict

    states = get_state_dict(model, optimizer)
    return {"model": states[0], "optimizer": states[1], "epoch": 3, "tags": ["a", {"b": 2.5}]}


def scene_save(rank, world, folder):
    tensors = distributed(world, fill=True)
    with straightway.Checkpointer(f"{folder}/own", timeout_s=60) as checkpointer:
        checkpointer.save(1, {"t": tensors, "plain": torch.ones(1000), "rank": rank, f"only.{rank}": torch.full((5,), rank)}, metadata="m")
        tensors["rows"].to_local().zero_()
        checkpointer.wait()
        tensors = distributed(world, fill=False)
        checkpointer.restore(into={"t": tensors})
        check(tensors)
        assert checkpointer.load()["rank"] == rank
    writer = StorageWriter(f"{folder}/dcp", metadata={"by": "a test"})
    state = parallel_state(*trained(3)) | {"t": tensors}
    dcp.save(state, storage_writer=writer, checkpoint_id=f"{folder}/dcp/step-5")
    # The coordinator determines the number of the next step.
    future = dcp.async_save(state, storage_writer=writer, checkpoint_id=f"{folder}/dcp")
    future.result()
    assert straightway.Checkpointer(f"{folder}/dcp").steps() == [5, 6]


def scene_load(rank, world, folder):
    tensors = distributed(world, fill=False)
    with straightway.Checkpointer(f"{folder}/own") as checkpointer:
        into = {"t": tensors, "plain": torch.zeros(1000), "only.3": torch.zeros(5, dtype=torch.int64)}
        assert checkpointer.restore(into=into).metadata == "m"
        check(tensors)
        assert into["plain"].all() and bool((into["only.3"] == 3).all()) and checkpointer.load()["rank"] == rank
    for place in ("dcp/step-5", "dcp"):
        model, optimizer = trained(1)
        state = parallel_state(model, optimizer) | {"t": distributed(world, fill=False), "epoch": 0}
        dcp.load(state, storage_reader=StorageReader(f"{folder}/{place}"))
        check(state["t"])
        assert state["epoch"] == 3 and state["tags"] == ["a", {"b": 2.5}]
        expected = parallel_state(*trained(3))
        for part in ("model", "optimizer"):
            found, meant = flat(state[part]), flat(expected[part])
            assert found.keys() == meant.keys() and len(found) > 3
            for name in meant:
                assert torch.equal(found[name], meant[name]), name


def flat(state, path=""):
    """All tensors of a state, gathered."""
    tensors = {}
    for key, value in state.items():
        if isinstance(value, dict):
            tensors |= flat(value, f"{path}.{key}")
        elif isinstance(value, torch.Tensor):
            tensors[f"{path}.{key}"] = value.full_tensor() if hasattr(value, "full_tensor") else value
    return tensors


def scene_fail(rank, world, folder):
    """A rank whose part cannot be written makes the save fail on all, and the next one works."""
    writer = StorageWriter(folder)
    good = {"a": torch.ones(5), f"own.{rank}": torch.full((3,), rank)}
    dcp.save(good, storage_writer=writer)
    freed = torch.zeros(2)
    freed.untyped_storage().resize_(0)
    bad = good | ({"bad": freed} if rank == 1 else {})
    try:
        dcp.save(bad, storage_writer=writer)
    except dcp.api.CheckpointException as error:
        assert "'bad'" in str(error), error
    else:
        raise SystemExit("it did not fail")
    dcp.save(good, storage_writer=writer)
    # `Checkpointer` uses the process group too: one rank fails.
    checkpointer = straightway.Checkpointer(f"{folder}/own", timeout_s=2)
    start = time.monotonic()
    try:
        checkpointer.save(1, {"bad": lambda: 0} if rank == 1 else {"good": 1}, async_=False)
    except (RuntimeError, TypeError) as error:
        assert "bad is a function" in str(error) and time.monotonic() - start < 2
    checkpointer.save(1, {"a": 1}, async_=False)
    if rank == 1:
        os._exit(0)
    start = time.monotonic()
    try:
        checkpointer.save(2, {"a": 2}, async_=False)
    except (OSError, RuntimeError):
        assert time.monotonic() - start < 20 and checkpointer.steps() == [1]
        os._exit(0)
    raise SystemExit("it did not fail")


def scene_differ(rank, world, folder):
    """Ranks that hold different tensors under one name."""
    pairs = [
        (torch.ones(3), torch.ones(4), "[3] on rank 0 and F32 of shape [4] on rank 1"),
        (torch.ones(3), torch.ones(3, dtype=torch.float64), "F32 of shape [3] on rank 0 and F64 of shape [3] on rank 1"),
    ]
    with straightway.Checkpointer(folder, timeout_s=20) as checkpointer:
        for *tensors, said in pairs:
            try:
                checkpointer.save(1, {"w": tensors[rank]}, async_=False)
            except ValueError as error:
                assert "tensor 'w'" in str(error) and said in str(error), error
            else:
                raise SystemExit("it did not fail")
        assert checkpointer.steps() == []
        checkpointer.save(1, {"w": torch.arange(3)}, async_=False)
        assert torch.equal(checkpointer.load(1)["w"], torch.arange(3))


# The tests.


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder that four ranks saved to."""
    folder = tmp_path_factory.mktemp("four")
    assert ranks(__file__, 4, "save", folder) == [0] * 4
    return folder


class Own:
    """A user-defined class."""

    def __eq__(self, other):
        return type(other) is Own


class Hostile:
    """A malicious value: its pickle creates a folder when it is loaded."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_an_untrusted_pickle_is_refused_without_trust(tmp_path):
    bad = tmp_path / "PWNED"
    dcp.save({"x": torch.ones(3), "cfg": Hostile(bad), "own": Own()}, storage_writer=StorageWriter(tmp_path / "c"), no_dist=True)
    for name in ("cfg", "own"):
        with pytest.raises(dcp.api.CheckpointException, match=f"'{name}' is not loaded unless its writer is trusted"):
            dcp.load({"x": torch.zeros(3), name: None}, storage_reader=StorageReader(tmp_path / "c"), no_dist=True)
    assert not bad.exists()
    state = {"x": torch.zeros(3), "own": None}
    dcp.load(state, storage_reader=StorageReader(tmp_path / "c", trust=True), no_dist=True)
    assert state["own"] == Own() and state["x"].all()


def test_harmless_values_are_loaded_without_trust(tmp_path):
    import collections
    import datetime

    state = {
        "numbers": (1, 2.5, None, True, 1 << 70), "set": {1, 2}, "date": datetime.date(2026, 1, 2), "shape": torch.Size([2]), "dtype": torch.bfloat16,
        "deque": collections.deque([1], 3), "bytes": b"\x00\xff",
    }
    dcp.save({"state": torch.ones(1), **state}, storage_writer=StorageWriter(tmp_path), no_dist=True)
    found = {"state": torch.zeros(1), **dict.fromkeys(state)}
    dcp.load(found, storage_reader=StorageReader(tmp_path), no_dist=True)
    assert found.pop("state").all() and found == state


def test_a_lossy_dtype_is_refused_without_cast(tmp_path):
    dcp.save({"x": torch.full((3,), 0.1)}, storage_writer=StorageWriter(tmp_path), no_dist=True)
    target = torch.zeros(3, dtype=torch.bfloat16)
    with pytest.raises(dcp.api.CheckpointException, match="'x' was saved as F32, and goes to BF16"):
        dcp.load({"x": target}, storage_reader=StorageReader(tmp_path, cast=False), no_dist=True)
    assert not target.any()
    dcp.load({"x": target}, storage_reader=StorageReader(tmp_path, cast=True), no_dist=True)
    assert bool((target == torch.tensor(0.1, dtype=torch.bfloat16)).all())


def test_conjugate_views_are_saved_by_their_values(tmp_path):
    x = torch.randn(5, dtype=torch.complex64)
    dcp.save({"x": x, "conj": x.conj(), "neg": x.conj().imag}, storage_writer=StorageWriter(tmp_path), no_dist=True)
    found = {"x": torch.zeros_like(x), "conj": torch.zeros_like(x), "neg": torch.zeros(5)}
    dcp.load(found, storage_reader=StorageReader(tmp_path), no_dist=True)
    assert torch.equal(found["x"], x) and torch.equal(found["conj"], x.conj().resolve_conj()) and torch.equal(found["neg"], -x.imag)


def test_two_ranks_restore_what_four_saved(saved):
    assert ranks(__file__, 2, "load", saved) == [0, 0]


def test_one_process_restores_what_four_saved(saved):
    checkpointer = straightway.Checkpointer(saved / "own")
    found = checkpointer.load()
    for name, expected in whole().items():
        assert torch.equal(found["t"][name], expected), name
    assert [int(found[f"only.{rank}"][0]) for rank in range(4)] == [0, 1, 2, 3]
    state = {"t": {name: torch.zeros_like(tensor) for name, tensor in whole().items()}}
    dcp.load(state, storage_reader=StorageReader(saved / "dcp"))
    assert all(torch.equal(state["t"][name], tensor) for name, tensor in whole().items())


def test_parts_that_all_ranks_hold_are_written_once(saved):
    shards = list((saved / "own/step-1").glob("*.safetensors"))
    from safetensors import safe_open

    names = []
    for shard in shards:
        with safe_open(shard, "pt") as file:
            names += file.keys()
    assert len(shards) == 4 and names.count("plain") == 1 and names.count("t.alike") == 1 and names.count("t.rows") == 4


def test_a_save_that_fails_on_one_rank_fails_on_all_and_the_next_works(tmp_path):
    assert ranks(__file__, 2, "fail", tmp_path) == [0, 0]
    assert straightway.Checkpointer(tmp_path).steps() == [1, 2]


def state():
    torch.manual_seed(2)
    model = torch.nn.Linear(30, 20)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(30)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "strided": torch.arange(12.0).reshape(3, 4).T, "fp8": torch.ones(9).to(torch.float8_e4m3fn), "n": {"deep": [1, "two"]}}


def test_one_process_saves_and_loads_by_dcp(tmp_path):
    writer = StorageWriter(tmp_path / "step-3", incremental=True)
    dcp.save(state(), storage_writer=writer)
    changed = state()
    future = dcp.async_save(changed, storage_writer=writer, checkpoint_id=tmp_path / "step-4")
    changed["model"]["weight"].zero_()
    future.result()
    for reader in (StorageReader(tmp_path / "step-3"), StorageReader(tmp_path)):
        found = state()
        for tensor in (found["model"]["weight"], found["strided"], found["fp8"], found["optimizer"]["state"][0]["exp_avg"]):
            tensor.zero_()
        found["n"]["deep"][1] = None
        dcp.load(found, storage_reader=reader)
        expected = state()
        assert torch.equal(found["model"]["weight"], expected["model"]["weight"])
        assert torch.equal(found["strided"], expected["strided"]) and found["n"] == expected["n"]
        assert torch.equal(found["fp8"].view(torch.uint8), expected["fp8"].view(torch.uint8))
        assert torch.equal(found["optimizer"]["state"][0]["exp_avg"], expected["optimizer"]["state"][0]["exp_avg"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_dcp_saves_and_loads_tensors_of_a_gpu(tmp_path):
    expected = torch.randn(3000, 700, device="cuda")
    writer = StorageWriter(tmp_path)
    dcp.save({"w": expected, "t": expected.T}, storage_writer=writer)
    dcp.async_save({"w": expected, "t": expected.T}, storage_writer=writer).result()
    found = {"w": torch.zeros_like(expected), "t": torch.zeros_like(expected).T}
    dcp.load(found, storage_reader=StorageReader(tmp_path))
    assert torch.equal(found["w"], expected) and torch.equal(found["t"], expected.T)


def test_checkpointer_and_dcp_read_each_others_steps_or_refuse_by_name(tmp_path):
    with straightway.Checkpointer(tmp_path / "own") as checkpointer:
        checkpointer.save(1, {"model": {"w": torch.ones(4)}}, async_=False)
    found = {"model": {"w": torch.zeros(4)}}
    dcp.load(found, storage_reader=StorageReader(tmp_path / "own"))
    assert found["model"]["w"].all()
    dcp.save(found, storage_writer=StorageWriter(tmp_path / "dcp"))
    with pytest.raises(ValueError, match="StorageReader"):
        straightway.Checkpointer(tmp_path / "dcp").load()


def test_dcp_finds_a_corrupt_chunk(tmp_path):
    dcp.save({"w": torch.ones(2 << 20)}, storage_writer=StorageWriter(tmp_path / "step-1"))
    (shard,) = (tmp_path / "step-1").glob("*.safetensors")
    data = bytearray(shard.read_bytes())
    data[5 << 20] ^= 4
    shard.write_bytes(data)
    with pytest.raises(dcp.api.CheckpointException, match="chunk 1 of"):
        dcp.load({"w": torch.zeros(2 << 20)}, storage_reader=StorageReader(tmp_path))


def test_dcp_raises_for_a_missing_step(tmp_path):
    dcp.save({"w": torch.ones(2)}, storage_writer=StorageWriter(tmp_path / "step-1"))
    with pytest.raises(dcp.api.CheckpointException, match="step 2"):
        dcp.load({"w": torch.ones(2)}, storage_reader=StorageReader(tmp_path / "step-2"))
    with pytest.raises(dcp.api.CheckpointException, match="there already"):
        dcp.save({"w": torch.ones(2)}, storage_writer=StorageWriter(tmp_path / "step-1"))
    # A writer whose save failed has unlocked the folder, although its exception is still referenced.
    writer = StorageWriter(tmp_path)
    with pytest.raises(dcp.api.CheckpointException, match="there already") as held:
        dcp.save({"w": torch.ones(2)}, storage_writer=writer, checkpoint_id=tmp_path / "step-1")
    dcp.save({"w": torch.ones(2)}, storage_writer=writer, checkpoint_id=tmp_path / "step-2")
    assert held.value.failures and straightway.Checkpointer(tmp_path).steps() == [1, 2]
    with pytest.raises(ValueError, match="parity"):
        StorageWriter(tmp_path, parity=-1)
    assert not StorageWriter.validate_checkpoint_id("https://host/step-1") and StorageReader.validate_checkpoint_id("a/b")



def test_ranks_whose_tensors_differ_under_one_name_all_refuse_to_save_and_say_what_differs(tmp_path):
    assert ranks(__file__, 2, "differ", tmp_path) == [0, 0]


if __name__ == "__main__":
    play(globals())

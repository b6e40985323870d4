"""Names of tensors in checkpoints: each rank gets back what it saved, in whatever order its dictionaries are."""

import json
import random
import threading

import numpy
import pytest
import straightway
from straightway import _names, _ranks, _tree

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

#: Keys whose joined paths are easily equal.
KEYS = ["a", "b", "a.b", "a.b.0", "", ".", "a.", "%", "%2E", "a%2Eb", "#2", "a#2", 0, 1, -1, "0", "1", "-1", "00", True, None, "None", "True", 0.5, "0.5", (0, "a"), "%(True)", frozenset({"x", "y"}), b"a", "data", "mask", "straightway.tree.00000", "__metadata__", "state"]
FEW_KEYS = ["a", "b", "a.b", 0, "0"]


def values(state, path=()):
    """The arrays of a state by their exact path."""
    if isinstance(state, dict):
        members = state.items()
    elif isinstance(state, list):
        members = enumerate(state)
    else:
        return {path: state.tolist()}
    return {p: v for key, member in members for p, v in values(member, (*path, (type(key).__name__, key))).items()}


def random_state(rng, keys, depth=0):
    """A nested state in which the values tell the paths apart."""
    if depth and (depth > 3 or rng.random() < 0.45):
        return numpy.array([rng.randrange(1 << 40)])
    if rng.random() < 0.2:
        return [random_state(rng, keys, depth + 1) for _ in range(rng.randrange(1, 3))]
    # As a dictionary: True and 1 are the same key.
    return {key: random_state(rng, keys, depth + 1) for key in dict.fromkeys(rng.sample(keys, rng.randrange(1, 6)))}


def version_of(rng, state, drops):
    """The state of one rank: in another order, and without some of its entries."""
    if isinstance(state, list):
        return [version_of(rng, member, drops) for member in state]
    if not isinstance(state, dict):
        return state
    kept = [key for key in state if not (drops and rng.random() < 0.3)] or list(state)[:1]
    rng.shuffle(kept)
    return {key: version_of(rng, state[key], drops) for key in kept}


def save_and_load(folder, states):
    """Saves the state of each rank, one thread per rank. Returns what each rank loads, or its error."""
    outcomes = [None] * len(states)

    def work(rank):
        try:
            with straightway.Checkpointer(folder, rank=rank, world_size=len(states), run="r", timeout_s=20) as checkpointer:
                checkpointer.save(1, states[rank], async_=False)
                outcomes[rank] = checkpointer.load(1)
        except Exception as error:
            outcomes[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(states))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def names(state):
    """The names of a state's tensors, with the exact name of each."""
    made = _tree.StateTree(state)
    return {name: made.exact.get(name, name) for name in made.tensors}


def test_every_rank_gets_back_what_it_saved(tmp_path):
    refused = 0
    for seed in range(40):
        rng = random.Random(seed)
        base = random_state(rng, FEW_KEYS if seed % 4 == 1 else KEYS)
        # Ranks with the same entries are never refused. Others are, if one name means different paths.
        drops = seed % 2 == 1
        states = [version_of(rng, base, drops) for _ in range(rng.choice([1, 2, 2, 3]))]
        exact = {}
        differ = any(exact.setdefault(name, path) != path for state in states for name, path in names(state).items())
        assert not differ or drops, seed
        outcomes = save_and_load(tmp_path / str(seed), states)
        for state, outcome in zip(states, outcomes):
            if differ:
                assert isinstance(outcome, Exception), (seed, outcome)
            else:
                assert not isinstance(outcome, Exception), (seed, outcome)
                assert values(outcome) == values(state), seed
        refused += differ
        if differ:
            assert any("under that name" in str(outcome) for outcome in outcomes), outcomes
    assert 1 <= refused <= 10


def test_the_exact_name_is_a_one_to_one_function_of_the_path():
    rng = random.Random(5)
    known = {}
    for _ in range(8_000):
        path, keys = _names.ROOT, tuple(rng.choice(KEYS) for _ in range(rng.randrange(4)))
        for key in keys:
            node = ["v", key] if type(key) in (bool, type(None), float) else None
            if type(key) in (str, int):
                path = _names.member(path, key)
            else:
                path = _names.member_by_leaf(path, key, node or _tree.leaf(key))
        typed = tuple((type(key), key) for key in keys)
        assert known.setdefault(_names.exact_name(path), typed) == typed
    assert len(set(known.values())) == len(known) > 2_000


def test_names_do_not_depend_on_the_order_and_ordinary_ones_are_joined_with_dots():
    one, two = numpy.ones(1), numpy.zeros(1)
    assert names({"a.b": one, "a": {"b": two}}) == {"a%2Eb": "a%2Eb", "a.b": "a.b"}
    assert list(names({"a": {"b": two}, "a.b": one})) == ["a.b", "a%2Eb"]
    assert list(names({1: one, "1": two})) == ["1", "%31"]
    assert list(names({"": one, True: two, "x#2": one})) == ["%", "%(True)", "x#2"]
    assert list(names(one)) == ["state"]
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    optimizer = {"state": {0: {"exp_avg": torch.ones(2, 2)}}, "param_groups": [{"params": [0]}]}
    found = names({"model": model, "optimizer": optimizer, "list": [one, {"0": two}], "x": {0: one}})
    assert {"model.0.weight", "model.1.bias", "optimizer.state.0.exp_avg", "list.0", "list.1.0", "x.0"} <= set(found)
    assert not [name for name in found if "%" in name]
    with pytest.raises(ValueError, match="nan is there twice"):
        names({float("nan"): one, float("nan") * 1: two})


def test_ranks_that_use_one_name_for_different_paths_are_refused(tmp_path):
    states = [{"a.b": numpy.ones(3), "own.0": numpy.ones(1)}, {"a": {"b": numpy.zeros(3)}}]
    outcomes = save_and_load(tmp_path, states)
    assert any('tensor "a.b"' in str(o) and 'rank 0 has "a%2Eb"' in str(o) and 'rank 1 has "a.b"' in str(o) for o in outcomes), outcomes
    assert straightway.Checkpointer(tmp_path).steps() == []
    # With a process group, before anything is written.
    shares = [[_ranks.Share("a.b", (0,), (3,), "F64", (3,), exact)] for exact in ("a%2Eb", "a.b")]
    with pytest.raises(ValueError, match="'a%2Eb' on rank 0 and 'a.b' on rank 1"):
        _ranks._check_consistent(shares)
    _ranks._check_consistent([shares[0], shares[0]])


def test_checkpoints_with_numbered_names_load_as_before(tmp_path, monkeypatch):
    def numbered(paths):
        """The names of version 0.1."""
        found = []
        for path in paths:
            base = name = path.plain or "state"
            number = 1
            while name in found:
                number += 1
                name = f"{base}#{number}"
            found.append(name)
        return found

    state = {"a.b": numpy.full(2, 1.0), "a": {"b": numpy.full(2, 2.0)}, 1: numpy.full(2, 3.0), "1": numpy.full(2, 4.0)}
    with monkeypatch.context() as patch, straightway.Checkpointer(tmp_path) as checkpointer:
        patch.setattr(_names, "assigned", numbered)
        checkpointer.save(1, state, async_=False)
    manifest = json.loads((tmp_path / "step-1/manifest.json").read_text())
    assert {"a.b", "a.b#2", "1", "1#2"} <= {tensor["name"] for tensor in manifest["tensors"]}
    with straightway.Checkpointer(tmp_path) as checkpointer:
        assert values(checkpointer.load(1)) == values(state)
        into = {key: numpy.zeros(2) for key in state if key != "a"} | {"a": {"b": numpy.zeros(2)}}
        checkpointer.restore(1, into=into)
        assert values(into) == values(state)
        # The next step has the new names.
        checkpointer.save(2, into, async_=False)
        assert values(checkpointer.load(2)) == values(state)

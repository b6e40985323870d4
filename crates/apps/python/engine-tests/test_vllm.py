"""The loader ``straightway`` in vLLM's own classes, without a GPU."""

import dataclasses
import inspect
import json
import logging
import os
import subprocess
import sys
import types

import pytest

pytest.importorskip(
    "vllm.model_executor.model_loader", reason="vLLM's loader cannot be imported here", exc_type=ImportError
)
import torch  # noqa: E402
from conftest import assert_same  # noqa: E402
from vllm.config.load import LoadConfig  # noqa: E402
from vllm.model_executor import model_loader  # noqa: E402
from vllm.model_executor.model_loader import (  # noqa: E402
    BaseModelLoader,
    DefaultModelLoader,
    ShardedStateLoader,
    ep_weight_filter,
    get_model_loader,
    weight_utils,
)

import straightway  # noqa: E402
import straightway.vllm  # noqa: E402

straightway.vllm.register()


def loader(**settings):
    return get_model_loader(LoadConfig(load_format="straightway", model_loader_extra_config=settings))


def original(**settings):
    return get_model_loader(LoadConfig(load_format="auto", use_tqdm_on_load=False, **settings))


def source(path, **more):
    return DefaultModelLoader.Source(str(path), None, **more)


def config(path, **more):
    """The part of vLLM's ModelConfig that loaders read."""
    plain = {"revision": None, "quantization": None, "multimodal_config": None, "is_moe": False, "model_weights": ""}
    return types.SimpleNamespace(model=str(path), **plain | more)


class Model(torch.nn.Module):
    """Takes weights as vLLM's models do: each is copied into a parameter, and names are returned."""

    def __init__(self, shapes, **more):
        super().__init__()
        for name, value in shapes.items():
            self.register_buffer(name.replace(".", "/"), torch.zeros_like(value))
        self.order = []
        vars(self).update(more)

    def load_weights(self, weights):
        for name, value in weights:
            self.order.append(name)
            self.get_buffer(name.replace(".", "/")).copy_(value)
        return set(self.order)

    def tensors(self):
        return {name.replace("/", "."): value for name, value in self.named_buffers()}


@pytest.fixture(autouse=True)
def current_config():
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))):
        yield


# The interface. A new version of vLLM that changes it fails here, by name.


def test_the_interfaces_are_those_that_the_loader_was_written_for():
    def parameters(function):
        return list(inspect.signature(function).parameters)

    assert BaseModelLoader.__abstractmethods__ == {"download_model", "load_weights"}
    assert parameters(DefaultModelLoader._prepare_weights) == [
        *("self", "model_name_or_path", "subfolder", "revision", "fall_back_to_pt", "allow_patterns_overrides"),
    ]
    assert parameters(DefaultModelLoader._get_weights_iterator) == ["self", "source"]
    assert parameters(DefaultModelLoader.get_all_weights) == ["self", "model_config", "model"]
    assert parameters(DefaultModelLoader.load_weights)[:3] == ["self", "model", "model_config"]
    assert [field.name for field in dataclasses.fields(DefaultModelLoader.Source)] == [
        *("model_or_path", "revision", "subfolder", "prefix", "fall_back_to_pt", "allow_patterns_overrides"),
        "is_unused_weight",
    ]
    assert parameters(ShardedStateLoader.iterate_over_files) == ["self", "paths"]
    assert parameters(weight_utils.filter_mm_encoder_only_safetensors_files) == [
        *("hf_weights_files", "hf_folder", "index_file", "language_model_prefixes", "weights_mapper"),
    ]
    assert parameters(weight_utils.filter_safetensors_files_by_weight_name) == ["hf_weights_files", "is_unused_weight"]
    assert parameters(ep_weight_filter.should_skip_weight) == ["weight_name", "local_expert_ids"]
    for name in ("_natural_sort_key", "_mapped_weight_name", "_ENGRAM_WEIGHT_RE", "_BAR_FORMAT", "enable_tqdm", "tqdm"):
        assert hasattr(weight_utils, name), name
    assert {"local_expert_ids", "_encoder_only_lm_prefixes", "_encoder_only_weights_mapper"} <= set(vars(original()))


def test_the_entry_point_registers_the_loader():
    from importlib.metadata import entry_points

    found = [entry for entry in entry_points(group="vllm.general_plugins") if entry.name == "straightway"]
    if not found:
        pytest.skip("the package is not installed, so it has no entry points")
    assert found[0].load() is straightway.vllm.register
    assert model_loader._LOAD_FORMAT_TO_MODEL_LOADER["straightway"] is straightway.vllm.Loader


# The same tensors as vLLM's own iterators.


@pytest.mark.parametrize("settings", [{}, {"route": "auto"}, {"route": "buffered", "verify": True, "share": True}])
def test_files_names_and_bytes_are_those_of_the_own_iterator(model, settings):
    ours = list(loader(**settings)._get_weights_iterator(source(model[0])))
    theirs = list(original()._get_weights_iterator(source(model[0])))
    assert_same(ours, theirs)

    # Files come in the same order; within a file, tensors come in the order of their bytes.
    places = json.loads((model[0] / "model.safetensors.index.json").read_text())["weight_map"]
    assert list(dict.fromkeys(places[name] for name, _ in ours)) == list(
        dict.fromkeys(places[name] for name, _ in theirs)
    )


def test_experts_of_other_ranks_are_not_read(model):
    ours, theirs = loader(), original()
    ours.local_expert_ids = theirs.local_expert_ids = {1, 2}
    found = list(ours._get_weights_iterator(source(model[0])))
    assert_same(found, theirs._get_weights_iterator(source(model[0])))
    assert not any("experts.3" in name and name.endswith("weight") for name, _ in found)
    read = sum(receipt.bytes for receipt in ours._weights.receipts)
    assert read == sum(value.nbytes for _, value in found)


def test_an_encoder_alone_reads_only_its_files(model):
    ours, theirs = loader(), original()
    ours._encoder_only_lm_prefixes = theirs._encoder_only_lm_prefixes = ("language_model.",)
    assert_same(ours._get_weights_iterator(source(model[0])), theirs._get_weights_iterator(source(model[0])))
    ours._encoder_only_lm_prefixes = ("language_model.", "model.", "visual.")
    with pytest.raises(RuntimeError, match="--mm-encoder-only leaves no file"):
        list(ours._get_weights_iterator(source(model[0])))


def test_files_without_a_used_weight_are_not_read(model):
    def unused(name):
        return name.startswith("language_model.layers")

    ours = list(loader()._get_weights_iterator(source(model[0], is_unused_weight=unused)))
    assert_same(ours, original()._get_weights_iterator(source(model[0], is_unused_weight=unused)))
    assert len(ours) == 14


def test_a_secondary_source_has_its_prefix_and_tied_weights_arrive(model):
    class Tied(Model):
        secondary_weights = (source(model[1], prefix="draft."),)

    shapes = dict(original()._get_weights_iterator(source(model[0])))
    shapes |= dict(original()._get_weights_iterator(source(model[1], prefix="draft.")))
    ours, theirs = Tied(shapes), Tied(shapes)
    loading = loader()
    loading.load_weights(ours, config(model[0]))
    original().load_weights(theirs, config(model[0]))
    assert "draft.lm_head.weight" in ours.order and sorted(ours.order) == sorted(theirs.order)
    assert_same(ours.tensors(), theirs.tensors())


def test_weights_that_are_not_safetensors_are_loaded_by_vllm(tmp_path):
    torch.save({"a.weight": torch.ones(3)}, tmp_path / "pytorch_model.bin")
    found = dict(loader()._get_weights_iterator(source(tmp_path)))
    assert torch.equal(found["a.weight"], torch.ones(3))


def test_the_tables_of_engram_stay_on_the_cpu(model, monkeypatch):
    from vllm.config import get_current_vllm_config_or_none

    current = get_current_vllm_config_or_none()
    monkeypatch.setattr(current, "engram_config", types.SimpleNamespace(cpu_offload=True), raising=False)
    is_table = straightway.vllm._on_cpu()
    assert is_table("model.engram.embed.weight") and not is_table("language_model.embed.weight")
    monkeypatch.setattr(current, "engram_config", None, raising=False)
    assert straightway.vllm._on_cpu() is None


# URIs.


@pytest.fixture
def served(model):
    """The model, served over NVMe/TCP by this package's own command."""
    command = [sys.executable, "-c", "from straightway._command import main; main()", "target"]
    options = ["--listen", "127.0.0.1:0", "--nqn", "nqn.2026-11.org.example:engine", str(model[0])]
    target = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    address = target.stderr.readline().split()[-1]
    yield f"nvme-tcp://{address}/nqn.2026-11.org.example:engine/{model[0].name}"
    target.kill()
    target.wait()


def test_the_weights_of_a_uri_are_those_of_the_folder(model, served, tmp_path):
    def unused(name):
        return name.startswith("language_model.layers")

    shapes = dict(original()._get_weights_iterator(source(model[0])))
    target = Model(shapes)
    # The engine reads its configuration from a folder without weights.
    loader(uri=served).load_weights(target, config(tmp_path))
    assert_same(target.tensors(), shapes)
    assert {row["route"] for receipt in straightway.vllm.receipts() for row in receipt["routes"]} == {"socket"}

    for change in ({"_encoder_only_lm_prefixes": ("language_model.",)}, {"local_expert_ids": {3}}):
        ours, theirs = loader(), original()
        vars(ours).update(change)
        vars(theirs).update(change)
        assert_same(ours._get_weights_iterator(source(served)), theirs._get_weights_iterator(source(model[0])))
    found = loader()._get_weights_iterator(source(served, is_unused_weight=unused, prefix="x."))
    assert_same(found, original()._get_weights_iterator(source(model[0], is_unused_weight=unused, prefix="x.")))


# Folders of `sharded_state`.


def test_a_rank_reads_only_its_files_of_a_sharded_state_folder(tmp_path, monkeypatch, model):
    from safetensors.torch import save_file

    group = types.SimpleNamespace(world_size=2)
    import vllm.distributed

    monkeypatch.setattr(vllm.distributed, "get_pp_group", lambda: types.SimpleNamespace(world_size=1))
    monkeypatch.setattr(vllm.distributed, "get_tp_group", lambda: group)
    monkeypatch.setattr(vllm.distributed, "get_tensor_model_parallel_rank", lambda: 1)
    monkeypatch.setattr(vllm.distributed, "get_pipeline_model_parallel_rank", lambda: 0)
    mine = {"a/weight": torch.randn(8, 4), "b/weight": torch.randn(3)}
    save_file({"a/weight": mine["a/weight"]}, tmp_path / "model-rank-1-part-0.safetensors")
    save_file({"b/weight": mine["b/weight"]}, tmp_path / "model-rank-1-part-1.safetensors")
    (tmp_path / "model-rank-0-part-0.safetensors").write_bytes(b"another rank's file, which nobody may open")
    target = Model(mine)
    loader().load_weights(target, config(tmp_path))
    assert_same(dict(target.named_buffers()), mine)


# Receipts, settings and errors.


def test_the_log_has_one_line_and_the_helper_the_receipts(model):
    shapes = dict(original()._get_weights_iterator(source(model[0])))
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    log = logging.getLogger("vllm.straightway")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        loader(verify=True).load_weights(Model(shapes), config(model[0]))
    finally:
        log.removeHandler(handler)
    lines = [record.getMessage() for record in records]
    assert len(lines) == 1 and lines[0].startswith("straightway: ") and "by route: mapped" in lines[0]
    assert "verified" in lines[0]
    assert sum(receipt["bytes"] for receipt in straightway.vllm.receipts()) == sum(t.nbytes for t in shapes.values())


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"rout": "auto"}, "no setting 'rout'\nhint: did you mean 'route'"),
        ({"route": "fast"}, "route is one of auto, direct, staged, buffered, not 'fast'"),
        ({"memory": "2MiB"}, "memory is at least 16MiB"),
        ({"verify": "yes"}, "verify is true or false"),
        ({"num_threads": 0}, "num_threads must be a positive integer"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        loader(**settings)


def test_a_wrong_option_of_a_store_is_refused_by_name(model):
    with pytest.raises(ValueError, match="endpoint_ur"):
        list(loader(storage_options={"endpoint_ur": "x"})._get_weights_iterator(source(model[0])))


def test_a_truncated_file_is_named_before_a_tensor_is_loaded(model):
    path = model[0] / "model-10.safetensors"
    os.truncate(path, path.stat().st_size - 5)
    target = Model(dict(original()._get_weights_iterator(source(model[1]))))
    with pytest.raises(ValueError, match="model-10.safetensors"):
        loader().load_weights(target, config(model[0]))
    assert target.order == []


def test_an_index_that_names_a_missing_file_is_an_error_with_its_name(model):
    (model[0] / "model-10.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="model-10.safetensors"):
        list(loader()._get_weights_iterator(source(model[0])))


@pytest.mark.parametrize("uri", ["s4://bucket/llama", "https://localhost:1/llama/"])
def test_a_wrong_uri_is_named(uri):
    with pytest.raises((ValueError, OSError), match=uri.partition("://")[2].partition("/")[0]):
        loader(uri=uri).load_weights(Model({}), config("/nonexistent"))

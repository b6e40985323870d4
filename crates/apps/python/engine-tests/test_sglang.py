"""The loader in SGLang's own classes, without a GPU."""

import dataclasses
import inspect
import logging

import pytest

loader = pytest.importorskip(
    "sglang.srt.model_loader.loader", reason="SGLang's loader cannot be imported here", exc_type=ImportError
)
from conftest import assert_same  # noqa: E402
from sglang.srt.configs.load_config import LoadConfig, LoadFormat  # noqa: E402
from sglang.srt.model_loader import weight_utils  # noqa: E402
from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: E402

import straightway.sglang  # noqa: E402


def source(path, **more):
    return loader.DefaultModelLoader.Source(str(path), None, **more)


def ours(**settings):
    return straightway.sglang.Loader(LoadConfig(load_format=LoadFormat.AUTO, model_loader_extra_config=settings))


def files(folder):
    """The files of the model. An index leaves out the others."""
    return sorted(str(path) for path in folder.glob("model*.safetensors"))


def test_the_interfaces_are_those_that_the_loader_was_written_for():
    def parameters(function):
        return list(inspect.signature(function).parameters)

    default = loader.DefaultModelLoader
    assert parameters(default._prepare_weights) == [
        *("self", "model_name_or_path", "revision", "fall_back_to_pt", "allow_patterns_overrides"),
    ]
    assert parameters(default._get_weights_iterator) == [
        *("self", "source", "resolved_source", "startup_prefetch_started", "startup_prefetch_active"),
    ]
    assert [field.name for field in dataclasses.fields(default.Source)] == [
        *("model_or_path", "revision", "prefix", "fall_back_to_pt", "allow_patterns_overrides", "model_config"),
    ]
    assert parameters(default.load_model) == ["self", "model_config", "device_config"]
    assert parameters(default._filter_mtp_weights) == ["weights_iterator", "prefix", "draft_model_idx"]
    assert parameters(loader.get_model_loader) == ["load_config", "model_config"]
    assert parameters(loader.maybe_add_mtp_safetensors)[:4] == [
        *("hf_weights_files", "hf_folder", "index_file", "hf_config"),
    ]
    assert hasattr(weight_utils, "BAR_FORMAT") and hasattr(weight_utils, "tqdm")
    assert loader.BaseModelLoader.__abstractmethods__ == {"download_model", "load_model"}


@pytest.mark.parametrize("settings", [{}, {"route": "auto", "verify": True}])
def test_names_and_bytes_are_those_of_the_own_iterator(model, settings, monkeypatch):
    # They have the settings of a server, and none runs here.
    monkeypatch.setattr(loader, "get_server_args", lambda: None)
    found = ours(**settings)._get_weights_iterator(source(model[0], prefix="x."))
    expected = weight_utils.safetensors_weights_iterator(files(model[0]))
    assert_same(found, (("x." + name, value) for name, value in expected))


def test_the_hook_replaces_the_default_loader_if_the_settings_ask_for_it(caplog):
    straightway.sglang.register()
    assert HookRegistry._hooks[straightway.sglang._CHOOSER][-1][0] is HookType.AROUND
    HookRegistry.apply_hooks()
    plain = LoadConfig(load_format=LoadFormat.AUTO)
    assert type(loader.get_model_loader(plain)) is loader.DefaultModelLoader
    asked = LoadConfig(load_format=LoadFormat.AUTO, model_loader_extra_config='{"straightway": {"memory": "1GiB"}}')
    chosen = loader.get_model_loader(asked)
    assert type(chosen) is straightway.sglang.Loader and chosen.options.memory_bytes == 1 << 30
    wrong = LoadConfig(load_format=LoadFormat.AUTO, model_loader_extra_config='{"straightway": {"memry": 1}}')
    with pytest.raises(ValueError, match="no setting 'memry'\nhint: did you mean 'memory'"):
        loader.get_model_loader(wrong)
    other = LoadConfig(load_format=LoadFormat.SHARDED_STATE, model_loader_extra_config={"straightway": {}})
    with caplog.at_level(logging.WARNING, "sglang.straightway"):
        assert type(loader.get_model_loader(other)) is loader.ShardedStateLoader
    assert "SGLang chose ShardedStateLoader" in caplog.text

"""The loader ``straightway`` of vLLM: ``vllm serve MODEL --load-format straightway``.

The entry point ``vllm.general_plugins`` of this package calls ``register`` in every process of the engine. Settings are
in ``--model-loader-extra-config``; docs/engines.md has their names.
"""

from __future__ import annotations

import copy
import glob
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ._engine_options import parse
from ._engine_weights import EngineWeights
from ._straightway import Model, Receipt

if TYPE_CHECKING:
    # vLLM has types of its own, and need not be installed where this package is checked.
    DefaultModelLoader: Any = object
    ShardedStateLoader: Any = object
    weight_utils: Any = object
else:
    from vllm.model_executor.model_loader import DefaultModelLoader, ShardedStateLoader, weight_utils

#: The keys of the settings that vLLM's own loader takes.
_ENGINE_KEYS = ("enable_multithread_load", "num_threads", "enable_weights_track")

#: The weights of the last load in this process.
_last: EngineWeights | None = None


def register() -> None:
    """Registers the loader. vLLM calls it in every process, and possibly several times."""
    from vllm.model_executor import model_loader

    if model_loader._LOAD_FORMAT_TO_MODEL_LOADER.get("straightway") is not Loader:
        model_loader.register_model_loader("straightway")(Loader)


def receipts(worker: Any = None) -> list[dict[str, Any]]:
    """The receipts of the last load in this process. ``llm.collective_rpc(straightway.vllm.receipts)`` has those of all
    ranks."""
    found: list[Receipt] = [] if _last is None else _last.receipts
    return [receipt.to_dict() for receipt in found]


class Loader(DefaultModelLoader):  # type: ignore[misc]
    """Loads weights through Straightway, with the files, filters and prefixes of vLLM's own loader.

    Checkpoints that are not safetensors, and those of torchao, are loaded by vLLM itself. The files of a
    ``sharded_state`` folder are recognised by their names.
    """

    def __init__(self, load_config: Any) -> None:
        self.options, kept = parse(load_config.model_loader_extra_config, _ENGINE_KEYS)
        # vLLM's own loader sees its own settings, and finds files as for "auto".
        inner = copy.copy(load_config)
        inner.load_format = "auto"
        inner.model_loader_extra_config = kept
        super().__init__(inner)
        self._weights: EngineWeights | None = None
        #: Models of URIs whose headers were read already.
        self._opened: dict[str, Model] = {}

    def download_model(self, model_config: Any) -> None:
        """Downloads a model of the Hugging Face hub. A URI is read when it is loaded."""
        if self._uri(model_config) is None and not self._is_sharded(model_config.model):
            super().download_model(model_config)

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Loads the weights into a model, and writes one line about it to the log."""
        global _last
        self._weights = _last = EngineWeights(self.options, _device(self.load_config), _has_ranks())
        if self._uri(model_config) is None and self._is_sharded(model_config.model):
            _ShardedLoader(self.load_config, self._weights).load_weights(model, model_config)
        else:
            super().load_weights(model, model_config)
        if self._weights.receipts:
            _logger().info("%s", self._weights.summary())

    def _uri(self, model_config: Any) -> str | None:
        """The URI of the weights: the setting, or the model's if vLLM has replaced it by a local folder."""
        if self.options.uri is not None:
            return self.options.uri
        given = (getattr(model_config, "model_weights", ""), model_config.model)
        return next((text for text in given if _is_uri(text)), None)

    def _is_sharded(self, folder: str) -> bool:
        if self.options.pattern is not None:
            return True
        if not os.path.isdir(folder) or glob.glob(os.path.join(glob.escape(folder), "*.index.json")):
            return False
        return any(
            glob.glob(os.path.join(glob.escape(folder), name))
            for name in ("model-rank-*-part-*.safetensors", "model-pp-*-tp-*-part-*.safetensors")
        )

    def get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
        """The weights of the model, and those of its secondary sources."""
        uri = self._uri(model_config)
        if uri is not None:
            model_config = copy.copy(model_config)
            model_config.model = uri
        weights: Iterator[tuple[str, Any]] = super().get_all_weights(model_config, model)
        return weights

    def _get_weights_iterator(self, source: Any) -> Iterator[tuple[str, Any]]:
        """The tensors of a source, with its prefix."""
        if self._weights is None:
            self._weights = EngineWeights(self.options, _device(self.load_config), _has_ranks())
        if self.load_config.safetensors_load_strategy == "torchao":
            return self._left_to_vllm(source, "it has serialized torchao tensors")
        if _is_uri(source.model_or_path):
            files = [self._of_uri(source)]
        else:
            found = self._files(source)
            if found is None:
                return self._left_to_vllm(source, "it has no safetensors files")
            files = [(path, None) for path in found]
        self._note_start()
        return ((source.prefix + name, tensor) for name, tensor in self._read(files))

    def _left_to_vllm(self, source: Any, why: str) -> Iterator[tuple[str, Any]]:
        _logger().info("straightway: vLLM loads %s itself, because %s", source.model_or_path, why)
        weights: Iterator[tuple[str, Any]] = super()._get_weights_iterator(source)
        return weights

    def _note_start(self) -> None:
        """vLLM's log has the time from here on."""
        begun: float = getattr(self, "counter_before_loading_weights", 0.0)
        self.counter_before_loading_weights = begun or time.perf_counter()

    def _files(self, source: Any) -> list[str] | None:
        """The safetensors files of a local source, filtered as vLLM filters them; ``None`` if it has none."""
        folder, files, is_safetensors, index = self._prepare_weights(
            source.model_or_path,
            source.subfolder,
            source.revision,
            source.fall_back_to_pt,
            source.allow_patterns_overrides,
        )
        if not is_safetensors:
            return None
        if self._encoder_only_lm_prefixes is not None:
            files = weight_utils.filter_mm_encoder_only_safetensors_files(
                files,
                folder,
                index,
                self._encoder_only_lm_prefixes,
                weights_mapper=self._encoder_only_weights_mapper,
            )
        if source.is_unused_weight is not None:
            files = weight_utils.filter_safetensors_files_by_weight_name(files, source.is_unused_weight)
        self._check(files, source)
        return sorted(files, key=weight_utils._natural_sort_key)

    def _of_uri(self, source: Any) -> tuple[str, Callable[[str], bool] | None]:
        """The URI of a source, and the tensors to read. Files are left out as from a local folder."""
        assert self._weights is not None
        uri = source.model_or_path
        if source.subfolder is not None:
            uri = f"{uri.rstrip('/')}/{source.subfolder}"
        model = self._weights.open(uri)
        names: dict[str, list[str]] = {}
        for name in model.offset_keys():
            names.setdefault(str(model.file(name)), []).append(name)
        kept = set(names)
        if self._encoder_only_lm_prefixes is not None and len(names) > 1:
            kept -= {file for file, own in names.items() if all(map(self._is_language_model, own))}
        if source.is_unused_weight is not None:
            used = {file for file in kept if not all(map(source.is_unused_weight, names[file]))}
            kept = used or kept
        self._check(sorted(kept), source)
        self._opened[uri] = model
        if len(kept) == len(names):
            return uri, None
        wanted = {name for file in kept for name in names[file]}
        return uri, wanted.__contains__

    def _is_language_model(self, name: str) -> bool:
        mapped = weight_utils._mapped_weight_name(self._encoder_only_weights_mapper, name)
        return mapped is not None and mapped.startswith(tuple(self._encoder_only_lm_prefixes or ()))

    def _check(self, files: list[str], source: Any) -> None:
        if not files:
            raise RuntimeError(
                f"the filter of --mm-encoder-only leaves no file of {source.model_or_path}: every file has only tensors"
                f" of {', '.join(self._encoder_only_lm_prefixes or ())}"
            )

    def _read(self, files: list[tuple[str, Callable[[str], bool] | None]]) -> Iterator[tuple[str, Any]]:
        assert self._weights is not None
        weights, experts = self._weights, self.local_expert_ids
        is_table = _on_cpu()
        from vllm.model_executor.model_loader.ep_weight_filter import parse_expert_id, should_skip_weight

        models: list[tuple[str, Model, Any]] = []
        for path, wanted in files:
            # Every header is read before the first tensor: a truncated file ends the start at once.
            known = self._opened.pop(path) if path in self._opened else weights.open(path)
            models.append((path, known, wanted))
        with _progress(self.load_config, models) as bar:
            for path, model, wanted in models:

                def wants(name: str, wanted: Callable[[str], bool] | None = wanted) -> bool:
                    return (wanted is None or wanted(name)) and not should_skip_weight(name, experts)

                def is_own(name: str) -> bool:
                    return experts is not None and parse_expert_id(name) is not None

                for name, tensor in weights.read(path, model, wants, is_table, is_own):
                    yield name, tensor
                    bar.update(tensor.nbytes)
                    del tensor


class _ShardedLoader(ShardedStateLoader):  # type: ignore[misc]
    """Loads this rank's files of a ``sharded_state`` folder."""

    def __init__(self, load_config: Any, weights: EngineWeights) -> None:
        own = copy.copy(load_config)
        pattern = weights.options.pattern
        own.model_loader_extra_config = {} if pattern is None else {"pattern": pattern}
        super().__init__(own)
        self._weights = weights

    def iterate_over_files(self, paths: list[str]) -> Iterator[tuple[str, Any]]:
        """The tensors of these files. No other rank reads them."""
        models = [(path, self._weights.open(path), None) for path in sorted(paths, key=weight_utils._natural_sort_key)]
        with _progress(self.load_config, models) as bar:
            for path, model, _ in models:
                for name, tensor in self._weights.read(path, model, is_own=lambda name: True):
                    yield name, tensor
                    bar.update(tensor.nbytes)


def _logger() -> Any:
    from vllm.logger import init_logger

    return init_logger("vllm.straightway")


def _is_uri(text: Any) -> bool:
    return isinstance(text, str) and "://" in text


def _device(load_config: Any) -> str:
    """The device that weights are loaded to: the current GPU, or the CPU."""
    import torch
    from vllm.platforms import current_platform

    if load_config.device is not None and torch.device(load_config.device).type == "cpu":
        return "cpu"
    if not current_platform.is_cuda():
        return "cpu"
    return f"cuda:{torch.cuda.current_device()}"


def _has_ranks() -> bool:
    """Whether other processes load the same model."""
    import torch.distributed as dist
    from vllm.config import get_current_vllm_config_or_none

    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return True
    config = get_current_vllm_config_or_none()
    return config is not None and config.parallel_config.data_parallel_size > 1


def _on_cpu() -> Callable[[str], bool] | None:
    """Which tensors stay on the CPU: the tables that exceed the memory of a GPU, if the engine offloads them."""
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    engram = config.engram_config if config is not None else None
    if not (engram and engram.cpu_offload):
        return None
    return lambda name: weight_utils._ENGRAM_WEIGHT_RE.search(name) is not None


def _progress(load_config: Any, models: list[tuple[str, Model, Any]]) -> Any:
    """vLLM's progress bar, in bytes. Filters may leave out some of them."""
    return weight_utils.tqdm(
        total=sum(model.nbytes for _, model, _ in models),
        desc="Loading safetensors checkpoint shards (straightway)",
        disable=not weight_utils.enable_tqdm(load_config.use_tqdm_on_load),
        bar_format=weight_utils._BAR_FORMAT,
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        mininterval=1.0,
    )


__all__ = ["Loader", "receipts", "register"]

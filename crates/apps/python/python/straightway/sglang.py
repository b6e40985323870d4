"""The loader of SGLang: ``--model-loader-extra-config '{"straightway": {}}'``, or ``load_format=Loader`` in Python.

SGLang's load formats are a closed list for the command line. So the entry point ``sglang.srt.plugins`` of this package
wraps the function that chooses the loader: with the key ``straightway`` in the settings, SGLang's default loader is
replaced by this one. Its value has the settings; docs/engines.md has their names.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ._engine_options import EngineOptions, parse
from ._engine_weights import EngineWeights
from ._straightway import Receipt

if TYPE_CHECKING:
    # SGLang has types of its own, and need not be installed where this package is checked.
    DefaultModelLoader: Any = object
    LoadFormat: Any = object
else:
    from sglang.srt.configs.load_config import LoadFormat
    from sglang.srt.model_loader.loader import DefaultModelLoader

_log = logging.getLogger("sglang.straightway")

#: The function of SGLang that chooses the loader, and the key of the settings that asks for this one.
_CHOOSER = "sglang.srt.model_loader.loader.get_model_loader"
_KEY = "straightway"

#: The keys of the settings that SGLang's own loader takes.
_ENGINE_KEYS = ("enable_multithread_load", "num_threads")

#: The weights of the last load in this process.
_last: EngineWeights | None = None


def register() -> None:
    """Wraps SGLang's choice of the loader. SGLang calls it in every process."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_CHOOSER, _choose, HookType.AROUND)


def receipts() -> list[dict[str, Any]]:
    """The receipts of the last load in this process."""
    found: list[Receipt] = [] if _last is None else _last.receipts
    return [receipt.to_dict() for receipt in found]


def _choose(original: Callable[..., Any], load_config: Any, model_config: Any = None) -> Any:
    """SGLang's loader, or this one in the place of the default loader if the settings ask for it."""
    settings = load_config.model_loader_extra_config or {}
    if _KEY not in settings:
        return original(load_config, model_config)
    options, _ = parse(settings[_KEY])
    inner = copy.copy(load_config)
    inner.model_loader_extra_config = {key: value for key, value in settings.items() if key != _KEY}
    chosen = original(inner, model_config)
    if type(chosen) is not DefaultModelLoader:
        _log.warning("straightway does not load: SGLang chose %s for this model", type(chosen).__name__)
        return chosen
    return Loader(inner, options)


class Loader(DefaultModelLoader):  # type: ignore[misc]
    """Loads weights through Straightway, with the files and prefixes of SGLang's own loader.

    Checkpoints that are not safetensors are loaded by SGLang itself.
    """

    def __init__(self, load_config: Any, options: EngineOptions | None = None) -> None:
        inner = copy.copy(load_config)
        if options is None:
            # Python: `load_format=Loader`. All settings are this loader's.
            options, kept = parse(load_config.model_loader_extra_config, _ENGINE_KEYS)
            inner.model_loader_extra_config = kept
        if not isinstance(inner.load_format, LoadFormat) or inner.load_format is LoadFormat.SAFETENSORS:
            inner.load_format = LoadFormat.AUTO
        super().__init__(inner)
        self.options = options
        self._weights: EngineWeights | None = None

    def load_model(self, *, model_config: Any, device_config: Any) -> Any:
        """Loads a model, and writes one line about its weights to the log."""
        global _last
        self._weights = _last = self._reader(device_config.device)
        model = super().load_model(model_config=model_config, device_config=device_config)
        if self._weights.receipts:
            _log.info("%s", self._weights.summary())
        return model

    def _reader(self, device: Any = None) -> EngineWeights:
        import torch
        import torch.distributed as dist

        kind = torch.device(device).type if device is not None else "cuda" if torch.cuda.is_available() else "cpu"
        place = f"cuda:{torch.cuda.current_device()}" if kind == "cuda" else "cpu"
        has_ranks = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        return EngineWeights(self.options, place, has_ranks)

    def download_model(self, model_config: Any) -> None:
        """Downloads a model of the Hugging Face hub. A URI is read when it is loaded."""
        if self.options.uri is None:
            super().download_model(model_config)

    def _get_weights_iterator(
        self, source: Any, *, resolved_source: Any = None, **more: Any
    ) -> Iterator[tuple[str, Any]]:
        """The tensors of a source, with its prefix. Only the primary source has a model configuration."""
        weights = self._weights = self._weights or self._reader()
        files: list[str]
        if self.options.uri is not None and source.model_config is not None:
            files = [self.options.uri]
        else:
            found = self._files(source, resolved_source)
            if found is None:
                _log.info("straightway: %s has no safetensors files; SGLang loads it itself", source.model_or_path)
                original: Iterator[tuple[str, Any]] = super()._get_weights_iterator(
                    source, resolved_source=resolved_source, **more
                )
                return original
            files = found
        pairs = self._read(weights, files)
        if self.load_config.draft_model_idx is not None:
            filtered: Iterator[tuple[str, Any]] = self._filter_mtp_weights(
                pairs, source.prefix, self.load_config.draft_model_idx
            )
            return filtered
        begun: float = getattr(self, "counter_before_loading_weights", 0.0)
        self.counter_before_loading_weights = begun or time.perf_counter()
        return ((source.prefix + name, tensor) for name, tensor in pairs)

    def _files(self, source: Any, resolved: Any) -> list[str] | None:
        """The safetensors files of a source; ``None`` if it has none."""
        from sglang.srt.model_loader import loader

        if resolved is not None:
            return list(resolved.weight_files) if resolved.use_safetensors else None
        folder, files, is_safetensors = self._prepare_weights(
            source.model_or_path, source.revision, source.fall_back_to_pt, source.allow_patterns_overrides
        )
        if not is_safetensors:
            return None
        if source.model_config is not None:
            files = loader.maybe_add_mtp_safetensors(
                files, folder, "model.safetensors.index.json", source.model_config.hf_config
            )
        return list(files)

    def _read(self, weights: EngineWeights, files: list[str]) -> Iterator[tuple[str, Any]]:
        import torch.distributed as dist
        from sglang.srt.model_loader import weight_utils

        # Every header is read before the first tensor: a truncated file ends the start at once.
        models = [(path, weights.open(path)) for path in files]
        bar = weight_utils.tqdm(
            total=sum(model.nbytes for _, model in models),
            desc="Loading safetensors checkpoint shards (straightway)",
            disable=dist.is_initialized() and dist.get_rank() != 0,
            bar_format=weight_utils.BAR_FORMAT,
            unit="B",
            unit_scale=True,
            unit_divisor=1024,
            mininterval=1.0,
        )
        with bar:
            for path, model in models:
                for name, tensor in weights.read(path, model):
                    yield name, tensor
                    bar.update(tensor.nbytes)
                    del tensor


__all__ = ["Loader", "receipts", "register"]

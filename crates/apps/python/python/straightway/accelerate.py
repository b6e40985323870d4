"""Checkpoints of a job that Hugging Face Accelerate runs.

    from straightway.accelerate import Checkpointer

    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    with Checkpointer(accelerator, "runs/llama", keep_last=3) as checkpointer:
        if checkpointer.latest() is not None:
            first = checkpointer.restore().step + 1
        ...
        checkpointer.save(step)

It saves what ``accelerator.save_state`` saves: models, optimizers, schedulers, the scaler, random states, and the
objects of ``register_for_checkpointing``. Every process calls ``save``.
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any, Literal, overload

from . import _checkpointer
from ._arguments import Latest
from ._results import Restored, Saved
from ._save_future import SaveFuture


class Checkpointer(_checkpointer.Checkpointer):
    """A ``straightway.Checkpointer`` for the state of an ``Accelerator``.

    Arguments:
        accelerator: the ``Accelerator``, after ``prepare``.
        folder: the folder of steps.
        options: those of ``straightway.Checkpointer``.
    """

    def __init__(self, accelerator: Any, folder: str | os.PathLike[str], **options: Any) -> None:
        if "rank" not in options and accelerator.num_processes == 1:
            from ._straightway import fresh_run

            options |= {"rank": 0, "world_size": 1, "run": options.get("run") or fresh_run()}
        super().__init__(folder, **options)
        self._accelerator = accelerator

    @overload
    def save(self, step: int, state: Any = None, async_: Literal[True] = True, metadata: Any = None) -> SaveFuture: ...

    @overload
    def save(self, step: int, state: Any = None, *, async_: Literal[False], metadata: Any = None) -> Saved: ...

    @overload
    def save(self, step: int, state: Any, async_: Literal[False], metadata: Any = None) -> Saved: ...

    @overload
    def save(self, step: int, state: Any = None, async_: bool = True, metadata: Any = None) -> SaveFuture | Saved: ...

    def save(self, step: int, state: Any = None, async_: bool = True, metadata: Any = None) -> SaveFuture | Saved:
        """Saves the state of the ``Accelerator``, and ``state`` if it is given, as a step."""
        return super().save(step, self._state() | ({} if state is None else {"own": state}), async_, metadata)

    def restore(
        self,
        step: int | Latest = "latest",
        into: Any = None,
        device: Any = "cpu",
        *,
        cast: bool = False,
        strict: bool = True,
    ) -> Restored:
        """Restores a step into the state of the ``Accelerator``, and the additional state into ``into``."""
        target = self._state()
        state = target | ({} if into is None else {"own": into})
        restored = super().restore(step, state, device, cast=cast, strict=strict)
        _set_random(target[self._random])
        return restored

    @property
    def _random(self) -> str:
        """The name of this process's random states, which differ between processes."""
        return f"random.{self._accelerator.process_index}"

    def _state(self) -> dict[str, Any]:
        accelerator = self._accelerator
        kinds = {
            "model": [accelerator.unwrap_model(model) for model in accelerator._models],
            "optimizer": accelerator._optimizers,
            "scheduler": accelerator._schedulers,
            "custom": accelerator._custom_objects,
        }
        state: dict[str, Any] = {
            f"{kind}.{n}": value for kind, values in kinds.items() for n, value in enumerate(values)
        }
        if accelerator.scaler is not None:
            state["scaler"] = accelerator.scaler
        state[self._random] = _random()
        return state


def _random() -> dict[str, Any]:
    """The states of the random number generators."""
    import torch

    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def _set_random(states: dict[str, Any]) -> None:
    import torch

    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "numpy" in states:
        import numpy

        numpy.random.set_state(states["numpy"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])

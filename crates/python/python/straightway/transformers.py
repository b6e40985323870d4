"""Checkpoints of the ``Trainer`` of Hugging Face Transformers, written beside the training.

    from straightway.transformers import CheckpointCallback

    callback = CheckpointCallback("runs/llama", every=100, keep_last=3)
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[callback])      # with save_strategy="no"
    trainer.train(resume_from_checkpoint=callback.resume())

The ``Trainer`` resumes from files of its own. ``resume`` writes those of the latest step into a folder, or answers
``False`` where there is none yet, which begins anew.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from ._checkpointer import Checkpointer
from .accelerate import _random

if TYPE_CHECKING:

    class TrainerCallback:
        """What the class of Transformers is to a checker of types, which need not have Transformers."""

else:
    from transformers import TrainerCallback

#: Where ``resume`` writes, below the folder of steps.
_RESUME = "resume"


class CheckpointCallback(TrainerCallback):
    """Saves the state of a ``Trainer`` every so many steps.

    Arguments:
        folder: the folder of steps.
        every: how many steps lie between two saves. The last step is saved too.
        options: those of ``straightway.Checkpointer``.
    """

    def __init__(self, folder: str | os.PathLike[str], *, every: int, **options: Any) -> None:
        if every < 1:
            raise ValueError(f"every is at least 1, and {every} is not")
        self._folder = os.fspath(folder)
        self._every = every
        self._options = options
        self._checkpointer: Checkpointer | None = None
        self._saved: int | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Saves where it is time to."""
        if state.global_step % self._every == 0:
            self._save(state, kwargs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Saves the last step, and waits until it is durable."""
        if state.global_step and state.global_step != self._saved:
            self._save(state, kwargs)
        if self._checkpointer is not None:
            self._checkpointer.close()
            self._checkpointer = None

    def resume(self) -> str | bool:
        """A folder that ``train(resume_from_checkpoint=…)`` takes, with the latest step; ``False`` where there is none.

        In a job of many processes the first writes it, and all others wait for it.
        """
        import torch.distributed as dist

        is_job = dist.is_available() and dist.is_initialized()
        latest = Checkpointer(self._folder, rank=0, world_size=1, run="resume").latest()
        if latest is None:
            return False
        folder = os.path.join(self._folder, _RESUME, f"checkpoint-{latest}")
        if not is_job or dist.get_rank() == 0:
            self._export(latest, folder)
        if is_job:
            dist.barrier()
        return folder

    def _save(self, state: Any, given: dict[str, Any]) -> None:
        if self._checkpointer is None:
            self._checkpointer = Checkpointer(self._folder, **self._options)
        step = state.global_step
        if step in self._checkpointer.steps():
            return
        saved = {
            "model": given["model"],
            "optimizer": given["optimizer"],
            "scheduler": given["lr_scheduler"],
            "trainer": json.loads(json.dumps(vars(state), default=str)),
            "random": _random(),
        }
        self._checkpointer.save(step, saved)
        self._saved = step

    def _export(self, step: int, folder: str) -> None:
        """Writes the files that the ``Trainer`` reads."""
        import torch

        from .torch import save_file
        from .torch._sharing import remove_duplicates

        trust = bool(self._options.get("trust", False))
        state = Checkpointer(self._folder, rank=0, world_size=1, run="resume", trust=trust).load(step)
        os.makedirs(folder, exist_ok=True)

        def at(name: str) -> str:
            return os.path.join(folder, name)

        # Of tied weights the file has one; the model ties the others to it again.
        tied = {name for names in remove_duplicates(state["model"]).values() for name in names}
        weights = {name: tensor for name, tensor in state["model"].items() if name not in tied}
        save_file(weights, at("model.safetensors"), {"format": "pt"})
        torch.save(state["optimizer"], at("optimizer.pt"))
        torch.save(state["scheduler"], at("scheduler.pt"))
        randoms = state["random"]
        names = {"python": "python", "numpy": "numpy", "torch": "cpu", "cuda": "cuda"}
        torch.save({names[key]: value for key, value in randoms.items()}, at("rng_state.pth"))
        with open(at("trainer_state.json"), "w", encoding="utf-8") as file:
            json.dump(state["trainer"], file)

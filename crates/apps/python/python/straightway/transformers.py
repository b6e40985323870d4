"""Checkpoints of the ``Trainer`` of Hugging Face Transformers, written in the background.

    from straightway.transformers import CheckpointCallback

    callback = CheckpointCallback("runs/llama", every=100, keep_last=3)
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[callback])      # with save_strategy="no"
    trainer.train(resume_from_checkpoint=callback.resume())

The ``Trainer`` resumes from files in its own format. ``resume`` writes the latest step in that format into a folder. It
returns ``False`` if there is no step yet, which starts a new training.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from ._checkpointer import Checkpointer
from ._straightway import is_local
from .accelerate import _random

if TYPE_CHECKING:

    class TrainerCallback:
        """The base class for type checkers, which need not have Transformers installed."""

else:
    from transformers import TrainerCallback

#: The subfolder that ``resume`` writes to.
_RESUME = "resume"


class CheckpointCallback(TrainerCallback):
    """Saves the state of a ``Trainer`` at regular intervals.

    Arguments:
        folder: the folder of steps.
        every: the number of steps between two saves. The last step is saved too.
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
        """Saves every ``every`` steps."""
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
        """A folder with the latest step for ``train(resume_from_checkpoint=…)``; ``False`` if there is no step.

        In a job of several processes rank 0 writes it, and the others wait.
        """
        import torch.distributed as dist

        is_job = dist.is_available() and dist.is_initialized()
        latest = self._stored().latest()
        if latest is None:
            return False
        if not is_local(self._folder):
            raise ValueError(
                f"resume() writes the Trainer's files into the folder of steps, and {self._folder} is not local\n"
                "hint: copy the step to a local folder with straightway.copy, and resume from there"
            )
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

    def _stored(self) -> Checkpointer:
        """The checkpointer of the existing steps, for this process alone."""
        options = {name: self._options[name] for name in ("trust", "storage_options") if name in self._options}
        return Checkpointer(self._folder, rank=0, world_size=1, run="resume", **options)

    def _export(self, step: int, folder: str) -> None:
        """Writes a step in the ``Trainer``'s format."""
        import torch

        from .torch import save_file
        from .torch._sharing import remove_duplicates

        state = self._stored().load(step)
        os.makedirs(folder, exist_ok=True)

        def at(name: str) -> str:
            return os.path.join(folder, name)

        # PyTorch writes in place. What has the name may be a link or a device, and is not written to.
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"):
            with contextlib.suppress(FileNotFoundError):
                os.remove(at(name))
        # The file has one of each group of tied weights; the model ties the others to it again.
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

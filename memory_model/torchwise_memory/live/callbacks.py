"""The guard inside the loops of Lightning and Transformers. Neither is imported before it is asked for."""

# Neither PyTorch nor the frameworks are installed where the types are checked.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false
# pyright: reportUnusedClass=false, reportUnknownLambdaType=false
from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from torchwise_memory.live.guard import VRAMGuard
from torchwise_memory.live.step import Step


def lightning_callback(batch: Any, **options: Any) -> Any:
    """A callback for `Trainer(callbacks=[lightning_callback(batch)])`; options as for VRAMGuard.

    The step is the module's own `training_step`. Works with `lightning` and `pytorch_lightning`.
    """
    callbacks = _first_of("lightning.pytorch.callbacks", "pytorch_lightning.callbacks")

    class Guard(callbacks.Callback):  # type: ignore[name-defined]
        def __init__(self) -> None:
            self.guard: VRAMGuard | None = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            options.setdefault("step", _lightning_step(trainer, pl_module))
            self.guard = VRAMGuard(pl_module, trainer.optimizers[0], batch=batch, **options)
            self.guard.__enter__()

        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            if self.guard is not None:
                self.guard.after_step()

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            if self.guard is not None:
                self.guard.__exit__(None, None, None)

    return Guard()


def _lightning_step(trainer: Any, module: Any) -> Step:
    def run(_: Any, example: Any) -> Any:
        with _silent(module):
            result = module.training_step(example, 0)
        return result["loss"] if isinstance(result, dict) else result

    return Step(
        run=run, accumulate=trainer.accumulate_grad_batches, clip_norm=trainer.gradient_clip_val or None
    )


@contextmanager
def _silent(module: Any) -> Generator[None]:
    """What a step logs would be reduced to a number, and a fake tensor has none."""
    names = ("log", "log_dict")
    try:
        for name in names:
            setattr(module, name, lambda *_, **__: None)
        yield
    finally:
        for name in names:
            delattr(module, name)


def transformers_callback(batch: Any, **options: Any) -> Any:
    """A callback for `Trainer(callbacks=[transformers_callback(batch)])`; options as for VRAMGuard."""
    transformers = importlib.import_module("transformers")

    class Guard(transformers.TrainerCallback):  # type: ignore[name-defined]
        def __init__(self) -> None:
            self.guard: VRAMGuard | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            options.setdefault(
                "step", Step(accumulate=args.gradient_accumulation_steps, clip_norm=args.max_grad_norm)
            )
            optimizer = getattr(objects.get("optimizer"), "optimizer", objects.get("optimizer"))
            self.guard = VRAMGuard(objects["model"], optimizer, batch=batch, **options)
            self.guard.__enter__()

        def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            if self.guard is not None:
                self.guard.after_step()

        def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            if self.guard is not None:
                self.guard.__exit__(None, None, None)

    return Guard()


def _first_of(*names: str) -> Any:
    for name in names[:-1]:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return importlib.import_module(names[-1])

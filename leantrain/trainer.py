"""Sharpness-aware training in the Trainer of transformers."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import Trainer, TrainerCallback

from leantrain.wrappers import SAM


class SharpnessAware(TrainerCallback):
    """Takes the gradients of each step of a Trainer whose optimizer is a SAM at the worst point.

        >>> optimizer = SAM(Lion(model.parameters(), lr=1e-4), rho=0.05)
        >>> trainer = Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None))
        >>> trainer.add_callback(SharpnessAware(trainer))
        >>> trainer.train()

    The batches of a step, several where gradients are accumulated, are computed twice; clipping, scaling and the step
    itself stay the Trainer's. Raises TypeError as training begins if the optimizer is no SAM.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.on_train_end()  # where training before this ended in an error
        sam, plain = _sam_of(self.trainer), self.trainer.training_step
        batches: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

        def training_step(*arguments: Any, **named: Any) -> Tensor:
            loss = plain(*arguments, **named)
            batches.append((arguments, named))
            if self.trainer.accelerator.sync_gradients:  # the step's last batch
                with sam.worst_point():
                    for one, its in batches:
                        plain(*one, **its)
                batches.clear()
            return loss

        self.trainer.training_step = training_step  # type: ignore[method-assign]

    def on_train_end(self, *_: Any, **__: Any) -> None:
        vars(self.trainer).pop("training_step", None)


def _sam_of(trainer: Trainer) -> SAM:
    optimizer: Any = trainer.optimizer
    while not isinstance(optimizer, SAM):
        if not hasattr(optimizer, "optimizer"):
            raise TypeError("SharpnessAware needs a SAM: Trainer(..., optimizers=(SAM(optimizer), None))")
        optimizer = optimizer.optimizer
    return optimizer

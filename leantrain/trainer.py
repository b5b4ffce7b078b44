"""Runs stacks of the catalogue, and sharpness-aware training by hand, in the Trainer of transformers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback

from leantrain.loop_context import StepContext
from leantrain.wrappers import SAM
from suite.loop.technique import auxiliary_of
from suite.record.files import replacing
from techniques.sharpness.shared.ascent import buffers_kept

STATE = "leantrain.pt"  # in a checkpoint's folder


class AppliedTechniques(TrainerCallback):
    """Makes each step of a Trainer one of an applied stack, and keeps the stack's state in its checkpoints.

        >>> model, optimizer, context = leantrain.apply(model, "lora+sam", steps=1000)
        >>> trainer = Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None))
        >>> trainer.add_callback(AppliedTechniques(trainer, context))
        >>> trainer.train()

    Clipping, accumulation and the rate stay the Trainer's, the rate unless the stack changes it from step to step; what
    a technique adds to the loss counts the same however a step's batch is divided, and what it trains beside the model
    is clipped by a norm of its own.
    Raises ValueError as training begins: without the stack's optimizer, with accumulation where the stack takes a
    step's batch as a whole, with its clipping where a technique changes gradients after the backward pass, and
    where a checkpoint that training goes on from has no state of the stack.
    """

    def __init__(self, trainer: Trainer, context: StepContext) -> None:
        self.trainer, self.context = trainer, context
        self.updates = context.run.overriding("update")
        self._step = ExitStack()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.on_train_end()  # where training before this ended in an error
        if _innermost(self.trainer.optimizer, type(self.context.optimizer)) is not self.context.optimizer:
            raise ValueError("the Trainer has another optimizer: give it the stack's, optimizers=(optimizer, None)")
        if args.max_grad_norm and (after := self.context.run.overriding("after_backward")):
            raise ValueError(
                f"{after[0]} changes the gradients behind the Trainer's clipping: max_grad_norm=0, and "
                f"apply(..., gradient_clip={args.max_grad_norm:g}) clips what it makes of them"
            )
        if args.gradient_accumulation_steps > 1 and (undivided := self.context.run.undivided()):
            raise ValueError(f"{undivided[0]} takes a step's batch as a whole: gradient_accumulation_steps=1")
        if state.global_step:
            self._resume(args, state.global_step)
        plain_loss, plain_step = self.trainer.compute_loss, self.trainer.training_step

        def compute_loss(
            model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None, **named: Any
        ) -> Any:
            named["num_items_in_batch"] = num_items_in_batch
            if not (model.training and self.context.run.inside):
                return plain_loss(model, inputs, return_outputs=return_outputs, **named)
            share = self._share(inputs, num_items_in_batch)
            loss, outputs = plain_loss(model, dict(inputs), return_outputs=True, **named)  # which may take labels out
            loss = self.context.loss(loss / share, outputs, inputs) * share
            return (loss, outputs) if return_outputs else loss

        def training_step(model: Any, inputs: Any, *arguments: Any, **named: Any) -> Tensor:
            prepared = self.trainer._prepare_inputs(inputs)
            if self.updates:
                return self.context.passes(prepared)
            self.context.run.latest = self.context.run.user.named(prepared)
            return plain_step(model, inputs, *arguments, **named)

        self.trainer.training_step = training_step  # type: ignore[method-assign]
        self._clip_apart()
        if self.context.run.adding_terms():
            self.trainer.compute_loss = compute_loss  # type: ignore[method-assign]

    def _clip_apart(self) -> None:
        """From now on the Trainer clips the model by its own gradients' norm, and what trains beside it by theirs."""
        run, plain = self.context.run, self.trainer.accelerator.clip_grad_norm_

        def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
            model, *beside = run.clipped_together(parameters)
            norm = plain(model, max_norm, norm_type)  # which also takes a loss's scale out of all gradients
            for each in beside:
                torch.nn.utils.clip_grad_norm_(each, max_norm, norm_type)
            return norm

        if auxiliary_of(run.optimizer):
            self.trainer.accelerator.clip_grad_norm_ = clip_grad_norm_

    def _share(self, inputs: Any, num_items_in_batch: Any) -> Any:
        """Computes as much of a batch's mean loss as is in what the Trainer makes of it: all, where it divides by the
        number of accumulated batches later; else the batch's share of the step's labels, or one over that number."""
        trainer = self.trainer
        scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
        if scaled is None:
            by_labels = trainer.model_accepts_loss_kwargs and num_items_in_batch is not None
            scaled = by_labels or trainer.compute_loss_func is not None
        if not scaled:
            return 1
        own = None if num_items_in_batch is None else trainer._get_num_items_in_batch([inputs], trainer.args.device)
        return own / num_items_in_batch if own else 1 / trainer.current_gradient_accumulation_steps

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._step.enter_context(self.context.around())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._step.close()

    def on_save(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        if state.is_world_process_zero:
            with replacing(_checkpoint(args.output_dir, state.global_step)) as partial:
                torch.save(self.context.state_dict(), partial)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        for name in ("training_step", "compute_loss"):
            vars(self.trainer).pop(name, None)
        vars(self.trainer.accelerator).pop("clip_grad_norm_", None)

    def _resume(self, args: Any, step: int) -> None:
        named = args.resume_from_checkpoint
        places = [_checkpoint(args.output_dir, step), *([Path(named) / STATE] if isinstance(named, str) else [])]
        path = next((each for each in places if each.is_file()), None)
        if path is None:
            raise ValueError(f"{places[0]} is missing: the checkpoint was written without the stack, so begin anew")
        self.context.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))


def _checkpoint(folder: str, step: int) -> Path:
    return Path(folder) / f"checkpoint-{step}" / STATE


def _innermost(optimizer: Any, kind: type) -> Any:
    """Finds the optimizer of a class below the Trainer's own wrappers; None where there is none."""
    while optimizer is not None and not isinstance(optimizer, kind):
        optimizer = getattr(optimizer, "optimizer", None)
    return optimizer


class SharpnessAware(TrainerCallback):
    """Takes the gradients of each step of a Trainer whose optimizer is a SAM at the worst point.

        >>> optimizer = SAM(Lion(model.parameters(), lr=1e-4), rho=0.05)
        >>> trainer = Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None))
        >>> trainer.add_callback(SharpnessAware(trainer))
        >>> trainer.train()

    The batches of a step, several where gradients are accumulated, are computed twice; clipping, scaling and the step
    itself stay the Trainer's. Running statistics are those of the first passes. Raises TypeError as training begins if
    the optimizer is no SAM.
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
                with sam.worst_point(), buffers_kept(self.trainer.model):
                    for one, its in batches:
                        plain(*one, **its)
                batches.clear()
            return loss

        self.trainer.training_step = training_step  # type: ignore[method-assign]

    def on_train_end(self, *_: Any, **__: Any) -> None:
        vars(self.trainer).pop("training_step", None)


def _sam_of(trainer: Trainer) -> SAM:
    sam = _innermost(trainer.optimizer, SAM)
    if sam is None:
        raise TypeError("SharpnessAware needs a SAM: Trainer(..., optimizers=(SAM(optimizer), None))")
    return sam

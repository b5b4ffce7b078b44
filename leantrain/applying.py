"""Puts a stack of the catalogue into a loop of yours.

    >>> model, optimizer, context = leantrain.apply(model, "lora+adam8bit_blockwise+ckpt_chen_sqrt", learning_rate=1e-4)
    >>> for batch in loader:
    ...     with context.step(batch):
    ...         loss = model(**batch).loss
    ...         loss.backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()

What a step does is what the suite's own run does with that stack, to the bit. Techniques that add to the loss ask for
``loss = context.loss(loss, outputs, batch)``; those that make a step's passes themselves, such as ``sam``, for
``context.update(batch)`` in the place of all of it. ``context.clip_gradients(1.0)`` before ``optimizer.step()`` clips
the model's gradients by their own norm, whatever trains beside it. In the Trainer of transformers
:class:`leantrain.trainer.AppliedTechniques` does all of these. ``context.state_dict()`` is all that a resumed run
needs.

Not every technique has a meaning there: :func:`refusals` has one sentence for each that has none.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from leantrain.as_it_was import as_it_was
from leantrain.loop_context import StepContext
from leantrain.own_loop import OwnLoop, UnknownSteps
from leantrain.user_model import Loss, UserModel
from suite.entries.catalogue import catalogue, lookup
from suite.entries.together import built
from suite.loop.recipe import Recipe
from suite.loop.sites import NotAttached
from suite.loop.stack import Stack
from suite.loop.technique import auxiliary_of
from suite.record.job import Spelling, StackError, canonical

FIXED = {"compile": False, "world_size": 1}
CLIPPED_APART = (
    "trains parameters beside the model, which have no part in the norm of its gradients: to clip, call "
    "context.clip_gradients(max_norm), or name apply(..., gradient_clip=max_norm), and not "
    "torch.nn.utils.clip_grad_norm_ on all parameters (in a Trainer AppliedTechniques sees to it)"
)


class Applied(NamedTuple):
    """Holds what a loop needs: the model as the stack trains it, the stack's optimizer, and the context of its
    steps."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    context: StepContext


def apply(
    model: nn.Module,
    stack: str,
    *,
    batch: Any = None,
    loss: Loss | None = None,
    learning_rate: float = 1e-4,
    steps: int | None = None,
    examples: int | None = None,
    seed: int = 0,
    **recipe: Any,
) -> Applied:
    """Attaches a stack to a model; it is changed in place, where the stack changes it.

    Args:
        model: any with Transformer blocks, of transformers, of timm or your own, on the device that it trains on.
        stack: as on the command line, ``"lion+lora:rank=4"``.
        batch: one that the model is trained on; techniques that plan or calibrate look at it, others at blank examples.
        loss: ``loss(model, batch)``, a scalar or a loss for each example, for techniques that make passes of their own;
            None for the model's own, or the cross-entropy of a sequence's last tensor.
        learning_rate: of full training with AdamW; techniques scale it (lora by 10).
        steps: of the whole run, for techniques that go by it.
        examples: in the data set, for techniques that know them again or go by epochs.
        seed: of the techniques' own random choices.
        recipe: further fields of :class:`~suite.loop.recipe.Recipe`: ``weight_decay``, ``beta1``, ``beta2``,
            ``eps``; ``gradient_clip``, where the context is to clip; ``schedule`` and ``warmup_fraction``, where it is
            to set each step's rate, which is the loop's own matter otherwise.

    Raises:
        StackError: techniques that exclude one another, or that have no meaning in a loop of yours; UnknownId.
        ValueError: what cannot be done to this model, in one sentence, NoBlocks among them. The model is as it was.
    """
    check(stack)
    technique = built(stack)
    check_acting(technique)
    own = _recipe(batch, learning_rate, steps, recipe)
    check_one_device(model)
    with as_it_was(model), _refused():
        run = OwnLoop(model, canonical(stack), technique, UserModel(model, own, loss, batch, examples), seed)
        context = StepContext(run)
    if auxiliary_of(run.optimizer) and not own.gradient_clip:
        warnings.warn(f"{run.job.stack} {CLIPPED_APART}", stacklevel=2)
    return Applied(run.model, context.optimizer, context)


def refusals() -> dict[str, str]:
    """Says why a technique has no meaning in a loop that is not the suite's, by its id; those that have one are not
    here."""
    return {name: entry.card.own_loop for name, entry in catalogue().items() if entry.card.own_loop}


def check(stack: str) -> None:
    """Raises UnknownId, and StackError where a technique of the stack has no meaning in a loop of yours."""
    for name in Spelling(stack).names:
        if reason := lookup("technique", name, catalogue()).card.own_loop:
            raise StackError(f"{name} does not apply to a loop of your own: {reason}")


@contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except NotAttached as error:
        raise StackError(str(error)) from error


def check_acting(stack: Stack) -> None:
    """Raises StackError where nothing would change: no technique, or one whose settings turn it off."""
    if not stack.techniques:
        raise StackError(
            "the stack names no technique: name one, as in 'lora+adam8bit_blockwise', or train the model as it is"
        )
    for name, technique in stack.techniques.items():
        if technique.is_reference:
            off = ", ".join(f"{key}={value}" for key, value in (technique.zero_strength or {}).items())
            raise StackError(f"{name} changes nothing at {off}: leave it out, or name other settings")


def check_one_device(model: nn.Module) -> None:
    """Raises ValueError where parameters are on several devices, or where there is none."""
    devices = {str(each.device) for each in model.parameters()}
    if len(devices) != 1 or devices == {"meta"}:
        where = f"on {' and '.join(sorted(devices))}" if devices else "nowhere: it has none"
        raise ValueError(f"the parameters of {type(model).__name__} are {where}: put all on the one that trains them")


def _recipe(batch: Any, learning_rate: float, steps: int | None, own: Mapping[str, Any]) -> Recipe:
    if fixed := FIXED.keys() & own:
        raise ValueError(f"{' and '.join(sorted(fixed))} is the loop's own matter: leave it out")
    usual: dict[str, Any] = {
        "schedule": "constant",
        "warmup_fraction": 0.0,
        "gradient_clip": 0.0,
        "batch_size": _examples(batch),
    }
    try:
        return Recipe(
            steps=UnknownSteps(1) if steps is None else steps,  # type: ignore[arg-type]  # it is to be no number
            learning_rate=learning_rate,
            **(usual | dict(own)),
        )
    except TypeError:
        raise ValueError(
            f"a recipe has no {' or '.join(sorted(set(own) - set(Recipe.__dataclass_fields__)))}: its fields are "
            f"{', '.join(Recipe.__dataclass_fields__)}"
        ) from None


def _examples(batch: Any) -> int:
    tensors = list(batch.values() if isinstance(batch, Mapping) else batch or ())
    return next((len(each) for each in tensors if isinstance(each, torch.Tensor) and each.ndim), 1)

"""Makes a run of the suite's whose loop is somebody else's: techniques see the same run, and its steps are taken
outside.

around_step ─ forward ─ loss ─ backward ─┐            the loop's
                      after_backward ─ clip ─ step    behind ``optimizer.step()``
                                       after_step     as the step's context ends
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from leantrain.user_model import UserModel, attention_is_fused
from leantrain.wrappers import Wrapper
from suite.device.random_state import unchanged_randomness
from suite.loop.data import Batch
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.loop.technique import overrides
from suite.model.anatomy import anatomy
from suite.model.fast_paths import left_out, without_fast_paths
from suite.record.job import Job, Setting


class UnknownSteps(float):  # a product of a float with an int's subclass would never ask it
    """Stands for the length of a run that nobody named: whoever reckons with it hears so."""

    def _refuse(self, *_: Any) -> Any:
        raise ValueError("a technique of the stack goes by the run's length: name it, apply(..., steps=10_000)")

    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __lt__ = __le__ = __ge__ = __int__ = __round__ = _refuse


class OwnLoop(Run):
    """Holds ``model`` with a stack's techniques attached, and does what a step of theirs does outside of the loop's own
    calls.

    Raises what techniques say of a model that they cannot change, and NoBlocks.
    """

    def __init__(self, model: nn.Module, stack: str, technique: Stack, user: UserModel, seed: int) -> None:
        self.given_model: nn.Module | None = model
        self.skeleton = _skeleton(model)
        self.handle: StackOptimizer | None = None
        self.latest: Batch | None = None
        self.deferred = self.stepped = self.pending = self.helped = self.inside = False
        self.user = user
        device = next(model.parameters()).device
        blocks = [block.module for block in anatomy(model).every_block]
        own = {id(each) for each in model.modules()}
        self.fused_before = attention_is_fused(model, blocks)
        user.own_recipe = replace(user.own_recipe, fused_attention=self.fused_before)
        setting = Setting(baseline=user.id, device=str(device))
        with unchanged_randomness(device):
            super().__init__(Job(setting=setting, stack=stack, seed=seed), technique=technique, baseline=user)
        self._check_evaluation(own)
        if self.recipe.precision == "bf16" or "autocast" in vars(self):  # a technique's own
            self.around_forward()
        self.loss = torch.zeros((), device=device)  # finite, as far as anybody knows

    def plain_model(self) -> nn.Module:
        """Returns the model itself, once; later one of its kind with other weights, to ask what a plain one does."""
        if self.given_model is not None:
            model, self.given_model = self.given_model, None
            if self.overriding("model") or self.overriding("around_step"):
                without_fast_paths(model)
            if self.recipe.fused_attention != self.fused_before:
                anatomy(model).set_fused_attention(self.recipe.fused_attention)
            return model
        if self.skeleton is None:
            raise ValueError("the model cannot be copied, so nothing shows what it does without the stack")
        model = copy.deepcopy(self.skeleton).to_empty(device=self.device)
        with torch.no_grad(), unchanged_randomness(self.device):
            for parameter in model.parameters():
                parameter.normal_(std=0.02)
            kept = dict(self.skeleton.named_buffers())
            for name, buffer in model.named_buffers():
                buffer.copy_(kept[name])
        return model

    def _check_evaluation(self, own: set[int]) -> None:
        """Raises ValueError where the model in evaluation goes round a layer that the stack has put into it."""
        bypassed: list[str] = []
        with suppress(ValueError):  # nothing says what the model reads, so nobody can look
            bypassed = left_out(self.model, own, lambda: self.trial(self.model))
        if bypassed:
            raise ValueError(
                f"{type(self.model).__name__} calls {bypassed[0]} in training alone, and in evaluation reads its weight"
                f" or leaves it out: {self.job.stack} would be trained and not used; let it call the layer in both"
            )

    def trial(self, model: nn.Module) -> Any:
        with self.autocast():
            return self.user.shown(model)

    def next_batch(self) -> tuple[Batch, Tensor]:
        """Returns the loop's latest batch, for techniques that look at one between two steps."""
        if self.latest is not None:
            return self.latest, torch.arange(len(next(iter(self.latest.values()))))
        return self.data.batch(0, 0, self.recipe.batch_size)

    def scout(self, *_: Any, **__: Any) -> Run:
        raise ValueError("a technique of the stack trains models of its own beforehand, and nothing says on which data")

    def forward(self, batch: Batch) -> Tensor:
        outputs, loss = self.user.passed(self.forward_model, batch)
        return self.technique.loss(loss.mean(), outputs, batch, self)

    def around_forward(self) -> None:
        """Makes each pass of the model compute in the recipe's precision from now on, as the suite's forward does."""
        entered: list[Any] = []

        def enter(*_: Any) -> None:
            entered.append(self.autocast())
            entered[-1].__enter__()

        def leave(*_: Any) -> None:
            entered.pop().__exit__(None, None, None)

        self.model.register_forward_pre_hook(enter)
        self.model.register_forward_hook(leave, always_call=True)

    @property
    def indices(self) -> Tensor:
        """Returns the numbers of the batch's examples. Raises ValueError where the loop named none."""
        if self.numbers is None:
            raise ValueError(
                f"{self.job.stack} knows examples again: name their numbers, context.step(batch, indices) or "
                "update(batch, indices), in a loop of yours (a Trainer has none)"
            )
        return self.numbers

    @indices.setter
    def indices(self, numbers: Tensor | None) -> None:
        self.numbers = numbers

    # rates ----------------------------------------------------------------------------------------------------------

    @property
    def sets_rates(self) -> bool:
        """Tells whether the recipe's rate changes with the step; else it is the loop's to change."""
        own = type(self.recipe).learning_rate_at is not Recipe.learning_rate_at
        return own or self.recipe.schedule != "constant" or self.recipe.warmup_fraction > 0

    def adopt(self, model: nn.Module) -> None:
        """Adopts the model as a run does; what the loop made of the rate stays, and so does the optimizer that it
        holds."""
        before = None if self.handle is None else self.optimizer.param_groups[0]
        super().adopt(model)
        if before is not None and self.handle is not None:
            if not self.sets_rates:
                rate = before["lr"] / before.get("learning_rate_scale", 1.0)
                for group in self.optimizer.param_groups:
                    group["lr"] = rate * group.get("learning_rate_scale", 1.0)
            self.handle.hold(self.optimizer)

    def _set_learning_rate(self) -> None:
        if self.sets_rates or self.handle is None or self.optimizer is not self.handle.optimizer:
            constant = self.recipe.learning_rate
            rate = self.recipe.learning_rate_at(self.step) if self.sets_rates else constant
            for group in self.optimizer.param_groups:
                group["lr"] = rate * group.get("learning_rate_scale", 1.0)

    # a step ---------------------------------------------------------------------------------------------------------

    def apply_gradients(self) -> None:
        if self.deferred:
            self.pending = True
        else:
            super().apply_gradients()

    def outside_step(self) -> None:
        """Makes the loop's ``optimizer.step()``. Raises RuntimeError outside of a step, and without an added term of
        loss."""
        if not self.inside:
            raise RuntimeError("optimizer.step() stands within the step: with context.step(batch): ...")
        if (adding := self.adding_terms()) and not (self.helped or self.deferred):
            raise RuntimeError(
                f"{' and '.join(adding)} adds to the loss: loss = context.loss(loss, outputs, batch) before its "
                "backward pass"
            )
        if not self.deferred or self.pending:
            super().apply_gradients()
        self.stepped = True

    def adding_terms(self) -> list[str]:
        """Lists the techniques that have something to say of the loss."""
        return self.overriding("loss")

    def undivided(self) -> list[str]:
        """Lists the techniques that take a step's batch as a whole: they make its passes, or their terms are no
        means."""
        stack: Any = self.technique
        whole = [name for name, each in stack.techniques.items() if each.whole_batch and not each.is_reference]
        return [*self.overriding("update"), *whole]

    def overriding(self, method: str) -> list[str]:
        """Lists the active techniques of the stack that change ``method``, by name."""
        stack: Any = self.technique
        return [name for name, each in stack.techniques.items() if overrides(each, method) and not each.is_reference]


class StackOptimizer(Wrapper):
    """Stands for the stack's optimizer in the loop's hands: its step is the stack's, with what comes before it."""

    help = "enter context.step(batch)"

    def __init__(self, run: OwnLoop) -> None:
        self.run = run
        super().__init__(run.optimizer)

    def hold(self, optimizer: torch.optim.Optimizer) -> None:
        """Lets the run go on with another optimizer."""
        self.optimizer = optimizer
        self._share()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.run.outside_step()
        return loss


def _skeleton(model: nn.Module) -> nn.Module | None:
    """Makes a copy without the parameters' memory; None where a model cannot be copied."""
    memo: dict[int, Any] = {
        id(each): nn.Parameter(each.detach().to("meta"), each.requires_grad) for each in model.parameters()
    }
    with suppress(Exception):  # whatever its own __deepcopy__ does
        return copy.deepcopy(model, memo)
    return None

"""Implements torch's selective activation checkpointing (``torch.utils.checkpoint``): each operator's output is kept,
or not.

What is dear to compute and small beside its inputs, the matrix products and fused attention, is kept; what lies between
them (activation functions, softmax, normalisation, dropout) is computed again in the backward pass, block by block.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import PLANS, Technique, Unavailable
from suite.model.segments import segment_name

_ATEN = torch.ops.aten
PRODUCTS = frozenset(
    {
        _ATEN.mm.default,
        _ATEN.addmm.default,
        _ATEN.bmm.default,
        _ATEN.baddbmm.default,
        _ATEN._scaled_dot_product_flash_attention.default,
        _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
        _ATEN._scaled_dot_product_efficient_attention.default,
        _ATEN._scaled_dot_product_cudnn_attention.default,
    }
)

# What is kept passes saved-tensor hooks by, as in every torch so far; newer ones ask. A hook that wraps checkpoint's
# own, as a meter's does, would otherwise start the recomputation inside itself.
_CHOICE = "respect_saved_tensors_hooks"
BESIDE_HOOKS: dict[str, Any] = {_CHOICE: False} if _CHOICE in inspect.signature(checkpoint).parameters else {}


def keeping_products(every: int) -> Callable[..., CheckpointPolicy]:
    """Returns a policy for one run of a function: the first, and every ``every``-th matrix product after it, is
    kept."""
    products = itertools.count()

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if operator in PRODUCTS and next(products) % every == 0:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def contexts(every: int) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Returns the contexts of the forward pass and of the recomputation, for ``checkpoint``."""
    both: tuple[Any, Any] = create_selective_checkpoint_contexts(keeping_products(every))
    return both


def selectively(act: Act, every: int, function: Callable[[Tensor], Any], hidden: Tensor) -> Any:
    """Computes ``function(hidden)``, of which ``hidden`` and every ``every``-th product are kept; ``act`` is called
    when it runs again."""
    runs = itertools.count()

    def noted(hidden: Tensor) -> Any:
        if next(runs):
            act()
        with casting_anew(hidden.device.type):
            return function(hidden)

    return checkpoint(noted, hidden, use_reentrant=False, context_fn=partial(contexts, every), **BESIDE_HOOKS)


def casting_anew(kind: str) -> AbstractContextManager[Any]:
    """Returns the autocast mode as it is, without its cache: a weight that several blocks share is cast in each, as it
    is when a block runs again by itself. Its gradients are then added in its own type, not in the cast's."""
    if not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, torch.get_autocast_dtype(kind), cache_enabled=False)


@dataclass
class TorchSAC(Technique):
    """Keeps every ``every``-th matrix product of each block: 1 for all, so that none runs again; 2 for half of them."""

    takes: ClassVar[str] = PLANS
    every: int = 1

    acts: dict[str, Act] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(
                f"every is 1 or more products, of which one is kept, not {self.every}; ckpt_chen_sqrt keeps none"
            )

    @contextmanager
    def around_step(self, run: Run) -> Iterator[None]:
        with ExitStack() as stack:
            for blocks in run.anatomy.stacks:
                for start in range(blocks.depth):
                    act = self.acts.setdefault(segment_name(blocks.path, start, start + 1), Act())
                    wrapper = partial(selectively, act, self.every)
                    stack.enter_context(run.anatomy.segmented([(start, start + 1)], wrapper, blocks))
            yield

    def sites(self, run: Run) -> Mapping[str, Site]:
        if run.recipe.compile:
            raise Unavailable("the operators of a compiled model are fused: torch_autoac chooses among these")
        for blocks in run.anatomy.stacks:
            self.acts |= {segment_name(blocks.path, i, i + 1): Act() for i in range(blocks.depth)}
        return self.acts

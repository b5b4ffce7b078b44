"""Implements Fixup: a residual network that needs no norms, by an initialisation under which a step's effect is that of
any depth.

Zhang, Dauphin & Ma, "Fixup Initialization: Residual Learning Without Normalization" (ICLR 2019, arXiv 1901.09321),
section 3. Of L residual branches, each of m layers:

1. the classification layer and the last layer of each branch start at 0;
2. the other layers of a branch start L^(-1/(2m-2)) times as large as usual;
3. in place of vectors, there is a number that starts at 0 before each layer and each activation of a branch, and one
   that starts at 1 and multiplies the branch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.technique import Technique
from suite.model.anatomy import Anatomy, AroundLinear, Part, anatomy, is_linear, weight_matrix
from suite.model.branches import branch_ends
from suite.model.calls import Forward, undisturbed
from techniques.shared.residual import ScaledBranch, remove_norms

ATTENTION_LAYERS = 4  # queries, keys, values and output multiply each other, whether or not one matrix makes three


def factor(branches: int, layers: int) -> float:
    """Computes L^(-1/(2m-2)) for a network of L ``branches`` and a branch of m ``layers``, at least 2."""
    return branches ** (-1 / (2 * layers - 2))


class BiasedByNumbers(AroundLinear):
    """Wraps a linear layer without a bias of its own: W (x + ``before`` [1]), plus ``after`` [1] if an activation
    follows."""

    def __init__(self, linear: nn.Module, activated: bool) -> None:
        super().__init__(linear)
        weight = weight_matrix(linear)
        if isinstance(linear.bias, Tensor):
            del linear.bias
            linear.register_buffer("bias", weight.new_zeros(len(weight)))  # GPT-2's layers compute with one
        self.before = nn.Parameter(weight.new_zeros(1))
        self.after = nn.Parameter(weight.new_zeros(1)) if activated else None

    def forward(self, x: Tensor) -> Tensor:
        output = self.linear(x + self.before.to(x.dtype))
        return output if self.after is None else output + self.after.to(output.dtype)


@torch.no_grad()
def check_called(parts: Anatomy, forward: Forward) -> None:
    """Raises ValueError where the model reads a layer's weight past the layer, so that nothing can stand before it."""
    ran: set[str] = set()
    with ExitStack() as stack:
        stack.enter_context(undisturbed(parts.model))
        for path, layer in parts.linears:
            handle = layer.register_forward_hook(lambda *_, path=path: ran.add(path))
            stack.callback(handle.remove)
        parts.model.eval()
        forward()
    if past := [path for path, _ in parts.linears if path not in ran]:
        raise ValueError(
            f"fixup adds a number before each layer, and the model reads the weight of {past[0]} without calling it; "
            "use a model that calls its layers"
        )


@torch.no_grad()
def fixup(parts: Anatomy, ends: Sequence[Sequence[Part]]) -> None:
    """Applies the three rules, for blocks whose branches end at ``ends``. Raises ValueError where rule 1 has no last
    layer."""
    branches = sum(map(len, ends))
    for block, last in zip(parts.every_block, ends, strict=True):
        if experts := [end.path for end in last if not is_linear(end.module)]:
            raise ValueError(
                f"fixup sets the last layer of a branch to 0, and {experts[0]} ends in several experts; use a model "
                "whose branches end in one linear layer each"
            )
        for part in block.linears:
            in_mlp, is_last = part in block.mlp_linears, part in last
            layers = len(block.mlp_linears) if in_mlp else ATTENTION_LAYERS
            weight_matrix(part.module).mul_(0.0 if is_last else factor(branches, layers))
            biased = BiasedByNumbers(part.module, activated=in_mlp and not is_last)
            multiplier = nn.Parameter(biased.before.new_ones(1))
            parts.replace(part.path, ScaledBranch(biased, multiplier) if is_last else biased)
    for _, module in parts.head:
        head: Any = module
        head.weight = nn.Parameter(torch.zeros_like(head.weight))  # its own, where it was the embedding's
        if isinstance(head.bias, Tensor):
            head.bias.zero_()


@dataclass
class Fixup(Technique):
    """Removes all norms of the residual streams and initialises by the three rules.

    One-dimensional parameters get no weight decay from the recipe, so the numbers have none.
    """

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        parts, forward = anatomy(model), partial(run.trial, model)
        remove_norms(parts)
        ends = branch_ends(model, parts.every_block, forward)
        check_called(parts, forward)
        fixup(parts, ends)
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        numbers = (ScaledBranch, BiasedByNumbers)
        own = {
            f"{path}.{name}": parameter
            for path, module in run.model.named_modules()
            if isinstance(module, numbers)
            for name, parameter in module.named_parameters(recurse=False)
        }
        return own | {head.path: head.module for head in run.anatomy.head}

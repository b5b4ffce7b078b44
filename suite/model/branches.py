"""Finds where the residual branches of a block end, so that a scale can stand there: each branch once, and none twice.

A branch's end is its last linear layer, or of a mixture of experts the module that holds them all. Names cannot say
whether that is so, hence three trials on random values (:mod:`suite.model.replica`):

* with all ends at zero the block depends on none of its matrices: no branch is left out;
* a parameter of the width's size that, at zero, cuts an end off while the input still passes is a scale already;
* doubling what an end gives changes what the block gives: no norm behind it takes the scale out again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from suite.model.anatomy import Block, Part, attention_roots, is_in_attention
from suite.model.calls import Forward
from suite.model.replica import Replica, each_design, zero

SAME = 1e-2  # of an output: a norm's epsilon leaves this little of a scale


def branch_ends(model: nn.Module, blocks: Sequence[Block], forward: Forward) -> list[tuple[Part, ...]]:
    """Returns the modules of each block whose outputs are its branches'. Raises ValueError with the reason where a
    scale cannot stand there."""
    ends = each_design(model, blocks, forward, _ends)
    return [
        tuple(Part(f"{block.path}.{name}", block.module.get_submodule(name)) for name in names)
        for block, names in zip(blocks, ends, strict=True)
    ]


def _ends(block: Block, replica: Replica) -> tuple[str, ...]:
    attention = tuple(part.path[len(block.path) + 1 :] for part in block.branches if part != block.mlp_output)
    last = () if block.mlp_output is None else (block.mlp_output.path[len(block.path) + 1 :],)
    whole = _around_the_mlp(block)
    for ends in (attention + mlp for mlp in (last, whole) if attention and mlp):
        _check_unscaled(block, replica, ends)
        if _complete(replica, ends):
            _check_heard(block, replica, ends)
            return ends
    tried = ", ".join(attention + (last or whole))
    raise ValueError(
        f"cannot tell where the residual branches of {block.path} end: with {tried} at zero, other weights still reach "
        "the block's output"
    )


def _around_the_mlp(block: Block) -> tuple[str, ...]:
    """Returns the innermost module that holds all matrices beside the attention, where there is one."""
    roots = attention_roots(block.module)
    paths = [
        name.split(".")[:-1]
        for name, parameter in block.module.named_parameters()
        if parameter.ndim >= 2 and not is_in_attention(name, roots)
    ]
    common = []
    for names in zip(*paths, strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return (".".join(common),) if common else ()


def _complete(replica: Replica, ends: Sequence[str]) -> bool:
    matrices = [value for value in replica.values.values() if value.ndim >= 2]
    output = replica(scaled=dict.fromkeys(ends, 0.0))
    return all(map(zero, replica.gradients(output, matrices)))


def _check_unscaled(block: Block, replica: Replica, ends: Sequence[str]) -> None:
    for name, value in replica.values.items():
        if value.numel() == math.prod(value.shape[-1:]) == block.width and not name.endswith("bias"):
            output = replica({name: torch.zeros_like(value)}, dict.fromkeys(ends, 1.0))
            silent, *cut = map(zero, replica.gradients(output, [replica.hidden, *replica.outputs.values()]))
            if any(cut) and not silent:
                raise ValueError(
                    f"the branches of {block.path} have a learned scale already ({name}); a second one would double it"
                )


def _check_heard(block: Block, replica: Replica, ends: Sequence[str]) -> None:
    plain = replica()
    for name in ends:
        silent, double = (replica(scaled={name: factor}) for factor in (0.0, 2.0))
        if (double - plain).norm() <= SAME * (silent - plain).norm():
            raise ValueError(
                f"a norm follows {block.path}.{name} in its branch, and takes any scale out again; use a model whose "
                "branches end without a norm"
            )

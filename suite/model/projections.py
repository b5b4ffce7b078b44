"""Tells which rows of which weights make a block's queries, keys and values.

A fused weight holds them one after the other (GPT-2), head by head (GPT-NeoX, BLOOM), group by group (Falcon), or with
fewer keys and values than queries (GPT-BigCode, Phi-3). So rows are told by what they move: at the attention function,
fused or in products and a softmax, what depends on a row shows whether it makes queries, keys or values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from suite.model.anatomy import Block, Part, check_attend, is_transposed
from suite.model.calls import Forward
from suite.model.replica import Replica, each_design

Role = Literal["query", "key", "value"]
Numbers = range | tuple[int, ...]
ROLES: tuple[Role, ...] = ("query", "key", "value")
PRODUCTS = {
    torch.matmul,
    torch.bmm,
    torch.baddbmm,
    torch.einsum,
    Tensor.matmul,
    Tensor.__matmul__,
    Tensor.bmm,
    Tensor.baddbmm,
}


@dataclass(frozen=True)
class Rows:
    """Names the rows of a layer's weight [out_features, in_features] that make one of a block's projections.

    ``bypassed``: the model reads the layer's weight and never calls the layer (timm's BEiT), so that a layer in its
    place would do nothing.
    """

    layer: Part
    rows: Numbers
    bypassed: bool


def projection_rows(model: nn.Module, blocks: Sequence[Block], forward: Forward) -> list[dict[Role, Rows]]:
    """Tells what makes each block's (self-)attention's queries, keys and values.

    Raises ValueError where that cannot be told, and where a block of a hybrid has no attention.
    """
    check_attend(blocks)
    designs = each_design(model, blocks, forward, _rows)
    return [
        {
            role: Rows(Part(f"{block.path}.{name}", block.module.get_submodule(name)), rows, bypassed)
            for role, (name, rows, bypassed) in by_role.items()
        }
        for block, by_role in zip(blocks, designs, strict=True)
    ]


def _rows(block: Block, replica: Replica) -> dict[Role, tuple[str, Numbers, bool]]:
    """Returns the layer's name in the block, its rows, and whether it is bypassed."""
    names = {id(parameter): name for name, parameter in block.module.named_parameters()}
    layers = [part for part in block.attention_linears if id(part.module.weight) in names]
    weights = [replica.values[names[id(part.module.weight)]] for part in layers]
    paths = [part.path[len(block.path) + 1 :] for part in layers]
    with AttentionInputs() as inputs:
        replica(scaled=dict.fromkeys(paths, 1.0))
    if inputs.value is None:
        raise ValueError(
            f"cannot tell which weights make the queries and values of {block.path}: no attention function was seen in "
            "it (scaled_dot_product_attention, or a product of queries and keys and one with values)"
        )
    moved: dict[Role, list[Tensor]] = {}
    for role, tensor in zip(ROLES, (inputs.query, inputs.key, inputs.value), strict=True):
        gradients = replica.gradients(tensor, weights)
        moved[role] = [_moving(part.module, gradient) for part, gradient in zip(layers, gradients, strict=True)]
    rows: dict[Role, tuple[str, Numbers, bool]] = {}
    for role in ROLES:
        making = [index for index, rows in enumerate(moved[role]) if len(rows)]
        others = {role_: moved[role_] for role_ in ROLES if role_ != role}
        if len(making) != 1:
            raise ValueError(f"cannot tell which weights make the {role} of {block.path}: {len(making)} layers move it")
        index = making[0]
        shared = [name for name, other in others.items() if torch.isin(moved[role][index], other[index]).any()]
        if shared:
            raise ValueError(f"the rows that make the {role} of {block.path} make its {shared[0]}, too")
        rows[role] = paths[index], _numbers(moved[role][index]), paths[index] not in replica.outputs
    return rows


def _moving(layer: nn.Module, gradient: Tensor | None) -> Tensor:
    """Returns the layer's outputs that a gradient of its weight is not zero for, int64, on the CPU."""
    if gradient is None:
        return torch.empty(0, dtype=torch.int64)
    return gradient.ne(0).any(0 if is_transposed(layer) else 1).nonzero()[:, 0].cpu()


def _numbers(rows: Tensor) -> Numbers:
    start, end = int(rows[0]), int(rows[-1]) + 1
    return range(start, end) if end - start == len(rows) else tuple(rows.tolist())


class AttentionInputs(TorchFunctionMode):
    """While active, notes the ``query``, ``key`` and ``value`` of the first attention: of a fused function, or of a
    product of two activations, of which a later product's one factor is made."""

    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None
    _scores: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if self.value is not None:
            return output
        if func is F.scaled_dot_product_attention:
            arguments = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
            self.query, self.key, self.value = arguments["query"], arguments["key"], arguments["value"]
        elif func in PRODUCTS and len(factors := _factors(args, kwargs)) == 2:
            left, right = factors
            activations = min(left.ndim, right.ndim) >= 3 and left.requires_grad and right.requires_grad
            if activations and self._scores is None:
                self.query, self.key, self._scores = left, right, output
            elif activations and self._depends(left):
                self.value = right
        return output

    def _depends(self, tensor: Tensor) -> bool:
        """Tells whether the scores lead to ``tensor``."""
        assert self._scores is not None
        return torch.autograd.grad(tensor.sum(), self._scores, retain_graph=True, allow_unused=True)[0] is not None


def _factors(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """Returns the two tensors that a product is of, also those in a list of einsum's; what baddbmm adds to it comes
    first."""
    return [argument for argument in tree_leaves((args, kwargs)) if isinstance(argument, Tensor)][-2:]

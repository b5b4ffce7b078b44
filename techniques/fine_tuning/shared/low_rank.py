"""Implements low-rank updates of frozen linear layers: y = W0 x + (alpha / r) B A x (Hu et al., ICLR 2022, section
4.1).

The product with W0 stays as it is, and the update is added to it in the same memory: on a GPU by the kernel of
:mod:`shared.low_rank_kernel`, elsewhere by a matrix product that accumulates. For lora and alpaca_lora.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.compiler import is_compiling

from suite.loop.run import Run
from suite.model.anatomy import Anatomy, AroundLinear, Part, anatomy, is_transposed, out_features, weight_matrix
from suite.model.projections import ROLES, Role, Rows, projection_rows

Initialization = Literal["kaiming_uniform", "gaussian"]


def low_rank_update(x: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Computes ``scale`` * B A x for x [..., d_in], A [r, d_in], B [d_out, r]; returns [..., d_out]."""
    return F.linear(F.linear(x, a), b) * scale


def add_update(output: Tensor, x: Tensor, a: Tensor, b: Tensor, scale: float, rows: Any) -> Tensor:
    """Returns ``output`` [..., d_out], with :func:`low_rank_update` added to its columns ``rows``. May overwrite
    ``output``."""
    if isinstance(rows, slice) and output.is_contiguous() and not is_compiling():
        added: Tensor = _Added.apply(output, x, a, b, scale, rows)
        return added
    output[..., rows] += low_rank_update(x, a, b, scale)
    return output


class _Added(torch.autograd.Function):
    """Computes :func:`add_update` as one node of the graph: it keeps x and A x, and passes the gradient of the output
    on."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, x: Tensor, a: Tensor, b: Tensor, scale: float, rows: slice) -> Tensor:
        x, a, b = (tensor.to(output.dtype) for tensor in (x, a, b))  # as autocast does for the product with W0
        if output._is_view():  # overwritten, it would have autograd copy the whole gradient
            output = output.clone()
        else:
            ctx.mark_dirty(output)
        low = _accumulate(output.view(-1, output.shape[-1])[:, rows], x.reshape(-1, x.shape[-1]), a, b, scale)
        ctx.save_for_backward(x, low, a, b)
        ctx.scale, ctx.rows = scale, rows
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, low, a, b = ctx.saved_tensors
        of_x, of_a, of_b = ctx.needs_input_grad[1:4]
        own = gradient.reshape(-1, gradient.shape[-1])[:, ctx.rows]
        of_low = own @ b * ctx.scale if of_x or of_a else None
        return (
            gradient,
            (of_low @ a).view(x.shape) if of_low is not None and of_x else None,
            of_low.T @ x.reshape(-1, x.shape[-1]) if of_low is not None and of_a else None,
            own.T @ low * ctx.scale if of_b else None,
            None,
            None,
        )


def _accumulate(output: Tensor, x: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Adds the update to ``output`` [tokens, d_out], in place; returns x A^T [tokens, r]."""
    if x.is_cuda:
        from techniques.fine_tuning.shared import low_rank_kernel  # loads Triton

        if low_rank_kernel.launchable(x, a, b):
            return low_rank_kernel.add_update(output, x, a, b, scale)
    low = x @ a.T
    output.addmm_(low, b.T, alpha=scale)
    return low


@torch.no_grad()
def add_to_weight(weight: Tensor, a: Tensor, b: Tensor, scale: float, rows: Any) -> None:
    """Computes W += ``scale`` B A in the ``rows`` of a weight [d_out, d_in], a parameter or a transposed view of
    one."""
    if weight.is_cuda and isinstance(rows, slice):
        from techniques.fine_tuning.shared import low_rank_kernel

        if low_rank_kernel.launchable(a, b):
            return low_rank_kernel.add_to_weight(weight[rows], a, b, scale)
    weight[rows] += scale * (b @ a)


class LowRankLinear(AroundLinear):
    """Wraps a frozen linear layer y = W0 x with a trainable update for each of several sets of W0's ``rows``.

    Two serve a fused query-key-value projection, where they need not be consecutive.
    """

    def __init__(
        self,
        linear: nn.Module,
        rows: Sequence[Sequence[int]],
        rank: int,
        alpha: float,
        dropout: float,
        initialization: Initialization,
        generator: torch.Generator,
    ) -> None:
        super().__init__(linear.requires_grad_(False))
        self.scale, self.dropout = alpha / rank, nn.Dropout(dropout)
        weight = weight_matrix(linear)
        factors = [first_factor(rank, weight.shape[1], initialization, generator) for _ in rows]
        self.a = nn.ParameterList(a.to(weight) for a in factors)
        self.b = nn.ParameterList(weight.new_zeros(len(row), rank) for row in rows)
        self.slices = [slice(row.start, row.stop) if isinstance(row, range) else None for row in rows]
        for index, row in enumerate(rows):
            scattered = None if isinstance(row, range) else torch.tensor(row, device=weight.device)
            self.register_buffer(f"rows{index}", scattered, persistent=False)

    def updates(self) -> Iterator[tuple[Any, nn.Parameter, nn.Parameter]]:
        """Yields each index of rows with its A and B."""
        for index, (consecutive, a, b) in enumerate(zip(self.slices, self.a, self.b, strict=True)):
            yield consecutive or getattr(self, f"rows{index}"), a, b

    def forward(self, x: Tensor) -> Tensor:
        out = self.linear(x)
        x = self.dropout(x)
        for rows, a, b in self.updates():
            out = add_update(out, x, a, b, self.scale, rows)
        return out

    def add_to_weight(self, sign: int) -> None:
        """Adds ``sign`` times the update to W0: +1 merges, -1 takes it out again (to rounding, not to the bit)."""
        weight = weight_matrix(self.linear)
        for rows, a, b in self.updates():
            add_to_weight(weight, a, b, sign * self.scale, rows)


class LowRankWeight(LowRankLinear):
    """Acts as :class:`LowRankLinear`, where the model reads the layer's weight and never calls the layer."""

    @property
    def weight(self) -> Tensor:
        weight = weight_matrix(self.linear).clone()
        for rows, a, b in self.updates():
            weight[rows] += self.scale * (b @ a)
        return weight.T if is_transposed(self.linear) else weight


def first_factor(rank: int, width: int, initialization: Initialization, generator: torch.Generator) -> Tensor:
    """Draws A [rank, width] as training begins, float32: normal with deviation 1 / rank, or uniform as
    ``nn.Linear``'s."""
    a = torch.empty(rank, width)
    if initialization == "gaussian":
        return nn.init.normal_(a, std=1 / rank, generator=generator)
    return nn.init.kaiming_uniform_(a, a=math.sqrt(5), generator=generator)


# what is adapted ------------------------------------------------------------------------------------------------------


def targets_of(run: Run, model: nn.Module, names: Sequence[str]) -> list[list[Rows]]:
    """Finds the rows that ``names`` stand for, a list for each layer, in the model's order.

    A name is ``query``, ``key`` or ``value``: what makes them at the attention function, whatever the model calls it;
    ``output``: the layer behind the attention; ``mlp``: the block's other layers; or the model's own name of layers, as
    peft takes them (``c_attn``, ``attn.q_proj``). Raises ValueError for one that no layer has.
    """
    parts = anatomy(model)
    projected: dict[str, dict[Role, Rows]] = {}
    if set(ROLES) & set(names):
        attending = parts.attending_blocks  # the other blocks of a hybrid have no queries
        found = projection_rows(model, attending, partial(run.trial, model))
        projected = {block.path: rows for block, rows in zip(attending, found, strict=True)}
    targets: list[list[Rows]] = []
    matched: set[str] = set()
    for block in parts.every_block:
        roles = projected.get(block.path, {})
        by_layer: dict[str, list[Rows]] = {}
        for name in dict.fromkeys(names):
            if name in ROLES:
                wanted = [roles[name]] if name in roles else []
            elif name == "output":
                wanted = [_whole(part) for part in (block.attention_output,) if part]
            elif name == "mlp":
                wanted = [_whole(mlp_linear) for mlp_linear in block.mlp_linears]
            else:
                wanted = [
                    _whole(linear)
                    for linear in block.linears
                    if linear.path == name or linear.path.endswith(f".{name}")
                ]
            matched |= {name} if wanted else set()
            for rows_of_layer in wanted:
                by_layer.setdefault(rows_of_layer.layer.path, []).append(rows_of_layer)
        targets += by_layer.values()
    if missing := [name for name in names if name not in matched]:
        raise ValueError(f"no layer is called {' or '.join(missing)}: {_there_is(parts)}")
    for rows in targets:
        _check_disjoint(rows)
    return targets


def _whole(layer: Part) -> Rows:
    return Rows(layer, range(out_features(layer.module)), bypassed=False)


def _there_is(parts: Anatomy) -> str:
    own = dict.fromkeys(layer.path.rpartition(".")[2] for layer in parts.linears)
    return f"name query, key, value, output, mlp, or of this model's own layers {', '.join(own)}"


def _check_disjoint(targets: Sequence[Rows]) -> None:
    rows = [row for target in targets for row in target.rows]
    if len(set(rows)) < len(rows):
        raise ValueError(f"{targets[0].layer.path} is named twice among the targets: name it once")


def check_rank(rank: int, targets: Sequence[Rows]) -> None:
    """Raises ValueError where a weight's update cannot have that rank."""
    for target in targets:
        width = weight_matrix(target.layer.module).shape[1]
        if rank > (most := min(width, len(target.rows))):
            raise ValueError(
                f"rank {rank} is more than an update of {target.layer.path}, {len(target.rows)} x {width}, can have: "
                f"choose 1 to {most}"
            )


# the adapted model ----------------------------------------------------------------------------------------------------


def updates(model: nn.Module) -> dict[str, LowRankLinear]:
    """Returns the adapted layers by name."""
    return {path: module for path, module in model.named_modules() if isinstance(module, LowRankLinear)}


def merge(model: nn.Module) -> nn.Module:
    """Puts the layers themselves, with weight W0 + (alpha / r) B A, in place of the adapted ones; returns ``model``."""
    for path, update in updates(model).items():
        update.add_to_weight(+1)
        anatomy(model).replace(path, update.linear)
    return model

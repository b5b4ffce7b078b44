"""Has one rank of a Llama whose layers several ranks share, as nanotron trains it: sizes alone, to be traced.

Megatron's split (Shoeybi et al., 1909.08053, section 3): queries, keys, values and the MLP's first products by
columns, the products after them by rows, the vocabulary by rows. Between the layers' halves each rank has its part of
the sequences (Korthikanti et al., 2205.05198, section 4.2.2). What is gathered is written here, and sent elsewhere
(:mod:`suite.topics.modelled_time.gpu_links`). Gradients add up in float32, in a pass of
their own but where kernels are fused: there in the product that makes them. The update is AdamW on float32 copies.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from research.published_steps.eight_bits import EightBitLinear
from research.published_steps.published_rows import Case


class _Gathered(torch.autograd.Function):
    """Gathers all ranks' parts, of which this rank has one; backward its part of the sum."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, ranks: int) -> Tensor:
        ctx.rows = part.shape[0]
        return part.new_empty(ranks * part.shape[0], part.shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.new_empty(ctx.rows, gradient.shape[1]), None


class _GatheredProduct(torch.autograd.Function):
    """Computes x W^T of all ranks' parts of x, of which this rank keeps its own alone: for the weight's gradient the
    others' are gathered again (Korthikanti et al., section 4.2.2; nanotron's ``tp_recompute_allgather``)."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, weight: Tensor, ranks: int) -> Tensor:
        ctx.save_for_backward(part, weight)
        ctx.ranks = ranks
        whole = part.new_empty(ranks * part.shape[0], part.shape[1])
        return whole @ weight.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        part, weight = ctx.saved_tensors
        whole = part.new_empty(ctx.ranks * part.shape[0], part.shape[1])
        of_whole = gradient @ weight
        return of_whole.new_empty(part.shape), gradient.T @ whole, None


class _Scattered(torch.autograd.Function):
    """Returns the rank's part of the sum over ranks; backward all parts."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, ranks: int) -> Tensor:
        ctx.rows = whole.shape[0]
        return whole.new_empty(whole.shape[0] // ranks, whole.shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.new_empty(ctx.rows, gradient.shape[1]), None


class FusedNorm(torch.autograd.Function):
    """Stands for an RMS norm in one kernel: reads and writes each operand once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.mul(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        x, _ = ctx.saved_tensors
        own = torch.mul(gradient, x)
        return own, own.sum(tuple(range(own.dim() - 1))) if ctx.needs_input_grad[1] else None


class Rotated(torch.autograd.Function):
    """Stands for rotary embeddings in one kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.neg(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.neg(gradient)


class _Loss(torch.autograd.Function):
    """Stands for cross entropy over a vocabulary in parts: in float32, its exponentials kept."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        shifted = logits - logits.max(dim=-1, keepdim=True).values
        picked = shifted.gather(1, targets[:, None])
        exponentials = shifted.exp_()
        total = exponentials.sum(-1, keepdim=True)
        exponentials.div_(total)
        ctx.save_for_backward(exponentials)
        return (total.log() - picked).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (exponentials,) = ctx.saved_tensors
        return exponentials.mul_(gradient), None


class FusedLoss(torch.autograd.Function):
    """Reads the logits once for the loss; once more, and writes the gradient over them."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        ctx.save_for_backward(logits)
        return logits.sum(-1, dtype=torch.float32).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (logits,) = ctx.saved_tensors
        logits.neg_()
        return logits


class _FusedGate(torch.autograd.Function):
    """Stands for SwiGLU in one kernel: reads both halves [tokens, 2, ffn] and writes their product; backward once more,
    and the gradient of both."""

    @staticmethod
    def forward(ctx: Any, halves: Tensor) -> Tensor:
        ctx.save_for_backward(halves)
        return halves[:, 0] * halves[:, 1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (halves,) = ctx.saved_tensors
        return torch.mul(halves, gradient[:, None])


class _Weights(nn.Module):
    """Holds a norm's weights."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden))

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = FusedNorm.apply(x, self.weight)
        return normed


class RankBlock(nn.Module):
    """Holds a rank's share of one layer."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.ranks, self.batch = case.tensor_ranks, case.batch
        self.context_ranks, self.fused = case.context_ranks, case.fused
        self.width = case.hidden // case.heads
        self.heads, self.kv_heads = case.heads // self.ranks, max(1, case.kv_heads // self.ranks)
        ffn = case.ffn // self.ranks
        self.norms = nn.ModuleList([_Weights(case.hidden), _Weights(case.hidden)])
        self.qkv = _linear(case, case.hidden, (self.heads + 2 * self.kv_heads) * self.width)
        self.out = _linear(case, self.heads * self.width, case.hidden)
        self.gate_up = _linear(case, case.hidden, 2 * ffn)
        self.down = _linear(case, ffn, case.hidden)

    def by_columns(self, linear: nn.Module, x: Tensor) -> Tensor:
        return _by_columns(linear, x, self.ranks)

    def scattered(self, x: Tensor) -> Tensor:
        part: Tensor = _Scattered.apply(x, self.ranks) if self.ranks > 1 else x
        return part

    def attention(self, x: Tensor) -> Tensor:
        heads = [count * self.width for count in (self.heads, self.kv_heads, self.kv_heads)]
        parts = self.by_columns(self.qkv, x).split(heads, dim=-1)
        if self.context_ranks > 1:  # keys and values of the whole sequence
            parts = parts[0], *(_Gathered.apply(part, self.context_ranks) for part in parts[1:])
        q, k, v = (
            part.view(self.batch, -1, part.shape[-1] // self.width, self.width).transpose(1, 2) for part in parts
        )
        q, k = Rotated.apply(q), Rotated.apply(k)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        done: Tensor = self.out(mixed.transpose(1, 2).reshape(self.ranks * x.shape[0], -1))
        return done

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.scattered(self.attention(self.norms[0](x)))
        halves = self.by_columns(self.gate_up, self.norms[1](x))
        if self.fused:
            return x + self.scattered(self.down(_FusedGate.apply(halves.view(halves.shape[0], 2, -1))))
        gate, up = halves.chunk(2, dim=-1)
        return x + self.scattered(self.down(F.silu(gate) * up))


def _by_columns(linear: nn.Module, x: Tensor, ranks: int) -> Tensor:
    """Multiplies what all ranks have of ``x``."""
    if ranks == 1:
        y: Tensor = linear(x)
    elif isinstance(linear, EightBitLinear):  # keeps the whole, in eight bits
        y = linear(_Gathered.apply(x, ranks))
    else:
        y = _GatheredProduct.apply(x, linear.weight, ranks)
    return y


def _linear(case: Case, inputs: int, outputs: int) -> nn.Module:
    linear = nn.Linear(inputs, outputs, bias=False)
    return linear if case.eight_bits is None else EightBitLinear(linear.weight, None, case.eight_bits)


class RankOfLlama(nn.Module):
    """Holds the last stage of a pipeline and, as a smaller part of its time, the first one's embedding."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        vocabulary = case.vocabulary // case.tensor_ranks
        self.ranks, self.fused = case.tensor_ranks, case.fused
        self.embedding = nn.Embedding(vocabulary, case.hidden)
        self.layers = nn.ModuleList([RankBlock(case) for _ in range(case.layers)])
        self.norm = _Weights(case.hidden)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens.view(-1)[: tokens.numel() // self.ranks])
        for layer in self.layers:
            x = layer(x)
        weight, x = self.embedding.weight, self.norm(x)
        logits = F.linear(x, weight) if self.ranks == 1 else _GatheredProduct.apply(x, weight, self.ranks)
        loss: Tensor = FusedLoss.apply(logits) if self.fused else _Loss.apply(logits.float(), targets.view(-1))
        return loss


def rank_parts(case: Case) -> tuple[nn.Module, list[Any], tuple[Any, Any]]:
    """Returns the model, the parts of a step, and what else is held: nothing that a model's peak should count."""
    model = RankOfLlama(case).to(torch.bfloat16)
    tokens = torch.empty(case.batch, case.length, dtype=torch.int64)
    weights = list(model.parameters())
    wide = [torch.empty_like(weight, dtype=torch.float32).requires_grad_() for weight in weights]
    summed = [torch.zeros_like(master) for master in wide]
    optimizer = torch.optim.AdamW(wide, lr=1e-4, fused=True)
    losses: list[Tensor] = []

    def forward() -> None:
        losses.append(model(tokens, tokens))

    def added_to(sum_of: Tensor) -> Any:
        def add(weight: Tensor) -> None:
            assert weight.grad is not None
            if not case.fused:
                sum_of.add_(weight.grad)
            weight.grad = None

        return add

    for weight, sum_of in zip(weights, summed):
        weight.register_post_accumulate_grad_hook(added_to(sum_of))

    def backward() -> None:
        losses.pop().backward()

    def update() -> None:
        for master, gradient in zip(wide, summed):
            master.grad = gradient
        nn.utils.clip_grad_norm_(wide, 1.0)
        optimizer.step()

    return model, [forward, backward, update], (None, (tokens, tokens))

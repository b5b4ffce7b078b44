"""Implements ALBERT's parameter sharing (Lan et al., ICLR 2020, section 3.1): one block's parameters for all layers.

    x[l+1] = f(x[l]; theta)        with one theta for every l; d loss / d theta is the sum over layers

and, as an option, its factorised embedding: a table of V x E and a matrix E x H in place of a table of V x H. Compute
and activations stay what they were; parameters, gradients, optimizer state and what data parallelism sends shrink.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.technique import Technique
from suite.model.anatomy import Anatomy, Block, anatomy, is_linear

Share = Literal["all", "attention", "ffn"]


def block_parameters(width: int) -> int:
    """Counts the scalars of one of BERT's blocks: 12 H^2 + 13 H."""
    return 12 * width**2 + 13 * width


def albert_parameters(vocabulary: int, embedding: int, width: int, positions: int = 512) -> int:
    """Counts the scalars of ALBERT's encoder (table 1): tables of tokens, positions and two segments of E, their norm,
    the projection to H, one block, the pooler."""
    tables = (vocabulary + positions + 2 + 2) * embedding + embedding * width + width
    return tables + block_parameters(width) + width**2 + width


@torch.no_grad()
def share(blocks: list[nn.Module], names: list[str]) -> None:
    """Makes every block's parameters of these ``names`` the first's from now on."""
    for name in names:
        path, _, last = name.rpartition(".")
        first = getattr(blocks[0].get_submodule(path), last)
        for block in blocks[1:]:
            setattr(block.get_submodule(path), last, first)


class FactorisedEmbedding(nn.Module):
    """Has a table of V x E and a projection to H; drawn so that a row has the spread of the table that it replaces."""

    def __init__(self, table: nn.Embedding, size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(table.num_embeddings, size, table.padding_idx)
        self.projection = nn.Linear(size, table.embedding_dim, bias=False)
        spread = table.weight.detach().std()
        nn.init.normal_(self.projection.weight, std=size**-0.5)
        with torch.no_grad():
            self.table.weight.normal_().mul_(spread)
        self.to(table.weight.device, table.weight.dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps int64 [...] -> [..., H]."""
        out: Tensor = self.projection(self.table(tokens))
        return out


class FactorisedHead(nn.Module):
    """Wraps the output layer that shares a factorised embedding: [..., H] -> [..., V]."""

    def __init__(self, embedding: FactorisedEmbedding, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.embedding, self.bias = embedding, bias
        self.in_features, self.out_features = embedding.projection.out_features, embedding.table.num_embeddings

    def forward(self, hidden: Tensor) -> Tensor:
        small = F.linear(hidden, self.embedding.projection.weight.T)
        return F.linear(small, self.embedding.table.weight, self.bias)


@dataclass
class AlbertSharing(Technique):
    """Shares what ``share`` names: all of a block, its attention's matrices alone, or those of its feed-forward layer
    (table 5 of the paper has all three). ``embedding`` is E, 0 for a table that stays as it is; the paper's is 128. A
    model's encoder and decoder have a block each."""

    share: Share = "all"
    embedding: int = 0

    def __post_init__(self) -> None:
        if self.share not in get_args(Share):
            raise ValueError(f"share must be all, attention or ffn, not {self.share!r}")
        if self.embedding < 0:
            raise ValueError(f"embedding is a size of 1 or more, or 0 for none, not {self.embedding}")

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        parts = anatomy(model)
        for stack in parts.stacks:
            stack.check_alike()
            share([block.module for block in stack.blocks], list(shared_names(stack.blocks[0], self.share)))
        if self.embedding:
            factorise(parts, self.embedding)
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        blocks = {block.path: block.module for block in run.anatomy.every_block}
        shared = {
            f"{stack.blocks[0].path}.{name}": stack.blocks[0].module.get_parameter(name)
            for stack in run.anatomy.stacks
            for name in shared_names(stack.blocks[0], self.share)
        }
        tables = {name: module for name, module in run.model.named_modules() if isinstance(module, FactorisedEmbedding)}
        return {**blocks, **{name: value for name, value in shared.items() if value.requires_grad}, **tables}


def shared_names(block: Block, what: Share) -> Iterator[str]:
    """Yields the names, within the block, of the parameters that are shared."""
    linears = {"all": None, "attention": block.attention_linears, "ffn": block.mlp_linears}[what]
    wanted = None if linears is None else {id(parameter) for part in linears for parameter in part.module.parameters()}
    for name, parameter in block.module.named_parameters():
        if wanted is None or id(parameter) in wanted:
            yield name


def factorise(parts: Anatomy, size: int) -> None:
    """Factorises the largest table outside the blocks, and the output layer that it is tied to.

    Raises ValueError where there is none, or where V E + E H is no less than V H.
    """
    tables = [(part.path, part.module) for part in parts.embeddings if isinstance(part.module, nn.Embedding)]
    if not tables:
        raise ValueError("the model looks nothing up in a table, so there is none to factorise: set embedding to 0")
    path, table = max(tables, key=lambda entry: entry[1].weight.numel())
    rows, width = table.weight.shape
    if size * (rows + width) >= rows * width:
        raise ValueError(
            f"a table of {rows} x {width} has no more parameters than {rows} x {size} and {size} x {width}: set "
            "embedding to 0, or to less"
        )
    factors = FactorisedEmbedding(table, size)
    tied = [
        name
        for name, module in parts.model.named_modules()
        if is_linear(module) and getattr(module, "weight", None) is table.weight
    ]
    for name in tied:
        parts.replace(name, FactorisedHead(factors, getattr(parts.model.get_submodule(name), "bias", None)))
    parts.replace(path, factors)

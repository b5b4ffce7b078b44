"""DOTA: a small detector of low rank and few bits, trained beside the model, says which keys each query attends to.

Qu, Liu, Tu, Chen, Ding & Xie, "DOTA: Detect and Omit Weak Attentions for Scalable Transformer Acceleration" (ASPLOS
2022); the algorithm in more detail in Liu, Qu, Chen, Ding & Xie, "Transformer Acceleration with Dynamic Sparse
Attention" (arXiv 2110.11299):

    P    sqrt(3 / k) times -1, 0 or 1 with probability 1/6, 2/3, 1/6; fixed        Achlioptas (2003)
    S'   (X P W_Q)(X P W_K)^T, both sides in 4 bits; W_Q, W_K [k, k] of each head are trained
    L    the task's loss + weight * mean (S - S')^2
    M    the r largest S' of each row: as many for every query
    O    softmax(S over M) V

X is what comes into the attention. A pre-trained model and its detectors are fine-tuned together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from suite.loop.data import Batch
from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.technique import ParameterGroups, with_auxiliary
from suite.model.anatomy import anatomy
from suite.model.attention import eager
from techniques.attention.dota.loads import in_order, out_of_order
from techniques.attention.shared.by_blocks import ByBlocks
from techniques.attention.shared.kept_pairs import Pairs, largest_kept, pairs_of
from techniques.attention.shared.masking import KeptPairs
from techniques.attention.shared.taking_over import try_out

PROJECTION = "dota_projection"  # buffer [model width, k]
QUERY, KEY = "dota_query", "dota_key"  # parameters [heads, k, k]


def ternary(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Draws P [rows, columns], float32: products of projected vectors are the vectors' own on average."""
    drawn = torch.randint(6, (rows, columns), generator=generator)
    signs = (drawn == 0).float() - (drawn == 1).float()
    return signs * (3 / columns) ** 0.5


def fake_quantised(x: Tensor, bits: int) -> Tensor:
    """Returns ``x`` at 2^bits - 1 levels up to its largest number; the gradient passes straight through."""
    levels = 2 ** (bits - 1) - 1
    step = x.detach().abs().amax().clamp(min=1e-30) / levels
    return x + ((x / step).round() * step - x).detach()


def detected(x: Tensor, projection: Tensor, query: Tensor, key: Tensor, bits: int) -> Tensor:
    """Computes S' [batch, heads, tokens, tokens] for ``x`` [batch, tokens, model width]; ``query``, ``key`` [heads, k,
    k]."""
    narrow = (x.float() @ projection)[:, None]
    of_query, of_key = (fake_quantised(narrow @ weight.float(), bits) for weight in (query, key))
    return of_query @ of_key.transpose(-2, -1)


def came_in(x: Tensor, query: Tensor, key: Tensor) -> bool:
    """Tells whether ``x`` has the tokens of all queries and of all keys [batch, heads, tokens, width]."""
    return x.shape[:-1] == (len(query), query.shape[2]) and key.shape[2] == query.shape[2]


def detector_cost(tokens: int, width: int, heads: int, rank: int, bits: int) -> float:
    """Returns the multiplications of a detector, weighed by bits times bits, over those of dense attention in 16 by 16
    bits; the ternary projection only adds."""
    own = heads * (2 * tokens * rank**2 + tokens**2 * rank)
    return own * bits**2 / (2 * tokens**2 * width * 16**2)


@dataclass
class Dota(ByBlocks, KeptPairs):
    """``retention`` r over the keys; ``rank`` k over a head's width; ``weight`` of the detectors' loss. With ``pull``
    that loss also draws the model's scores to the detected ones."""

    retention: float = 0.25
    rank: float = 0.25
    bits: int = 4
    weight: float = 1.0
    pull: bool = False
    zero_strength: ClassVar[Mapping[str, Any]] = {"retention": 1.0}

    shapes: dict[str, tuple[int, int, int]] | None = field(init=False, repr=False, default=None)  # while it measures
    errors: dict[str, Tensor] = field(init=False, repr=False, default_factory=dict)  # of this pass, by layer

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.retention <= 1:
            raise ValueError(f"retention is the share of keys that a query keeps, in (0, 1], not {self.retention:g}")
        if not 0 < self.rank <= 1:
            raise ValueError(f"rank is a share of a head's width, in (0, 1], not {self.rank:g}")
        if not 2 <= self.bits <= 16:
            raise ValueError(f"a signed integer of the detector has 2 to 16 bits, not {self.bits}")
        if self.weight <= 0:
            raise ValueError(f"weight of the detectors' loss is above 0, not {self.weight:g}: else nothing trains them")

    def equip(self, model: nn.Module, run: Run) -> None:
        for path, (heads, head_width, width) in self.measured(model, run).items():
            layer, k = model.get_submodule(path), max(1, round(self.rank * head_width))
            like = next(model.parameters())
            layer.register_buffer(PROJECTION, ternary(width, k, run.generator).to(like.device))
            for name in (QUERY, KEY):
                drawn = torch.randn(heads, k, k, generator=run.generator) / k**0.5
                layer.register_parameter(name, nn.Parameter(drawn.to(like.device)))

    def parameters(self, groups: ParameterGroups, run: Run) -> ParameterGroups:
        return with_auxiliary(groups, self.detectors(run).values())

    def detectors(self, run: Run) -> dict[str, nn.Parameter]:
        """Returns the trained matrices, by name."""
        return {
            f"{block.attention.path}.{name}": block.attention.module.get_parameter(name)
            for block in (() if self.is_reference else run.anatomy.attending_blocks)
            for name in (QUERY, KEY)
        }

    def tried(self, model: nn.Module, run: Run) -> None:
        super().tried(model, run)
        self.errors.clear()

    def measured(self, model: nn.Module, run: Run) -> dict[str, tuple[int, int, int]]:
        """Returns the heads, their width and the model's, of each attention. Raises ValueError where its input is no
        row of tokens."""
        shapes: dict[str, tuple[int, int, int]] = {}
        self.shapes = shapes
        try:
            with torch.no_grad():
                try_out(anatomy(model), {}, lambda: run.trial(model))
        finally:
            self.shapes = None
        if lacking := [path for path in self.acts if path not in shapes]:
            raise ValueError(
                f"dota detects from the tokens that come into an attention, as many as queries and as keys, and "
                f"{lacking[0]} has others: take a model without pooled or rearranged tokens"
            )
        return shapes

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Tensor | None,
        causal: bool,
        scale: float,
        dropout_p: float,
    ) -> Tensor:
        arguments: dict[str, Any] = {"mask": mask, "causal": causal, "scale": scale, "dropout_p": dropout_p}
        if self.shapes is not None:
            if self.now and self.came is not None and came_in(self.came, query, key):
                self.shapes[self.now[0]] = query.shape[1], query.shape[3], self.came.shape[-1]
            return eager(query, key, value, **arguments)
        if self.now is not None and self.came is not None and not came_in(self.came, query, key):
            raise ValueError(
                f"dota detects from the tokens that come into an attention, and {self.came.shape[-2]} came into "
                f"{self.now[0]} for {query.shape[2]} queries and {key.shape[2]} keys: those of a cache are not among "
                "them, so call the model on whole rows, with use_cache=False"
            )
        if self.now is not None and torch.is_grad_enabled():
            path, layer = self.now
            self.errors[path] = self.error(layer, pairs_of(query, key, mask, causal, scale))
        return super().attention(query, key, value, **arguments)

    def scores(self, layer: nn.Module) -> Tensor:
        """Returns S' of the attention that computes."""
        assert self.came is not None
        query, key = getattr(layer, QUERY), getattr(layer, KEY)  # a pass with other values has tensors there
        return detected(self.came, layer.get_buffer(PROJECTION), query, key, self.bits)

    def error(self, layer: nn.Module, pairs: Pairs) -> Tensor:
        """Returns mean (S - S')^2 over the pairs that may attend."""
        with torch.autocast(pairs.query.device.type, enabled=False):
            exact = pairs._replace(query=pairs.query.float(), key=pairs.key.float()).scores
            off = self.scores(layer) - (exact if self.pull else exact.detach())
            visible = pairs.visible.expand(pairs.shape)
            return off.masked_fill(~visible, 0.0).square().sum() / visible.sum()

    def pair_mask(self, layer: nn.Module, pairs: Pairs) -> Tensor:
        count = round(self.retention * pairs.longest)
        if not count:
            raise ValueError(
                f"retention={self.retention:g} of {pairs.longest} keys is none: give {1 / pairs.longest:.3g} or more"
            )
        return largest_kept(self.scores(layer), pairs.visible.expand(pairs.shape), count)

    def loss(self, loss: Tensor, outputs: Any, batch: Batch, run: Run) -> Tensor:
        if not self.errors:
            return loss
        added = torch.stack(list(self.errors.values())).mean()
        self.errors.clear()
        return loss + self.weight * added

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {**super().sites(run), **self.detectors(run)}

    def described(self, pairs: Pairs, value: Tensor, mask: Tensor) -> Mapping[str, float]:
        """Adds the loads of keys out of order and in order, over one load for each kept pair, of the first mask."""
        first = mask[0, 0]
        loads = {"loads": out_of_order(first), "loads_in_order": in_order(first)}
        over = {name: load / first.sum().item() for name, load in loads.items()}
        return {**super().described(pairs, value, mask), **over}

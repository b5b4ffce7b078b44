"""RigL (Evci et al., ICML 2020, algorithm 1): sparse from start to end, with a topology that follows the gradient.

Every ``interval`` steps each layer drops its k smallest weights and grows the k connections with the largest gradient;
k anneals to zero at ``end_fraction`` of training. Masked weights are zeros in dense tensors, so this saves no time: a
probe counts the FLOPs that a sparse kernel would do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from suite.contract.run import Run
from suite.contract.sites import Act, Site
from suite.contract.technique import Technique
from suite.model.anatomy import Anatomy, anatomy
from techniques.sparse_training.rigl.densities import erk_densities, random_mask, uniform_densities

Distribution = Literal["uniform", "erk"]
MASK = "rigl_mask"  # the buffer beside a masked weight


def drop_fraction(step: int, end: float, alpha: float) -> float:
    """f_decay(t) = alpha / 2 (1 + cos(pi t / T_end)), equation 1."""
    return alpha / 2 * (1 + math.cos(math.pi * min(step / end, 1.0)))


def moved_topology(weight: Tensor, gradient: Tensor, mask: Tensor, count: int) -> Tensor:
    """The mask after ``count`` drops by smallest |weight| and as many growths by largest |dense gradient|.

    A connection dropped now may be grown at once (algorithm 1 excludes only the kept ones). Shapes are equal, the mask
    is boolean; the number of ones stays.
    """
    magnitude = weight.abs().masked_fill(~mask, math.inf).flatten()
    kept = mask.flatten().clone()
    kept[magnitude.topk(count, largest=False).indices] = False
    candidates = gradient.abs().flatten().masked_fill(kept, -1.0)
    kept[candidates.topk(count).indices] = True
    return kept.view_as(mask)


def counted_flops(sparse: float, topology_updates: int, weight_updates: int) -> float:
    """Training FLOPs over dense ones of ``sparse``, the share of kept weights, section 3: the forward and both backward
    products are sparse, but on an update of the topology the weight gradient is dense."""
    spent = topology_updates * (2 * sparse + 1) + weight_updates * 3 * sparse
    return spent / (3 * (topology_updates + weight_updates))


@dataclass
class RigL(Technique):
    """Masks the attention and MLP matrices of all blocks, where they are trained.

    ``interval`` 0 chooses the paper's 100 steps, or less in a short run: so many that about 25 updates fit, since with
    fewer the topology hardly moves. It is never below 2, because an update takes the place of a weight update.
    """

    sparsity: float = 0.8
    distribution: Distribution = "erk"
    alpha: float = 0.3
    end_fraction: float = 0.75
    interval: int = 0
    zero_strength: ClassVar[Mapping[str, Any]] = {"sparsity": 0.0}

    topology_updates: int = field(init=False, default=0)
    weight_updates: int = field(init=False, default=0)
    applied: Act = field(init=False, repr=False, default_factory=Act)

    def __post_init__(self) -> None:
        if not 0 <= self.sparsity < 1:
            raise ValueError(f"sparsity is the share of zeros, in [0, 1), not {self.sparsity}")
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha is the share of connections first moved, in [0, 1], not {self.alpha}")
        if not 0 <= self.end_fraction <= 1:
            raise ValueError(f"end_fraction is a share of the steps, in [0, 1], not {self.end_fraction}")
        if self.interval < 0 or self.interval == 1:
            raise ValueError(f"interval is 2 steps or more, or 0 to choose it by the run's length, not {self.interval}")

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if not self.sparsity:
            return model
        linears: list[Any] = [part.module for part in anatomy(model).linears if part.module.weight.requires_grad]
        densities = erk_densities if self.distribution == "erk" else uniform_densities
        shapes = [tuple(linear.weight.shape) for linear in linears]
        for linear, density in zip(linears, densities(shapes, self.sparsity), strict=True):
            mask = random_mask(linear.weight.shape, density, run.generator).to(linear.weight.device)
            linear.weight.data.mul_(mask)
            linear.register_buffer(MASK, mask)  # beside its weight, so that saving and copying a block take it along
        return model

    @torch.no_grad()
    def after_backward(self, run: Run) -> bool:
        if not self.sparsity:
            return False
        if run.gradients_sharded:
            raise ValueError("rigl compares whole gradients; it cannot follow a technique that shards them")
        end = self.end_fraction * run.recipe.steps
        moves = run.step < end and run.step % self.steps_between(run.recipe.steps) == 0
        if moves:
            for weight, mask in masked(run.anatomy):
                if weight.grad is None:  # of an expert without a token
                    continue
                count = int(drop_fraction(run.step, end, self.alpha) * int(mask.sum()))
                new = moved_topology(weight, weight.grad, mask, count)
                # grown connections start at zero, weight and optimizer state; dropped ones leave none behind
                for tensor in (weight, *slots(run, weight)):
                    tensor.mul_(mask & new)
                mask.copy_(new)
            self.topology_updates += 1
        else:
            self.weight_updates += 1
        for weight, mask in masked(run.anatomy):
            if weight.grad is not None:
                weight.grad.mul_(mask)
                self.applied()
        return moves  # the algorithm's "else": a step moves connections or weights, not both

    @torch.no_grad()
    def after_step(self, run: Run) -> None:
        if self.sparsity:
            for weight, mask in masked(run.anatomy):
                weight.mul_(mask)  # an optimizer may move a weight without a gradient

    def steps_between(self, steps: int) -> int:
        return self.interval or max(2, min(100, round(self.end_fraction * steps / 25)))

    def sites(self, run: Run) -> Mapping[str, Site]:
        """The trained matrices. Raises ValueError where all are frozen: no update would follow the topology's."""
        matrices = {id(weight) for weight, _ in masked(run.anatomy)}
        weights = {name: each for name, each in run.trained_parameters().items() if id(each) in matrices}
        if not weights:
            raise ValueError(
                "rigl moves connections of weights that train, and none of the blocks' matrices does: leave out the "
                "technique that freezes them, or rigl"
            )
        return {"masks gradients": self.applied, **weights}

    def probes(self, run: Run) -> dict[str, float]:
        """``relative_flops``: what the run's steps cost a sparse kernel, over dense ones."""
        if not self.topology_updates + self.weight_updates:
            return {}
        pairs = masked(run.anatomy)
        density = sum(int(mask.sum()) for _, mask in pairs) / sum(mask.numel() for _, mask in pairs)
        return {"relative_flops": counted_flops(density, self.topology_updates, self.weight_updates)}

    def state(self) -> dict[str, Any]:
        return {"topology_updates": self.topology_updates, "weight_updates": self.weight_updates}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        self.topology_updates, self.weight_updates = state["topology_updates"], state["weight_updates"]


def masked(parts: Anatomy) -> list[tuple[nn.Parameter, Tensor]]:
    """Weight and mask of all attention and MLP layers that are trained, in the model's order.

    Raises ValueError where a layer came after the masks.
    """
    pairs: list[tuple[nn.Parameter, Tensor]] = []
    for path, module in parts.linears:
        linear: Any = module
        if not linear.weight.requires_grad:
            continue
        mask = getattr(linear, MASK, None)
        if mask is None:
            raise ValueError(f"{path} has no sparsity mask: put rigl after the technique that made this layer")
        pairs.append((linear.weight, mask))
    return pairs


def slots(run: Run, weight: nn.Parameter) -> list[Tensor]:
    """The optimizer's state tensors that hold one number per entry of ``weight``."""
    state = run.optimizer.state.get(weight, {})
    return [each for each in state.values() if isinstance(each, Tensor) and each.shape == weight.shape]

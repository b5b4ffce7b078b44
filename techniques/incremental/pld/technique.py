"""Progressive layer dropping (Zhang & He, NeurIPS 2020): a block runs with a probability that falls in time and depth.

At step t of T, block i of L, counted from 1, is kept with probability p_i, one draw for both of its branches:

    theta(t) = (1 - theta) exp(-gamma t / T) + theta        p_i = 1 - i / L (1 - theta(t))        G ~ Bernoulli(p_i)
    x' = x + G / p_i Attention(LN(x))                       x'' = x' + G / p_i MLP(LN(x'))

A block that is dropped does not run, forwards or backwards, and its weights stay as they are. None is dropped at
evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, ClassVar

from torch import Tensor, nn

from suite.loop.data import mixed_seed
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from suite.model.anatomy import Anatomy, Part, anatomy
from suite.model.branches import branch_ends
from suite.model.skipping import check_skippable, skipping


def keep_rate(progress: float, floor: float, gamma: float) -> float:
    """Computes theta(t) for t / T = ``progress``: from 1 down to ``floor``."""
    return (1 - floor) * math.exp(-gamma * progress) + floor


def keep_probabilities(theta: float, depth: int) -> list[float]:
    """Computes p_i of each of ``depth`` blocks, the first one's first: 0.5, 4 -> [0.875, 0.75, 0.625, 0.5]."""
    return [1 - number / depth * (1 - theta) for number in range(1, depth + 1)]


def drawn(probabilities: Sequence[float], seed: int, step: int) -> list[bool]:
    """Tells whether each block is kept: one draw a block, of seed and step alone, so that all ranks and a resumed run
    agree.

    Python's generator and not torch's: the step can be counted without values.
    """
    random = Random(mixed_seed(seed, 5, step))
    return [random.random() < probability for probability in probabilities]


@dataclass
class ProgressiveLayerDropping(Technique):
    """``theta`` is what the keep rate falls to, ``gamma`` how fast: by a factor e in 1 / ``gamma`` of the run."""

    theta: float = 0.5
    gamma: float = 100.0
    zero_strength: ClassVar[Mapping[str, Any]] = {"theta": 1.0}

    dropped: Act = field(init=False, repr=False, default_factory=lambda: Act(due="run"))
    blocks: list[nn.Module] = field(init=False, repr=False, default_factory=list)
    ends: list[tuple[Part, ...]] = field(init=False, repr=False, default_factory=list)  # of each block's branches

    def __post_init__(self) -> None:
        if not 0 < self.theta <= 1:
            raise ValueError(
                f"theta is the share of the last block's steps that it runs in, in (0, 1], not {self.theta}"
            )
        if not self.gamma > 0:
            raise ValueError(f"gamma must be positive (100 is the paper's), not {self.gamma}")

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if self.is_reference:
            return model
        if run.mesh is not None:
            raise ValueError("pld leaves parameters without gradients, which ranks wait for: use a single process")
        if run.recipe.compile:
            raise ValueError("pld runs other blocks in each step, which torch.compile would compile anew: use modern")
        self.look(model, anatomy(model), run)
        return model

    def look(self, model: nn.Module, parts: Anatomy, run: Run) -> None:
        """Learns where the branches of the main stack end. Raises ValueError where a block cannot be left out."""
        check_skippable(model, parts.blocks, partial(run.trial, model))
        self.blocks = [block.module for block in parts.blocks]
        self.ends = branch_ends(model, parts.blocks, partial(run.trial, model))

    def around_step(self, run: Run) -> AbstractContextManager[Any]:
        if self.is_reference:
            return nullcontext()
        if self.blocks != [block.module for block in run.anatomy.blocks]:  # another technique has made it deeper
            self.look(run.model, run.anatomy, run)
        return self.switched(run.model, *self.gates(run.seed, run.step, run.recipe.steps))

    def gates(self, seed: int, step: int, steps: int) -> tuple[list[float], list[bool]]:
        """Returns p of each block in the step after ``step`` of ``steps``, and whether it is kept."""
        theta = keep_rate(step / steps, self.theta, self.gamma)
        probabilities = keep_probabilities(theta, len(self.blocks))
        return probabilities, drawn(probabilities, seed, step)

    @contextmanager
    def switched(self, model: nn.Module, probabilities: Sequence[float], gates: Sequence[bool]) -> Iterator[None]:
        """While active, blocks run where ``gates`` says so, their branches times 1 / p."""
        with ExitStack() as stack:
            stack.enter_context(skipping([block for block, keeps in zip(self.blocks, gates, strict=True) if not keeps]))
            for ends, probability, keeps in zip(self.ends, probabilities, gates, strict=True):
                for end in ends if keeps else ():
                    branch = model.get_submodule(end.path)
                    stack.callback(branch.register_forward_hook(partial(_scaled, 1 / probability)).remove)
            yield
        if not all(gates):
            self.dropped()

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {**{block.path: block.module for block in run.anatomy.blocks}, "drops blocks": self.dropped}


def _scaled(factor: float, module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * factor

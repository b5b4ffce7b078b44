"""Implements progressive stacking (Gong et al., ICML 2019, algorithm 1): train a shallow model, then double it by
copying blocks.

From L to 2 L blocks, block i + L starts as a copy of block i. The schedule is that of the paper's script for BERT-base:
3 blocks for 50 of 400 thousand updates, 6 blocks up to 120, then all 12. Doubling does not preserve the function.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from suite.model.anatomy import anatomy


def depths(full: int, stages: int) -> list[int]:
    """Returns the blocks of each stage: ``full`` halved ``stages`` times, rounded up, shallowest first. 12, 2 -> [3, 6,
    12]."""
    return [math.ceil(full / 2**halvings) for halvings in range(stages, -1, -1)]


def sources(shallow: int, deep: int) -> list[int]:
    """Tells which block each of the ``deep`` blocks starts from: i mod ``shallow``."""
    return [index % shallow for index in range(deep)]


@dataclass
class ProgressiveStacking(Technique):
    """Makes ``stages`` doublings, at the last ``stages`` of ``fractions`` (shares of the steps).

    ``carry_optimizer`` copies the optimizer's state with the blocks in place of the paper's reset.
    """

    stages: int = 2
    fractions: tuple[float, ...] = (50 / 400, 120 / 400)
    carry_optimizer: bool = False
    zero_strength: ClassVar[Mapping[str, Any]] = {"stages": 0}

    growth: Act = field(init=False, repr=False, default_factory=lambda: Act(due="run"))
    depth: int = field(init=False, default=0)
    full_depth: int = field(init=False, default=0)
    loss_before: Tensor | None = field(init=False, default=None)  # of the step before a doubling, float64
    loss_jump: Tensor | None = field(init=False, default=None)  # of the first loss after the last doubling, float64

    def __post_init__(self) -> None:
        if not 0 <= self.stages <= len(self.fractions):
            raise ValueError(f"{self.stages} stages need as many fractions, from 0; there are {len(self.fractions)}")
        if list(self.fractions) != sorted(self.fractions) or not all(0 < fraction < 1 for fraction in self.fractions):
            raise ValueError(f"fractions are increasing shares of the steps, between 0 and 1, not {self.fractions}")

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if run.mesh is not None:
            raise ValueError("progressive_stacking changes the model while it trains: use it in a single process")
        parts = anatomy(model)
        self.full_depth = parts.depth
        self.depth = depths(parts.depth, self.stages)[0]
        if self.stages:
            if self.depth == self.full_depth:
                raise ValueError(f"{parts.main.path} has {self.depth} block: there is no shallower stack to start from")
            parts.main.check_alike()
            parts.set_blocks([block.module for block in parts.blocks[: self.depth]])
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {**{block.path: block.module for block in run.anatomy.blocks}, "growth": self.growth}

    def after_step(self, run: Run) -> None:
        if self.loss_before is not None:
            self.loss_jump, self.loss_before = run.loss.double() - self.loss_before, None
        planned = self.planned_depth(run.step, run.recipe.steps)
        if planned > self.depth:
            self.loss_before = run.loss.double()
            self.grow(run, planned)

    def planned_depth(self, step: int, steps: int) -> int:
        """Returns the number of blocks after ``step`` of ``steps`` steps."""
        ends = self.fractions[len(self.fractions) - self.stages :]
        passed = sum(step >= round(end * steps) for end in ends)
        return depths(self.full_depth, self.stages)[passed]

    def grow(self, run: Run, deep: int) -> None:
        """Stacks copies of the blocks up to ``deep`` of them; the run goes on with a fresh optimizer."""
        old = [block.module for block in run.anatomy.blocks]
        chosen = sources(len(old), deep)
        new = [old[source] if index < len(old) else copy.deepcopy(old[source]) for index, source in enumerate(chosen)]
        before: Optimizer = run.optimizer
        run.anatomy.set_blocks(new)
        run.adopt(run.model)
        self.growth()
        self.depth = deep
        if self.carry_optimizer:
            origin = dict(zip(_parameters(new), _parameters([old[source] for source in chosen]), strict=True))
            for parameter in run.model.parameters():
                state = before.state.get(origin.get(parameter, parameter))
                if state:
                    run.optimizer.state[parameter] = copy.deepcopy(state)

    def probes(self, run: Run) -> dict[str, float]:
        """Returns ``loss_jump``: by how much the loss rose at the last doubling."""
        return {} if self.loss_jump is None else {"loss_jump": float(self.loss_jump)}

    def state(self) -> dict[str, Any]:
        return {"depth": self.depth, "loss_before": self.loss_before, "loss_jump": self.loss_jump}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        if state["depth"] > self.depth:
            self.grow(run, state["depth"])
        self.loss_before, self.loss_jump = state["loss_before"], state["loss_jump"]


def _parameters(blocks: list[nn.Module]) -> list[nn.Parameter]:
    return [parameter for block in blocks for parameter in block.parameters()]

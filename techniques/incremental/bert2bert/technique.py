"""bert2BERT (Chen et al., ACL 2022, arXiv 2110.07143, section 3): a small model is trained first, and grown.

    width   g(i) = i mod d_s                                 the unit that unit i of the large model copies
            FPI:  U[i, j] = W_l[g(i), g(j)] / |{k: g(k) = g(j)}|
            AKI:  rows i < d_s as FPI; the new ones from W_(l+1), the same layer one block up
    depth   block i of the large model = block i mod L_s

FPI (function-preserving initialisation) computes what the small model did, but copies of a unit get equal gradients and
stay copies. AKI (advanced knowledge initialisation), the default, gives up the first for the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import nn

from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from suite.model.width import Narrowed
from techniques.incremental.shared.growth import (
    LossJump,
    carry_state,
    check_layout,
    check_single_process,
    grown,
    grown_state,
    narrowed,
    one_block_up,
    shallower,
    stack_copies,
)


@dataclass
class Bert2Bert(Technique):
    """For ``share`` of the steps a model trains with 1/``width`` of the width, heads and MLP units, and 1/``depth`` of
    the blocks; then it grows, by ``method``.

    ``carry_optimizer`` lets the optimizer's state grow with the model, in place of a fresh one.
    """

    share: float = 0.25
    width: int = 2
    depth: int = 1
    method: Literal["aki", "fpi"] = "aki"
    carry_optimizer: bool = False
    zero_strength: ClassVar[Mapping[str, Any]] = {"share": 0.0}

    growth: Act = field(init=False, repr=False, default_factory=lambda: Act(due="run"))
    full_depth: int = field(init=False, default=0)
    small: Narrowed | None = field(init=False, repr=False, default=None)  # until it grows
    jump: LossJump = field(init=False, default_factory=LossJump)

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ValueError(f"share is the part of the steps that the small model trains for, in [0, 1): {self.share}")
        if self.width < 2 or self.depth < 1:
            raise ValueError(
                f"the small model has 1/width of the width, from 2, and 1/depth of the blocks, from 1, not "
                f"1/{self.width} and 1/{self.depth}; progressive_stacking grows in depth alone"
            )

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if not self.share:
            return model
        check_single_process(run, "bert2bert")
        self.full_depth = shallower(model, self.depth)
        self.small = narrowed(model, dict.fromkeys(("residual", "heads", "units"), self.width), run.trial)
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        if self.small:
            check_layout(run, self.small, "bert2bert")
        return {**{block.path: block.module for block in run.anatomy.blocks}, "growth": self.growth}

    def after_step(self, run: Run) -> None:
        grows = self.small is not None and run.step >= round(self.share * run.recipe.steps)
        self.jump.step(run, grows)
        if grows:
            self.grow(run)

    def grow(self, run: Run) -> None:
        """Makes the model as wide and deep as the baseline's; the run goes on with it."""
        small, optimizer = self.small, run.optimizer
        assert small is not None
        own = dict(run.model.named_parameters())
        upper = one_block_up(run.model) if self.method == "aki" else {}
        plan = small.layout, small.sources, upper
        small.widen(grown({name: value.detach() for name, value in own.items()}, *plan))
        names = {parameter: name for name, parameter in run.model.named_parameters()}
        origin = stack_copies(run, self.full_depth)
        run.adopt(run.model)
        self.growth()
        self.small = None
        if self.carry_optimizer:
            states = grown_state(optimizer, own, *plan)
            carry_state(run, lambda parameter: states[names[origin.get(parameter, parameter)]])

    def probes(self, run: Run) -> dict[str, float]:
        """Returns ``loss_jump``: by how much the loss rose as the model grew."""
        return self.jump.probes()

    def state(self) -> dict[str, Any]:
        return {"grown": self.small is None, "jump": self.jump.state()}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        if state["grown"] and self.small is not None:
            self.grow(run)
        self.jump = LossJump(**state["jump"])

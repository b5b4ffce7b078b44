"""CompoundGrow (Gu et al., NAACL 2021, arXiv 2010.12562): depth, MLP width and input length start small together.

    stage       blocks        MLP units     tokens
    1           L / depth     d / ffn       T / length
    2           L, stacked    d / ffn       T / length
    3           L             d, copied     T

Depth grows by stacking, before the rest, as in the authors' code. The MLP grows by sharing parameters: W_1 is laid k
times side by side, W_2 too and divided by k, so that the function stays. The input is shortened by means over
neighbours, in which every position keeps a part; where a token must not see its successor, by shorter rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from suite.loop.data import Data
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from suite.model.width import Narrowed
from techniques.incremental.compound_grow.length import can_pool, through_pools, with_shorter_rows
from techniques.incremental.shared.growth import (
    LossJump,
    carry_state,
    check_layout,
    check_single_process,
    grown,
    grown_state,
    narrowed,
    shallower,
    stack_copies,
)


@dataclass
class CompoundGrow(Technique):
    """Trains, until the first of ``fractions`` of the steps, 1/``depth`` of the blocks, until the second 1/``ffn`` of
    the MLP units and 1/``length`` of the tokens.

    ``carry_optimizer`` lets the optimizer's state grow with the model, in place of a fresh one.
    """

    depth: int = 2
    ffn: int = 2
    length: int = 2
    fractions: tuple[float, ...] = (0.25, 0.5)
    carry_optimizer: bool = False
    zero_strength: ClassVar[Mapping[str, Any]] = {"depth": 1, "ffn": 1, "length": 1}

    growth: Act = field(init=False, repr=False, default_factory=lambda: Act(due="run"))
    shortening: Act = field(init=False, repr=False, default_factory=Act)
    stage: int = field(init=False, default=1)
    full_depth: int = field(init=False, default=0)
    small: Narrowed | None = field(init=False, repr=False, default=None)  # until its MLPs are whole
    pools: bool = field(init=False, default=False)  # whether inputs are shortened by means, or rows are cut
    whole_rows: Data | None = field(init=False, repr=False, default=None)  # while they are cut
    jump: LossJump = field(init=False, default_factory=LossJump)

    def __post_init__(self) -> None:
        if min(self.depth, self.ffn, self.length) < 1:
            raise ValueError(
                f"depth, ffn and length divide the blocks, the MLP units and the tokens: 1 or more, not {self.depth}, "
                f"{self.ffn} and {self.length}"
            )
        first, *_ = self.fractions or (0.0,)
        if len(self.fractions) != 2 or not 0 < first <= self.fractions[1] < 1:
            raise ValueError(
                f"fractions are where the blocks grow and where the rest does: two shares of the steps in (0, 1), the "
                f"second no smaller than the first, not {self.fractions}"
            )

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if self.is_reference:
            return model
        check_single_process(run, "compound_grow")
        self.full_depth = shallower(model, self.depth)
        if self.length > 1:
            self.pools = can_pool(model, run, self.length)
        if self.length > 1 and not self.pools:
            self.whole_rows, run.data = run.data, with_shorter_rows(run.data, self.length)
        if self.ffn > 1:
            self.small = narrowed(model, {"units": self.ffn}, run.trial)
        return model

    def around_step(self, run: Run) -> AbstractContextManager[Any]:
        if self.length == 1 or self.stage == 3:
            return nullcontext()
        self.shortening()
        if not self.pools:
            return nullcontext()
        return run.anatomy.segmented([(0, run.anatomy.depth)], through_pools(self.length))

    def sites(self, run: Run) -> Mapping[str, Site]:
        if self.small:
            check_layout(run, self.small, "compound_grow")
        acts = {"growth": self.growth} if self.depth * self.ffn > 1 else {}
        shortened = {"shortens the input": self.shortening} if self.length > 1 else {}
        return {**{block.path: block.module for block in run.anatomy.blocks}, **acts, **shortened}

    def after_step(self, run: Run) -> None:
        if self.is_reference:
            return
        planned = 1 + sum(run.step >= round(end * run.recipe.steps) for end in self.fractions)
        self.jump.step(run, grows=planned > self.stage)
        while self.stage < planned:
            self.enter(self.stage + 1, run)

    def enter(self, stage: int, run: Run) -> None:
        """The run goes on in this stage, with a fresh optimizer where the model has grown."""
        self.stage = stage
        if stage == 2 and self.depth > 1:
            self.deepen(run)
        if stage == 3:
            if self.whole_rows is not None:
                run.data = self.whole_rows
            if self.small is not None:
                self.widen(run, self.small)

    def deepen(self, run: Run) -> None:
        optimizer = run.optimizer
        origin = stack_copies(run, self.full_depth, self.small)
        run.adopt(run.model)
        self.growth()
        if self.carry_optimizer:
            carry_state(run, lambda parameter: optimizer.state.get(origin.get(parameter, parameter)))

    def widen(self, run: Run, small: Narrowed) -> None:
        optimizer, own = run.optimizer, dict(run.model.named_parameters())
        small.widen(grown({name: value.detach() for name, value in own.items()}, small.layout, small.sources, {}))
        names = {parameter: name for name, parameter in run.model.named_parameters()}
        run.adopt(run.model)
        self.growth()
        self.small = None
        if self.carry_optimizer:
            states = grown_state(optimizer, own, small.layout, small.sources, {})
            carry_state(run, lambda parameter: states[names[parameter]])

    def probes(self, run: Run) -> dict[str, float]:
        """Returns ``loss_jump``: by how much the loss rose at the last growth."""
        return self.jump.probes()

    def state(self) -> dict[str, Any]:
        return {"stage": self.stage, "jump": self.jump.state()}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        while self.stage < state["stage"]:
            self.enter(self.stage + 1, run)
        self.jump = LossJump(**state["jump"])

"""Is the base of techniques that plan: a profile of the model's chains, a solver's schedule within a budget, the one
engine.

    set-up     profile the chains ── solve within the budget
    each step  run the schedule on the model's own blocks

Gradients are the reference's to the bit, whatever the schedule: only time and memory change. A subclass has a
``solve`` (:class:`suite.chain.plan.Solver`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from suite.chain.chain import Chain, Link
from suite.chain.engine import is_tree, scheduled
from suite.chain.plan import Plan, budget_between, planned, why_no_schedule
from suite.chain.schedule import Schedule
from suite.chain.tiers import HostTier, Tier
from suite.loop.chains import blocks_of, chains_of
from suite.loop.run import Run
from suite.loop.sites import Act, NotAttached, Site
from suite.loop.technique import PLANS, Technique, Unavailable


@dataclass
class Scheduled(Technique):
    """Follows a schedule within ``budget``: a share of the way from the least peak of a pass, with everything computed
    again from the chain's input (0), to a plain pass's (1).

    ``seconds`` of the blocks are "counted" FLOPs, which give the same schedule everywhere, or "clocked" at set-up.
    """

    budget: float = 0.5
    seconds: Literal["counted", "clocked"] = "counted"

    zero_strength: ClassVar[Mapping[str, Any]] = {"budget": 1.0}
    takes: ClassVar[str] = PLANS

    plans: dict[tuple[int, ...], Plan] = field(init=False, repr=False, default_factory=dict)
    chains: list[Chain] = field(init=False, repr=False, default_factory=list)
    acts: dict[str, Act] = field(init=False, repr=False, default_factory=dict)
    second_tier: Tier | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if not 0 <= self.budget <= 1:
            raise ValueError(
                f"budget is a share of the way from the least peak (0) to a plain one's (1), not {self.budget}"
            )
        if self.seconds not in ("counted", "clocked"):
            raise ValueError(f"seconds are counted or clocked, not {self.seconds!r}")

    def solve(self, chain: Chain, budget_bytes: int, link: Link | None) -> Schedule:
        raise NotImplementedError

    def link(self) -> Link | None:
        """Returns the link to the second tier; None where there is none."""
        return None

    def tier(self) -> Tier:
        """Returns the second tier."""
        return HostTier()

    def budget_bytes(self, chains: Sequence[Chain]) -> int:
        """Computes the budget of one pass: activations, their gradients and those of the weights."""
        return budget_between(chains, self.budget)

    def plan(self, run: Run) -> Plan:
        """Plans the schedules for the stacks as deep as they are now."""
        depths = tuple(stack.depth for stack in run.anatomy.stacks)
        if depths not in self.plans:
            self.chains = self.profile(run)
            self.plans[depths] = planned(self, self.chains, self.budget_bytes(self.chains), self.link())
        return self.plans[depths]

    def profile(self, run: Run) -> list[Chain]:
        """Measures what the blocks cost on a batch of the run's own size. Leaves the run as it was."""
        return chains_of(run, on_the_clock=self.seconds == "clocked")

    @contextmanager
    def around_step(self, run: Run) -> Iterator[None]:
        with ExitStack() as contexts:
            if not self.is_reference:
                self._run_schedules(run, contexts)
            yield

    def _run_schedules(self, run: Run, contexts: ExitStack) -> None:
        schedules = self.plan(run).schedules
        if self.second_tier is None and any(schedule.moves for schedule in schedules):
            self.second_tier = self.tier()
        for stack, schedule, blocks in zip(run.anatomy.stacks, schedules, blocks_of(run), strict=True):
            acts = self.acts.setdefault(stack.path, Act())
            contexts.enter_context(scheduled(blocks, schedule, self.second_tier, acts, stack.path))

    def sites(self, run: Run) -> Mapping[str, Site]:
        if self.is_reference:
            return {}
        if run.recipe.compile:
            raise Unavailable("a schedule runs the blocks one by one; under torch.compile take ckpt_chen_sqrt")
        run.demand_whole("a schedule is of all blocks")
        schedules = self.plan(run).schedules
        if run.mesh is not None and not all(map(is_tree, schedules)):
            raise Unavailable(
                "this schedule runs blocks in graphs of their own, which the reduction's hooks do not see"
            )
        for stack, schedule in zip(run.anatomy.stacks, schedules, strict=True):
            if schedule.extra_forwards or schedule.moves:
                self.acts[stack.path] = Act()
        if not self.acts:
            name = next(name for name, technique in run.technique.techniques.items() if technique is self)
            raise NotAttached(f"{name}: {why_no_schedule(self.chains, self.budget_bytes(self.chains))}")
        return self.acts

"""Plans schedules: a solver makes a schedule of a chain, a budget in bytes and a link; a model's chains share one
budget.

A solver is a pure function. Its schedule's predicted peak is within the budget, or it raises Infeasible with the least
that it could do. All of them answer to one simulation, so that they can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from suite.chain.chain import Chain, Link
from suite.chain.schedule import TURN, Op, Schedule, plain, tidied
from suite.chain.simulate import Prediction, predicted

INNER_SHARES = (1.0, 0.6, 0.3, 0.1, 0.0)  # of what a later chain wants, for budgets that it is tried with


class Infeasible(ValueError):
    """Is raised where no schedule of this solver fits the budget.

    Attributes:
        what: the kind of schedule.
        least_bytes: the least budget that it could meet, as far as it knows.
        other_bytes: that of a schedule which is none of this solver's, where one is known.
    """

    def __init__(
        self, what: str, budget_bytes: int, least_bytes: int, other_bytes: float = math.inf, outside: str = ""
    ) -> None:
        """Takes ``outside``: a sentence about what lies outside of the blocks and does not fit."""
        advice = "raise the budget, or shrink the batch"
        if outside:
            advice = f"{outside}; {advice}"
        elif other_bytes <= budget_bytes:
            advice = (
                f"another schedule fits, in {_megabytes(other_bytes)}: raise the budget, or take another technique "
                "(leantrain plan compares them)"
            )
        super().__init__(
            f"{what} does not fit in {_megabytes(budget_bytes)}: its least is {_megabytes(least_bytes)}; {advice}"
        )
        self.what, self.least_bytes, self.other_bytes = what, least_bytes, other_bytes


def _megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:.6g} MB"


def step_peak_bytes(predictions: Sequence[Prediction]) -> int:
    """Returns the most bytes alive in a pass of several chains, each under its own schedule, weights and batch left
    out."""
    held, most = 0, 0
    for prediction in predictions:
        most = max(most, held + prediction.peak_bytes)
        held += prediction.turn_bytes
    return most


@runtime_checkable
class Solver(Protocol):
    """Plans schedules: a technique with this method."""

    def solve(self, chain: Chain, budget_bytes: int, link: Link | None) -> Schedule:
        """Returns a schedule whose predicted peak is at most ``budget_bytes``. Raises Infeasible."""


@dataclass(frozen=True)
class Plan:
    """Holds a schedule for each chain of a model, and what they cost together.

    Attributes:
        peak_bytes: most bytes alive in a pass, weights, optimizer state and batch left out.
        time_s: of the chains and their turns.
    """

    schedules: tuple[Schedule, ...]
    predictions: tuple[Prediction, ...]

    @property
    def peak_bytes(self) -> int:
        return step_peak_bytes(self.predictions)

    @property
    def time_s(self) -> float:
        return sum(prediction.time_s for prediction in self.predictions)


def plan_of(schedules: Sequence[Schedule], chains: Sequence[Chain], link: Link | None = None) -> Plan:
    """Returns the plan of these schedules, with their predicted costs. The gradients of weights that a later chain
    frees are not beside an earlier one's way back."""
    predictions: list[Prediction] = []
    gone = 0
    for schedule, chain in reversed(list(zip(schedules, chains, strict=True))):
        beside = tuple(replace(each, backward_bytes=each.backward_bytes - gone) for each in chain.beside)
        without = replace(chain, backward_bytes=chain.backward_bytes - gone, beside=beside)
        predictions.insert(0, predicted(schedule, without, link))
        gone += sum(chain.stages[block].gradient_bytes for block in schedule.freed)
    return Plan(tuple(schedules), tuple(predictions))


def unplanned(chains: Sequence[Chain]) -> Plan:
    """Plans what autograd does: every graph is kept."""
    return plan_of([plain(chain.depth) for chain in chains], chains)


def from_the_input(depth: int) -> Schedule:
    """Keeps x_0 alone, and computes every block's input again from it: L (L + 1) / 2 runs."""
    ops = [Op("run", i) for i in range(depth)] + [TURN]
    for i in reversed(range(depth)):
        ops += [*(Op("run", j) for j in range(i)), Op("save", i), Op("back", i)]
    return tidied(depth, ops)


def least(chains: Sequence[Chain]) -> Plan:
    """Returns the plan with the smallest peak without a second tier."""
    return plan_of([from_the_input(chain.depth) for chain in chains], chains)


def outside(chains: Sequence[Chain]) -> tuple[int, str]:
    """Returns the most bytes alive outside of the blocks, in their turns or beyond them, whatever their schedules; and
    of what."""
    turns = [(chain.turn_beside_bytes + chain.turn_peak_bytes, chain.turn_of) for chain in chains]
    return max((chains[0].outside_bytes, chains[0].outside_of), *turns, key=lambda peak: peak[0])


def why_no_schedule(chains: Sequence[Chain], budget_bytes: int) -> str:
    """Tells why every solver leaves a pass as it is within this budget: a sentence."""
    peak_bytes = unplanned(chains).peak_bytes
    outside_bytes, of = outside(chains)
    if outside_bytes >= peak_bytes:
        inside = unplanned([replace(chain, outside_bytes=0, turn_peak_bytes=0) for chain in chains]).peak_bytes
        return (
            f"the peak of a pass, {_megabytes(outside_bytes)}, is outside the blocks ({of}), and {_megabytes(inside)} "
            "in them: no schedule of the blocks lowers it; shrink what is outside, or leave this out"
        )
    if budget_bytes < peak_bytes:
        return (
            f"the blocks keep nothing that lowers the peak of a pass, {_megabytes(peak_bytes)}, if it is computed again"
            " or moved: no schedule of them helps; leave this out"
        )
    return (
        f"a plain pass, of {_megabytes(peak_bytes)}, fits the budget of {_megabytes(budget_bytes)}, so that there is "
        "nothing to do: lower the budget, or leave this out"
    )


def budget_between(chains: Sequence[Chain], share: float) -> int:
    """Returns a budget in bytes: that share of the way from the least peak without a second tier (0) to a plain pass's
    (1)."""
    low, high = least(chains).peak_bytes, unplanned(chains).peak_bytes
    return low + int(share * (high - low))


def by_peak(solver: Solver, chains: Sequence[Chain], budgets: Sequence[int], link: Link | None = None) -> list[Plan]:
    """Returns the solver's plans in these budgets, the plain one and the least: their :func:`frontier`.

    The fastest of them within a budget has never a higher peak where the budget is smaller; of a solver's own answers
    nobody promises that.
    """
    plans = [unplanned(chains), least(chains)]
    for budget in sorted(set(budgets)):
        with suppress(Infeasible):
            plans.append(plan_of(_solved(solver, chains, budget, link), chains, link))
    return frontier(plans)


def frontier(plans: Iterable[Plan]) -> list[Plan]:
    """Returns the plans worth having, from the fastest on, each with a lower peak than those before it; of equally fast
    ones first what moves least."""

    def rank(plan: Plan) -> tuple[float, int, int]:
        return plan.time_s, sum(prediction.out_bytes for prediction in plan.predictions), plan.peak_bytes

    front: list[Plan] = []
    for plan in sorted(plans, key=rank):
        if not front or plan.peak_bytes < front[-1].peak_bytes:
            front.append(plan)
    return front


def planned(solver: Solver, chains: Sequence[Chain], budget_bytes: int, link: Link | None = None) -> Plan:
    """Returns the plan of the solver's schedules for a model's chains, whose peak together is at most ``budget_bytes``.

    A later chain's pass lies in the earlier one's turn. So the later one gets several budgets, and the earlier one is
    solved with each of its peaks in its turn; the fastest pair is taken.

    Raises Infeasible; ValueError where a solver breaks its promise.
    """
    try:
        plan = plan_of(_solved(solver, chains, budget_bytes, link), chains, link)
    except Infeasible as error:
        raise _explained(error, chains, budget_bytes) from error
    if plan.peak_bytes > budget_bytes:
        raise ValueError(f"{type(solver).__name__} planned {plan.peak_bytes} bytes in a budget of {budget_bytes}")
    return plan


def _explained(error: Infeasible, chains: Sequence[Chain], budget_bytes: int) -> Infeasible:
    """Returns the refusal, with what no schedule helps against, or that another schedule fits."""
    outside_bytes, of = outside(chains)
    sentence = f"{_megabytes(outside_bytes)} are alive outside the blocks ({of}), so that no schedule of them helps"
    other_bytes = min(error.other_bytes, least(chains).peak_bytes)
    return Infeasible(
        error.what, budget_bytes, error.least_bytes, other_bytes, sentence if outside_bytes > budget_bytes else ""
    )


def _solved(solver: Solver, chains: Sequence[Chain], budget_bytes: int, link: Link | None) -> tuple[Schedule, ...]:
    first, rest = chains[0], chains[1:]
    if not rest:
        return (solver.solve(first, budget_bytes, link),)
    best: Plan | None = None
    failures: list[tuple[bool, int]] = []
    for share in INNER_SHARES:
        inner: Plan | None = None
        try:
            inner = plan_of(_solved(solver, rest, min(budget_between(rest, share), budget_bytes), link), rest, link)
            turn = max(first.turn_peak_bytes, inner.peak_bytes - first.turn_beside_bytes)
            outer = solver.solve(replace(first, turn_peak_bytes=turn), budget_bytes, link)
        except Infeasible as error:
            failures.append((inner is None, error.least_bytes))  # the whole model's least, where the later ones fit
            continue
        plan = plan_of([outer, *inner.schedules], chains, link)
        if best is None or plan.time_s < best.time_s:
            best = plan
        if best.schedules == unplanned(chains).schedules:
            break
    if best is None:
        raise Infeasible("any schedule of these chains", budget_bytes, min(failures)[1])
    return best.schedules

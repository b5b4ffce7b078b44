"""Checks whether a step, and plans within other budgets, are as fast as any schedule: against all of them, searched."""

from __future__ import annotations

import math
from collections.abc import Iterable

from suite.chain.chain import Chain
from suite.chain.exhaustive import fastest
from suite.chain.plan import Infeasible, budget_between
from suite.chain.simulate import predicted
from suite.reading.recording import Recording
from techniques.shared.recomputation_probes import order_of
from techniques.shared.scheduled import Scheduled

DEEPEST = 6  # blocks, of which every schedule can be searched
SHARES = (0.0, 0.1, 0.25, 0.4, 0.6, 0.8, 1.0)  # of the way from the least peak to a plain pass's


def over_fastest(recording: Recording, own: Scheduled, more: Iterable[Chain] = ()) -> dict[str, float]:
    """Computes ``over_fastest``: seconds of the blocks' runs in the recorded step, over those of the fastest of all
    schedules within the same bytes; ``planned_over_fastest``: of plans within other budgets; each of the chain farthest
    from 1; ``refused``: those budgets within which there is no plan. ``more``: chains that are planned, too. Empty
    where a chain is too deep to search all of its schedules.

    A single chain has the budget. Of several, which share it, each has what its own schedule takes.
    """
    run, plan = recording.run, own.plan(recording.run)
    if any(chain.depth > DEEPEST for chain in own.chains):
        return {}
    shares = []
    for stack, chain, prediction in zip(run.anatomy.stacks, own.chains, plan.predictions, strict=True):
        ran_s = sum(chain.stages[block].run_s for block in order_of(stack, recording.trace.ran))
        whole_s = ran_s + sum(stage.back_s for stage in chain.stages) + chain.turn_s
        alone = len(own.chains) == 1
        shares.append(whole_s / fastest(chain, own.budget_bytes([chain]) if alone else prediction.peak_bytes))
    plans = [_planned(own, chain, share) for chain in (*own.chains, *more) for share in SHARES]
    return {
        "over_fastest": _farthest(shares),
        "planned_over_fastest": _farthest([share for share in plans if share is not None]),
        "refused": plans.count(None),
    }


def _planned(own: Scheduled, chain: Chain, share: float) -> float | None:
    """Computes a plan's seconds over the fastest schedule's; infinite where it takes more bytes than it may."""
    budget_bytes = budget_between([chain], share)
    try:
        cost = predicted(own.solve(chain, budget_bytes, None), chain)
    except Infeasible:
        return None
    return cost.time_s / fastest(chain, budget_bytes) if cost.peak_bytes <= budget_bytes else math.inf


def _farthest(shares: list[float]) -> float:
    return max(shares, key=lambda share: abs(share - 1), default=math.inf)

"""Checks what a recorded step shows of rematerialisation by score, and whether plans of unlike blocks keep to the
scores."""

from __future__ import annotations

import random
from collections.abc import Mapping

from suite.chain.chain import Chain, Stage
from suite.chain.plan import Infeasible, unplanned
from suite.chain.schedule import every_input, segmented
from suite.chain.simulate import predicted
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.rematerialization.remat_heuristic.technique import RematHeuristic
from techniques.rematerialization.shared.fastest_probe import over_fastest
from techniques.shared.recomputation_probes import scheduled_probes

CHAINS, DEPTH = 20, 6
ROUNDINGS = 1e-12


@judged("changed", "The step's gradients are those of a plain pass, to the bit", "Section 1", id="same_gradients")
@judged(
    "changed_with_dropout",
    "Dropout leaves out the same values when a block runs again",
    "Section 1: recomputation changes no result",
    id="same_dropout",
    note="half of the values are dropped out in one more pass, since the small sizes drop none",
)
@judged(
    "beside_score",
    "What is dropped has the greatest bytes times lifetime over recompute time",
    "this suite's own",
    id="best_score_first",
    kind="counted",
    scope="module",
    note="graphs kept against the order, in plans of 20 random chains",
)
@judged(
    "unfit",
    "A plan fits wherever dropping every graph does",
    "this suite's own",
    id="fits_where_it_can",
    kind="counted",
    scope="module",
    note="plans of 20 random chains",
)
@judged(
    "over_fastest",
    "No faster than the optimal schedule, as the name heuristic says",
    "this suite's own",
    id="no_faster_than_the_optimum",
    at_least=0.999999999,
    kind="counted",
    note="against every schedule of blocks whose graphs stay whole",
)
def probes(recording: Recording, own: RematHeuristic) -> Mapping[str, float]:
    """Includes those of every technique that plans. For a claim, ``needless`` counts plans that fit the budget without
    their last drop."""
    chance = random.Random(0)
    chains = [_unlike(chance) for _ in range(CHAINS)]
    plans = [_plan(own, chain, chance.uniform(0.2, 0.9)) for chain in chains]
    return {
        **scheduled_probes(recording, own),
        **over_fastest(recording, own),
        "beside_score": sum(plan[0] for plan in plans),
        "needless": sum(plan[1] for plan in plans),
        "unfit": sum(plan[2] for plan in plans),
    }


def _plan(own: RematHeuristic, chain: Chain, share: float) -> tuple[int, bool, bool]:
    high = unplanned([chain]).peak_bytes
    low = predicted(every_input(chain.depth), chain).peak_bytes
    budget_bytes = low + int(share * max(0, high - low - 1))
    try:
        schedule = own.solve(chain, budget_bytes, None)
    except Infeasible:
        return 0, False, True
    scores = _scores(chain)
    gone = {op.block for op in schedule.forward if op.kind == "run"}
    rest = set(range(chain.depth)) - gone
    beside = sum(scores[i] > min(scores[j] for j in gone) * (1 + ROUNDINGS) for i in rest) if gone else 0
    once = schedule.extra_forwards == len(gone)  # no input is dropped, so that a graph was the last
    fewer = sorted(gone - {min(gone, key=scores.__getitem__)}) if gone else []
    before = predicted(segmented(chain.depth, [(i, i + 1) for i in fewer]), chain).peak_bytes
    return beside, bool(once and before <= budget_bytes), predicted(schedule, chain).peak_bytes > budget_bytes


def _scores(chain: Chain) -> list[float]:
    """Computes bytes times lifetime over recompute seconds of each block's graph."""
    scores, later_s = [0.0] * chain.depth, chain.turn_s
    for i in reversed(range(chain.depth)):
        stage = chain.stages[i]
        scores[i] = sum(stage.saved_bytes) * later_s / stage.save_s
        later_s += stage.save_s + stage.back_s
    return scores


def _unlike(chance: random.Random) -> Chain:
    def stage() -> Stage:
        output, saved, run_s = chance.randint(1, 9), chance.randint(20, 90), float(chance.randint(1, 9))
        return Stage(run_s, run_s, 2 * run_s, output, (saved,), output, output + saved, output)

    return Chain(tuple(stage() for _ in range(DEPTH)), chance.randint(1, 9), turn_s=1.0, turn_peak_bytes=9)

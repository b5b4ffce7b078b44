"""Tells what a recorded step shows of Capuchin: all that a planned step shows, and that hidden transfers come first."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from suite.chain.chain import Chain, Link
from suite.chain.plan import Infeasible
from suite.chain.schedule import every_input, plain
from suite.chain.simulate import predicted
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.offloading.capuchin.technique import Capuchin, hidden
from techniques.offloading.shared.offloaded import candidates, leaving
from techniques.offloading.shared.offloaded_probes import budgets, even_link, left_in, times
from techniques.shared.persistent_probes import unlike_chains
from techniques.shared.recomputation_probes import scheduled_probes

RATES = (0.2, 1.0, 5.0)
FAST, DEAR = 1e12, 1e-6


@judged("changed", "The step's gradients are those of a plain pass, to the bit", "throughout", id="same_gradients")
@judged(
    "changed_with_dropout",
    "Dropout leaves out the same values when a block runs again",
    "throughout",
    id="same_dropout",
    note="half of the values are dropped out in one more pass, since the small sizes drop none",
)
@judged("runs_beside_plan", "Every block runs as often as the schedule says", "throughout", id="runs_as_planned")
@judged(
    "stalls_of_hidden",
    "The transfers that are chosen first do not show",
    "Section 4.4",
    id="hidden_swaps",
    at_most=1e-06,
    note=(
        "seconds of waiting over a plain pass's, simulated, on the model's chains and some of unlike blocks, at three "
        "links"
    ),
)
@judged(
    "out_of_order",
    "No value that stays has more free time than a hidden one that leaves",
    "Section 4.4",
    id="most_free_time_first",
)
@judged(
    "plan_over_budget",
    "The plan for any memory limit needs no more than it",
    "throughout",
    id="plans_within_every_budget",
    at_most=1.0,
    note="simulated, at six budgets and three links",
)
@judged("peak_over_predicted", "The memory model predicts the peak", id="predicted_peak", at_most=1.0, kind="counted")
@judged(
    "moved_over_dear_link",
    "Over a link that carries next to nothing the plan recomputes and moves nothing",
    "Section 4.5: of an exposed swap and a recomputation the cheaper is taken; this link is the extreme case",
    id="dear_link_recomputes",
    kind="counted",
    note="bytes; where recomputing each block from its input fits",
)
def probes(recording: Recording, own: Capuchin) -> Mapping[str, float]:
    """Includes those of all that plan. For a claim, ``hidden_time`` is of plans over a fast link, over
    a plain pass's."""
    stalls = over = swapped = 0.0
    out_of_order = moved = 0
    for chain in (*own.chains, *unlike_chains(4)):
        for rate in RATES:
            link = times(even_link(chain), rate)
            first = hidden(chain, link)
            stalls = max(stalls, predicted(leaving(chain, first), chain, link).stalled_s / chain.plain_s)
            free = {value: _free_s(chain, link, *value) for value in candidates(chain)}
            least = min((free[value] for value in first), default=float("inf"))
            out_of_order += sum(free[value] > least * (1 + 1e-9) for value in free if value not in first)
            for budget in budgets(chain):
                with suppress(Infeasible):
                    over = max(over, predicted(own.solve(chain, budget, link), chain, link).peak_bytes / budget)
        for budget in budgets(chain):
            with suppress(Infeasible):
                plan = own.solve(chain, budget, fast := times(even_link(chain), FAST))
                if not plan.extra_forwards:
                    swapped = max(swapped, predicted(plan, chain, fast).time_s / chain.plain_s)
        dear, budget = times(even_link(chain), DEAR), predicted(every_input(chain.depth), chain).peak_bytes
        moved += len(left_in(own.solve(chain, budget, dear)))
    return scheduled_probes(recording, own) | {
        "stalls_of_hidden": stalls,
        "out_of_order": out_of_order,
        "plan_over_budget": over,
        "hidden_time": swapped,
        "moved_over_dear_link": moved,
    }


def _free_s(chain: Chain, link: Link, block: int, item: int | None) -> float:
    """Returns the seconds from the end of the way out to the start of the way back, off the plain pass's own
    moments."""
    at = {moment.op: moment for moment in predicted(plain(chain.depth), chain).moments if moment.op.computes}
    ends = {(op.kind, op.block): moment for op, moment in at.items()}
    gone_s = ends["save", block].end_s + _size(chain, block, item) / link.out_bytes_per_s
    return ends["back", block].start_s - _size(chain, block, item) / link.in_bytes_per_s - gone_s


def _size(chain: Chain, block: int, item: int | None) -> int:
    return chain.activation_bytes[block] if item is None else chain.stages[block].saved_bytes[item]

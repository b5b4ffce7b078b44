"""What a recorded step shows of Capuchin: all that a planned step shows, and that hidden transfers come first."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from suite.chain.chain import Chain, Link
from suite.chain.plan import Infeasible
from suite.chain.schedule import every_input, plain
from suite.chain.simulate import predicted
from suite.reading.recording import Recording
from techniques.offloading.capuchin.technique import Capuchin, hidden
from techniques.offloading.shared.offloaded import candidates, leaving
from techniques.offloading.shared.offloaded_probes import budgets, even_link, left_in, times
from techniques.shared.persistent_probes import unlike_chains
from techniques.shared.recomputation_probes import scheduled_probes

RATES = (0.2, 1.0, 5.0)
FAST, DEAR = 1e12, 1e-6


def probes(recording: Recording, own: Capuchin) -> Mapping[str, float]:
    """Those of all that plan, and of the model's chains and some of unlike blocks, over several links:
    ``stalls_of_hidden``: waiting for the transfers that are chosen first, over a plain pass's seconds;
    ``out_of_order``: values that stay with more free time than one of these; ``plan_over_budget``: the largest of a
    plan's peak over its budget; ``hidden_time``: of plans over a fast link, over a plain pass's; and
    ``moved_over_dear_link``: bytes that leave over one that carries next to nothing."""
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
    """From the end of the way out to the start of the way back, off the plain pass's own moments."""
    at = {moment.op: moment for moment in predicted(plain(chain.depth), chain).moments if moment.op.computes}
    ends = {(op.kind, op.block): moment for op, moment in at.items()}
    gone_s = ends["save", block].end_s + _size(chain, block, item) / link.out_bytes_per_s
    return ends["back", block].start_s - _size(chain, block, item) / link.in_bytes_per_s - gone_s


def _size(chain: Chain, block: int, item: int | None) -> int:
    return chain.activation_bytes[block] if item is None else chain.stages[block].saved_bytes[item]

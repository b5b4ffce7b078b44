"""Searches every schedule of a short chain: the oracle of what plans without a second tier.

A state is what is kept: activations, graphs, and which block is due. Dijkstra's search goes from state to state by one
operation each, in any order that the language of schedules allows. There are about L 4^L states: this is for L <= 6.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import NamedTuple

from suite.chain.chain import Chain


class _State(NamedTuple):
    """Describes a state of the search; in it, ``due`` is: the next block on the way there or, after the turn, the next
    to go back; the sets are of numbers."""

    turned: bool
    due: int
    activations: frozenset[int]
    graphs: frozenset[int]


def fastest(chain: Chain, budget_bytes: int) -> float:
    """Returns the seconds of the fastest schedule within the budget; infinite where none fits."""
    if chain.outside_bytes > budget_bytes:
        return math.inf
    start = _State(False, 0, frozenset({0}), frozenset())
    least, queue = {start: 0.0}, [(0.0, 0, start)]
    number = 0
    while queue:
        spent_s, _, state = heapq.heappop(queue)
        if state.turned and state.due < 0:
            return spent_s
        if spent_s > least[state]:
            continue
        for seconds, peak_bytes, after in _steps(chain, state):
            at = spent_s + seconds
            if _live(chain, state) + peak_bytes <= budget_bytes and at < least.get(after, math.inf):
                number += 1
                least[after] = at
                heapq.heappush(queue, (at, number, after))
    return math.inf


def _steps(chain: Chain, state: _State) -> Iterator[tuple[float, int, _State]]:
    """Yields each operation that may come next: its seconds, its peak above what is alive, and where it leads."""
    turned, due, activations, graphs = state
    for activation in activations:
        yield 0.0, 0, state._replace(activations=activations - {activation})
    if not turned and due == chain.depth:
        yield chain.turn_s, chain.turn_peak_bytes, _State(True, due - 1, activations, graphs)
        return
    for block in activations & set(range(due + 1) if turned else [due]):
        stage = chain.stages[block]
        then = state._replace(due=due if turned else due + 1, activations=activations | {block + 1})
        yield stage.run_s, stage.run_peak_bytes, then
        if block not in graphs:
            yield stage.save_s, stage.save_peak_bytes, then._replace(graphs=graphs | {block})
    if turned and due in graphs:
        stage = chain.stages[due]
        yield stage.back_s, stage.back_peak_bytes, state._replace(due=due - 1, graphs=graphs - {due})


def _live(chain: Chain, state: _State) -> int:
    """Counts the bytes alive, those of the rest of the model with them."""
    stages = chain.stages
    held = set(state.activations)
    held |= {block for block in state.graphs if stages[block].holds_input}
    held |= {block + 1 for block in state.graphs if stages[block].holds_output}
    own = sum(sum(stages[block].saved_bytes) for block in state.graphs)
    if state.turned:
        gradients = chain.activation_bytes[state.due + 1] + sum(s.gradient_bytes for s in stages[state.due + 1 :])
        own += chain.backward_bytes + gradients
    else:
        own += chain.forward_bytes
    return own + sum(chain.activation_bytes[number] for number in held)

"""Mixes offloading and recomputation in one plan: what a chain's front keeps leaves the device, its rest is rotor's.

    front   segments [q, p), of which x_q leaves and comes back, and which run again from it: rotor's within the budget
            blocks q, which keep their graphs, and all of them leaves
    rest    from block p on: rotor's within the budget

A segment costs seconds of computation and of the link. The front is the cheapest path through the chain, one second of
the link weighing ``weight`` of computation; weights from 0 to 4 give the paths between "compute all again" and "move
everything". Each path, with some room reserved for values on their way, is simulated; the fastest that fits is taken,
or rotor's plan or the best by priority that only offloads, where one of these is faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product

from suite.chain.chain import Chain, Link
from suite.chain.plan import Infeasible
from suite.chain.schedule import TURN, Op, Schedule, Value, plain, tidied
from suite.chain.simulate import predicted
from techniques.offloading.shared.offloaded import candidates, least_peak, nbytes
from techniques.offloading.shared.priorities import by_priority
from techniques.shared.persistent import Persistent, persistent

WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
RESERVES = (0, 1, 2)  # of the largest activation
STEPS = (1, 3)  # operations that a value may take to leave, or is asked for ahead


@dataclass(frozen=True)
class Segment:
    """Describes blocks ``start`` to ``end`` - 1 of the front; ``saved``: a block whose graph leaves, in place of its
    input."""

    start: int
    end: int
    saved: bool


def jointly(chain: Chain, budget_bytes: int, link: Link) -> Schedule:
    """Finds the fastest of all plans tried that fits. Raises Infeasible."""
    if predicted(plain(chain.depth), chain).peak_bytes <= budget_bytes:
        return plain(chain.depth)
    tried = {*_alone(chain, budget_bytes, link), *_joint(chain, budget_bytes, link)}
    costs = [(predicted(schedule, chain, link), schedule) for schedule in tried]
    fitting = [(cost.time_s, str(schedule), schedule) for cost, schedule in costs if cost.peak_bytes <= budget_bytes]
    if not fitting:
        least = least_peak(chain, candidates(chain), link)
        raise Infeasible("any mixture", budget_bytes, min(least, persistent(chain).least_bytes))
    return min(fitting)[2]


def _alone(chain: Chain, budget_bytes: int, link: Link) -> Iterator[Schedule]:
    """Yields rotor's plan, and the fastest in which values leave by priority and nothing runs again."""
    table = persistent(chain)
    if budget_bytes >= table.least_bytes:
        yield tidied(chain.depth, table.ops(0, chain.depth, budget_bytes - chain.input_bytes))
    if least_peak(chain, candidates(chain), link) <= budget_bytes:
        yield by_priority(chain, budget_bytes, link)


def _joint(chain: Chain, budget_bytes: int, link: Link) -> Iterator[Schedule]:
    table, largest = persistent(chain), max(chain.activation_bytes)
    paths = {
        (path, reserve)
        for weight, reserve in product(WEIGHTS, RESERVES)
        if (path := cheapest(table, budget_bytes - reserve * largest, link, weight))
    }
    for (path, reserve), lag, ahead in product(sorted(paths, key=str), STEPS, STEPS):
        try:
            ops = list(_operations(table, path, budget_bytes - reserve * largest))
        except Infeasible:
            continue
        yield tidied(chain.depth, moved(chain, ops, path, lag, ahead))


def cheapest(table: Persistent, budget_bytes: int, link: Link, weight: float) -> tuple[Segment, ...]:
    """Finds the front of the cheapest path; empty where no front is cheaper than the chain's own recomputation."""
    chain, depth = table.chain, table.chain.depth
    best: list[tuple[float, tuple[Segment, ...]] | None] = [(0.0, ()), *[None] * depth]
    for p in range(1, depth + 1):
        for q in range(p):
            before = best[q]
            if before is None:
                continue
            for segment in [Segment(q, p, False), *([Segment(q, p, True)] if p == q + 1 else [])]:
                seconds = _seconds(table, segment, budget_bytes)
                if seconds is not None:
                    moved_s = _moved_bytes(chain, segment) / link.out_bytes_per_s
                    cost = before[0] + seconds + weight * moved_s
                    known = best[p]
                    if known is None or cost < known[0]:
                        best[p] = cost, (*before[1], segment)
    ends = []
    for p, path in enumerate(best):
        rest = table.frontiers[p, depth]
        index = rest.at(budget_bytes - chain.activation_bytes[p])
        if path is not None and index >= 0:
            ends.append((path[0] + float(rest.ticks[index]) * table.tick_s, p, path[1]))
    return min(ends)[2] if ends else ()


def _seconds(table: Persistent, segment: Segment, budget_bytes: int) -> float | None:
    """Returns the seconds of computation, over a plain pass's or not; None where the segment does not fit."""
    stages = table.chain.stages[segment.start : segment.end]
    if segment.saved:
        return stages[0].save_s + stages[0].back_s
    frontier = table.frontiers[segment.start, segment.end - 1]
    index = frontier.at(budget_bytes - table.chain.activation_bytes[segment.start])
    if index < 0:
        return None
    return sum(stage.run_s for stage in stages) + float(frontier.ticks[index]) * table.tick_s


def _moved(chain: Chain, segment: Segment) -> list[Value]:
    if not segment.saved:
        return [Value(segment.start)]
    return [value for value in candidates(chain) if value.block == segment.start]


def _moved_bytes(chain: Chain, segment: Segment) -> int:
    return sum(nbytes(chain, value) for value in _moved(chain, segment))


def _operations(table: Persistent, path: tuple[Segment, ...], budget_bytes: int) -> Iterator[Op]:
    """Yields what computes, front and rest. Raises Infeasible."""
    sizes, end = table.chain.activation_bytes, path[-1].end
    for segment in path:
        yield from (Op("save" if segment.saved else "run", block) for block in range(segment.start, segment.end))
    yield from table.ops(end, table.chain.depth, budget_bytes - sizes[end])
    for segment in reversed(path):
        if segment.saved:
            yield Op("back", segment.start)
        else:
            yield from table.ops(segment.start, segment.end - 1, budget_bytes - sizes[segment.start])


def moved(chain: Chain, ops: list[Op], path: tuple[Segment, ...], lag: int, ahead: int) -> list[Op]:
    """Returns the operations with the front's transfers: each value leaves behind its segment's first operation, is
    waited for ``lag`` operations later, and asked for ``ahead`` operations before its first use in the backward
    pass."""
    turn = ops.index(TURN)
    ends = [segment.end for segment in path]
    back = {segment.start: next(n for n in range(turn, len(ops)) if _uses(ops[n], segment)) for segment in path}
    behind: dict[int, list[Op]] = {}
    front: dict[int, list[Op]] = {}
    for segment in path:
        values = _moved(chain, segment)
        behind.setdefault(segment.start, []).extend(Op("offload", *value) for value in values)
        left = min(segment.start + lag, turn - 1)
        behind.setdefault(left, []).extend(Op("wait", *value) for value in values)
        asked = max(back[segment.start] - ahead, turn)
        front.setdefault(asked, []).extend(Op("prefetch", *value) for value in values)
    assert all(earlier < later for earlier, later in pairwise(ends))
    return [move for n, op in enumerate(ops) for move in (*front.get(n, ()), op, *behind.get(n, ()))]


def _uses(op: Op, segment: Segment) -> bool:
    return op.block == segment.start and op.kind in (("back",) if segment.saved else ("run", "save"))

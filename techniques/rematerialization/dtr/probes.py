"""Checks what a recorded step shows of dynamic eviction, and what its runtime does with two programs whose answer is
known.

A linear net of N layers, each of a unit of time and memory, within ceil(2 sqrt(N)) units, is the paper's; so are the
figures that the authors' simulator gives. A random program shows whether each eviction is the heuristic's.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping

from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.rematerialization.dtr.runtime import Name, Operator, Runtime, Tensor
from techniques.rematerialization.dtr.technique import DTR
from techniques.rematerialization.shared.fastest_probe import over_fastest
from techniques.shared.recomputation_probes import scheduled_probes

LAYERS, FEWER = 256, 64
THRASHING = 60  # runs a layer, at which a linear net is given up
OPERATORS, LARGEST = 60, 9  # of the random program; most bytes, and seconds, of one


class _Thrashing(Exception):
    pass


@judged("changed", "The step's gradients are those of a plain pass, to the bit", "Section 1", id="same_gradients")
@judged(
    "changed_with_dropout",
    "Dropout leaves out the same values when a block runs again",
    "Section 1: recomputation changes no result",
    id="same_dropout",
    note="half of the values are dropped out in one more pass, since the small sizes drop none",
)
def probes(recording: Recording, own: DTR) -> Mapping[str, float]:
    """Includes those of every technique that plans, and ``over_fastest``. Claims read of the runtime ``linear``, runs
    beyond the first of each of 256 layers; ``linear_eq``, with the equivalence classes, over that;
    ``linear_lru_growth``, that of least recently used eviction, over the same of 64 layers; ``beside_rule``, how often
    in a random program what is evicted has not the least cost over bytes and staleness, an input is as stale as before
    its use, or the clock shows something else than the seconds of all that ran."""
    return {
        **scheduled_probes(recording, own),
        **over_fastest(recording, own),
        "linear": _again(LAYERS, "dtr"),
        "linear_eq": _again(LAYERS, "eq") / _again(LAYERS, "dtr"),
        "linear_lru_growth": _again(LAYERS, "lru") / _again(FEWER, "lru"),
        "beside_rule": sum(_beside_rule()),
    }


def _again(layers: int, heuristic: Name) -> float:
    runs = 0

    def count(_: Operator) -> None:
        nonlocal runs
        runs += 1
        if runs > THRASHING * layers:
            raise _Thrashing

    runtime = Runtime(math.ceil(2 * math.sqrt(layers)), heuristic, count)

    def unit(*inputs: Tensor) -> Tensor:
        output = Tensor(1, Operator("unit", 1.0, 1, inputs))
        runtime.run(output.operator, [output])  # type: ignore[arg-type]
        return output

    try:
        outputs = [unit()]
        while len(outputs) < layers:
            outputs.append(unit(outputs[-1]))
        runtime.release(outputs.pop())
        gradient = unit()
        while outputs:
            runtime.release(outputs.pop())
            earlier, gradient = gradient, unit(*outputs[-1:], gradient)
            runtime.release(earlier)
    except _Thrashing:
        return math.inf
    return runs / layers - 2


def _beside_rule() -> Iterator[bool]:
    """Tells of each eviction, whether another tensor's cost over bytes and staleness was smaller; of each run, whether
    an input was last used before the program asked for it, and whether the clock is off."""
    chance, begun_s, passed_s = random.Random(0), 0.0, 0.0
    evictions: list[bool] = []
    uses: list[bool] = []
    clocks: list[bool] = []
    released: set[Tensor] = set()

    def judge(gone: Tensor) -> None:
        if gone in released:
            return
        costs = {tensor: _rule(tensor, gone, runtime.clock_s) for tensor in [gone, *runtime.alive] if not tensor.locks}
        evictions.append(costs[gone] > min(costs.values()) * (1 + 1e-12))

    def look(operator: Operator) -> None:
        nonlocal passed_s
        passed_s += operator.seconds  # whole numbers
        clocks.append(runtime.clock_s != passed_s)
        uses.append(any(operand.used_s < begun_s for operand in operator.inputs))

    runtime = Runtime(8 * LARGEST, "dtr", look, judge)
    tensors = [runtime.constant(1)]
    for _ in range(OPERATORS):
        inputs = tuple(chance.sample(tensors[-8:], min(2, len(tensors))))
        nbytes = chance.randint(1, LARGEST)
        output = Tensor(nbytes, Operator("any", float(chance.randint(1, LARGEST)), nbytes, inputs))
        begun_s = runtime.clock_s
        runtime.run(output.operator, [output])  # type: ignore[arg-type]
        tensors.append(output)
        if len(tensors) > 2 and chance.random() < 0.1:
            released.add(tensors[-3])
            runtime.release(tensors[-3])
    assert len(evictions) > OPERATORS // 2
    yield from [*evictions, *uses, *clocks]


def _rule(tensor: Tensor, gone: Tensor, clock_s: float) -> float:
    """Computes cost over bytes and staleness of ``tensor`` in the moment before ``gone`` was evicted."""

    def away(node: Tensor) -> bool:
        return not node.there and node is not gone

    def walk(node: Tensor, downwards: bool, seen: set[Tensor]) -> set[Tensor]:
        for other in node.children if downwards else node.parents:
            if away(other) and other not in seen:
                seen.add(other)
                walk(other, downwards, seen)
        return seen

    beside = walk(tensor, True, set()) | walk(tensor, False, set())
    stale_s = clock_s - tensor.used_s
    seconds = [neighbour.operator.seconds for neighbour in (tensor, *beside) if neighbour.operator]
    return sum(seconds) / (tensor.nbytes * stale_s) if stale_s > 0 else math.inf

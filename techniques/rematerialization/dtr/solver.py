"""Finds what the runtime does on a chain: it plays once over the profile, and what it does is the schedule.

Block i's forward pass makes x_{i+1} and the block's graph, tensors that each may be evicted; x_{i+1} comes back by a
run without a graph, a graph by one with it. What is evicted before it was used need never have been kept, so that the
schedule's bytes are those of the play, or fewer, and its operators the same.
"""

from __future__ import annotations

from suite.chain.chain import Chain
from suite.chain.plan import Infeasible, unplanned
from suite.chain.schedule import TURN, Op, Schedule, tidied
from techniques.rematerialization.dtr.runtime import Name, Operator, OutOfMemory, Runtime, Tensor

PRECISION = 1e-3  # of a sufficient budget
THRASHING = 100  # runs a block, from which on the play is as good as over


def played(chain: Chain, budget_bytes: int, heuristic: Name = "dtr") -> Schedule:
    """Returns what dynamic eviction does within the budget. Raises Infeasible."""
    try:
        return _Player(chain, budget_bytes, heuristic).schedule()
    except OutOfMemory:
        raise Infeasible("dynamic eviction", budget_bytes, enough_bytes(chain, budget_bytes, heuristic)) from None


def enough_bytes(chain: Chain, budget_bytes: int, heuristic: Name) -> int:
    """Finds a budget that suffices, hardly above one that does not; ``budget_bytes`` does not."""

    def suffices(nbytes: int) -> bool:
        try:
            _Player(chain, nbytes, heuristic).schedule()
        except OutOfMemory:
            return False
        return True

    low, high = budget_bytes, max(budget_bytes, unplanned([chain]).peak_bytes)
    while not suffices(high):
        low, high = high, 2 * high
    while high - low > max(1, PRECISION * high):
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


class _Player:
    """Plays the program whose operators the runtime gets: a forward pass that saves every graph, and the way back."""

    def __init__(self, chain: Chain, budget_bytes: int, heuristic: Name) -> None:
        self.chain = chain
        self.runtime = Runtime(budget_bytes, heuristic, self.note, self.forget)
        self.ops: list[Op] = []
        self.place: dict[Tensor, int] = {}  # of the operation that made a graph which is yet to be used
        self.activations = [self.runtime.constant(chain.input_bytes)]
        self.graphs: list[Tensor] = []
        for i, stage in enumerate(chain.stages):
            source = self.activations[i]
            output = Tensor(stage.output_bytes, Operator(("run", i), stage.run_s, stage.run_peak_bytes, (source,)))
            held = [tensor for tensor, holds in ((source, stage.holds_input), (output, stage.holds_output)) if holds]
            save = Operator(("save", i), stage.save_s, stage.save_peak_bytes, (source,))
            self.activations.append(output)
            self.graphs.append(Tensor(sum(stage.saved_bytes), save, (output,), tuple(held)))

    def note(self, operator: Operator) -> None:
        op = Op(*operator.name)
        if len(self.ops) > THRASHING * self.chain.depth:
            raise OutOfMemory("the same blocks run again and again")
        if op.kind == "save":
            self.place[self.graphs[op.block]] = len(self.ops)
        self.ops.append(op)

    def forget(self, tensor: Tensor) -> None:
        if (place := self.place.pop(tensor, None)) is not None:
            self.ops[place] = Op("run", self.ops[place].block)

    def schedule(self) -> Schedule:
        chain, runtime = self.chain, self.runtime
        runtime.beside_bytes = chain.forward_bytes
        for output, graph in zip(self.activations[1:], self.graphs, strict=True):
            assert graph.operator is not None
            runtime.run(graph.operator, [output, graph])
        runtime.release(output)
        runtime.run(Operator(TURN[:2], chain.turn_s, chain.turn_peak_bytes))
        runtime.beside_bytes = chain.backward_bytes + chain.activation_bytes[-1]
        for i, stage in reversed(list(enumerate(chain.stages))):
            graph, output = self.graphs[i], self.activations[i + 1]
            runtime.run(Operator(("back", i), stage.back_s, stage.back_peak_bytes, (graph,)))
            self.place.pop(graph)
            runtime.release(graph)
            runtime.release(output)
            runtime.beside_bytes += stage.gradient_bytes + chain.activation_bytes[i] - stage.output_bytes
        return tidied(chain.depth, self.ops)

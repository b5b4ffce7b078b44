"""Has the language of schedules: what runs when on a chain, and which values are on the device meanwhile.

    run 3        block 3 from x_3, without a graph                 f3
    save 3       block 3 from x_3, with its graph                  F3
    turn         the rest of the model, to the loss and back       |
    back 3       block 3's backward pass, which uses its graph up  B3
    drop v       forgets a value                                   -x3
    offload v    starts its way to the second tier                 >x3 >s3.0
    prefetch v   starts its way back                               <x3
    wait v       until it has left the device                      ~x3
    load 3       block 3's weights start their way to the device   +w3
    free 3       they leave, with the gradients that there are     -w3

A value is x_i or one of the tensors of block i's own graph. Before the turn every block runs once, in order. What a
block needs and the second tier has comes back by itself, late; ``prefetch`` makes it come in time.

Weights stay on the device unless the schedule loads them: then the second tier has them before and after it, and the
block runs, and goes back, only between a load and a free. Its graph does not hold them. A pass changes no weights, so
that a free moves gradients alone.

Solvers write down what computes and what moves; :func:`tidied` drops each activation after its last use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["run", "save", "turn", "back", "drop", "offload", "prefetch", "wait", "load", "free"]

SIGNS: dict[Kind, str] = {
    "run": "f",
    "save": "F",
    "turn": "|",
    "back": "B",
    "drop": "-",
    "offload": ">",
    "prefetch": "<",
    "wait": "~",
    "load": "+w",
    "free": "-w",
}
COMPUTES = frozenset({"run", "save", "back"})
MOVES = frozenset({"offload", "prefetch", "wait"})
WEIGHTS = frozenset({"load", "free"})


class Value(NamedTuple):
    """Names x_block, or the graph of ``block``'s own tensor number ``item``."""

    block: int
    item: int | None = None

    def __str__(self) -> str:
        return f"x{self.block}" if self.item is None else f"s{self.block}.{self.item}"


class Op(NamedTuple):
    """Describes one operation; ``block`` is -1 for the turn, and ``item`` chooses a value of a block's graph."""

    kind: Kind
    block: int = -1
    item: int | None = None

    @property
    def value(self) -> Value:
        """Returns the value that a drop or a move is about."""
        return Value(self.block, self.item)

    @property
    def computes(self) -> bool:
        return self.kind in COMPUTES

    @property
    def moves_weights(self) -> bool:
        return self.kind in WEIGHTS

    def __str__(self) -> str:
        sign = SIGNS[self.kind]
        if self.kind == "turn":
            return sign
        return f"{sign}{self.block}" if self.computes or self.moves_weights else f"{sign}{self.value}"


class ScheduleError(ValueError):
    """Is raised for operations that cannot run in this order; the message names the first that cannot."""


@dataclass(frozen=True)
class Schedule:
    """Holds operations over a chain of ``depth`` blocks. Raises ScheduleError where a block's input, graph or weights
    are not there."""

    depth: int
    ops: tuple[Op, ...]

    def __post_init__(self) -> None:
        _check(self)

    def __str__(self) -> str:
        return " ".join(map(str, self.ops))

    @property
    def forward(self) -> tuple[Op, ...]:
        """Returns the operations before the turn."""
        return self.ops[: self.ops.index(TURN)]

    @property
    def backward(self) -> tuple[Op, ...]:
        """Returns the operations after the turn."""
        return self.ops[self.ops.index(TURN) + 1 :]

    def runs(self, block: int) -> int:
        """Counts how often a block's forward pass runs."""
        return sum(op.kind in ("run", "save") and op.block == block for op in self.ops)

    @property
    def extra_forwards(self) -> int:
        """Counts the forward passes of blocks beyond the one that each has anyway."""
        return sum(op.kind in ("run", "save") for op in self.ops) - self.depth

    @property
    def moves(self) -> bool:
        """Tells whether values leave for a second tier."""
        return any(op.kind == "offload" for op in self.ops)

    @property
    def loaded(self) -> frozenset[int]:
        """Returns the blocks whose weights come and go."""
        return frozenset(op.block for op in self.ops if op.kind == "load")

    @property
    def freed(self) -> frozenset[int]:
        """Returns the blocks whose weights leave for good, and their gradients with them."""
        last = {op.block: op.kind for op in self.ops if op.kind in ("back", "free")}
        return frozenset(block for block, kind in last.items() if kind == "free")


TURN = Op("turn")


def tidied(depth: int, ops: Iterable[Op]) -> Schedule:
    """Returns the schedule in which each activation is dropped as soon as no operation needs it before it is made
    again.

    A block's graph goes on holding its input. Moves may name an activation that nothing needs; they are left out.
    """
    listed = list(ops)
    reversed_ops: list[Op] = []
    needed: set[int] = set()  # activations that a later operation reads
    graphs: set[int] = set()  # blocks whose graphs one does
    for op in reversed(listed):
        dropped = []
        if op.kind in ("run", "save"):
            written, read = op.block + 1, op.block
            if written not in needed:
                dropped.append(Op("drop", written))
            needed.discard(written)
            if read not in needed:
                dropped.append(Op("drop", read))
            needed.add(read)
            graphs.discard(read)
        elif op.kind == "back":
            graphs.add(op.block)
        elif op.kind in MOVES and op.item is None and op.block not in needed | graphs:
            continue
        reversed_ops += [*dropped, op]
    return Schedule(depth, tuple(reversed(reversed_ops)))


def plain(depth: int) -> Schedule:
    """Keeps every graph: what autograd does."""
    return tidied(depth, [*(Op("save", i) for i in range(depth)), TURN, *backs(range(depth))])


def every_input(depth: int) -> Schedule:
    """Keeps every activation and no graph: each block runs a second time."""
    again = (op for i in reversed(range(depth)) for op in (Op("save", i), Op("back", i)))
    return tidied(depth, [*(Op("run", i) for i in range(depth)), TURN, *again])


def segmented(depth: int, ranges: Sequence[tuple[int, int]]) -> Schedule:
    """Lets blocks [start, end) of each range keep the first one's input alone and run again together; others keep
    graphs."""
    ends = {end - 1: start for start, end in ranges}
    inside = {i for start, end in ranges for i in range(start, end)}
    ops = [Op("run" if i in inside else "save", i) for i in range(depth)] + [TURN]
    for i in reversed(range(depth)):
        if i in ends:
            ops += [Op("save", j) for j in range(ends[i], i + 1)]
        ops.append(Op("back", i))
    return tidied(depth, ops)


def backs(blocks: Sequence[int]) -> Iterator[Op]:
    """Yields the backward passes of consecutive blocks, the last first."""
    return (Op("back", i) for i in reversed(blocks))


def _check(schedule: Schedule) -> None:
    depth, ops = schedule.depth, schedule.ops
    first = [op.block for op in ops[: ops.index(TURN)] if op.computes] if ops.count(TURN) == 1 else None
    if first != list(range(depth)):
        raise ScheduleError(f"{depth} blocks run once each, in order, before the one turn; here {first} do")
    activations, graphs, due = {0}, set[int](), depth - 1
    away, idle = set(schedule.loaded), set[int]()
    for number, op in enumerate(ops):
        where = f"operation {number}, {op}"
        if op.computes and op.block in away:
            raise ScheduleError(f"{where}: the weights of block {op.block} are not there; load them before")
        if op.computes:
            idle.discard(op.block)
        if op.kind in ("run", "save"):
            if op.block not in activations:
                raise ScheduleError(f"{where}: x{op.block} is not there")
            activations.add(op.block + 1)
            if op.kind == "save":
                graphs.add(op.block)
        elif op.kind == "back":
            if op.block not in graphs or op.block != due:
                raise ScheduleError(f"{where}: block {due} is next, and the graphs are of {sorted(graphs)}")
            graphs.remove(op.block)
            due -= 1
        elif op.kind == "drop":
            if op.item is not None:
                raise ScheduleError(f"{where}: a graph is whole, or its block runs without one")
            if op.block not in activations:
                raise ScheduleError(f"{where}: {op.value} is not there")
            activations.remove(op.block)
        elif op.kind == "load":
            if op.block not in away:
                raise ScheduleError(f"{where}: the weights of block {op.block} are there already")
            away.remove(op.block)
            idle.add(op.block)
        elif op.kind == "free":
            if op.block in away or op.block not in schedule.loaded:
                raise ScheduleError(f"{where}: no load has brought the weights of block {op.block}")
            if op.block in idle:
                raise ScheduleError(f"{where}: nothing has used these weights since they were loaded; leave both out")
            away.add(op.block)
        elif op.kind in MOVES and op.block not in (activations | graphs if op.item is None else graphs):
            raise ScheduleError(f"{where}: {op.value} is not there")
    if due != -1:
        raise ScheduleError(f"blocks 0 to {due} have no backward pass")
    if away != schedule.loaded:
        raise ScheduleError(
            f"the weights of blocks {sorted(schedule.loaded - away)} stay; free them, as others find none"
        )

"""Simulates dynamic tensor rematerialisation (Kirisame et al., 2021, section 2 and appendix C): no plan, but a cache.

Operators come one by one. Where the next does not fit the budget, the runtime evicts the tensor t of the least

    h(t) = cost(t) / (bytes(t) staleness(t))

until it does. An operator that needs an evicted tensor makes that one's operator run again first, and so on back.
``cost`` is the time that it would take to bring t back: of its own operator and, as far as a heuristic looks, of the
evicted tensors around it, which come before it or would have to wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


class OutOfMemory(MemoryError):
    """Is raised where nothing is left to evict."""


@dataclass(frozen=True)
class Operator:
    """Describes what makes tensors of others: its name, its seconds, the most bytes that it adds to those alive at its
    start."""

    name: Any
    seconds: float
    peak_bytes: int
    inputs: tuple[Tensor, ...] = ()


@dataclass(eq=False)
class Tensor:
    """Holds a tensor, there or evicted.

    Attributes:
        operator: makes it again; None for a constant. ``beside``: what else that makes.
        holds: tensors whose memory lives as long as it is there.
        children: those that its operator's outputs were made of it.
        used_s: the clock at its last use.
        component: of evicted tensors that hang together, while it is one of them.
    """

    nbytes: int
    operator: Operator | None = None
    beside: tuple[Tensor, ...] = ()
    holds: tuple[Tensor, ...] = ()
    children: list[Tensor] = field(default_factory=list)
    there: bool = False
    locks: int = 0
    used_s: float = 0.0
    component: Component | None = None

    def __post_init__(self) -> None:
        for parent in self.parents:
            parent.children.append(self)

    @property
    def parents(self) -> tuple[Tensor, ...]:
        return self.operator.inputs if self.operator else ()

    @property
    def seconds(self) -> float:
        return self.operator.seconds if self.operator else 0.0


@dataclass(eq=False)
class Component:
    """Holds a set of a union-find structure, and the seconds of its tensors."""

    seconds: float
    parent: Component | None = None

    def root(self) -> Component:
        root = self
        while root.parent is not None:
            root = root.parent
        if root is not self:
            self.parent = root
        return root


# heuristics: what evicting a tensor would cost, of its seconds, its bytes and its staleness ---------------------------

Name = Literal["dtr", "eq", "local", "lru", "size", "msps"]


def evicted(start: Tensor, following: Callable[[Tensor], Iterable[Tensor]]) -> set[Tensor]:
    """Finds the evicted tensors that a walk from ``start`` over evicted ones reaches."""
    reached: set[Tensor] = set()
    waiting = [start]
    while waiting:
        for neighbour in following(waiting.pop()):
            if not neighbour.there and neighbour not in reached:
                reached.add(neighbour)
                waiting.append(neighbour)
    return reached


def before(tensor: Tensor) -> float:
    """Sums the seconds of the evicted tensors that it would be made of again."""
    return sum(operator.seconds for operator in evicted(tensor, lambda one: one.parents))


def after(tensor: Tensor) -> float:
    """Sums the seconds of the evicted tensors that would be made of it again."""
    return sum(operator.seconds for operator in evicted(tensor, lambda one: one.children))


def around(tensor: Tensor) -> float:
    """Sums the seconds of the evicted components beside it: an estimate of ``before + after``, kept up by union and
    subtraction, and never split."""
    neighbours = [*tensor.parents, *tensor.children]
    roots = {neighbour.component.root() for neighbour in neighbours if neighbour.component is not None}
    return sum(root.seconds for root in roots)


HEURISTICS: Mapping[Name, Callable[[Tensor, float], float]] = {
    "dtr": lambda t, stale_s: (t.seconds + before(t) + after(t)) / (t.nbytes * stale_s),
    "eq": lambda t, stale_s: (t.seconds + around(t)) / (t.nbytes * stale_s),
    "local": lambda t, stale_s: t.seconds / (t.nbytes * stale_s),
    "lru": lambda t, stale_s: 1 / stale_s,
    "size": lambda t, stale_s: 1 / t.nbytes,
    "msps": lambda t, stale_s: (t.seconds + before(t)) / t.nbytes,
}


# the runtime ----------------------------------------------------------------------------------------------------------


class Runtime:
    """Runs operators within ``budget_bytes``. ``on_run`` and ``on_evict`` are called of each that runs or leaves.

    Attributes:
        clock_s: seconds of all that ran.
        beside_bytes: memory that no tensor here has and that stays.
        high_bytes: most bytes alive so far.
    """

    def __init__(
        self,
        budget_bytes: int,
        heuristic: Name,
        on_run: Callable[[Operator], None] = lambda _: None,
        on_evict: Callable[[Tensor], None] = lambda _: None,
    ) -> None:
        self.budget_bytes, self.heuristic = budget_bytes, HEURISTICS[heuristic]
        self.on_run, self.on_evict = on_run, on_evict
        self.clock_s = 0.0
        self.beside_bytes = self.high_bytes = 0
        self.alive: dict[Tensor, None] = {}  # what is there, the longest unlocked first

    def constant(self, nbytes: int) -> Tensor:
        """Adds a tensor that no operator makes again: it stays."""
        constant = Tensor(nbytes, there=True, locks=1)
        self.alive[constant] = None
        return constant

    def run(self, operator: Operator, outputs: Iterable[Tensor] = ()) -> None:
        """Runs an operator for the first time."""
        outputs = list(outputs)
        self._run(operator, outputs)
        for output in outputs:
            output.used_s = self.clock_s

    def release(self, tensor: Tensor) -> None:
        """Releases a tensor that the program needs no more, so that it goes at once."""
        if tensor.there:
            self._evict(tensor)

    def live_bytes(self) -> int:
        """Counts the bytes alive now."""
        held = set(self.alive).union(*(tensor.holds for tensor in self.alive))
        return self.beside_bytes + sum(storage.nbytes for storage in held)

    def _run(self, operator: Operator, outputs: list[Tensor]) -> None:
        for operand in operator.inputs:
            operand.used_s = self.clock_s
        for operand in sorted(operator.inputs, key=lambda one: not one.there):  # what is there is locked first
            if not operand.there:
                assert operand.operator is not None
                self._run(operand.operator, [operand, *operand.beside])
            operand.locks += 1
        self._make_room(operator.peak_bytes)
        self.clock_s += operator.seconds
        self.on_run(operator)
        for operand in outputs:
            self._arrive(operand)
        for operand in operator.inputs:
            operand.locks -= 1
            self.alive[operand] = self.alive.pop(operand)

    def _arrive(self, tensor: Tensor) -> None:
        if tensor.there:
            return
        tensor.there = True
        self.alive[tensor] = None
        if tensor.component is not None:
            tensor.component.root().seconds -= tensor.seconds
            tensor.component = None

    def _make_room(self, nbytes: int) -> None:
        while (live_bytes := self.live_bytes()) + nbytes > self.budget_bytes:
            held = {hold for holder in self.alive for hold in holder.holds}
            candidates = [tensor for tensor in reversed(self.alive) if not tensor.locks and tensor not in held]
            if not candidates:
                raise OutOfMemory(f"{live_bytes + nbytes} bytes do not fit in {self.budget_bytes}")
            self._evict(min(candidates, key=self._cost))
        self.high_bytes = max(self.high_bytes, live_bytes + nbytes)

    def _cost(self, tensor: Tensor) -> float:
        stale_s = self.clock_s - tensor.used_s
        return self.heuristic(tensor, stale_s) if stale_s > 0 and tensor.nbytes else math.inf

    def _evict(self, tensor: Tensor) -> None:
        tensor.there = False
        del self.alive[tensor]
        self.on_evict(tensor)
        own = tensor.component = Component(tensor.seconds)
        for parent in [*tensor.parents, *tensor.children]:
            root = parent.component.root() if parent.component is not None else own
            if root is not own:
                own.seconds += root.seconds
                root.parent = own

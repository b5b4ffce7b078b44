"""Holds the operators of a training step by signature, with their counts: what re-costing a traced step takes, as small
JSON.

A step of twelve equal layers runs few different operators many times. An :class:`Operator` is all that a cost depends
on; what runs between two others, and on which numbers, is left out. So a step of any depth takes some kilobytes, and a
new device or a new constant costs no new trace. Imports no torch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

Phase = Literal["forward", "backward", "optimizer"]
PHASES: tuple[Phase, ...] = get_args(Phase)
SCHEMA = 1

HOST_ONLY = "view"
"""The kind of what the host dispatches and no kernel runs."""
OUT, IN = "transfer out", "transfer in"
"""The kinds of copies to the host's memory and back."""
COLLECTIVE = "collective"
"""The kind of what ranks send one another together; ``read_bytes`` are those of the whole tensor."""
NO_KERNEL = frozenset({HOST_ONLY, OUT, IN, COLLECTIVE})
"""The kinds of what takes a host's time or a link's, and none of the device's."""


@dataclass(frozen=True)
class Operator:
    """Describes an operator by its signature: equal ones take equal time.

    Attributes:
        name: of the operator in aten, or of those that one compiled kernel holds.
        kind: its class of cost, as `suite.meters.operators` finds it: product, attention, pointwise, view, ...
        dtype: of its first floating operand, as torch spells it: "bfloat16".
        dtypes: of all operands, where they differ.
        shapes: of its operands; those of a list of tensors are left out.
        flops: of one call; a multiply-add is two, and a causal mask does not halve them.
        read_bytes, written_bytes: each storage once.
        kernels: that it launches; 0 where it launches none.
        tensors: among its operands.
        product: batch, m, n, k of a matrix product.
        aligned: whether its rows begin at whole 16 bytes, which tensor cores want.
        causal: of an attention, whether it skips what is masked.
        compiled: whether torch.compile generates its launch.
        ranks, stride: of a collective's group: how many, and how far apart neighbours are among all ranks.
        hidden: of a collective, whether products run beside it; else the step waits for it.
    """

    name: str
    kind: str
    phase: Phase = "forward"
    dtype: str = "float32"
    dtypes: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    flops: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    kernels: int = 1
    tensors: int = 1
    product: tuple[int, int, int, int] | None = None
    aligned: bool = True
    causal: bool = False
    compiled: bool = False
    ranks: int = 1
    stride: int = 1
    hidden: bool = False

    @property
    def moved_bytes(self) -> int:
        return self.read_bytes + self.written_bytes

    @property
    def backward_of_attention(self) -> bool:
        return self.kind == "attention" and "backward" in self.name


@dataclass(frozen=True)
class TracedStep:
    """Holds the operators of one step.

    Attributes:
        counts: how often each runs.
        uncosted: calls of operators that may do matrix work and have no formula, by name.
        undeclared: why no time can be said: a kernel or a thread of which nobody declared what it costs.
        ranks: that train together; the operators are of the first.
        reserved_bytes: that torch's caching allocator holds for the order of its allocations; 0 where it is not noted.
    """

    counts: Counter[Operator] = field(default_factory=Counter)
    uncosted: dict[str, int] = field(default_factory=dict)
    undeclared: tuple[str, ...] = ()
    ranks: int = 1
    reserved_bytes: int = 0

    def __iter__(self) -> Iterator[tuple[Operator, int]]:
        return iter(self.counts.items())

    @property
    def flops(self) -> int:
        return sum(count * operator.flops for operator, count in self)

    @property
    def launches(self) -> int:
        return sum(count * operator.kernels for operator, count in self)

    @property
    def moved_bytes(self) -> int:
        """Returns the bytes that kernels read and write; what goes over links is apart."""
        return sum(count * operator.moved_bytes for operator, count in self if operator.kind not in NO_KERNEL)

    def as_json(self) -> str:
        """Writes the step in one line. A signature is an object of what differs from the defaults, its count last."""
        operators = [{**fields_of(operator), "count": count} for operator, count in self]
        rest: dict[str, Any] = {"uncosted": self.uncosted, "undeclared": list(self.undeclared)}
        if self.ranks > 1:
            rest["ranks"] = self.ranks
        if self.reserved_bytes:
            rest["reserved_bytes"] = self.reserved_bytes
        return json.dumps({"schema_version": SCHEMA, "operators": operators, **rest}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> TracedStep:
        """Reads what :meth:`as_json` wrote. Raises ValueError for what is none of this version."""
        try:
            known = json.loads(text)
            if known["schema_version"] != SCHEMA:
                raise ValueError(f"a traced step of schema {known['schema_version']}, not {SCHEMA}: trace it again")
            counts: Counter[Operator] = Counter()
            for signature in known["operators"]:
                count = signature.pop("count")
                counts[operator_of(signature)] += count
            further = known.get("ranks", 1), known.get("reserved_bytes", 0)
            return cls(counts, known["uncosted"], tuple(known["undeclared"]), *further)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a traced step: {error}") from None


def fields_of(operator: Operator) -> dict[str, Any]:
    """Returns JSON values of what differs from the defaults."""
    values = {declared.name: (getattr(operator, declared.name), declared.default) for declared in fields(operator)}
    return {name: value for name, (value, default) in values.items() if value != default}


def operator_of(said: Mapping[str, Any]) -> Operator:
    """Builds the operator from what :func:`fields_of` returned. Raises TypeError for what is no signature."""
    return Operator(**{name: _as_tuple(value) for name, value in said.items()})


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def step_of(operators: Iterable[Operator], uncosted: dict[str, int], undeclared: tuple[str, ...] = ()) -> TracedStep:
    """Builds the step that runs these operators, in whatever order."""
    return TracedStep(Counter(operators), uncosted, undeclared)


def deepened(shallow: TracedStep, deeper: TracedStep, layers: int) -> TracedStep:
    """Builds the step of a model ``layers`` deeper than ``deeper``, which has one layer more than ``shallow``: all that
    both run grows by as much again for each.

    What takes all of a model's tensors at once (an optimizer's lists, a norm over all gradients) has another signature
    at each depth: of the same operators in the same order their bytes, FLOPs and tensors grow.
    """
    counts: Counter[Operator] = Counter()
    ours, theirs = dict(shallow.counts), dict(deeper.counts)
    for operator in [shared for shared in theirs if shared in ours]:
        fewer, now = ours.pop(operator), theirs.pop(operator)
        counts[operator] += now + layers * (now - fewer)
    unpaired = _alike(ours)
    for key, group in _alike(theirs).items():
        befores = unpaired.get(key, [])
        if len(befores) != len(group):
            counts.update({member: theirs[member] for member in group})
            continue
        for before, after in zip(befores, group):
            counts[_grown(before, after, layers)] += theirs[after] + layers * (theirs[after] - ours[before])
    return TracedStep(counts, deeper.uncosted, deeper.undeclared, deeper.ranks)


def _alike(operators: Iterable[Operator]) -> dict[tuple[str, str, str, bool], list[Operator]]:
    alike: dict[tuple[str, str, str, bool], list[Operator]] = {}
    for operator in operators:
        alike.setdefault((operator.name, operator.phase, operator.dtype, operator.hidden), []).append(operator)
    return {key: sorted(group, key=lambda member: member.moved_bytes) for key, group in alike.items()}


def _grown(before: Operator, now: Operator, layers: int) -> Operator:
    def more(name: str) -> int:
        return int(getattr(now, name) + layers * (getattr(now, name) - getattr(before, name)))

    return replace(
        now,
        flops=more("flops"),
        read_bytes=more("read_bytes"),
        written_bytes=more("written_bytes"),
        tensors=more("tensors"),
    )

"""Describes evidence, as stored: what is known of a job. :mod:`suite.record.store` has the files.

========  ====================================================================  =================  ====================
kind      what                                                                  replicate          travels
========  ====================================================================  =================  ====================
counted   exact counts of one step in each fifth of the run, probes of steps    none: no noise     yes
learned   one run alone: its curve, final test metrics, probes                  the seed           yes, to the bit under
                                                                                                   one arithmetic
timed     a process of each side in lock-step, resumed in each fifth            the processes      never
========  ====================================================================  =================  ====================

Raw samples are kept, so every number of a report can be computed again, differently. Failures are evidence too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Annotated, Any, Literal, get_origin

from pydantic import AfterValidator, Field, ValidationError

from suite.record.files import Stored, parse_versioned, printable, repeats_nothing
from suite.record.job import Setting, Spelling
from suite.record.numerics import NATIVE

SCHEMA_VERSION = 2

TIMING_PROTOCOL = 3
"""How :mod:`suite.measure.timing` times. Raise it with every change there that can move a ratio: timings of another
protocol are measured again."""

# what a record may hold: loose bounds, beyond which no run of ours is; text that is a name; a sum of bytes in 64 bits
Count64 = Annotated[int, Field(ge=0, lt=2**63)]
Steps = Annotated[int, Field(ge=0, le=10**12)]
Seconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
Name = Annotated[str, Field(max_length=2000)]
StackName = Annotated[Name, AfterValidator(Spelling)]

LONGEST = 8000  # characters of a failure's reason or traceback

FIFTHS = 5
"""Parts of a run in which a step is counted and timed: its cost may change on the way."""

LEAST_BLOCKS = 3
"""Steps of a timed part: the warm-up, and a round."""

FIRST_STEPS = 64
"""Training losses that a run keeps one by one, so that one of other arithmetic can be held against it."""

Status = Literal[
    "ok", "diverged", "out_of_memory", "timeout", "hung", "crashed", "failed", "unavailable", "not_attached"
]
"""How a run ended. One whose technique did not attach is no evidence and never stored: it measured something else."""

ENVIRONMENT = "the machine's files or network failed: "
"""How the reason of a failure begins that is no technique's: a full disk, a folder that is read-only, no network."""


class Conditions(Setting):
    """Holds what must be equal for two results to be comparable, besides the machine and the sources: the setting, the
    baseline's version and the data's hash. ``data`` names what the examples are, not where they were loaded from."""

    baseline: Name
    rate: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] = 1.0
    model: Name | None = None
    threads: Annotated[int, Field(ge=1, le=10**6)] = 1
    baseline_version: Annotated[int, Field(ge=0, le=10**6)]
    steps: Annotated[int, Field(ge=1, le=10**12)]
    data: Name
    data_sha256: Name

    @property
    def key(self) -> str:
        return _hashed(self, ())

    @property
    def family(self) -> str:
        """Returns the key of all conditions that differ from these in steps and learning rate alone."""
        return _hashed(self, ("steps", "rate"))


@lru_cache(maxsize=1 << 14)  # of each record, several times
def _hashed(conditions: Conditions, without: tuple[str, ...]) -> str:
    values = conditions.model_dump(exclude=set(without))
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


_KNOWN: dict[Any, Any] = {}


def _shared(value: Any) -> Any:
    """Returns an equal value that was read before, where there is one: a hundred thousand records say few things a
    hundred thousand times."""
    return _KNOWN.setdefault(value if isinstance(value, Stored) else repr(value), value)


Shared = AfterValidator(_shared)


class Machine(Stored):
    """Describes a machine, whose ``facts`` must match for results to be ranked together and make the key; ``context``
    is informational."""

    name: Name
    key: Name
    facts: Annotated[dict[str, Any], Shared]
    context: Annotated[dict[str, Any], Shared] = Field(default_factory=dict)


def elsewhere(machine: Machine, source: str) -> Machine:
    """Returns a machine as records of a ``source`` name it: another one than ours, whatever its key and facts are. They
    are words of those records, so they prove nothing of where something ran."""
    return machine.model_copy(update={"name": f"{machine.name} of {source}", "key": f"{machine.key} of {source}"})


def bits_of(numerics: str, machine: Machine) -> str:
    """Tells where runs of an arithmetic on a machine repeat to the bit: under the same portable arithmetic of the same
    torch, or else on that machine alone."""
    if numerics.partition(",")[0] == NATIVE:
        return machine.key
    return f"{numerics} torch {machine.facts.get('torch')}"


class Evaluation(Stored):
    step: Steps
    loss: float  # lower is better
    metrics: dict[str, float] = Field(default_factory=dict)


@dataclass(frozen=True)
class Count:
    """Says what a counter is called, in which unit. ``cost``: more of it is worse; else it describes the model.
    ``needs_values``: why a step of tensors without values does not give it; empty where it does."""

    title: str
    unit: str = ""
    cost: bool = True
    needs_values: str = ""


NO_VALUES = "tensors without values take no memory on the host"


class Counters(Stored):
    """Holds exact counts of one training step: equal code gives equal numbers. ``Run.count_step`` takes them.

    A new counter is a field here, with its :class:`Count`; reports, claims, gates and exports follow.

    Attributes:
        flops: floating-point operations of matrix products, convolutions and attention; a multiply-add is two.
        peak_tensor_bytes: most tensor bytes alive at once.
        peak_by_kind: that moment's bytes by kind.
        saved_activation_bytes: bytes that the forward pass saved for the backward pass.
        optimizer_state_bytes: bytes that the optimizer keeps between steps.
        parameter_count: scalars in the model, tied ones once.
        trainable_parameter_count: those that require a gradient.
        operators: operators that computed something: a launch count.
        host_bytes: what the run holds outside of its device when the step begins: arrays, pinned, shared and mapped
            memory, without the data set; None where nobody looked.
        uncounted_operators: calls of operators that may compute and have no FLOP formula; if any, ``flops`` is a
            lower bound.
        communication_bytes: sent per rank on an ideal ring; None in a single process.
        ranks: processes that make the step together. All numbers are of one of them, the first: its share of the
            batch, its FLOPs, its tensors; ``parameter_count`` alone is of the whole model.
        semantics: "eager": what the eager operators do. Measured on a compiled model too, since the dispatcher cannot
            see compiled code, so then it is no evidence about the compiler's work.
        saved_semantics: "compiled": ``saved_activation_bytes`` are what the partitioned graphs of torch.compile save.
        compiled: whether the step was compiled.
    """

    flops: Annotated[Count64, Count("FLOPs of a step", "FLOP")]
    peak_tensor_bytes: Annotated[Count64, Count("peak of all tensors", "B")]
    peak_by_kind: dict[str, Count64]
    saved_activation_bytes: Annotated[Count64, Count("saved for backward", "B")]
    optimizer_state_bytes: Annotated[Count64, Count("optimizer state", "B")]
    parameter_count: Annotated[Count64, Count("parameters", cost=False)]
    trainable_parameter_count: Annotated[Count64, Count("trainable parameters", cost=False)]
    operators: Annotated[
        Count64, Count("operators", needs_values="autograd takes other operators for views of tensors without values")
    ]
    host_bytes: Annotated[Count64 | None, Count("held on the host", "B", needs_values=NO_VALUES)] = None
    uncounted_operators: dict[str, Count64] = Field(default_factory=dict)
    communication_bytes: Annotated[
        Count64 | None, Count("communication", "B", needs_values="one process is counted, which sends nothing")
    ] = None
    ranks: Annotated[int, Field(ge=1, le=10**9)] = 1
    semantics: Literal["eager"] = "eager"
    saved_semantics: Literal["eager", "compiled"] = "eager"
    compiled: bool = False


COUNTS: Mapping[str, Count] = {
    name: count for name, field in Counters.model_fields.items() for count in field.metadata if isinstance(count, Count)
}
"""Every counter by its name."""


class Memory(Stored):
    """Holds peaks of the process that trained (of rank 0); None where the machine has no such figure.

    Attributes:
        process_start_bytes: resident when the set-up began, with libraries and data loaded: not of training's making.
        process_peak_bytes: most bytes resident from then on.
    """

    process_start_bytes: Count64 | None = None
    process_peak_bytes: Count64 | None = None
    cuda_allocated_peak_bytes: Count64 | None = None
    cuda_reserved_peak_bytes: Count64 | None = None


class Energy(Stored):
    """Holds the energy of one training step. ``joules_per_step`` is None unless it was measured; then ``reason`` says
    why."""

    joules_per_step: Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)] | None = None
    kind: Literal["measured_counter", "unavailable"] = "unavailable"
    method: str = ""
    scope: str = ""
    window_s: Seconds | None = None
    relative_error_bound: float | None = None
    reason: str = ""


class Code(Stored):
    """Hashes of the code that a run loads (:func:`suite.entries.sources.code_of`).

    Attributes:
        trajectory: of what decides every number of a training run: loop, model, data, techniques.
        counts: of that and of the meters.
    """

    trajectory: str
    counts: str


def _moment(text: str) -> str:
    """Returns a time of ISO 8601 with its offset, in UTC: the order of such texts is that of the times."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError
        return moment.astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        raise ValueError("a time of ISO 8601 with its offset from UTC is wanted") from None


def _bounded(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


Moment = Annotated[str, AfterValidator(_moment)]
Reason = Annotated[str, AfterValidator(_bounded)]
"""A text whose length is somebody else's choice: at most LONGEST characters are kept."""

Source = Annotated[str, Field(max_length=200)]
"""Where a line came from that was measured elsewhere: the published collection; empty where it was measured here."""


class Evidence(Stored):
    """Holds what all evidence says of itself. ``started``: ISO 8601, UTC. ``numerics``: the arithmetic that its runs
    had (:mod:`suite.record.numerics`)."""

    schema_version: int = Field(default=SCHEMA_VERSION, strict=True)
    id: Name
    started: Moment
    duration_s: Seconds
    leantrain: Name
    machine: Machine
    conditions: Annotated[Conditions, Shared]
    source: Source = ""
    numerics: Annotated[str, Field(max_length=200)] = NATIVE

    @property
    def home(self) -> Machine:
        """Returns the machine for which it counts: the one that it names, where it was measured here; else that one of
        its source alone."""
        return elsewhere(self.machine, self.source) if self.source else self.machine

    @property
    def bits(self) -> str:
        """Tells where it repeats to the bit."""
        return bits_of(self.numerics, self.home)


class Ended(Stored):
    """Says how a run ended."""

    stack: StackName  # "baseline" or the techniques in canonical spelling
    code: Annotated[Code, Shared]
    status: Status = "ok"
    reason: Reason = ""
    details: Reason = ""  # traceback of a failure
    steps: Steps | None = None
    recipe: Annotated[dict[str, Any], Shared] = Field(default_factory=dict)


class CountedStep(Stored):
    """Holds the counts of the step at ``progress`` in [0, 1) of a run."""

    progress: Share
    counters: Counters


class Counted(Ended, Evidence):
    """Records exact counts: of one step, or of one step in each fifth of a run whose cost changes on the way.
    ``probes``: what recorded steps of a short run show of the techniques."""

    kind: Literal["counted"] = "counted"
    points: list[CountedStep] = Field(default_factory=list)
    probes: dict[str, float] = Field(default_factory=dict)


def windows_of(counted: Iterable[Counted | None]) -> int:
    """Counts the parts of a run in which stacks with these counts are timed: FIFTHS where the cost of one of them
    changes and the run has room for them, else one."""
    changing = [run for run in counted if run and len(run.points) > 1]
    return FIFTHS if any(run.conditions.steps >= FIFTHS * LEAST_BLOCKS for run in changing) else 1


class Trained(Ended, Evidence):
    """Records one training run alone, off every clock.

    Attributes:
        train_loss: means of the training loss over equal parts of the run.
        trajectory_sha256: of every training loss, to the bit: equal hashes are equal trajectories.
        first_losses: training losses of the first steps, at most FIRST_STEPS, rounded to nine digits, which tell any
            two float32 apart.
        curve: evaluations on validation examples along the way.
        final: the evaluation on test examples, after the last step.
        cpu_s: processor seconds of the training steps, all threads and ranks.
        flops: of its set-up and all its steps, over all ranks, counted as :class:`Counters` has them; None where they
            were not (of older records, of compiled runs).
        uncounted_operators: calls, in the steps that were counted, of operators that may compute and have no FLOP
            formula; if any, ``flops`` is a lower bound.
    """

    seed: Annotated[int, Field(ge=0, lt=2**63)]
    train_loss: list[float] = Field(default_factory=list)
    trajectory_sha256: str = ""
    curve: list[Evaluation] = Field(default_factory=list)
    final: Evaluation | None = None
    probes: dict[str, float] = Field(default_factory=dict)
    cpu_s: Seconds | None = None
    flops: Count64 | None = None
    uncounted_operators: dict[str, Count64] = Field(default_factory=dict)
    first_losses: list[float] = Field(default_factory=list)


class Learned(Trained):
    """Records a run to learn from."""

    kind: Literal["learned"] = "learned"


class Witness(Trained):
    """Records a run in a fraction of the steps, every phase of it in proportion, by the code of the learned runs of its
    family and stack: code that repeats it to the bit renews them all. It is in no row."""

    kind: Literal["witness"] = "witness"


class Window(Stored):
    """Holds a part of a run in which both sides were timed, from ``progress`` in [0, 1) on.

    ``block_s[round]`` are the seconds of a side's two blocks in that round, ``block_steps`` its steps in each.
    """

    progress: Share
    block_s: list[tuple[Seconds, Seconds]]
    block_steps: Annotated[int, Field(ge=1, le=10**12)]


class Side(Ended):
    """Holds one contender of a timing. ``setup_s`` is what its run cost before its first step, ``warmup_s`` what its
    first ``warmup_steps`` steps took, compilation included, before the first window."""

    setup_s: Seconds | None = None
    warmup_s: Seconds | None = None
    warmup_steps: Steps = 0
    windows: list[Window] = Field(default_factory=list)
    memory: Memory = Memory()
    energy: Energy = Energy()
    cpu_s: Seconds | None = None  # processor seconds of the timed blocks, all threads


class Timed(Evidence):
    """Records a timing of several contenders in fresh processes, in lock-step; ``contenders[0]`` is the reference.

    Attributes:
        replicate: the number of this set of processes: each set is one replicate.
        orders: of each round's first half, over all windows; the second half is its reverse.
    """

    kind: Literal["timed"] = "timed"
    replicate: Annotated[int, Field(ge=0, lt=2**63)]
    protocol: Annotated[int, Field(ge=0, le=10**6)] = TIMING_PROTOCOL
    pairing: Literal["interleaved", "sequential"] = "interleaved"
    spawn_order: Annotated[list[int], Shared]
    orders: Annotated[list[list[int]], Shared]
    contenders: list[Side] = Field(min_length=1)

    @property
    def reference(self) -> Side:
        return self.contenders[0]

    @property
    def windows(self) -> int:
        """Counts the parts of a run that it shows; all of them where a side failed, since more is not to be had."""
        return _windows_of(self.contenders)

    def windows_of(self, index: int) -> int:
        """Counts the :attr:`windows` of one contender beside the reference."""
        return _windows_of([self.reference, self.contenders[index]])

    def without(self, stacks: Collection[str]) -> Timed | None:
        """Keeps the timing of the other contenders; None where the reference is among ``stacks``, or nothing is
        left."""
        remaining = [index for index, side in enumerate(self.contenders) if side.stack not in stacks]
        if 0 not in remaining or len(remaining) < 2:
            return None
        place = {index: number for number, index in enumerate(remaining)}
        changes = {
            "contenders": [self.contenders[index] for index in remaining],
            "spawn_order": [place[index] for index in self.spawn_order if index in place],
            "orders": [[place[index] for index in order if index in place] for order in self.orders],
        }
        return self.model_copy(update=changes)


def _windows_of(sides: Sequence[Side]) -> int:
    return min(len(side.windows) for side in sides) if all(side.status == "ok" for side in sides) else FIFTHS


class Renewal(Stored):
    """Records that code changed from ``old`` to ``new`` (trajectory hashes), and one run, repeated under the new one,
    was equal: all that was learned in this family of conditions with the stack holds for both.

    Attributes:
        machine: the name of the one that repeated it; older lines lack it.
        equality: to the bit, or, where the arithmetic was another, up to rounding.
        distance: then the largest relative difference of the first losses.
    """

    schema_version: int = Field(default=SCHEMA_VERSION, strict=True)
    kind: Literal["renewal"] = "renewal"
    id: Name
    started: Moment
    family: Name
    stack: StackName
    old: Name
    new: Name
    machine: Name = ""
    source: Source = ""
    equality: Literal["bit", "rounding"] = "bit"
    distance: float = 0.0


Line = Counted | Learned | Timed | Witness | Renewal
KINDS: Mapping[str, type[Line]] = {
    "counted": Counted,
    "learned": Learned,
    "timed": Timed,
    "witness": Witness,
    "renewal": Renewal,
}


def unattached(line: Line) -> list[Ended]:
    """Finds the runs of a line whose technique did not attach."""
    runs: Sequence[Ended] = line.contenders if isinstance(line, Timed) else [line] if isinstance(line, Ended) else []
    return [run for run in runs if run.status == "not_attached"]


def parse(line: bytes | str) -> Line:
    """Reads one line as evidence or a renewal.

    Raises ValueError with one sentence: damaged, incomplete, of another schema, with a member that stands twice.
    """
    kind = re.search(rb'"kind":\s?"(\w+)"', line if isinstance(line, bytes) else line.encode())
    model = KINDS.get(kind.group(1).decode() if kind else "", Evidence)
    try:
        parsed = None if _has_long_digits(line) else model.model_validate_json(line)
    except ValidationError:
        parsed = None
    content = line if isinstance(line, bytes) else line.encode()
    known: Stored | None = parsed if parsed and parsed.schema_version == SCHEMA_VERSION else None
    as_written = known is not None and known.model_dump_json(exclude=_unnamed(model, content)).encode() == content
    if not as_written and (known is None or not repeats_nothing(content)):
        # What is damaged, e.g. has a member twice, goes the slow way, which finds out why.
        known = parse_versioned(line, model, SCHEMA_VERSION, oldest=SCHEMA_VERSION)
    assert known is not None
    if not as_written and (place := _read_otherwise(json.loads(content), json.loads(known.model_dump_json()))):
        raise ValueError(f"not a record: {printable(place)} is of another type")
    return known  # type: ignore[return-value]


def _unnamed(model: type[Stored], content: bytes) -> dict[str, Any]:
    """Returns the fields, as pydantic leaves them out, that have a default and whose names ``content`` does not hold:
    an older line has none of what records got since, and is as it was written without them."""
    left_out: dict[str, Any] = {}
    for name, quoted, optional, inner, several in _members(model):
        if optional and quoted not in content:
            left_out[name] = True
        elif inner and (of_each := _unnamed(inner, content)):
            left_out[name] = {"__all__": of_each} if several else of_each
    return left_out


@cache
def _members(model: type[Stored]) -> tuple[tuple[str, bytes, bool, type[Stored] | None, bool], ...]:
    """Lists a class's fields: the name, as JSON has it, whether there is a default, and the class of what holds
    counters, one or several."""
    holders: dict[str, type[Stored]] = {"points": CountedStep, "counters": Counters}
    return tuple(
        (name, f'"{name}":'.encode(), not info.is_required(), holders.get(name), get_origin(info.annotation) is list)
        for name, info in model.model_fields.items()
    )


def stacks_of(line: Line) -> list[str]:
    """Lists the stacks that a line is of."""
    return [side.stack for side in line.contenders] if isinstance(line, Timed) else [line.stack]


NUMBERS = {int, float}


def _read_otherwise(written: Any, known: Any) -> str:
    """Finds the path of a value that was written as another type than it was read as, such as a number as a text; "" of
    none. What is read is compared, not converted: two readers of a record must not differ in what it says."""
    if isinstance(written, list) and repr(written) == repr(known):  # of equal types, too: most of a record is samples
        return ""
    if isinstance(written, dict) and isinstance(known, dict):
        pairs: Iterable[tuple[Any, Any, Any]] = ((name, value, known.get(name)) for name, value in written.items())
    elif isinstance(written, list) and isinstance(known, list) and len(written) == len(known):
        if {*map(type, written), *map(type, known)} <= NUMBERS:  # most of a record: samples and curves
            return ""
        pairs = ((str(place), *both) for place, both in enumerate(zip(written, known)))
    elif isinstance(written, bool) or isinstance(known, bool) or written is None or known is None:
        return "" if written is known else "."
    elif isinstance(written, int | float) and isinstance(known, int | float):
        return ""
    else:
        return "" if type(written) is type(known) else "."
    return next((f"{name}.{inner}".strip(".") for name, *both in pairs if (inner := _read_otherwise(*both))), "")


DIGITS = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else ord(" ") for byte in range(256))
LONG = b"0" * 19


def _has_long_digits(line: bytes | str) -> bool:
    """Tells whether there may be a whole number beyond 64 bits, which pydantic takes and no float holds."""
    content = line.encode() if isinstance(line, str) else line
    some = LONG in content.translate(DIGITS)  # a tenth of what the expression takes
    return some and bool(re.search(rb"[\s,:[]-?\d{19}", content))

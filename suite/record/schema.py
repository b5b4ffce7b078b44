"""Records: one replicate (one seed) of a comparison, as stored. :mod:`suite.record.store` has the files.

A record keeps raw samples, so every number of a report can be computed again, differently. Failures are rows too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from suite.record.files import Stored, parse_versioned
from suite.record.job import Setting

SCHEMA_VERSION = 1

SAME_COST = 0.05
"""Training costs within this relative distance: equal steps are equal time."""

Status = Literal["ok", "diverged", "out_of_memory", "timeout", "hung", "crashed", "failed", "unavailable"]


class Conditions(Setting):
    """What must be equal for two results to be comparable, besides the machine and the sources: the setting, the
    baseline's version and the data's hash. ``data`` names what the examples are, not where they were loaded from."""

    baseline_version: int
    steps: int
    data: str
    data_sha256: str

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(self.model_dump(), sort_keys=True).encode()).hexdigest()[:16]


class Machine(Stored):
    """``facts`` must match for results to be ranked together and make the key; ``context`` is informational."""

    name: str
    key: str
    facts: dict[str, Any]
    context: dict[str, Any] = Field(default_factory=dict)


class Evaluation(Stored):
    step: int
    loss: float  # test loss, lower is better
    metrics: dict[str, float] = Field(default_factory=dict)


class EqualTime(Stored):
    """A second run of a contender, its schedule shortened or stretched to end when the reference's budget ends."""

    steps: int
    loss: float
    metrics: dict[str, float] = Field(default_factory=dict)


@dataclass(frozen=True)
class Count:
    """What a counter is called, in which unit. ``cost``: more of it is worse; else it describes the model.
    ``needs_values``: a step of tensors without values does not give it."""

    title: str
    unit: str = ""
    cost: bool = True
    needs_values: bool = False


class Counters(Stored):
    """Exact counts of one training step: equal code gives equal numbers. ``Run.count_step`` takes them.

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
        uncounted_operators: calls of operators that may compute and have no FLOP formula; if any, ``flops`` is a
            lower bound.
        communication_bytes: sent per rank on an ideal ring; None in a single process.
        semantics: "eager": what the eager operators do. Measured on a compiled model too, since the dispatcher cannot
            see compiled code, so then it is no evidence about the compiler's work.
        compiled: whether the step was compiled.
    """

    flops: Annotated[int, Count("FLOPs of a step", "FLOP")]
    peak_tensor_bytes: Annotated[int, Count("peak of all tensors", "B")]
    peak_by_kind: dict[str, int]
    saved_activation_bytes: Annotated[int, Count("saved for backward", "B")]
    optimizer_state_bytes: Annotated[int, Count("optimizer state", "B")]
    parameter_count: Annotated[int, Count("parameters", cost=False)]
    trainable_parameter_count: Annotated[int, Count("trainable parameters", cost=False)]
    operators: Annotated[int, Count("operators", needs_values=True)]
    uncounted_operators: dict[str, int] = Field(default_factory=dict)
    communication_bytes: Annotated[int | None, Count("communication", "B", needs_values=True)] = None
    semantics: Literal["eager"] = "eager"
    compiled: bool = False


COUNTS: Mapping[str, Count] = {
    name: each for name, field in Counters.model_fields.items() for each in field.metadata if isinstance(each, Count)
}
"""Every counter by its name."""


class Memory(Stored):
    """Peaks of the process that trained (of rank 0); None where the machine has no such figure."""

    process_peak_bytes: int | None = None
    cuda_allocated_peak_bytes: int | None = None
    cuda_reserved_peak_bytes: int | None = None


class Energy(Stored):
    """Energy of one training step. ``joules_per_step`` is None unless it was measured; then ``reason`` says why."""

    joules_per_step: float | None = None
    kind: Literal["measured_counter", "unavailable"] = "unavailable"
    method: str = ""
    scope: str = ""
    window_s: float | None = None
    relative_error_bound: float | None = None
    reason: str = ""


class Outcome(Stored):
    """How one training run of a comparison went.

    ``block_s[round]`` are the seconds of its two blocks in that round, ``block_steps[round]`` their steps; evaluation
    and harness time are not in them. ``setup_s`` is what the run cost before its first step.
    """

    stack: str  # "baseline" or the techniques in canonical spelling
    status: Status = "ok"
    reason: str = ""
    details: str = ""  # traceback of a failure
    steps: int | None = None
    setup_s: float | None = None
    block_s: list[tuple[float, float]] = Field(default_factory=list)
    block_steps: list[tuple[int, int]] = Field(default_factory=list)
    train_loss: list[float] = Field(default_factory=list)
    curve: list[Evaluation] = Field(default_factory=list)
    recipe: dict[str, Any] = Field(default_factory=dict)
    counters: Counters | None = None
    memory: Memory = Memory()
    energy: Energy = Energy()
    cpu_s: float | None = None  # processor seconds of the training blocks, all threads
    probes: dict[str, float] = Field(default_factory=dict)
    equal_time: EqualTime | None = None
    sources: dict[str, str] = Field(default_factory=dict)  # technique id -> hash of its code


class Record(Stored):
    """One seed of a comparison. ``contenders[0]`` is the reference."""

    schema_version: int = SCHEMA_VERSION
    id: str
    started: str  # ISO 8601, UTC
    duration_s: float
    leantrain: str
    conditions: Conditions
    machine: Machine
    harness_sha256: str
    baseline_sha256: str
    seed: int
    pairing: Literal["interleaved", "sequential"] = "interleaved"
    spawn_order: list[int]
    orders: list[list[int]]  # of each round's first half; the second half is its reverse
    harness_s: float = 0.0  # between blocks, in all
    contenders: list[Outcome] = Field(min_length=1)

    @property
    def reference(self) -> Outcome:
        return self.contenders[0]


def parse(line: bytes | str) -> Record:
    """One line as a record. Raises ValueError with one sentence: damaged, incomplete, or of a newer schema."""
    try:
        record = None if _has_long_digits(line) else Record.model_validate_json(line)
    except ValidationError:
        record = None  # the slow way finds out why
    if record and record.schema_version == SCHEMA_VERSION:
        return record
    return parse_versioned(line, Record, SCHEMA_VERSION)


def _has_long_digits(line: bytes | str) -> bool:
    """Whether there may be a whole number beyond 64 bits, which pydantic takes and no float holds."""
    return bool(re.search(rb"[\s,:[]-?\d{19}" if isinstance(line, bytes) else r"[\s,:[]-?\d{19}", line))  # type: ignore[arg-type]

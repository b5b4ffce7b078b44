"""Records: one replicate (one seed) of a comparison, as stored; and the append-only store they live in.

A record keeps raw samples, so every number of a report can be computed again, differently. Failures are rows too.
Records are JSON Lines under ``<results>/<machine>/records.jsonl``: appended whole or not at all, merged with ``cat``.
"""

from __future__ import annotations

import errno
import gc
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, ValidationError

SCHEMA_VERSION = 1

Status = Literal["ok", "diverged", "out_of_memory", "timeout", "hung", "crashed", "failed", "unavailable"]


class StoreError(RuntimeError):
    """The results folder cannot be used; the message says why and what to do."""


class NoRecord(LookupError):
    """No record is what was asked for; the message says what to do."""


class Stored(BaseModel):
    # a probe may be NaN: JSON has no such number, and null would make the whole record unreadable
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class Conditions(Stored):
    """What must be equal for two results to be comparable, besides the machine and the sources."""

    baseline: str
    baseline_version: int
    size: str
    recipe: str
    task: str
    steps: int  # of the reference
    data: str
    data_sha256: str
    model: str | None = None
    device: str = "cpu"
    threads: int = 1

    @property
    def key(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]


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


class Counters(Stored):
    """Exact counts of one training step; see suite/meters/counters.py."""

    flops: int
    peak_tensor_bytes: int
    peak_by_kind: dict[str, int]
    saved_activation_bytes: int
    optimizer_state_bytes: int
    parameter_count: int
    trainable_parameter_count: int
    operators: int
    uncounted_operators: dict[str, int] = Field(default_factory=dict)  # may compute, no FLOP formula: a lower bound
    communication_bytes: int | None = None  # sent per rank on an ideal ring; None in a single process
    semantics: Literal["eager"] = "eager"
    compiled: bool = False  # then eager counts are no evidence about the compiler's work


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


class Contender(Stored):
    """One training run of a comparison.

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
    contenders: list[Contender] = Field(min_length=1)

    @property
    def reference(self) -> Contender:
        return self.contenders[0]


class Store:
    """The records of one results folder (of all its machines), appended for one machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, machine: str) -> Path:
        return self.folder / machine / "records.jsonl"

    @contextmanager
    def writing(self, machine: str) -> Iterator[None]:
        """Holds the folder for one writer. Raises StoreError if another run has it or it cannot be written."""
        target = self.path(machine)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("a"):
                pass
            lock = FileLock(target.with_suffix(".lock"), timeout=0)
            lock.acquire()
        except Timeout:
            raise StoreError(
                f"another run is writing to {target.parent}; wait for it, or give this one its own folder with --out"
            ) from None
        except OSError as error:
            raise StoreError(
                f"cannot write to {target.parent}: {error.strerror}; choose another folder with --out"
            ) from None
        try:
            yield
        finally:
            lock.release()  # the empty lock file stays: removing it could let two writers in

    def append(self, record: Record) -> None:
        """Adds one line, whole or not at all, and flushes it to the disk. Raises StoreError, e.g. on a full disk."""
        target = self.path(record.machine.name)
        line = record.model_dump_json(exclude_defaults=False).encode() + b"\n"
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(target, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(f"cannot write {target}: {error.strerror}; this replicate is not kept") from None
        end = os.lseek(handle, 0, os.SEEK_END)
        try:
            if end and os.pread(handle, 1, end - 1) != b"\n":  # a line that a crash cut off: keep it apart from ours
                line = b"\n" + line
            written = 0
            while written < len(line):
                written += os.write(handle, line[written:])
            os.fsync(handle)
        except OSError as error:
            os.ftruncate(handle, end)
            what = "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error))
            raise StoreError(
                f"cannot write {target}: {what}; what was measured before is kept, this replicate is not"
            ) from None
        finally:
            os.close(handle)

    def read(self) -> tuple[list[Record], list[str]]:
        """All records of all machines, oldest first, and one sentence for each line that cannot be read."""
        with _uncollected():
            return self._read()

    def _read(self) -> tuple[list[Record], list[str]]:
        records: dict[str, Record] = {}
        lines_of: dict[str, int] = {}  # what a line was, without keeping it
        problems: list[str] = []
        for path in sorted(self.folder.glob("*/*.jsonl")):
            try:
                lines = path.read_bytes().split(b"\n")
            except OSError as error:
                problems.append(f"{path}: cannot be read: {error.strerror}; its records are left out")
                continue
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    record = parse(line)
                    if lines_of.setdefault(record.id, hash(line.strip())) != hash(line.strip()):
                        raise ValueError(f"it has the id of another one, {printable(record.id)}")
                except ValueError as error:
                    problems.append(f"{path}:{number}: {error}; the line is left out and left in place")
                else:
                    records[record.id] = record
        return sorted(records.values(), key=lambda record: record.started), problems


@contextmanager
def _uncollected() -> Iterator[None]:
    """No search for cycles, of which a record has none: among millions of kept objects it takes as long as reading."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def parse(line: bytes | str) -> Record:
    """One line as a record. Raises ValueError with one sentence: damaged, incomplete, or of a newer schema."""
    try:
        record = None if _has_long_digits(line) else Record.model_validate_json(line)
    except ValidationError:
        record = None
    return record if record and record.schema_version == SCHEMA_VERSION else _examined(line)


def _examined(line: bytes | str) -> Record:
    """As `parse`, which is ten times faster where nothing is wrong."""
    try:
        version = json.loads(line, parse_int=_whole).get("schema_version")
    except TooLarge as error:
        raise ValueError(f"not a record: {error}") from None
    except (ValueError, AttributeError, RecursionError):
        raise ValueError("not a record: the line is damaged") from None
    if not isinstance(version, int) or version < 1:
        raise ValueError("not a record: it names no schema version")
    if version > SCHEMA_VERSION:
        raise ValueError(f"schema version {version} is newer than {SCHEMA_VERSION}; update leantrain to read it")
    try:
        return Record.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        said = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise ValueError(f"not a record: {printable(said)}") from None


def _has_long_digits(line: bytes | str) -> bool:
    """Whether there may be a whole number beyond 64 bits, which pydantic takes and no float holds."""
    return bool(re.search(rb"[\s,:[]-?\d{19}" if isinstance(line, bytes) else r"[\s,:[]-?\d{19}", line))  # type: ignore[arg-type]


class TooLarge(ValueError):
    """A whole number that no count can be, and no float holds."""


def _whole(digits: str) -> int:
    if len(digits) > 18 and not -(2**63) <= int(digits[:30]) < 2**63:
        raise TooLarge("it has a whole number beyond 64 bits")
    return int(digits)


def printable(text: str) -> str:
    """Text of a file in one line, as a message may quote it: control characters written out."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)

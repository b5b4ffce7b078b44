"""A stored calibration, and what it says of its machine. Reading one loads no torch.

What makes one is :mod:`suite.guard.calibration`.
"""

from __future__ import annotations

import math
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import AwareDatetime, Field

from suite.judge.statistics import Interval, false_alarm_interval, smallest_detectable_effect
from suite.judge.verdicts import ChangeVerdict
from suite.record.files import Stored, parse_versioned, read_plain
from suite.record.job import Job
from suite.record.schema import Machine

SCHEMA_VERSION = 2
VALID = timedelta(days=7)
CLOCKS_DIFFER = timedelta(days=1)
TABLE_PAIRS = (8, 12, 16, 24, 32)
AGAIN = "run: leantrain calibrate"
ALPHA = 0.05
"""Of the gate: the share of unchanged code that may raise an alarm."""


class Uncalibrated(RuntimeError):
    """This machine must not gate; one sentence says why and what to do."""


LogRatio = Annotated[float, Field(ge=-10, le=10)]
"""Of a pair of processes that ran the same code: a factor of e^10 is no timing."""
Positive = Annotated[float, Field(ge=0, le=1e9)]


class Gate(Stored):
    """One gate that was run: its verdict and the log ratio of each of its process pairs."""

    verdict: ChangeVerdict
    pairs: list[LogRatio] = Field(min_length=1)
    seconds: Positive


class Calibration(Stored):
    """The gates that a machine ran of unchanged code and of a planted slow-down. ``job`` is what they timed; its steps
    and seeds are the gate's choice."""

    schema_version: int = SCHEMA_VERSION
    machine: Machine
    made: AwareDatetime
    design: dict[str, float]
    margin: Positive
    budget_s: Positive
    job: Job
    planted_slower: Positive
    unchanged: list[Gate] = Field(min_length=1)
    planted: list[Gate] = Field(min_length=1)

    @property
    def alarms(self) -> int:
        return sum(gate.verdict == "regressed" for gate in self.unchanged)

    @property
    def false_alarms(self) -> Interval:
        """The rate, with its exact interval."""
        return false_alarm_interval(self.alarms, len(self.unchanged))

    @property
    def caught(self) -> int:
        return sum(gate.verdict == "regressed" for gate in self.planted)

    @property
    def sigma(self) -> float:
        """Standard deviation of an unchanged process pair's log ratio, about zero; 0.01 is 1 %."""
        pairs = np.concatenate([gate.pairs for gate in self.unchanged])
        return float(np.sqrt(np.mean(pairs**2)))

    def smallest_effects(self) -> dict[int, float]:
        """Number of process pairs -> slow-down that they see in four of five cases, a fraction."""
        return {n: math.expm1(smallest_detectable_effect(self.sigma, n)) for n in TABLE_PAIRS}


def beside(records: Path) -> tuple[dict[str, Calibration], list[str]]:
    """The calibrations in a results folder, by their machine's key, and one sentence for each that cannot be read."""
    calibrations: dict[str, Calibration] = {}
    problems = []
    named = sorted(folder / "calibration.json" for folder in records.glob("*") if folder.is_dir())
    for path in filter(os.path.lexists, named):  # a link that leads nowhere is named, too
        try:
            calibration = read(path)
            calibrations[calibration.machine.key] = calibration
        except (Uncalibrated, FileNotFoundError) as error:
            problems.append(str(error))
    return calibrations, problems


def read(path: Path) -> Calibration:
    """The calibration at ``path``. Raises Uncalibrated, also for one that is dated in the future and would never grow
    old, or FileNotFoundError."""
    try:
        calibration = parse_versioned(read_plain(path), Calibration, SCHEMA_VERSION, oldest=SCHEMA_VERSION)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Uncalibrated(f"cannot read {path}: {error.strerror}; {AGAIN}") from None
    except ValueError as error:
        raise Uncalibrated(f"{path}: {error}; {AGAIN}") from None
    if calibration.made > datetime.now(UTC) + CLOCKS_DIFFER:
        raise Uncalibrated(f"{path}: it is dated {calibration.made:%Y-%m-%d}, which is in the future; {AGAIN}")
    return calibration


def report(calibration: Calibration) -> list[str]:
    """What the calibration says of the machine, in lines."""
    rate, n = calibration.false_alarms, len(calibration.unchanged)
    longest_s = max(gate.seconds for gate in (*calibration.unchanged, *calibration.planted))
    effects = ", ".join(f"{pairs} pairs {effect:.1%}" for pairs, effect in calibration.smallest_effects().items())
    return [
        f"false alarms: {calibration.alarms} of {n} gates of unchanged code, {rate.estimate:.1%} "
        f"[{rate.low:.1%}, {rate.high:.1%}] (at most {ALPHA:.0%} wanted)",
        f"planted slow-down of {calibration.planted_slower:.0%}: caught in {calibration.caught} of "
        f"{len(calibration.planted)} gates",
        f"noise of a process pair: {calibration.sigma:.2%}; smallest effect seen in four of five cases: {effects}",
        f"a gate took at most {longest_s:.0f} s of {calibration.budget_s:g} s; verdicts on unchanged code: "
        + ", ".join(
            f"{verdict} {sum(gate.verdict == verdict for gate in calibration.unchanged)}"
            for verdict in sorted({gate.verdict for gate in calibration.unchanged})
        ),
    ]

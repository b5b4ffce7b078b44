"""Synthetic evidence with known truth: what a campaign would have stored, without training anything."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from suite.entries.card import Claim
from suite.judge.claims import Observation
from suite.judge.rows import Row, pairs
from suite.judge.ruler import BUDGETS, steps_at
from suite.judge.statistics import OVER_REPLICATES, Interval
from suite.record.machine import key_of
from suite.record.schema import (
    Code,
    Conditions,
    Counted,
    CountedStep,
    Counters,
    Evaluation,
    Learned,
    Line,
    Machine,
    Memory,
    Renewal,
    Side,
    Timed,
    Window,
    Witness,
)
from suite.record.store import Records, Store

ROUNDS = 20
STEPS = 200
SLOPE = -0.2  # of the ln final loss in the ln budget
CODE = Code(trajectory="t" * 32, counts="c" * 32)


def machine(name: str = "", **facts: Any) -> Machine:
    """One with these facts, and the key that they make."""
    return Machine(name=name or f"test-2c-8g-{key_of(facts)[:6]}", key=key_of(facts), facts=facts)


MACHINE = machine(cpu="AMD EPYC test", cores=2)


VERSION = 99  # of every baseline here: newer than those that are installed, so that no row is of an older one


def conditions(**changes: Any) -> Conditions:
    values: dict[str, Any] = {
        "baseline": "gpt",
        "baseline_version": VERSION,
        "size": "nano",
        "recipe": "modern",
        "task": "pretrain",
        "steps": STEPS,
        "data": "test text",
        "data_sha256": "d" * 64,
    }
    return Conditions(**values | changes)


def heading(name: str, number: int = 0) -> dict[str, Any]:
    """The fields of all evidence; ``name`` and ``number`` decide the id."""
    return {
        "id": uuid.uuid5(uuid.NAMESPACE_OID, f"{name} {number}").hex,
        "started": f"2026-01-01T00:00:{number % 60:02d}+00:00",
        "duration_s": 10.0,
        "leantrain": "0.1.0",
        "machine": MACHINE,
        "conditions": conditions(),
    }


def counters(**changes: Any) -> Counters:
    values: dict[str, Any] = {
        "flops": 10**9,
        "peak_tensor_bytes": 4 * 2**20,
        "peak_by_kind": {"activations": 2**20, "parameters": 2**20},
        "saved_activation_bytes": 2**20,
        "optimizer_state_bytes": 2**20,
        "parameter_count": 2**18,
        "trainable_parameter_count": 2**18,
        "operators": 500,
    }
    return Counters(**values | changes)


def counted(stack: str = "baseline", *, points: Sequence[Counters] = (), **changes: Any) -> Counted:
    """Exact counts of a stack, one for each of ``points``, over the whole run."""
    each = list(points) or [counters()]
    steps = [CountedStep(progress=number / len(each), counters=one) for number, one in enumerate(each)]
    values = {**heading(f"counted {stack}"), "stack": stack, "code": CODE, "steps": STEPS, "points": steps}
    return Counted(**values | changes)


def loss_at(progress: float, final: float = 2.0) -> float:
    """A loss curve from 4 down to ``final``."""
    return final + (4.0 - final) * (1 - progress) ** 2


def learned(
    stack: str = "baseline", seed: int = 0, *, final: float = 2.0, steps: int = STEPS, **changes: Any
) -> Learned:
    """A finished run that ended at the test loss ``final``."""
    budget = changes.get("conditions", conditions()).steps
    values: dict[str, Any] = {
        **heading(f"learned {stack} {budget}", seed),
        "stack": stack,
        "code": CODE,
        "seed": seed,
        "steps": steps,
        "train_loss": [loss_at(i / 50, final) for i in range(50)],
        "curve": [Evaluation(step=steps * i // 10, loss=loss_at(i / 10, final)) for i in range(11)],
        "final": Evaluation(step=steps, loss=final, metrics={"accuracy": 1 / final}),
        "trajectory_sha256": f"{stack} {seed} {final}",
        "cpu_s": 20.0,
    }
    return Learned(**values | changes)


def with_curve(stack: str, curve: Sequence[Evaluation], seed: int = 0, **changes: Any) -> Learned:
    """A run with this curve of validation losses; the last one is its test loss, too, where it finished."""
    finished = curve and changes.get("status", "ok") == "ok"
    values = {"curve": list(curve), "final": curve[-1] if finished else None}
    return learned(stack, seed).model_copy(update=values | changes)


def ruler_runs(
    seeds: int = 5, noise: float = 0.004, final: float = 2.0, slope: float = SLOPE, rate: float = 1.0
) -> list[Learned]:
    """The reference at all budgets: a power law with a level for each seed, and ``noise`` on top."""
    rng = np.random.default_rng(7)
    level = noise * rng.standard_normal(seeds)
    runs = []
    for seed in range(seeds):
        for share in BUDGETS:
            steps = steps_at(share, STEPS)
            loss = final * math.exp(slope * math.log(share) + level[seed] + noise / 4 * rng.standard_normal())
            runs.append(learned(seed=seed, final=loss, steps=steps, conditions=conditions(steps=steps, rate=rate)))
    return runs


def side(
    stack: str = "baseline",
    *,
    pace_s: float | Callable[[float], float] = 0.02,
    noise: float = 0.01,
    windows: int = 1,
    rounds: int = ROUNDS,
    steps: int = STEPS,
    setup_s: float = 0.1,
    drift: np.ndarray | None = None,
    rng: np.random.Generator | None = None,
    **changes: Any,
) -> Side:
    """One side of a timing; ``pace_s`` is seconds per own step, constant or a function of progress in [0, 1]."""
    rng = rng or np.random.default_rng(0)
    block_steps = max(1, round(2 * steps / STEPS))
    each_rounds = rounds // windows
    shared = np.ones(rounds) if drift is None else drift
    parts = []
    for window in range(windows):
        pace = pace_s((window + 0.5) / windows) if callable(pace_s) else pace_s
        here = shared[window * each_rounds : (window + 1) * each_rounds]
        block_s = block_steps * pace * here[:, None] * np.exp(noise * rng.standard_normal((each_rounds, 2)))
        parts.append(Window(progress=window / windows, block_s=block_s.tolist(), block_steps=block_steps))
    seconds = sum(sum(map(sum, each.block_s)) for each in parts)
    values: dict[str, Any] = {
        "stack": stack,
        "code": CODE,
        "steps": steps,
        "setup_s": setup_s,
        "windows": parts,
        "memory": Memory(process_peak_bytes=500 * 2**20),
        "cpu_s": seconds,
    }
    return Side(**values | changes)


def timed(sides: Sequence[Side], replicate: int = 0, **changes: Any) -> Timed:
    values: dict[str, Any] = {
        **heading(f"timed {[each.stack for each in sides]}", replicate),
        "replicate": replicate,
        "spawn_order": list(range(len(sides))),
        "orders": [list(range(len(sides)))] * ROUNDS,
        "contenders": list(sides),
    }
    return Timed(**values | changes)


def timings(
    stack: str,
    replicates: int = 3,
    *,
    pace_s: float | Callable[[float], float] = 0.02,
    reference: str = "baseline",
    spread: float = 0.002,
    **changes: Any,
) -> list[Timed]:
    """Timings of ``stack``; the machine drifts, and each set of processes is off by ``spread``."""
    made = []
    for replicate in range(replicates):
        rng = np.random.default_rng([replicate, *map(ord, stack)])
        drift = np.exp(np.cumsum(0.02 * rng.standard_normal(ROUNDS)))
        off = np.exp(spread * rng.standard_normal(2))
        scaled = (lambda progress, j=off[1]: pace_s(progress) * j) if callable(pace_s) else pace_s * off[1]
        windows = changes.get("windows", 1)
        a = side(reference, pace_s=0.02 * off[0], drift=drift, rng=rng, windows=windows)
        made.append(timed([a, side(stack, pace_s=scaled, drift=drift, rng=rng, **changes)], replicate))
    return made


def renewal(stack: str = "x", **changes: Any) -> Renewal:
    """Code that changed and moved no bit."""
    values: dict[str, Any] = {
        "id": uuid.uuid5(uuid.NAMESPACE_OID, f"renewal {stack}").hex,
        "started": "2026-01-02T00:00:00+00:00",
        "family": conditions().family,
        "stack": stack,
        "old": CODE.trajectory,
        "new": "n" * 32,
    }
    return Renewal(**values | changes)


def evidence(
    stack: str,
    *,
    seeds: int = 3,
    replicates: int = 3,
    final: float = 2.0,
    pace_s: float | Callable[[float], float] = 0.02,
    steps: int = STEPS,
    seed_noise: float = 0.002,
    points: Sequence[Counters] = (),
    ruler: bool = True,
    probes: dict[str, float] | None = None,
    windows: int = 1,
) -> list[Line]:
    """All that a campaign knows of ``stack`` against the baseline: seeds differ in their final losses."""
    rng = np.random.default_rng(list(map(ord, stack)))
    lines: list[Line] = [counted(), counted(stack, points=points)]
    for seed in range(seeds):
        off = np.exp(seed_noise * rng.standard_normal(2))
        lines.append(learned(seed=seed, final=2.0 * off[0]))
        lines.append(learned(stack, seed, final=final * off[1], steps=steps, probes=probes or {}))
    lines += timings(stack, replicates, pace_s=pace_s, steps=steps, windows=windows)
    if ruler:
        lines += [each for each in ruler_runs() if each.conditions.steps != STEPS]
    return lines


def every_kind() -> list[Line]:
    """A line of each kind, and a failure with a reason that is no plain text."""
    failed = learned("y", 1, status="crashed", reason="=HYPERLINK(1)\n\x1b[31m|", probes={"nan": math.nan})
    witness = Witness(**learned("x", 9).model_dump(exclude={"kind", "id"}), id="w" * 32)
    return [*evidence("x", seeds=2, replicates=1), failed, witness, renewal()]


def put(folder: Path, lines: Iterable[Line], machine: str = MACHINE.name) -> Path:
    """The results folder, with the lines in it."""
    for line in lines:
        Store(folder).append(line, machine)
    return folder


def records(*groups: Iterable[Line]) -> Records:
    """Records of all lines, each once."""
    return Records.of({line.id: line for group in groups for line in group}.values())


def installed(setting: object, stack: str) -> Code:
    """The code of the synthetic evidence, as if it were installed."""
    return CODE


def rows(*groups: Iterable[Line]) -> list[Row]:
    """The rows of the lines; none is unverified."""
    return pairs(records(*groups), lambda stack: "baseline", installed)


def row(stack: str, **changes: Any) -> Row:
    """The one row of :func:`evidence`."""
    return next(each for each in rows(evidence(stack, **changes)) if each.stack == stack)


def claim(**changes: Any) -> Claim:
    """That a step takes at most 0.8 of the reference's."""
    values: dict[str, Any] = {
        "id": "a_claim",
        "statement": "It helps.",
        "metric": "step_time",
        "scope": "step",
        "kind": "measured",
        "expected": 0.8,
        "relation": "<=",
    }
    if "read" not in changes:
        values["unread"] = "table 1"
    return Claim(**values | changes)


def between(low: float, high: float, n: int = 3, method: str = OVER_REPLICATES) -> Observation:
    """A ratio known to lie in [low, high]."""
    ends = [math.log(end) if end else -math.inf for end in (low, high)]
    log = Interval(sum(ends) / 2, *ends, 0.95, method, n, n - 1)
    return Observation(log.ratio(), log, quality=Interval(1, 0.99, 1.01, 0.95, OVER_REPLICATES, n))

"""Synthetic records with known truth: what a comparison would have stored, without training anything."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from suite.contract.card import Claim
from suite.judge.claims import Observation
from suite.judge.statistics import OVER_SEEDS, Interval
from suite.record.schema import Conditions, Counters, Evaluation, Machine, Memory, Outcome, Record

ROUNDS = 40
STEPS = 200
MACHINE = Machine(name="test-2c-8g-abcdef", key="abcdef0123456789", facts={"cpu": "test", "cores": 2})


def conditions(**changes: Any) -> Conditions:
    values: dict[str, Any] = {
        "baseline": "gpt", "baseline_version": 1, "size": "nano", "recipe": "modern", "task": "pretrain",
        "steps": STEPS, "data": "test text", "data_sha256": "d" * 64,
    }  # fmt: skip
    return Conditions(**values | changes)


def loss_at(progress: float, final: float = 2.0) -> float:
    """A loss curve from 4 down to ``final``."""
    return final + (4.0 - final) * (1 - progress) ** 2


def counters(**changes: Any) -> Counters:
    values: dict[str, Any] = {
        "flops": 10**9, "peak_tensor_bytes": 4 * 2**20, "peak_by_kind": {"activations": 2**20, "parameters": 2**20},
        "saved_activation_bytes": 2**20, "optimizer_state_bytes": 2**20, "parameter_count": 2**18,
        "trainable_parameter_count": 2**18, "operators": 500,
    }  # fmt: skip
    return Counters(**values | changes)


def contender(
    stack: str = "baseline",
    *,
    pace_s: float | Callable[[float], float] = 0.02,
    noise: float = 0.01,
    final: float = 2.0,
    steps: int = STEPS,
    rounds: int = ROUNDS,
    setup_s: float = 0.1,
    drift: np.ndarray | None = None,
    rng: np.random.Generator | None = None,
    **changes: Any,
) -> Outcome:
    """A finished run; ``pace_s`` is seconds per step, constant or a function of progress in [0, 1]."""
    rng = rng or np.random.default_rng(0)
    cuts = [block * steps // (2 * rounds) for block in range(2 * rounds + 1)]
    block_steps = np.diff(cuts).reshape(rounds, 2)
    pace = np.array([pace_s((r + 0.5) / rounds) if callable(pace_s) else pace_s for r in range(rounds)])
    shared = np.ones(rounds) if drift is None else drift
    block_s = block_steps * (pace * shared)[:, None] * np.exp(noise * rng.standard_normal((rounds, 2)))
    values: dict[str, Any] = {
        "stack": stack,
        "steps": steps,
        "setup_s": setup_s,
        "block_s": block_s.tolist(),
        "block_steps": block_steps.tolist(),
        "curve": [Evaluation(step=steps * i // 10, loss=loss_at(i / 10, final)) for i in range(11)],
        "counters": counters(),
        "memory": Memory(process_peak_bytes=500 * 2**20),
        "cpu_s": float(block_s.sum()),
        "sources": {} if stack == "baseline" else {stack: "1" * 64},
    }
    return Outcome(**values | changes)


def failure(stack: str, status: str, reason: str) -> Outcome:
    return Outcome(stack=stack, status=status, reason=reason, sources={stack: "1" * 64})  # type: ignore[arg-type]


def record(contenders: Sequence[Outcome], seed: int = 0, **changes: Any) -> Record:
    values: dict[str, Any] = {
        "id": uuid.uuid5(uuid.NAMESPACE_OID, f"{seed}{changes}{[each.stack for each in contenders]}").hex,
        "started": f"2026-01-01T00:00:{seed:02d}+00:00",
        "duration_s": 10.0,
        "leantrain": "0.1.0",
        "conditions": conditions(),
        "machine": MACHINE,
        "harness_sha256": "h" * 64,
        "baseline_sha256": "b" * 64,
        "seed": seed,
        "spawn_order": list(range(len(contenders))),
        "orders": [list(range(len(contenders)))] * ROUNDS,
        "contenders": list(contenders),
    }
    return Record(**values | changes)


def changed(records: Sequence[Record], **changes: Any) -> list[Record]:
    """The records with their first contender changed."""
    return [
        record([each.reference, Outcome.model_validate(each.contenders[1].model_dump() | changes)], each.seed)
        for each in records
    ]


def comparison(stack: str, seeds: int = 3, **changes: Any) -> list[Record]:
    """Records of ``stack`` against the baseline; the machine drifts, seeds differ in pace and in final loss."""
    final, pace = changes.pop("final", 2.0), changes.pop("pace_s", 0.02)
    records = []
    for seed in range(seeds):
        rng = np.random.default_rng([seed, *map(ord, stack)])
        drift = np.exp(np.cumsum(0.02 * rng.standard_normal(ROUNDS)))
        jitter = np.exp(0.002 * rng.standard_normal(4))
        scaled = (lambda progress, j=jitter[1]: pace(progress) * j) if callable(pace) else pace * jitter[1]
        reference = contender(pace_s=0.02 * jitter[0], final=2.0 * jitter[2], drift=drift, rng=rng)
        other = contender(stack, pace_s=scaled, final=final * jitter[3], drift=drift, rng=rng, **changes)
        records.append(record([reference, other], seed))
    return records


def claim(**changes: Any) -> Claim:
    """That a step takes at most 0.8 of the reference's."""
    values: dict[str, Any] = {
        "id": "a_claim", "statement": "It helps.", "place": "table 1", "metric": "step_time", "scope": "step",
        "kind": "measured", "expected": 0.8, "relation": "<=",
    }  # fmt: skip
    return Claim(**values | changes)


def between(low: float, high: float, n: int = 3, method: str = OVER_SEEDS) -> Observation:
    """A ratio known to lie in [low, high]."""
    ends = [math.log(end) if end else -math.inf for end in (low, high)]
    log = Interval(sum(ends) / 2, *ends, 0.95, method, n, n - 1)
    return Observation(log.ratio(), log, quality=Interval(1, 0.99, 1.01, 0.95, OVER_SEEDS, n))

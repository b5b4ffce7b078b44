"""One try of many: what exact numbers decide, what votes decide, and what it would take."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from suite.guard import speed, tries
from suite.guard.check import ExactComparison
from suite.guard.findings import Difference, Finding
from suite.guard.tries import FasterRule, decision_of, of_exact
from suite.judge.many_tries import level_of
from suite.record.job import Job, Setting

JOB = Job(setting=Setting(baseline="bert", size="pico"), stack="baseline")


def exact(*findings: Finding, changed: bool = True) -> ExactComparison:
    return ExactComparison([*findings], [JOB] * changed, [])


@pytest.mark.parametrize(
    ("seen", "decision", "basis"),
    [
        (exact(Finding("a", "exact", "regressed", "more bytes")), "discard", "a regressed: more bytes"),
        (exact(Finding("a", "exact", "failed", "it broke")), "discard", "a failed: it broke"),
        (exact(Finding("a", "exact", "equal"), changed=False), "discard", "nothing that runs was changed"),
        (exact(Finding("a", "exact", "improved", "", (Difference("flops", 9, 8),))), "keep", "a: flops 9 → 8"),
    ],
)
def test_exact_numbers_leave_nothing_to_chance(seen: ExactComparison, decision: str, basis: str) -> None:
    found = of_exact(seen)
    assert found is not None and found.decision == decision and found.basis.startswith(basis)


def test_what_only_runs_otherwise_is_left_to_votes_and_what_trains_otherwise_to_losses() -> None:
    assert of_exact(exact(Finding("a", "exact", "equal"))) is None
    assert of_exact(exact(Finding("a", "exact", "changed"), Finding("b", "exact", "improved"))) is None


def votes(d: list[float], monkeypatch: pytest.MonkeyPatch, level: float = level_of(1, 0)) -> tries._Evidence:
    item = speed.TimedSet(JOB, d=d, e=[0.0] * len(d), seconds=10.0)
    monkeypatch.setattr(speed, "time_sets", lambda *args, **options: [item])
    return tries._by_votes(Path("old"), Path("new"), [JOB], level, 0.05, 1.0, lambda *_: None)


def test_votes_for_faster_keep_and_votes_against_discard(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = votes([-0.05] * 12, monkeypatch)
    assert kept.decision == "keep" and kept.log >= -math.log(level_of(1, 0)) and "-4.9%" in kept.basis
    assert votes([0.0] * 12, monkeypatch).decision == "discard"
    open_ = votes([-0.05] * 12, monkeypatch, level_of(50, 0))
    assert open_.decision == "undecided" and open_.more == "5 more sets like these decide: --minutes 1"


def test_the_rule_is_the_gates_with_its_sides_exchanged() -> None:
    d = np.random.default_rng(1).normal(-0.03, 0.04, 40).tolist()
    rule = FasterRule(0.05, 0.01, 0.05)
    plain = super(FasterRule, rule)
    assert [rule.outcome(d[:n]) for n in range(41)] == [plain.outcome([-x for x in d[:n]]) for n in range(41)]
    assert rule.log_evidence([]) == 0.0 and rule.log_evidence([-0.05]) > 0 > rule.log_evidence([0.05])


@pytest.mark.parametrize(
    ("log", "refuted", "decision"), [(5.0, True, "keep"), (1.0, True, "discard"), (1.0, False, "undecided")]
)
def test_the_level_is_the_bar(log: float, refuted: bool, decision: str) -> None:
    assert decision_of(log, 0.01, refuted) == decision


def test_losses_decide_where_training_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    gains = iter([0.10, 0.11, 0.09, 0.10, 0.105, 0.095, 0.1, 0.102])
    monkeypatch.setattr(tries, "TreeWorker", Nothing)
    monkeypatch.setattr(tries, "_gain", lambda sides, jobs, seed: next(gains))
    found = tries._by_losses(Path("old"), Path("new"), [JOB], level_of(1, 0), 0.05, 1.0, lambda *_: None)
    assert found.decision == "keep" and found.basis.startswith("training changed: test loss -9.")


class Nothing:
    def __init__(self, tree: Path) -> None: ...

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *exception: object) -> None: ...

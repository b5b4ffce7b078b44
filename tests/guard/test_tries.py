"""One try of many: what exact numbers decide, what votes decide, and what it would take."""

from __future__ import annotations

import math
import time
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
    ],
)
def test_exact_numbers_leave_nothing_to_chance(seen: ExactComparison, decision: str, basis: str) -> None:
    found = of_exact(seen)
    assert found is not None and found.decision == decision and found.basis.startswith(basis)


LOSS, COUNT, COST = (
    Difference("loss of step 1", 2.0, 1.9, True),
    Difference("parameter_count", 9, 8),
    Difference("flops", 9, 8),
)


@pytest.mark.parametrize("changes", [(), (COUNT,), (COST,), (LOSS, COST)])
def test_what_runs_otherwise_is_left_to_whole_runs(changes: tuple[Difference, ...]) -> None:
    assert of_exact(exact(Finding("a", "exact", "changed", "", changes))) is None


@pytest.mark.parametrize(
    ("changes", "losses", "way"),
    [
        ((COUNT,), ([2.0], [2.0]), "votes"),  # a counter that is no cost changes no training
        ((LOSS,), ([2.0], [2.0]), "losses"),
        ((COST,), ([2.0], [1.9]), "losses"),  # training parts after the steps that were counted
        ((), ([2.0], [1.9]), "losses"),
        ((COUNT, COST), ([2.0], [2.0]), "costs"),
    ],
)
def test_whole_runs_say_what_decides(
    changes: tuple[Difference, ...],
    losses: tuple[list[float], list[float]],
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = {name: tries._Evidence("undecided", 0.0, name) for name in ("votes", "losses")}
    monkeypatch.setattr(tries, "TreeWorker", Nothing)
    monkeypatch.setattr(tries, "_losses", lambda *_, **__: losses)
    monkeypatch.setattr(tries, "_by_votes", lambda *_: of["votes"])
    monkeypatch.setattr(tries, "_by_losses", lambda *_: of["losses"])
    monkeypatch.setattr(tries, "_unless_slower", lambda _, found: tries._Evidence(found.decision, found.log, "costs"))
    found = tries._of_runs(asked(), [Finding("a", "exact", "changed", "", changes)])
    assert found.basis == way and math.isinf(found.log) == (way == "costs")


def asked(level: float = level_of(1, 0)) -> tries._TryAsked:
    return tries._TryAsked(Path("old"), Path("new"), [JOB], level, 0.05, time.monotonic() + 60.0, lambda *_: None)


@pytest.mark.parametrize(
    ("d", "decision", "said"),
    [
        ([0.06] * 8, "discard", "surely slower (baseline on bert"),
        ([0.0] * 6, "keep", "step time +0.0% over 6 sets of processes: not surely slower"),
        ([0.06, 0.06], "keep", "not surely slower"),
        ([], "undecided", "no set of processes was timed"),
    ],
)
def test_what_costs_less_is_not_kept_where_its_step_is_surely_slower(
    d: list[float], decision: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = speed.TimedSet(JOB, d=d, e=[0.0] * len(d), seconds=10.0)
    monkeypatch.setattr(speed, "time_sets", lambda *args, **options: [item])
    found = tries._unless_slower(asked(), tries._Evidence("keep", math.inf, "flops 9 → 8"))
    assert found.decision == decision and found.basis.startswith("flops 9 → 8; ") and said in found.basis


def votes(d: list[float], monkeypatch: pytest.MonkeyPatch, level: float = level_of(1, 0)) -> tries._Evidence:
    item = speed.TimedSet(JOB, d=d, e=[0.0] * len(d), seconds=10.0)
    monkeypatch.setattr(speed, "time_sets", lambda *args, **options: [item])
    return tries._by_votes(asked(level))


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
    gains = iter([0.11, 0.09, 0.10, 0.105, 0.095, 0.1, 0.102])
    monkeypatch.setattr(tries, "_losses", lambda sides, jobs, seed: ([math.exp(next(gains))], [1.0]))
    found = tries._by_losses(asked(), [], [0.10])
    assert found.decision == "keep" and found.basis.startswith("training changed: test loss -9.")


class Nothing:
    def __init__(self, tree: Path) -> None: ...

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *exception: object) -> None: ...

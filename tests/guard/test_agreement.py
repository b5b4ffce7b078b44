"""Repetitions: what must be equal, what may differ, and what nobody can tell."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from suite.measure.comparison import Comparison, Procedure, Progress, train_in_lock_step
from typer.testing import CliRunner

from suite.cli import Exit, app
from suite.contract.sources import Sources
from suite.guard.agreement import (
    Noise,
    compare,
    find,
    noise_of,
    noise_over_seeds,
    noise_when_calibrated,
    obstacles,
    overall,
    repeat,
    repetition_of,
)
from suite.guard.calibration import Uncalibrated
from suite.guard.findings import Finding
from suite.measure.contender import Limits
from suite.record.job import Setting
from suite.record.schema import Evaluation, Outcome, Record
from suite.record.store import Store
from tests.factories import MACHINE, comparison, conditions, contender, counters, failure, record
from tests.guard.test_calibration import calibration

LOSSES = [4.0, 3.5, 3.25]


def run(stack: str = "lion", rng: int = 0, **changes: Any) -> Outcome:
    return contender(stack, **{"rng": np.random.default_rng(rng), "train_loss": LOSSES} | changes)


def measured(first: Outcome | None = None, repetition: int = 0, **changes: Any) -> Record:
    """A record of a baseline and one technique; ``repetition`` seeds the noise of its times."""
    return record([run("baseline", repetition), first or run(rng=100 + repetition)], **changes)


def known(sigma: float) -> Callable[[int, str], Noise]:
    return lambda index, ratio: Noise(sigma, math.inf, "known")


def verdicts(old: Record, new: Record, sigma: float = 0.01) -> dict[tuple[str, str], str]:
    return {(each.item, each.aspect): each.verdict for each in compare(old, new, known(sigma))}


def finding(old: Record, new: Record, stack: str, aspect: str) -> Finding:
    (only,) = [each for each in compare(old, new, known(0.01)) if (each.item, each.aspect) == (stack, aspect)]
    return only


# comparing-------------------------------------------------------------------------------------------------------------


def test_a_repetition_that_differs_in_noise_alone_agrees() -> None:
    findings = compare(measured(), measured(repetition=1), known(0.01))
    assert [(each.item, each.aspect) for each in findings] == [
        ("baseline", "counters"), ("baseline", "losses"),
        ("lion", "counters"), ("lion", "losses"), ("lion", "step time"), ("lion", "training time"),
    ]  # fmt: skip
    assert [each.verdict for each in findings] == ["equal"] * 4 + ["equivalent"] * 2
    assert overall(findings) == "equivalent"
    assert overall(findings[:4]) == "equal"
    assert overall([]) == "inconclusive"


def test_one_byte_and_one_bit_are_disagreements_that_are_named() -> None:
    byte = finding(measured(), measured(run(counters=counters(peak_tensor_bytes=4 * 2**20 + 1))), "lion", "counters")
    assert (byte.verdict, byte.details) == ("changed", "peak_tensor_bytes 4,194,304 → 4,194,305 (+0.00%)")
    kind = counters(peak_by_kind={"activations": 2**20, "parameters": 2**20, "gradients": 1})
    part = finding(measured(), measured(run(counters=kind)), "lion", "counters")
    assert part.details.startswith("peak_by_kind.gradients 0 → 1")
    bit = finding(measured(), measured(run(train_loss=[4.0, math.nextafter(3.5, 4), 3.25])), "lion", "losses")
    assert (bit.verdict, bit.details) == ("changed", "training loss of step 2: 3.5 → 3.5000000000000004")
    curve = [Evaluation(step=0, loss=4.0, metrics={"accuracy": 0.5}), Evaluation(step=200, loss=2.0)]
    less = [curve[0].model_copy(update={"metrics": {"accuracy": 0.25}}), curve[1]]
    assert finding(measured(run(curve=curve)), measured(run(curve=less)), "lion", "losses").why == (
        "test accuracy after step 0: 0.5 → 0.25"
    )
    short = finding(measured(), measured(run(train_loss=LOSSES[:2])), "lion", "losses")
    assert short.why == "training loss of step 3: only then"


def test_a_loss_that_is_no_number_in_both_is_the_same() -> None:
    broken = run(train_loss=[4.0, math.nan])
    assert finding(measured(broken), measured(broken), "lion", "losses").verdict == "equal"
    assert finding(measured(broken), measured(run(train_loss=[4.0, 3.0])), "lion", "losses").verdict == "changed"


def test_on_a_gpu_last_bits_decide_nothing() -> None:
    gpu = conditions(device="cuda")
    bit = run(train_loss=[4.0, math.nextafter(3.5, 4), 3.25])
    losses = finding(measured(conditions=gpu), measured(bit, conditions=gpu), "lion", "losses")
    assert losses.verdict == "inconclusive"
    assert "on a GPU" in losses.why


def test_another_machine_shares_counters_and_nothing_else() -> None:
    other = MACHINE.model_copy(update={"key": "other", "facts": {"cpu": "other", "cores": 2}})
    assert verdicts(measured(), measured(repetition=1, machine=other)) == {
        ("baseline", "counters"): "equal", ("baseline", "losses"): "not comparable",
        ("lion", "counters"): "equal", ("lion", "losses"): "not comparable",
        ("lion", "step time"): "not comparable", ("lion", "training time"): "not comparable",
    }  # fmt: skip
    assert finding(measured(), measured(machine=other), "lion", "losses").why == "another machine: cpu test → other"


def test_ratios_are_judged_by_the_noise_between_processes() -> None:
    def verdict(change: float, sigma: float) -> str:
        new = measured(run(pace_s=0.02 * (1 + change), rng=9), repetition=1)
        return verdicts(measured(), new, sigma)["lion", "step time"]

    assert verdict(0.02, 0.01) == "equivalent"
    assert verdict(0.10, 0.01) == "changed"
    assert verdict(-0.10, 0.01) == "changed"
    assert verdict(0.02, 0.05) == "inconclusive"  # would hide 10 %
    assert verdict(0.50, 0.05) == "changed"
    unknown = compare(measured(), measured(repetition=1), lambda index, ratio: None)
    assert {each.verdict for each in unknown if "time" in each.aspect} == {"inconclusive"}
    assert overall(unknown) == "inconclusive"
    sequential = compare(measured(), measured(repetition=1, pairing="sequential"), known(0.01))
    assert {each.verdict for each in sequential if "time" in each.aspect} == {"inconclusive"}


def test_repetitions_of_the_same_code_disagree_in_at_most_one_of_twenty() -> None:
    rng, trials, alarms, sigma = np.random.default_rng(3), 100, 0, 0.02

    def seed() -> Record:
        paces = 0.02 * np.exp(sigma * rng.standard_normal(4))
        short = {"rounds": 8, "steps": 32, "rng": rng, "noise": 0.03}
        return record([run(name, pace_s=pace, **short) for name, pace in zip(["baseline", *"abc"], paces)])

    for _ in range(trials):
        # each side of a ratio has its own process: sigma of the ratio is sqrt(2) of a process'
        alarms += overall(compare(seed(), seed(), known(sigma * math.sqrt(2)))) == "changed"
    assert alarms <= 11  # P(more | 5 %) < 0.5 %


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (failure("lion", "crashed", "exit code 7"), failure("lion", "crashed", "exit code 7"), "equal"),
        (failure("lion", "crashed", "exit code 7"), run(), "changed"),
        (run(), failure("lion", "failed", "KeyError"), "changed"),
        (failure("lion", "hung", "no answer"), run(), "inconclusive"),
        (run(), failure("lion", "out_of_memory", ""), "inconclusive"),
    ],
)
def test_how_a_run_ends_is_part_of_it(old: Outcome, new: Outcome, verdict: str) -> None:
    assert finding(measured(old), measured(new), "lion", "status").verdict == verdict
    assert ("lion", "step time") not in verdicts(measured(old), measured(new))


# noise ---------------------------------------------------------------------------------------------------------------


def test_the_noise_is_the_calibration_s_or_that_of_the_row_s_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = [0.03, -0.02, 0.01, 0.05]
    quiet = {"noise": 0.0}
    rows = [
        record([run("baseline", **quiet), run(pace_s=0.02 * math.exp(each), **quiet)], seed)
        for seed, each in enumerate(offsets)
    ]
    noise = noise_over_seeds(rows[2], 1, "step time", rows)
    assert noise is not None
    assert noise.sigma == pytest.approx(np.std(offsets, ddof=1))
    assert (noise.degrees_of_freedom, noise.source) == (3, "spread over 4 seeds")
    assert noise_over_seeds(rows[2], 1, "step time", comparison("sam")) is None
    twice = record(rows[2].contenders, 2, id="f" * 32, started="2026-01-02T00:00:00+00:00")
    assert noise_over_seeds(rows[2], 1, "step time", [*rows, twice]) == noise  # a seed counts once

    def uncalibrated(*_: object, **__: object) -> None:
        raise Uncalibrated

    monkeypatch.setattr("suite.guard.agreement.stored", uncalibrated)
    assert noise_of(rows[2], rows, MACHINE)(1, "step time") == noise
    monkeypatch.setattr("suite.guard.agreement.stored", lambda machine, **_: calibration())
    assert noise_of(rows[2], rows, MACHINE)(1, "step time") == noise_when_calibrated(calibration())
    assert noise_when_calibrated(calibration()) == Noise(pytest.approx(0.01), 200, "calibration, 200 process pairs")


# before --------------------------------------------------------------------------------------------------------------


def test_records_are_found_by_the_beginning_of_their_id() -> None:
    records = [measured(id=each) for each in ("abc1", "abd2", "abd")]
    assert find(records, "abc").id == "abc1"
    assert find(records, "abd").id == "abd"  # the whole id
    with pytest.raises(LookupError, match=r"3 records begin with 'ab' .* give more of the id"):
        find(records, "ab")
    for unknown in ("x", ""):
        with pytest.raises(LookupError, match="leantrain leaderboard --json"):
            find(records, unknown)


def test_what_changed_since_is_named_with_the_way_back() -> None:
    commit = "0123456789" * 4
    context = {"packages": {"transformers": "5.1", "triton": None}, "git_commit": commit, "git_dirty": True}
    old = measured(machine=MACHINE.model_copy(update={"context": context}))
    same = Sources("h" * 64, {"gpt": "b" * 64}, {"lion": "1" * 64, "sam": "new"})
    here = MACHINE.model_copy(update={"context": {"packages": {"transformers": "5.1", "triton": "3"}}})
    assert obstacles(old, same, here) == []
    assert obstacles(old, Sources("new", {"gpt": "new"}, {}), here) == [
        "the harness changed", "the baseline gpt changed", "lion is not installed",
        f"it was measured at commit {commit} with uncommitted changes: git checkout {commit[:12]}",
    ]  # fmt: skip
    newer = MACHINE.model_copy(update={"context": {"packages": {"transformers": "5.2"}}})
    assert obstacles(old, same, newer)[0] == "transformers is 5.2, was 5.1"
    evil = measured(machine=MACHINE.model_copy(update={"context": {"git_commit": "$(rm -rf ~)"}}))
    assert obstacles(evil, Sources("new", {"gpt": "b" * 64}, {"lion": "1" * 64}), here) == ["the harness changed"]


def test_the_comparison_is_the_record_s_and_other_data_is_refused() -> None:
    unknown = measured(conditions=conditions(data_sha256="", steps=7))
    assert repetition_of(unknown) == Comparison(Setting(baseline="gpt", steps=7), ("baseline", "lion"))
    short = measured(conditions=conditions(data_sha256=""), orders=[[0, 1]] * 5)
    assert repetition_of(short).rounds == 5
    with pytest.raises(ValueError, match=r"the record's is test text \(dddddddddddd\); say where that is with --data"):
        repetition_of(measured())


def test_only_what_is_kept_is_stored_and_only_that_is_trained_again_at_equal_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Procedure] = []

    def replicated(comparison: Comparison, seed: int, procedure: Procedure, progress: Progress) -> Record:
        asked.append(procedure)
        return measured(repetition=1, id="again", seed=seed)

    monkeypatch.setattr("suite.guard.agreement.train_in_lock_step", replicated)
    old = measured(seed=3, pairing="sequential")
    comparison = Comparison(Setting(baseline="gpt"), ("baseline", "lion"))
    assert repeat(old, comparison).seed == 3
    assert not list(tmp_path.iterdir())
    limits = Limits(7.0, 3.0)
    repeat(old, comparison, keep=tmp_path, limits=limits)
    assert [each.id for each in Store(tmp_path).read()[0]] == ["again"]
    assert asked == [
        Procedure(sequential=True, equal_time=False), Procedure(limits, sequential=True, equal_time=True),
    ]  # fmt: skip


# for real ------------------------------------------------------------------------------------------------------------


def test_a_real_record_repeats_to_the_bit_and_is_stored_only_when_finding(tmp_path: Path) -> None:
    short = Comparison(Setting(baseline="gpt", steps=4), ("baseline", "lion"), rounds=2)
    old = train_in_lock_step(short, 3, Procedure(equal_time=False))
    forged = old.model_copy(update={"id": "f" * 32, "harness_sha256": "0"})
    store = Store(tmp_path)
    with store.writing(old.machine.name):
        store.append(old)
        store.append(forged)
    done = CliRunner().invoke(app, ["repro", old.id[:12], "--results", str(tmp_path)])
    assert done.exit_code in (Exit.FINE, Exit.REGRESSED, Exit.INCONCLUSIVE)  # times are the machine's
    lines = [line.split() for line in done.stdout.splitlines()]
    exact = [line[:3] for line in lines if line[1:2] in (["counters"], ["losses"])]  # long reasons may wrap
    assert exact == [[stack, what, "equal"] for stack in ("baseline", "lion") for what in ("counters", "losses")]
    assert len(store.read()[0]) == 2
    other = CliRunner().invoke(app, ["repro", "ff", "--results", str(tmp_path), "--keep"])
    assert other.exit_code == Exit.INCONCLUSIVE
    assert "not comparable; the harness changed" in other.stdout
    assert len(store.read()[0]) == 2

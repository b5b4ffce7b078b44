"""Repetitions: what must be equal, what may differ, and what nobody can tell."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from suite.cli import Exit, app
from suite.contract.sources import Sources
from suite.guard.agreement import (
    Finding,
    Noise,
    again,
    comparison_of,
    find,
    judged,
    noise_of,
    noise_over_seeds,
    noise_when_calibrated,
    obstacles,
    overall,
)
from suite.guard.calibration import Uncalibrated
from suite.measure.comparison import Comparison, train_in_lock_step
from suite.record.schema import Evaluation, Outcome, Record
from suite.record.store import Store
from tests.factories import MACHINE, comparison, conditions, contender, counters, failure, record
from tests.guard.test_calibration import calibration

LOSSES = [4.0, 3.5, 3.25]


def run(stack: str = "lion", rng: int = 0, **changes: Any) -> Outcome:
    return contender(stack, **{"rng": np.random.default_rng(rng), "train_loss": LOSSES} | changes)


def made(first: Outcome | None = None, repetition: int = 0, **changes: Any) -> Record:
    """A record of a baseline and one technique; ``repetition`` seeds the noise of its times."""
    return record([run("baseline", repetition), first or run(rng=100 + repetition)], **changes)


def known(sigma: float) -> Callable[[int, str], Noise]:
    return lambda index, ratio: Noise(sigma, math.inf, "known")


def words(old: Record, new: Record, sigma: float = 0.01) -> dict[tuple[str, str], str]:
    return {(each.stack, each.what): each.word for each in judged(old, new, known(sigma))}


def told(old: Record, new: Record, stack: str, what: str) -> Finding:
    (found,) = [each for each in judged(old, new, known(0.01)) if (each.stack, each.what) == (stack, what)]
    return found


# judging -------------------------------------------------------------------------------------------------------------


def test_a_repetition_that_differs_in_noise_alone_agrees() -> None:
    found = judged(made(), made(repetition=1), known(0.01))
    assert [(each.stack, each.what) for each in found] == [
        ("baseline", "counters"), ("baseline", "losses"),
        ("lion", "counters"), ("lion", "losses"), ("lion", "step time"), ("lion", "training time"),
    ]  # fmt: skip
    assert {each.word for each in found} == {"agrees"}
    assert overall(found) == "agrees"


def test_one_byte_and_one_bit_are_disagreements_that_are_named() -> None:
    byte = told(made(), made(run(counters=counters(peak_tensor_bytes=4 * 2**20 + 1))), "lion", "counters")
    assert (byte.word, byte.why) == ("disagrees", "peak_tensor_bytes 4,194,304 → 4,194,305 (+0.00%)")
    kind = counters(peak_by_kind={"activations": 2**20, "parameters": 2**20, "gradients": 1})
    assert told(made(), made(run(counters=kind)), "lion", "counters").why.startswith("peak_by_kind.gradients 0 → 1")
    bit = told(made(), made(run(train_loss=[4.0, math.nextafter(3.5, 4), 3.25])), "lion", "losses")
    assert (bit.word, bit.why) == ("disagrees", "training loss of step 2: 3.5 → 3.5000000000000004")
    curve = [Evaluation(step=0, loss=4.0, metrics={"accuracy": 0.5}), Evaluation(step=200, loss=2.0)]
    less = [curve[0].model_copy(update={"metrics": {"accuracy": 0.25}}), curve[1]]
    assert told(made(run(curve=curve)), made(run(curve=less)), "lion", "losses").why == (
        "test accuracy after step 0: 0.5 → 0.25"
    )
    short = told(made(), made(run(train_loss=LOSSES[:2])), "lion", "losses")
    assert short.why == "training loss of step 3: only then"


def test_a_loss_that_is_no_number_in_both_is_the_same() -> None:
    broken = run(train_loss=[4.0, math.nan])
    assert told(made(broken), made(broken), "lion", "losses").word == "agrees"
    assert told(made(broken), made(run(train_loss=[4.0, 3.0])), "lion", "losses").word == "disagrees"


def test_on_a_gpu_last_bits_decide_nothing() -> None:
    gpu = conditions(device="cuda")
    bit = run(train_loss=[4.0, math.nextafter(3.5, 4), 3.25])
    found = told(made(conditions=gpu), made(bit, conditions=gpu), "lion", "losses")
    assert found.word == "inconclusive"
    assert "on a GPU" in found.why


def test_another_machine_shares_counters_and_nothing_else() -> None:
    other = MACHINE.model_copy(update={"key": "other", "facts": {"cpu": "other", "cores": 2}})
    assert words(made(), made(repetition=1, machine=other)) == {
        ("baseline", "counters"): "agrees", ("baseline", "losses"): "not comparable",
        ("lion", "counters"): "agrees", ("lion", "losses"): "not comparable",
        ("lion", "step time"): "not comparable", ("lion", "training time"): "not comparable",
    }  # fmt: skip
    assert told(made(), made(machine=other), "lion", "losses").why == "another machine: cpu test → other"


def test_ratios_are_judged_by_the_noise_between_processes() -> None:
    def word(change: float, sigma: float) -> str:
        return words(made(), made(run(pace_s=0.02 * (1 + change), rng=9), repetition=1), sigma)["lion", "step time"]

    assert word(0.02, 0.01) == "agrees"
    assert word(0.10, 0.01) == "disagrees"
    assert word(-0.10, 0.01) == "disagrees"
    assert word(0.02, 0.05) == "inconclusive"  # would hide 10 %
    assert word(0.50, 0.05) == "disagrees"
    unknown = judged(made(), made(repetition=1), lambda index, ratio: None)
    assert {each.word for each in unknown if "time" in each.what} == {"inconclusive"}
    assert overall(unknown) == "inconclusive"
    apart = judged(made(), made(repetition=1, pairing="sequential"), known(0.01))
    assert {each.word for each in apart if "time" in each.what} == {"inconclusive"}


def test_repetitions_of_the_same_code_disagree_in_at_most_one_of_twenty() -> None:
    rng, trials, alarms, sigma = np.random.default_rng(3), 100, 0, 0.02

    def seed() -> Record:
        paces = 0.02 * np.exp(sigma * rng.standard_normal(4))
        short = {"rounds": 8, "steps": 32, "rng": rng, "noise": 0.03}
        return record([run(name, pace_s=pace, **short) for name, pace in zip(["baseline", *"abc"], paces)])

    for _ in range(trials):
        # each side of a ratio has its own process: sigma of the ratio is sqrt(2) of a process'
        alarms += overall(judged(seed(), seed(), known(sigma * math.sqrt(2)))) == "disagrees"
    assert alarms <= 11  # P(more | 5 %) < 0.5 %


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        (failure("lion", "crashed", "exit code 7"), failure("lion", "crashed", "exit code 7"), "agrees"),
        (failure("lion", "crashed", "exit code 7"), run(), "disagrees"),
        (run(), failure("lion", "failed", "KeyError"), "disagrees"),
        (failure("lion", "hung", "no answer"), run(), "inconclusive"),
        (run(), failure("lion", "out_of_memory", ""), "inconclusive"),
    ],
)
def test_how_a_run_ends_is_part_of_it(old: Outcome, new: Outcome, word: str) -> None:
    assert told(made(old), made(new), "lion", "status").word == word
    assert ("lion", "step time") not in words(made(old), made(new))


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
    records = [made(id=each) for each in ("abc1", "abd2", "abd")]
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
    old = made(machine=MACHINE.model_copy(update={"context": context}))
    same = Sources("h" * 64, {"gpt": "b" * 64}, {"lion": "1" * 64, "sam": "new"})
    here = MACHINE.model_copy(update={"context": {"packages": {"transformers": "5.1", "triton": "3"}}})
    assert obstacles(old, same, here) == []
    assert obstacles(old, Sources("new", {"gpt": "new"}, {}), here) == [
        "the harness changed", "the baseline gpt changed", "lion is not installed",
        f"it was measured at commit {commit} with uncommitted changes: git checkout {commit[:12]}",
    ]  # fmt: skip
    newer = MACHINE.model_copy(update={"context": {"packages": {"transformers": "5.2"}}})
    assert obstacles(old, same, newer)[0] == "transformers is 5.2, was 5.1"
    evil = made(machine=MACHINE.model_copy(update={"context": {"git_commit": "$(rm -rf ~)"}}))
    assert obstacles(evil, Sources("new", {"gpt": "b" * 64}, {"lion": "1" * 64}), here) == ["the harness changed"]


def test_the_comparison_is_the_record_s_and_other_data_is_refused() -> None:
    unknown = made(conditions=conditions(data_sha256="", steps=7))
    assert comparison_of(unknown) == Comparison(("baseline", "lion"), "gpt", steps=7)
    short = made(conditions=conditions(data_sha256=""), orders=[[0, 1]] * 5)
    assert comparison_of(short).rounds == 5
    with pytest.raises(ValueError, match=r"the record's is test text \(dddddddddddd\); say where that is with --data"):
        comparison_of(made())


def test_only_what_is_kept_is_stored_and_only_that_is_trained_again_at_equal_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[dict[str, Any]] = []

    def replicated(comparison: Comparison, seed: int, **options: Any) -> Record:
        asked.append(options)
        return made(repetition=1, id="again", seed=seed)

    monkeypatch.setattr("suite.guard.agreement.replicate", replicated)
    old = made(seed=3, pairing="sequential")
    compared = Comparison(("baseline", "lion"), "gpt")
    assert again(old, compared).seed == 3
    assert not list(tmp_path.iterdir())
    again(old, compared, keep=tmp_path)
    assert [each.id for each in Store(tmp_path).read()[0]] == ["again"]
    assert [(each["equal_time"], each["sequential"]) for each in asked] == [(False, True), (True, True)]


# for real ------------------------------------------------------------------------------------------------------------


def test_a_real_record_repeats_to_the_bit_and_is_stored_only_when_told(tmp_path: Path) -> None:
    measured = train_in_lock_step(Comparison(("baseline", "lion"), "gpt", steps=4, rounds=2), 3, equal_time=False)
    forged = measured.model_copy(update={"id": "f" * 32, "harness_sha256": "0"})
    store = Store(tmp_path)
    with store.writing(measured.machine.name):
        store.append(measured)
        store.append(forged)
    done = CliRunner().invoke(app, ["repro", measured.id[:12], "--results", str(tmp_path)])
    assert done.exit_code in (Exit.FINE, Exit.REGRESSED, Exit.INCONCLUSIVE)  # times are the machine's
    lines = [line.split() for line in done.stdout.splitlines()]
    exact = [line[:3] for line in lines if line[1:2] in (["counters"], ["losses"])]  # long reasons may wrap
    assert exact == [[stack, what, "agrees"] for stack in ("baseline", "lion") for what in ("counters", "losses")]
    assert len(store.read()[0]) == 2
    other = CliRunner().invoke(app, ["repro", "ff", "--results", str(tmp_path), "--keep"])
    assert other.exit_code == Exit.INCONCLUSIVE
    assert "not comparable; the harness changed" in other.stdout
    assert len(store.read()[0]) == 2

"""Interactions from evidence whose truth is known."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

from suite.cli import Exit, app
from suite.judge.interaction import Interaction, as_dict, interactions
from suite.judge.metrics import IN_STACKS
from suite.record.schema import Line, Side, Timed
from tests import factories
from tests.factories import CODE, counted, counters, learned, rows, ruler_runs, side, timed

SHORT = {"rounds": 3, "noise": 0.0, "setup_s": 0.0}
TIMES = ("step_time", "training_time")


def of(*groups: Sequence[Line]) -> Interaction:
    (interaction,) = interactions(rows(*groups))
    return interaction


def together(
    replicates: int, paces: Mapping[str, float], spread: float = 0.0, seed: int = 0, **changes: Any
) -> list[Line]:
    """All in the same sets of processes, each off by ``spread``; set-up is free, so that all costs are the pace's."""
    sets: list[Line] = []
    for replicate in range(replicates):
        rng = np.random.default_rng([seed, replicate, *map(ord, "".join(paces))])
        drift = np.exp(np.cumsum(0.02 * rng.standard_normal(factories.ROUNDS)))
        sides = [
            side(
                stack,
                pace_s=pace * math.exp(spread * rng.standard_normal()),
                **{"drift": drift, "rng": rng, "setup_s": 0.0} | changes,
            )
            for stack, pace in paces.items()
        ]
        sets.append(timed(sides, replicate))
    return sets


def apart(replicates: int, paces: Mapping[str, float], spread: float, seed: int = 0) -> list[Line]:
    """Each stack in sets of its own with the reference."""
    return [
        line.model_copy(update={"id": f"{stack}{line.id}"})
        for stack, pace in paces.items()
        if stack != "baseline"
        for line in together(replicates, {"baseline": paces["baseline"], stack: pace}, spread, seed)
    ]


def runs(finals: Mapping[str, float], seeds: int = 3, spread: float = 0.0, **changes: Any) -> list[Line]:
    """Learned runs; the seeds differ by ``spread``, of all stacks alike."""
    return [
        learned(stack, seed, final=final * (1 + spread * seed), **changes)
        for stack, final in finals.items()
        for seed in range(seeds)
    ]


EVEN = {"baseline": 0.02, "a": 0.02, "b": 0.02, "a+b": 0.02}


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(0.3, 3.0), min_size=2, max_size=4), st.floats(0.3, 3.0))
def test_the_interaction_is_what_the_whole_costs_beyond_the_product_of_its_parts(
    costs: list[float], beyond: float
) -> None:
    parts = dict(zip("abcd", costs))
    whole = "+".join(parts)
    paces = {"baseline": 0.02, whole: 0.02 * math.prod(costs) * beyond} | {n: 0.02 * c for n, c in parts.items()}
    seen = of(together(2, paces, **SHORT | {"drift": None}))
    assert [row.stack for row in seen.rows] == [*parts, whole]
    for metric in TIMES:
        assert seen.values[metric].number == pytest.approx(beyond, rel=1e-9)
        assert as_dict(seen)["interactions"][metric]["interaction"] == pytest.approx(-math.log(beyond), abs=1e-9)


@pytest.mark.parametrize("how", [together, apart])
def test_log_additive_costs_have_an_interval_around_zero_as_often_as_it_says(how: Any) -> None:
    trials, covered = 100, 0
    for trial in range(trials):
        lines = how(3, {"baseline": 0.02, "a": 0.03, "b": 0.01, "a+b": 0.015}, spread=0.01, seed=trial)
        log = of(lines).values["step_time"].log
        assert log is not None
        covered += log.contains(0)
    assert stats.binom.cdf(covered, trials, 0.95) > 0.001


def test_a_real_interaction_is_seen_and_said_with_its_direction() -> None:
    slow = of(together(4, {"baseline": 0.02, "a": 0.01, "b": 0.01, "a+b": 0.01}, spread=0.01))
    assert slow.reading("step_time") == "less together than they multiply to"
    gain = slow.values["step_time"].speedup
    assert gain is not None
    assert gain.high < 1
    assert gain.contains(0.5)
    fast = of(together(4, EVEN | {"a+b": 0.01}, spread=0.01))
    assert fast.reading("step_time") == "more together than they multiply to"
    none = of(together(4, {"baseline": 0.02, "a": 0.01, "b": 0.01, "a+b": 0.005}, spread=0.01))
    assert none.reading("step_time").startswith("none seen; one of ")
    assert of(together(1, EVEN)).reading("step_time") == "one replicate: no interval"


def test_the_time_to_the_same_quality_has_an_interaction_of_its_own() -> None:
    """The losses multiply, the times of a and b overlap wholly."""
    better = 1.2**-0.2
    finals = {"baseline": 2.0, "a": 2.0 * better, "b": 2.0 * better, "a+b": 2.0 * better**2}
    lines = [*runs(finals), *together(3, {"baseline": 0.02, "a": 0.01, "b": 0.01, "a+b": 0.01}, spread=0.002)]
    seen = of(lines, [each for each in ruler_runs() if each.conditions.steps != factories.STEPS])
    value = seen.values["time_to_quality"]
    assert value.known, value.reason
    assert value.log is not None and value.log.contains(math.log(2)) and value.log.half_width < 0.2
    assert seen.reading("time_to_quality") == "less together than they multiply to"


def test_bytes_multiply_exactly_or_do_not() -> None:
    def peaks(whole: int) -> Interaction:
        each = {"baseline": 900, "a": 300, "b": 600, "a+b": whole}
        return of([counted(stack, points=[counters(peak_tensor_bytes=peak)]) for stack, peak in each.items()])

    multiplied, less = peaks(200), peaks(300)
    assert (multiplied.values["peak_tensor_bytes"].kind, multiplied.values["peak_tensor_bytes"].number) == ("exact", 1)
    assert multiplied.reading("peak_tensor_bytes") == "they multiply exactly"
    assert less.values["peak_tensor_bytes"].number == pytest.approx(1.5)
    assert less.reading("peak_tensor_bytes") == "less together than they multiply to, by exactly 33.33%"


def test_the_final_loss_is_paired_by_seed() -> None:
    finals = {"baseline": 2.0, "a": 1.9, "b": 1.8, "a+b": 1.71}  # 1.9 / 2 * 1.8 / 2 * 2
    seen = of(runs(finals, spread=0.1))  # the seeds differ by far more than the contenders
    log = seen.values["loss"].log
    assert log is not None
    assert log.estimate == pytest.approx(0)
    assert log.half_width < 1e-12
    assert seen.reading("loss") == "they multiply in every replicate"
    assert seen.seeds == (0, 1, 2)


def test_what_was_timed_together_is_paired_and_what_was_not_says_so() -> None:
    paces = {"baseline": 0.02, "a": 0.01, "b": 0.01, "a+b": 0.005}
    one, other = of(together(3, paces, spread=0.002)), of(apart(3, paces, spread=0.002))
    assert (one.together, other.together) == (True, False)
    assert (one.values["step_time"].note, other.values["step_time"].note) == ("", "timed apart")
    for each in (one, other):
        log = each.values["step_time"].log
        assert log is not None and log.contains(0)


def test_a_bound_and_a_part_that_failed_say_so() -> None:
    lossy = of([*runs(dict.fromkeys(EVEN, 2.0) | {"a": 3.0}), *together(3, EVEN), *ruler_runs()])
    assert lossy.values["time_to_quality"].kind == "unavailable"
    assert lossy.reading("time_to_quality").startswith("a: less than 0.35 of the reference's budget")
    assert lossy.values["step_time"].known

    crash = Side(stack="b", code=CODE, status="crashed", reason="exit code 7")
    broken = of(without_b(together(2, EVEN), crash, (0, 1)))
    assert [row.stack for row in broken.failed] == ["b"]
    line = json.loads(json.dumps(as_dict(broken), allow_nan=False))["interactions"]["step_time"]
    assert (line["kind"], line["interaction"]) == ("unavailable", None)
    assert {broken.reading(metric.name) for metric in IN_STACKS} == {"b has no numbers: crashed: exit code 7"}

    once = of(without_b(together(3, EVEN), Side(stack="b", code=CODE, status="hung"), (1,)))
    assert once.together and once.values["step_time"].note == "2 of 3 replicates: where all finished"
    assert once.values["step_time"].number == pytest.approx(1, rel=0.05)


def without_b(lines: Sequence[Line], instead: Side, replicates: Sequence[int]) -> list[Line]:
    """The timings with another outcome of b in some."""

    def of_timing(each: Timed) -> Timed:
        sides = [instead if one.stack == "b" else one for one in each.contenders]
        return each.model_copy(update={"contenders": sides}) if each.replicate in replicates else each

    return [of_timing(each) if isinstance(each, Timed) else each for each in lines]


def test_only_comparable_rows_belong_together() -> None:
    whole = together(2, {"baseline": 0.02, "a+b": 0.02})
    parts = together(2, {"baseline": 0.02, "a": 0.02, "b": 0.02})
    assert not of(whole, parts).together
    assert of(together(2, EVEN)).together
    for unlike in (
        {"conditions": factories.conditions(size="micro")},
        {"machine": factories.MACHINE.model_copy(update={"key": "other"})},
    ):
        assert not interactions(rows(whole, [each.model_copy(update=unlike) for each in parts]))
    assert not interactions(rows(whole))


def test_the_kinds_of_evidence_that_are_unverified_are_named() -> None:
    old = factories.Code(trajectory="old", counts="old")
    lines = [*runs(dict.fromkeys(EVEN, 2.0), code=old), *together(2, EVEN)]
    assert as_dict(of(lines))["unverified"] == ["learned"]
    assert as_dict(of(together(2, EVEN)))["unverified"] == []


# the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lion+adamw"], "lion and adamw cannot be stacked: each replaces the optimizer"),
        (["lion"], "leantrain compare lion"),
        (["lion+lawa", "-b", "gtp"], "did you mean gpt"),
        (["zero1+lawa"], "an interaction needs one reference"),
    ],
)
def test_the_command_tells_usage_errors_in_a_sentence(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["stack", *arguments, "--results", str(tmp_path / "results"), "--json"])
    assert done.exit_code == Exit.USAGE
    assert words in json.loads(done.stdout)["error"]
    assert not (tmp_path / "results").exists()

"""The first screen's columns: counts at the papers' sizes, modelled steps with their band, goals, controls."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from suite.judge.at_scale import CountsAtScale
from suite.judge.metrics import MetricValue
from suite.judge.rows import Row, pairs
from suite.judge.statistics import Interval
from suite.record.paper_scale import PaperScale, SizeCount
from suite.record.placed import CountPlace
from suite.record.schema import Line
from suite.show.pages.board import leaning, reads_as_one
from suite.show.pages.cells import lean
from suite.show.pages.matrix import alarms_in_words, false_alarms, matrix, verdict
from suite.topics.at_scale.answer import NOTHING, at_paper_sizes, cells, goals, heads
from suite.topics.modelled_time import gpu_times
from suite.topics.modelled_time.gpu_times import GpuTimes, ModelledTime
from tests.factories import counters, evidence, installed, records, row
from tests.show.samples import on, shown, twins

LARGE = CountPlace("gpt", "large", "modern", "cuda", "pretrain")
BASE = LARGE._replace(size="base", recipe="classic")


def counted(place: CountPlace, stack: str, **quantities: int) -> SizeCount:
    own = {"peak_tensor_bytes": 100, "flops": 100, "trainable_parameter_count": 100} | quantities
    return SizeCount(place=place, stack=stack, reference="baseline", code="c", quantities=own)


def time(ratio: float, half_width: float | None) -> GpuTimes:
    own = ModelledTime(
        place=LARGE, gpu="A100-80", stack="x", reference="baseline", step_s=1.0, ratio=ratio, half_width=half_width
    )
    return GpuTimes().with_newer(own)


def test_counts_of_the_larger_size_are_shown_and_modelled_steps_have_their_band() -> None:
    counts = [
        counted(BASE, "baseline"),
        counted(BASE, "x", peak_tensor_bytes=90),
        counted(LARGE, "baseline"),
        counted(LARGE, "x", peak_tensor_bytes=50),
    ]
    sized = at_paper_sizes(CountsAtScale(PaperScale(counts=counts)), time(0.8, 0.25))
    titles = [title for title, _ in heads(sized)]
    assert titles == [
        "memory at paper's size\xa0↓",
        "FLOPs at paper's size\xa0↓",
        "step on A100\xa0↓",
        "equivalent budget, trend\xa0↑",
    ]
    memory, flops, step, _ = cells(sized["x"], (), (), sized)
    assert (memory.words, memory.kind) == ("=0.50", "better") and (flops.words, flops.kind) == ("=1.00", "")
    assert (step.words, step.kind) == ("≈0.80 [0.64, 1.00]", "cost modelled")
    absent = cells(NOTHING, (), (), sized)
    assert len(absent) == 4 and "leantrain count --keep" in absent[0].title


def test_what_could_not_be_counted_or_modelled_says_the_true_reason() -> None:
    why = SizeCount(place=LARGE, stack="y", reference="baseline", code="c", unavailable="it reads values of tensors")
    untimed = ModelledTime(place=LARGE, gpu="A100-80", stack="y", reference="baseline", unavailable="ranks on one link")
    counts = [counted(LARGE, "baseline"), counted(LARGE, "x"), why]
    sized = at_paper_sizes(CountsAtScale(PaperScale(counts=counts)), time(0.8, 0.1).with_newer(untimed))
    memory, _, step, budget = cells(sized["y"], (), (), sized)
    assert (memory.words, step.words, budget.words) == ("n/a", "n/a", "–")
    assert memory.title.endswith("it reads values of tensors") and step.title == "ranks on one link"


def test_a_budget_has_its_interval_and_says_that_one_size_has_no_trend() -> None:
    rows = shown(evidence("x"))
    (budget,) = cells(NOTHING, rows, rows, {})
    assert re.fullmatch(r"×[\d.]+ \[[\d.]+, [\d.]+\] \?", budget.words) and budget.title.endswith("one size")
    (bound,) = cells(NOTHING, (lost := shown(evidence("x", final=2.9))), lost, {})
    assert bound.words.startswith("< ×") and bound.kind == "worse"


@pytest.mark.parametrize(("ratio", "half", "sure"), [(0.8, 0.1, True), (0.95, 0.1, False), (0.9, None, True)])
def test_a_goal_is_served_where_it_surely_is(ratio: float, half: float | None, sure: bool) -> None:
    counts = [counted(LARGE, "baseline"), counted(LARGE, "x", peak_tensor_bytes=50, trainable_parameter_count=100)]
    own = at_paper_sizes(CountsAtScale(PaperScale(counts=counts)), time(ratio, half))["x"]
    served = goals(own, ())
    assert served.keys() == {"goal-memory", *(["goal-time"] if sure else [])}
    assert served["goal-memory"] == "0.5"


def test_what_is_sold_is_judged_and_its_price_is_not() -> None:
    slow_and_small = evidence("x", points=[counters(peak_tensor_bytes=2**20)], pace_s=0.04)
    (own,) = shown(slow_and_small)
    assert [verdict(own), verdict(own, "memory"), verdict(own, "time")] == ["worse", "better", "worse"]
    (entry,) = matrix([own], {"x": "memory"}).entries
    assert entry.verdicts == ("better",) and entry.saves == "memory"


def test_better_is_better_somewhere_and_worse_nowhere() -> None:
    both = shown(evidence("x", pace_s=0.01), on(evidence("x", pace_s=0.04), baseline="vit"))
    (entry,) = matrix(both, {"x": "time"}).entries
    assert entry.verdicts == ("mixed",)


@pytest.mark.parametrize(("change", "same"), [(1e-5, True), (2e-3, False)])
def test_what_reads_as_one_has_no_colour(change: float, same: bool) -> None:
    log = Interval(change, change - change / 9, change + change / 9, 0.95, "t", 3)
    value = MetricValue("measured", math.exp(change), log)
    assert reads_as_one(value) == same and leaning(value) == -1
    assert lean(value, "lower") == ("" if same else "worse")


def test_a_mechanism_that_never_acted_has_no_quality_and_no_verdict() -> None:
    def of(share: float) -> Row:
        lines = evidence("x", pace_s=0.03, probes={"x.share": share})
        (own,) = pairs(records(lines), lambda stack: "baseline", installed, active=lambda stack: ("x.share",))
        return own

    idle, busy = of(0.0), of(0.1)
    assert busy.inactive == "" and verdict(busy) == "worse"
    assert idle.inactive.startswith("x.share is 0") and verdict(idle) == verdict(idle, "robustness") == "not exercised"
    qualities = [idle.value(name) for name in ("time_to_quality", "equivalent_budget", "loss", "final.accuracy")]
    assert all(each.kind == "unavailable" and each.reason.startswith("not exercised") for each in qualities)
    assert idle.value("step_time").kind == "measured" and any("not exercised" in note for note in idle.notes)
    whole = matrix([idle])
    assert whole.entries[0].sentence == "Not exercised on gpt." and whole.tally.endswith("1 not exercised")
    assert cells(NOTHING, [idle], [idle], {})[-1].words == "not exercised"


def test_the_controls_give_the_rate_of_false_alarms() -> None:
    def control(estimate: float) -> MetricValue:
        log = Interval(estimate, estimate - 0.1, estimate + 0.1, 0.95, "t", 3)
        return MetricValue("measured", math.exp(estimate), log, control=True)

    own = row("x")
    alike = replace(own, metrics={"step_time": control(0.05), "time_to_quality": control(0.2), "loss": control(0.0)})
    assert false_alarms([own]) == (0, 0) and alarms_in_words([own]) == ""
    assert false_alarms([alike]) == (1, 1)


def test_controls_of_older_versions_are_counted_apart() -> None:
    def twin(version: int, pace_s: float) -> list[Line]:
        lines = on(twins("x", pace_s=pace_s), baseline_version=version)
        return [each.model_copy(update={"id": f"{version}{each.id}"}) for each in lines]

    both = [*shown(twin(2, 0.02)), *shown(twin(2, 0.01))]
    older = [replace(each, newer_version=3) for each in both]
    assert "of the baselines' current versions. 1 of their 2 headlines exclude 1, a false-alarm rate of 50%" in (
        alarms_in_words(both)
    )
    said = alarms_in_words([*older, *shown(twins("y", replicates=1))])
    assert said.startswith("Controls, rows that are their reference to the bit: 1 of the baselines' current versions.")
    assert "is not known; leantrain run -t y --timings 3 measures it." in said
    assert "Of older versions, 1 of 2 headlines do" in said


def test_modelled_times_are_kept_whole_and_a_damaged_file_says_what_to_do(tmp_path) -> None:
    assert gpu_times.read(tmp_path) == GpuTimes()
    gpu_times.write(time(0.8, 0.1), tmp_path)
    kept = gpu_times.read(tmp_path)
    newer = kept.times[0].model_copy(update={"ratio": 0.7})
    assert kept == time(0.8, 0.1) and [each.ratio for each in kept.with_newer(newer).times] == [0.7]
    assert kept.only(["y"], ()).times == [] and len(kept.only(["x"], ["gpt"]).times) == 1
    (tmp_path / gpu_times.NAME).write_text("{")
    with pytest.raises(ValueError, match="leantrain count --keep --gpu"):
        gpu_times.read(tmp_path)

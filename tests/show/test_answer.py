"""The first screen's columns: counts at the papers' sizes, modelled steps with their band, goals, controls."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from suite.judge.at_scale import CountsAtScale
from suite.judge.metrics import MetricValue
from suite.judge.statistics import Interval
from suite.record import gpu_times
from suite.record.gpu_times import GpuTimes, ModelledTime
from suite.record.paper_scale import PaperScale, SizeCount
from suite.record.placed import CountPlace
from suite.show.answer import NOTHING, at_paper_sizes, cells, goals, heads
from suite.show.pages.matrix import alarms_in_words, false_alarms, matrix, verdict
from tests.factories import counters, evidence, row
from tests.show.samples import on, shown

LARGE = CountPlace("gpt", "large", "modern", "cuda", "pretrain")
BASE = LARGE._replace(size="base", recipe="classic")


def counted(place: CountPlace, stack: str, **quantities: int) -> SizeCount:
    own = {"peak_tensor_bytes": 100, "flops": 100, "trainable_parameter_count": 100} | quantities
    return SizeCount(place=place, stack=stack, reference="baseline", code="c", quantities=own)


def time(ratio: float, half_width: float | None) -> GpuTimes:
    own = ModelledTime(place=LARGE, gpu="A100-80", stack="x", reference="baseline", step_s=1.0, ratio=ratio,
                       half_width=half_width)  # fmt: skip
    return GpuTimes().with_newer(own)


def test_counts_of_the_larger_size_are_shown_and_modelled_steps_have_their_band() -> None:
    counts = [counted(BASE, "baseline"), counted(BASE, "x", peak_tensor_bytes=90), counted(LARGE, "baseline"),
              counted(LARGE, "x", peak_tensor_bytes=50)]  # fmt: skip
    sized = at_paper_sizes(CountsAtScale(PaperScale(counts=counts)), time(0.8, 0.25))
    titles = [title for title, _ in heads(sized)]
    assert titles == ["memory at paper's size\xa0↓", "FLOPs at paper's size\xa0↓", "step on A100\xa0↓",
                      "equivalent budget, trend\xa0↑"]  # fmt: skip
    memory, flops, step, _ = cells(sized["x"], (), (), sized)
    assert "=0.50<" in memory and "better" in memory and "=1.00<" in flops and "better" not in flops
    assert "≈0.80 [0.64, 1.00]" in step and "modelled" in step and "better" not in step
    absent = cells(NOTHING, (), (), sized)
    assert len(absent) == 4 and "leantrain count --keep" in absent[0]


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


def test_the_controls_give_the_rate_of_false_alarms() -> None:
    def control(estimate: float) -> MetricValue:
        log = Interval(estimate, estimate - 0.1, estimate + 0.1, 0.95, "t", 3)
        return MetricValue("measured", math.exp(estimate), log, control=True)

    own = row("x")
    alike = replace(own, metrics={"step_time": control(0.05), "time_to_quality": control(0.2), "loss": control(0.0)})
    assert false_alarms([own]) == (0, 0) and alarms_in_words([own]) == ""
    assert false_alarms([alike]) == (1, 1)


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

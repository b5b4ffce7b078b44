"""Recommending: costs are those of a count made alone and are kept, and records become what members cost."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from suite.entries.catalogue import Entry, catalogue
from suite.measure.at_scale.full_size import Scale, counted
from suite.record.job import Setting
from suite.record.paper_scale import PaperScale, SizeCount, write
from suite.record.placed import CountPlace
from suite.topics.recommend import members
from suite.topics.recommend.choice import Estimate, StepCost, Trial
from suite.topics.recommend.costs import Counting
from suite.topics.recommend.finalists import Halving, Pace, Rung, TooLittleTime, Unmeasurable
from tests.factories import row

SCALE = Scale(Setting(baseline="gpt", size="pico"))
PLAIN = StepCost(stack="baseline", peak_bytes=1000, peak_by_kind={"parameters": 900, "activations": 100})


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEANTRAIN_CACHE", str(tmp_path))


def test_a_heap_set_aside_changes_no_count() -> None:
    """Of a stack that holds tensors of its own between steps."""
    Counting(SCALE).cost("baseline")  # what is imported and kept for the process is there from now on
    alone, cost = counted("lawa", SCALE), Counting(SCALE).cost("lawa")
    assert alone.counters and (cost.peak_bytes, cost.flops) == (alone.counters.peak_tensor_bytes, alone.counters.flops)
    assert cost.parameter_bytes == alone.parameter_bytes


def test_a_cost_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Counting(SCALE).cost("lion")
    monkeypatch.setattr(Counting, "_counted", lambda self, stack: pytest.fail(f"{stack} was counted again"))
    assert Counting(SCALE).cost("lion") == first
    with pytest.raises(pytest.fail.Exception):
        Counting(Scale(SCALE.setting, batch_size=3)).cost("lion")


def test_what_does_not_go_together_is_a_row_with_its_reason() -> None:
    cost = Counting(SCALE).cost("revolve+vdnn")
    assert cost.why_not == "revolve and vdnn cannot be stacked: each plans how the same blocks run; keep one of them"
    assert cost.peak_bytes == 0


def test_a_technique_that_dies_as_it_is_loaded_is_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dies_as_it_loads.py").write_text("import os\nos._exit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    lion = catalogue()["lion"]
    known = {"dies": Entry("dies", lion.folder, "dies_as_it_loads"), "lion": lion}
    monkeypatch.setattr(members, "catalogue", lambda: known)
    dies, other = members.members_for(SCALE.setting, tmp_path / "none", None, PLAIN)
    assert dies.why_not and not dies.changes
    assert not other.why_not and "optimizer" in other.changes


def test_a_time_of_one_set_of_processes_is_known_and_a_quality_of_one_seed_is_not() -> None:
    newest, older = row("x", seeds=1, replicates=1, pace_s=0.03), row("x", pace_s=0.02, final=1.9)
    time = members._first([newest, older], "training_time", alone=True)
    assert time and math.exp(time.log) == pytest.approx(1.5, rel=0.05) and time.error == math.inf
    quality = members._first([newest, older], "equivalent_budget")
    assert quality == members._first([older], "equivalent_budget") and quality is not None


def steps(stack: str, minutes: float, share: float = 1.0) -> int:
    """Of a rung in which a step of the reference takes 0.1 s, and a process a second to start."""
    setting = SCALE.setting.but(steps=1000)
    expected = {"lion": 0.0, "sam": math.log(2)}
    halving = Halving(setting, "time", "baseline", dict.fromkeys(expected, 0.0), expected, minutes, Path())
    return halving._steps([stack], 1, share, Pace(0.1, 1.0, 1.0), 1.0)


def test_a_rung_is_as_long_as_its_time_allows_and_no_longer_than_its_share() -> None:
    assert steps("lion", 1e6) == 1000 and steps("lion", 1e6, 0.35) == 350
    assert steps("sam", 1.0) < steps("lion", 1.0) < steps("lion", 1.5) < 1000
    with pytest.raises(Unmeasurable, match="give more --minutes"):
        steps("lion", 0.1)


def test_a_stack_is_compared_with_another_or_the_reference_and_with_nothing_that_was_not_measured() -> None:
    rung = Rung(600, 3, "baseline", {}, {"x": row("x", pace_s=0.03), "y": row("y", pace_s=0.02)})

    def over(best: str, other: str) -> float:
        estimate = rung.over(best, other, "whole_time")
        assert estimate is not None
        return math.exp(estimate.log)

    assert over("x", "y") == pytest.approx(1.5, rel=0.05) == over("x", "baseline")
    assert over("baseline", "x") == pytest.approx(1 / 1.5, rel=0.05)
    assert over("baseline", "baseline") == 1
    assert rung.over("x", "z", "whole_time") is None and rung.over("baseline", "z", "whole_time") is None


def test_where_no_time_is_left_for_a_rung_the_best_of_the_one_before_is_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["lion", "sam", "lawa"]
    trials = {name: Trial(name, *[Estimate(log)] * 3) for name, log in zip(names, (0.2, -0.1, 0.1), strict=True)}
    first = Rung(350, 1, "baseline", trials)

    def rung(self: Halving, stacks: list[str], *others: object) -> Rung:
        if stacks == names:
            return first
        raise TooLittleTime("no time is left")

    monkeypatch.setattr(Halving, "_pace", lambda self: Pace(0.1, 1.0, 1.0))
    monkeypatch.setattr(Halving, "_rung", rung)
    halving = Halving(SCALE.setting, "time", "baseline", dict.fromkeys(["baseline", *names], 0.0), {}, 1.0, Path())
    done = halving.measure(names, lambda _: [])
    assert (done.rungs, done.best, done.cut_short) == ((first,), "sam", "no time is left")
    with pytest.raises(TooLittleTime):
        halving.measure(["lion", "sam"], lambda _: [])


def test_a_saving_is_of_what_the_users_peak_is_made_of(tmp_path: Path) -> None:
    """At the paper's size activations are most of the peak; here they are a tenth."""
    place = CountPlace("gpt", "large", "modern", "cuda", "pretrain")

    def count(stack: str, parameters: int, activations: int, why: str = "") -> SizeCount:
        quantities = {"peak.parameters": parameters, "peak.activations": activations} if not why else {}
        return SizeCount(
            place=place, stack=stack, reference="baseline", code="", quantities=quantities, unavailable=why
        )

    counts = [count("baseline", 10, 90), count("rotor", 10, 9), count("l2l", 1, 90), count("snip", 0, 0, "values")]
    elsewhere = [counts[0], count("rotor", 0, 0, "values")]
    counts += [each.model_copy(update={"place": place._replace(size="mini")}) for each in elsewhere]
    write(PaperScale(counts=counts), tmp_path)
    setting = Setting(baseline="gpt", size="pico", recipe="modern")
    everyone = {member.id: member for member in members.members_for(setting, tmp_path, None, PLAIN)}
    rotor, l2l = (everyone[name].peak for name in ("rotor", "l2l"))
    assert rotor and l2l
    assert [math.exp(peak.log) for peak in (rotor, l2l)] == pytest.approx([0.91, 0.19])
    assert everyone["snip"].why_not == "no size is counted of it: values" and not everyone["rotor"].why_not

"""How far evidence is from a paper: one field at a time, and what is said of a claim for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from suite.entries.card import Property
from suite.judge.claims import VerdictBasis, judge
from suite.judge.distance import UNSAID, EvidenceSetting, differences, out_of_reach
from suite.judge.verdicts import word
from tests.factories import between, claim

PAPER = {
    "architecture": "GPT-2 small",
    "baselines": ["gpt"],
    "parameters": 1.24e8,
    "data": "OpenWebText",
    "tokens": 1e9,
    "device": "8 A100, fp16",
    "metric": "perplexity",
    "tuned": "the rate",
    "clock": "the training",
}
THERE = EvidenceSetting("gpt", "base", "", 1.2e8, 10**7, "openwebtext sample", "NVIDIA A100-SXM4-80GB", True)


def differing(here: EvidenceSetting, setting: dict[str, Any] | None = None, **changes: Any) -> tuple[str, ...]:
    return differences(claim(setting=PAPER if setting is None else setting, **changes), False, here)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"baseline": "bert"}, "bert at base, not GPT-2 small"),
        ({"model": "hf/other"}, "hf/other, not GPT-2 small"),
        ({"parameters": 2e5}, "0.2 M parameters, not 124 M"),
        ({"parameters": 6e8}, "600 M parameters, not 124 M"),
        ({"parameters": None}, "parameters not counted"),
        ({"device": "cpu"}, "cpu, not 8 A100, fp16"),
        ({"data": "docstrings of Python"}, "other data than OpenWebText"),
        ({"examples": 40_000}, "40 k examples, not 1 B tokens or images"),
        ({"examples": None}, "examples not recorded"),
        ({"tuned": False}, "rates not tuned, where the paper tuned the rate"),
    ],
)
def test_one_field_that_differs_is_named_and_is_all_that_is_far(changes: dict[str, Any], words: str) -> None:
    assert differing(THERE, metric="time_to_quality") == ()
    assert differing(replace(THERE, **changes), metric="time_to_quality") == (words,)


def test_a_field_counts_where_the_metric_depends_on_it() -> None:
    elsewhere = replace(THERE, device="cpu", data="", examples=1, tuned=False)
    assert differing(elsewhere, metric="step_time") == ("cpu, not 8 A100, fp16",)
    assert len(differing(elsewhere, metric="loss")) == 3
    count = claim(kind="counted", metric="flops", setting=PAPER)
    assert differences(count, True, elsewhere) == ()
    assert differences(count, True, replace(elsewhere, parameters=1e5)) != ()


def test_what_is_measured_by_another_quantity_is_far() -> None:
    accuracy = {"architecture": "any", "metric": "top-1 accuracy"}
    assert differing(THERE, accuracy, metric="final.accuracy") == ()
    assert differing(THERE, accuracy, metric="loss") == ("judged by loss, not top-1 accuracy",)
    work = {"architecture": "any", "clock": "FLOPs"}
    assert differing(THERE, work, metric="step_time") == ("judged by time, where the paper counts FLOPs",)
    sgd = {"architecture": "any", "optimizer": "SGD"}
    assert differing(THERE, sgd, metric="loss") == ("a reference trained by AdamW, not SGD",)


def test_without_a_setting_a_count_is_of_any_model_and_noise_is_far() -> None:
    assert differences(claim(kind="counted", metric="flops"), True, replace(THERE, parameters=1.0)) == ()
    assert differences(claim(), False, THERE) == (UNSAID,)


def test_arithmetic_keeps_times_from_what_fewer_flops_cannot_give() -> None:
    much = claim(metric="time_to_quality", expected=0.55)
    assert "0.82 of the FLOPs" in out_of_reach(much, 0.82, 1.0)
    assert out_of_reach(much, 0.82, 1.6) == "", "a better loss is worth a longer run"
    assert out_of_reach(claim(expected=0.55), 0.82, 1.6), "and shortens no step"
    assert out_of_reach(much, 1.0, 1.0) == "", "what saves no FLOPs saves time by other means"
    assert out_of_reach(claim(metric="loss", expected=0.5), 0.9, 1.0) == ""


@pytest.mark.parametrize(
    ("low", "high", "near", "far"),
    [
        (0.5, 0.6, "reproduced", "holds at nano"),
        (1.1, 1.2, "contradicted", "not seen at nano"),
        (0.7, 1.1, "undecided", "undecided"),
    ],
)
def test_only_near_evidence_of_a_statement_that_was_read_reproduces_or_contradicts(
    low: float, high: float, near: str, far: str
) -> None:
    seen, read = between(low, high), claim(read="Table 1")
    here = VerdictBasis("gpt", "modern", "nano")
    there = replace(here, differs=("cpu, not 8 A100",))
    assert [judge(read, "fast", seen, place).word for place in (here, there)] == [near, far]
    assert {judge(claim(), "fast", seen, place).word for place in (here, there)} == {"statement not read"}
    assert judge(claim(), "fast", seen, here).outcome == judge(read, "fast", seen, there).outcome
    assert not judge(claim(), "fast", seen, here).contradicted


def test_properties_and_what_is_not_judged_have_no_distance() -> None:
    own = Property(id="same", statement="No bit changes.", metric="probe.fast.same", expected=1.0)
    assert judge(own, "fast", replace(between(2, 3), exact=True), VerdictBasis("gpt")).word == "does not hold"
    assert judge(own, "fast", replace(between(2, 3), exact=True), VerdictBasis("gpt")).contradicted
    assert word("quoted", True, False, "nano") == "quoted"

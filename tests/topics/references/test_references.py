"""A reference passes exactly where it is at least as good as every classical method."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from suite.entries.installed import baselines
from suite.record.job import Setting
from suite.topics.references.measured_references import at_least_as_good, learned
from tests.plugin import called
from tests.runs import new_run

VIT = Setting(baseline="vit", size="pico", recipe="classic")


def predicting(logit: float) -> Any:
    """Gives the right class this logit, and all others none."""

    def predict(batch: dict[str, torch.Tensor]) -> Any:
        logits = torch.zeros(len(batch["labels"]), 10)
        logits[torch.arange(len(logits)), batch["labels"]] = logit
        return type("Outputs", (), {"logits": logits})

    return predict


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_the_bars_decide(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vit = type(baselines()["vit"])
    monkeypatch.setattr(vit, "judged_by", metric)
    bars = {"always right": predicting(9.0), "always wrong": predicting(-9.0)}
    monkeypatch.setattr(vit, "classical", lambda self, size, data: bars)
    reference = learned(VIT, range(2))
    assert [bar.passed for bar in reference.bars] == [False, True]
    assert not reference.passed
    bars.pop("always right")
    assert learned(VIT, range(1)).passed


def test_the_reference_is_the_run_that_a_comparison_trains() -> None:
    run = new_run("vit", size="pico", recipe="classic", seed=1)
    run.train(run.recipe.steps)
    reference = learned(VIT, range(2))
    assert reference.seeds[1] == run.evaluate("test")
    assert reference.scores["loss"] == pytest.approx((reference.seeds[0]["loss"] + reference.seeds[1]["loss"]) / 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", baselines())
def test_references_pass_at_nano(name: str) -> None:
    reference = learned(Setting(baseline=name, size="nano", recipe="modern"), range(1))
    assert reference.bars and reference.passed and reference.samples


def test_a_score_that_is_no_number_passes_nothing() -> None:
    assert not at_least_as_good(math.nan, 1.0, "loss")
    assert not at_least_as_good(math.nan, 0.0, "accuracy")
    assert at_least_as_good(1.0, 1.0, "loss") and at_least_as_good(1.0, 1.0, "accuracy")


def test_the_command_prints_both_and_exits_by_the_bars(tmp_path: Path) -> None:
    options = ("--size", "pico", "--results", tmp_path)
    code, told, _ = called("baselines", "-b", "vit", *options, "--json")
    (reference,) = json.loads(told)
    assert code == (0 if reference["passed"] else 1)
    assert [bar["method"] for bar in reference["bars"]] == ["logistic regression"]
    _, told, _ = called("baselines", "-b", "gpt", *options)
    assert "the reference" in told and "Kneser-Ney trigram" in told
    assert "a held-out beginning | what the model writes after it:" in told
    assert called("baselines", "-b", "gptt")[0] == 2

"""Sharpness and label noise: what the noise changes, what is run, and the rows of what finished."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from baselines.images import DRAWS
from baselines.vit import TEST_REPEATS
from suite.entries.card import LabelNoise
from suite.entries.catalogue import catalogue
from suite.entries.installed import baselines
from suite.record.job import Setting, canonical
from suite.record.schema import Evaluation, Learned
from suite.topics.studies.lab import Lab
from suite.topics.studies.label_noise import NoiseRow, equal_time_budget, noise_row, noisy, plot, study
from tests.factories import with_curve
from tests.runs import new_run

ASKED = catalogue()["sam"].card.study
assert isinstance(ASKED, LabelNoise)
STACKS = {"baseline": ASKED.reference, **ASKED.stacks}
WHOLE = ASKED.longer * baselines()["vit"].recipe("nano", "modern", "pretrain").steps


def lab() -> Lab:
    return Lab(Setting(baseline="vit"), Path("nowhere"), seeds=2, minutes=10.0)


def contender(stack: str, accuracy: float, cpu_s: float = 10.0, status: Any = "ok") -> Learned:
    probes = {f"{stack.split(':')[0]}.{name}": 10 * accuracy for name in ("lambda_max", "ascent_rise")}
    curve = [Evaluation(step=4, loss=1.0, metrics={"accuracy": accuracy})]
    return with_curve(stack, curve, status=status, probes=probes, cpu_s=cpu_s)


def test_wrong_labels_are_as_many_as_asked_for_and_only_in_training() -> None:
    vit = baselines()["vit"]
    own, clean, data = (vit.data("nano", "pretrain", at) for at in (None, *(location(share) for share in (0.0, 0.3))))
    assert data.classes == 10  # type: ignore[attr-defined]
    labels, right, wrong = (each.train.tensors["labels"] for each in (own, clean, data))
    assert torch.equal(labels, right)
    assert (wrong != right).float().mean() == pytest.approx(0.3, abs=1e-3)
    for part in ("validation", "test"):
        embedded, right, same = (getattr(each, part).tensors["labels"] for each in (own, clean, data))
        repeats = TEST_REPEATS["nano"] if part == "test" else 1
        assert torch.equal(embedded, right.repeat(DRAWS["nano"] * repeats)) and torch.equal(right, same)
    for part in ("train", "validation", "test"):
        assert torch.equal(*(getattr(each, part).tensors["pixels"] for each in (clean, data)))
    assert noisy(lab(), 0.0, ASKED).setting.steps == ASKED.longer * vit.recipe("nano", "modern", "pretrain").steps


def location(share: float) -> str | None:
    return noisy(lab(), share, ASKED).setting.data


def test_study_has_a_row_for_each_share_and_technique(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bool, int | None, float, int]] = []

    def runs(self: Lab, stacks: list[str]) -> dict[str, list[tuple[Learned, Learned]]]:
        """Every technique takes twice the processor seconds; in half of the steps it is less accurate."""
        asked.append((self.setting.data is None, self.setting.steps, self.minutes, len(stacks)))
        whole = self.setting.steps == WHOLE
        groups = {
            canonical(each): [contender(each, accuracy, 20.0) for accuracy in ((0.5, 0.7) if whole else (0.25, 0.25))]
            for each in stacks
        }
        if whole:
            groups[canonical(STACKS["saf"])] = [contender("saf", 0.5, 20.0, status="failed")]
        return {stack: [(contender("baseline", 0.6), each) for each in group] for stack, group in groups.items()}

    monkeypatch.setattr(Lab, "runs", runs)
    (table,) = study(lab(), ASKED)
    techniques = [name for name in STACKS if name != "saf"]
    shorter = [(WHOLE // 2, 2.5, 1)] * (len(techniques) - 1)
    assert [each[1:] for each in asked] == [(WHOLE, 2.5, len(STACKS)), *shorter] * 2
    assert not any(each[0] for each in asked), "also without wrong labels the data are written"
    rows = [NoiseRow(*each) for each in table.rows]
    assert [(each.label_noise, each.technique) for each in rows] == [(s, n) for s in ASKED.shares for n in techniques]
    assert rows[0][2:] == (2, pytest.approx(0.6), pytest.approx(0.6), 1.0, 6.0, 6.0), "the baseline sets the budget"
    assert rows[1][2:] == (2, pytest.approx(0.6), 0.25, 1.0, 6.0, 6.0)
    missing = noise_row(0.0, "saf", [contender("saf", 0.5)], [])
    assert missing and missing.accuracy_at_equal_time is None
    assert len(plot([table]).axes) == 2


def test_the_budget_at_equal_time_is_in_steps_of_5_percent_and_1_where_nothing_is_known() -> None:
    reference = contender("baseline", 0.5, 10.0)
    assert equal_time_budget([(reference, contender("sam", 0.5, seconds)) for seconds in (18.9, 19.4, 40)]) == 0.5
    assert equal_time_budget([(reference, contender("esam", 0.5, 10.1))]) == 1.0
    assert equal_time_budget([(reference, contender("sam", 0.5, 20.0, status="failed"))]) == 1.0
    assert equal_time_budget([]) == 1.0


def test_what_the_study_runs_is_the_reference_sam_and_the_others_with_the_same_probes() -> None:
    runs = {name: new_run("vit", stack, size="pico", recipe="classic", steps=3) for name, stack in STACKS.items()}
    for name in ("baseline", "sam"):
        plain = new_run("vit", name, size="pico", recipe="classic", steps=3)
        assert plain.train(2) == runs[name].train(2)
    for name, run in runs.items():
        probes = {key.split(".")[1] for key in run.technique.probes(run)}
        assert {"lambda_max", "ascent_rise"} <= probes, name
    assert all(catalogue()[name].card.study == ASKED for name in ("esam", "saf", "saf_mesa"))

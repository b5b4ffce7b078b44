"""Sharpness and label noise: what each way to seek flat minima costs, and what it is worth at equal steps and time.

Foret et al. (arXiv 2010.01412, section 3.3) report their largest gains with wrong training labels, on CIFAR-10. So
every run is made on the baseline's data and on the same with a share of the training labels replaced; test labels stay
right. Runs are longer than the baseline's, so that examples come back; the paper's have 200 epochs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import torch

from suite.contract.baseline import baseline_of
from suite.contract.card import LabelNoise
from suite.contract.data import Data, generator
from suite.measure.lab import Lab, Table
from suite.record.files import cache_folder, replacing
from suite.record.job import BASELINE, canonical
from suite.record.schema import Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOTE = (
    "Medians over the seeds, at the end of the run. At equal time a schedule ends when the reference's budget does. "
    "lambda_max and ascent_rise are of a training batch with its labels as trained on"
)


class NoiseRow(NamedTuple):
    """One technique at one share of wrong training labels; accuracies are of the test examples."""

    label_noise: float
    technique: str
    seeds: int
    accuracy: float
    accuracy_at_equal_time: float
    test_loss: float
    lambda_max: float
    ascent_rise: float


def study(lab: Lab, asked: LabelNoise) -> list[Table]:
    """The table ``sharpness_and_label_noise``, a row for each share and technique of which a seed finished."""
    stacks = {BASELINE: asked.reference, **asked.stacks}
    rows = []
    for share in asked.shares:
        runs = noisy(lab, share, asked).runs(list(stacks.values()))
        for technique, stack in stacks.items():
            contenders = [each for _, each in runs[canonical(stack)]]
            if technique == BASELINE:  # it sets the budget, and fits it whatever the clock said of the two
                contenders = [each.model_copy(update={"equal_time": None}) for each in contenders]
            if row := noise_row(share, technique, contenders):
                rows.append(tuple(row))
    return [Table("sharpness_and_label_noise", NoiseRow._fields, rows, NOTE)]


def noise_row(label_noise: float, technique: str, contenders: Sequence[Outcome]) -> NoiseRow | None:
    """The row of the runs of one technique, one a seed; None where none finished."""
    good = [each for each in contenders if each.status == "ok" and each.curve and each.probes]
    if not good:
        return None

    def probe(name: str) -> float:
        return median(value for each in good for key, value in each.probes.items() if key.endswith(f".{name}"))

    return NoiseRow(
        label_noise,
        technique,
        len(good),
        median(each.curve[-1].metrics["accuracy"] for each in good),
        median((each.equal_time or each.curve[-1]).metrics["accuracy"] for each in good),  # none where costs are equal
        median(each.curve[-1].loss for each in good),
        probe("lambda_max"),
        probe("ascent_rise"),
    )


def noisy(lab: Lab, share: float, asked: LabelNoise) -> Lab:
    """``lab`` with ``share`` of the training labels wrong, for longer runs in a part of its minutes."""
    setting = lab.setting
    baseline = baseline_of(setting)
    steps = asked.longer * baseline.recipe(setting.size, setting.recipe, "pretrain").steps
    data = baseline.data(setting.size, "pretrain", setting.data)
    # None of them wrong is written too: given data may be shaped otherwise than the baseline's own.
    location = str(written(data, share, cache_folder() / "label_noise" / f"{data.sha256[:16]}-{share:g}"))
    minutes = lab.minutes / len(asked.shares)
    return replace(lab, setting=setting.but(steps=steps, data=location), minutes=minutes)


def written(data: Data, share: float, folder: Path) -> Path:
    """``folder`` with ``data``'s examples as train, validation and test.jsonl, as ``--data`` takes them: ``share`` of
    the training labels, drawn once, are another class's."""
    labels = data.train.tensors["labels"]
    random = generator(0)
    wrong = torch.randperm(len(labels), generator=random)[: round(share * len(labels))]
    classes, changed = int(labels.max()) + 1, labels.clone()
    changed[wrong] += torch.randint(1, classes, wrong.shape, generator=random)
    parts = {
        "train": {**data.train.tensors, "labels": changed % classes},
        "validation": data.validation.tensors,
        "test": data.test.tensors,
    }
    for name, tensors in parts.items():
        pictures, known = tensors["pixels"].tolist(), tensors["labels"].tolist()
        with replacing(folder / f"{name}.jsonl") as partial, partial.open("w") as file:
            for picture, label in zip(pictures, known, strict=True):
                file.write(json.dumps({"image": picture, "label": label}) + "\n")
    return folder


def plot(tables: Sequence[Table]) -> Figure:
    """Test accuracy at equal time over the largest eigenvalue, a panel for each share of wrong labels."""
    from matplotlib.figure import Figure

    rows = [NoiseRow(*each) for each in tables[0].rows]
    shares = sorted({each.label_noise for each in rows})
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    for axes, share in zip(figure.subplots(1, max(1, len(shares)), squeeze=False)[0], shares):
        for each in rows:
            if each.label_noise == share:
                axes.scatter(each.lambda_max, each.accuracy_at_equal_time, label=each.technique)
        axes.set(
            title=f"{share:.0%} wrong labels",
            xlabel="largest eigenvalue of the Hessian",
            ylabel="test accuracy at equal time",
        )
        axes.legend()
    return figure

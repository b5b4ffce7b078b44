"""Studies sharpness and label noise: what each way to seek flat minima is worth at equal steps, and at equal processor
time.

Foret et al. (arXiv 2010.01412, section 3.3) report their largest gains with wrong training labels, on CIFAR-10. So
every run is made on the baseline's data and on the same with a share of the training labels replaced; test labels stay
right. Runs are longer than the baseline's, so that examples come back; the paper's have 200 epochs. At equal time a
technique has a schedule of its own, as much shorter as its run took more processor seconds than the reference's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import torch

from suite.entries.card import LabelNoise
from suite.entries.installed import baseline_of
from suite.loop.data import Data, generator
from suite.record.files import cache_folder, replacing
from suite.record.job import BASELINE, canonical
from suite.record.schema import Learned
from suite.topics.studies.lab import Lab, StudyTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOTE = (
    "Medians over the seeds, of test examples at the end of the run. At equal time the whole schedule is shortened, in "
    "steps of 5 %, to the processor seconds of the reference's; n/a: that run is missing. "
    "lambda_max and ascent_rise are of a training batch with its labels as trained on"
)
BUDGET_STEP = 0.05


class NoiseRow(NamedTuple):
    """Describes one technique at one share of wrong training labels; accuracies are of the test examples."""

    label_noise: float
    technique: str
    seeds: int
    accuracy: float
    accuracy_at_equal_time: float | None
    test_loss: float
    lambda_max: float
    ascent_rise: float


def study(lab: Lab, asked: LabelNoise) -> list[StudyTable]:
    """Returns the table ``sharpness_and_label_noise``, a row for each share and technique of which a seed finished."""
    stacks = {BASELINE: asked.reference, **asked.stacks}
    rows = []
    for share in asked.shares:
        at = noisy(lab, share, asked)
        runs = at.runs(list(stacks.values()))
        for technique, stack in stacks.items():
            pairs = runs[canonical(stack)]
            contenders = [contender for _, contender in pairs]
            budget = 1.0 if technique == BASELINE else equal_time_budget(pairs)
            if budget != 1.0:
                shorter = replace(at, setting=at.setting.but(steps=round(budget * (at.setting.steps or 0))))
                pairs = shorter.runs([stack])[canonical(stack)]
            if row := noise_row(share, technique, contenders, [contender for _, contender in pairs]):
                rows.append(tuple(row))
    return [StudyTable("sharpness_and_label_noise", NoiseRow._fields, rows, NOTE)]


def equal_time_budget(pairs: Sequence[tuple[Learned, Learned]]) -> float:
    """Returns the share of its steps that takes a technique as many processor seconds as the reference's run; in steps
    of 5 %, 1 where it is not known."""
    known = [theirs.cpu_s / ours.cpu_s for theirs, ours in pairs if theirs.cpu_s and ours.cpu_s and ours.status == "ok"]
    return max(BUDGET_STEP, round(median(known) / BUDGET_STEP) * BUDGET_STEP) if known else 1.0


def noise_row(
    label_noise: float, technique: str, contenders: Sequence[Learned], shorter: Sequence[Learned]
) -> NoiseRow | None:
    """Returns the row of the runs of one technique, one a seed, and of those at equal time; None where none
    finished."""
    good = [contender for contender in contenders if contender.status == "ok" and contender.probes]
    ends, at_equal_time = ([run.final for run in some if run.final] for some in (good, shorter))
    if not ends:
        return None

    def probe(name: str) -> float:
        return median(value for run in good for key, value in run.probes.items() if key.endswith(f".{name}"))

    return NoiseRow(
        label_noise,
        technique,
        len(good),
        median(end.metrics["accuracy"] for end in ends),
        median(end.metrics["accuracy"] for end in at_equal_time) if at_equal_time else None,
        median(end.loss for end in ends),
        probe("lambda_max"),
        probe("ascent_rise"),
    )


def noisy(lab: Lab, share: float, asked: LabelNoise) -> Lab:
    """Returns ``lab`` with ``share`` of the training labels wrong, for longer runs in a part of its minutes."""
    setting = lab.setting
    baseline = baseline_of(setting)
    steps = asked.longer * baseline.recipe(setting.size, setting.recipe, "pretrain").steps
    data = baseline.data(setting.size, "pretrain", setting.data)
    # None of them wrong is written too: given data may be shaped otherwise than the baseline's own.
    location = str(written(data, share, cache_folder() / "label_noise" / f"{data.sha256[:16]}-{share:g}"))
    minutes = lab.minutes / len(asked.shares) / 2  # half of it for the runs at equal time
    return replace(lab, setting=setting.but(steps=steps, data=location), minutes=minutes)


def written(data: Data, share: float, folder: Path) -> Path:
    """Returns ``folder`` with ``data``'s examples as train, validation and test.jsonl, as ``--data`` takes them:
    ``share`` of the training labels, drawn once, are another class's.

    A baseline may show a held-out example several times, with other noise each time: it is written once."""
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
        pairs = zip(tensors["pixels"].tolist(), tensors["labels"].tolist(), strict=True)
        lines = [json.dumps({"image": picture, "label": label}) + "\n" for picture, label in pairs]
        with replacing(folder / f"{name}.jsonl") as partial, partial.open("w") as file:
            file.writelines(lines if name == "train" else dict.fromkeys(lines))
    return folder


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws test accuracy at equal time over the largest eigenvalue, a panel for each share of wrong labels."""
    from matplotlib.figure import Figure

    rows = [NoiseRow(*row) for row in tables[0].rows]
    shares = sorted({row.label_noise for row in rows})
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    for axes, share in zip(figure.subplots(1, max(1, len(shares)), squeeze=False)[0], shares):
        for row in rows:
            if row.label_noise == share and row.accuracy_at_equal_time is not None:
                axes.scatter(row.lambda_max, row.accuracy_at_equal_time, label=row.technique)
        axes.set(
            title=f"{share:.0%} wrong labels",
            xlabel="largest eigenvalue of the Hessian",
            ylabel="test accuracy at equal time",
        )
        axes.legend()
    return figure

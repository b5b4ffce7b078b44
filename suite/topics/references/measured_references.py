"""Has a reference learned anything? Each baseline beside the classical methods that it must beat, on the same data.

A ratio of two plateaus is noise. So a reference is trained as it always is, and its test scores stand beside those of
classical methods fitted to the same training examples, on the same test batches, masks and noise included.

All of it runs in a process of the arithmetic in which stacks learn off the clock (:mod:`suite.record.numerics`): so a
reference's scores are to the bit those of its records, on any machine.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path

import torch
from PIL import Image

from suite.entries.installed import baseline_of
from suite.entries.sources import code_of
from suite.entries.together import run_of
from suite.loop.baseline import Sample
from suite.loop.run import Diverged
from suite.measure.contenders.deputies import in_child
from suite.measure.provenance import Progress, conditions_of, silent
from suite.process.scratch import scratch
from suite.record.job import BASELINE, Job, Setting
from suite.topics.references.learned_references import Bar, LearnedReference, Picture, means

HIGHER_IS_BETTER = ("accuracy",)
LIMIT_S = 86_400.0  # of one reference, with all its seeds


def learned(setting: Setting, seeds: Iterable[int]) -> LearnedReference:
    """Trains the setting's reference with each seed, in this process, and scores the classical methods beside it."""
    baseline = baseline_of(setting)
    data = baseline.data(setting.size, setting.task, setting.data)
    batches = data.held_out("test", baseline.recipe_of(setting).batch_size)
    ends: list[dict[str, float]] = []
    further: list[dict[str, float]] = []
    samples: list[Sample] = []
    why = ""
    for seed in seeds:
        run = run_of(Job(setting=setting, seed=seed))
        try:
            run.train(run.recipe.steps)
            ends.append(run.evaluate("test"))
            further.append(baseline.further_scores(run.model, data, batches))
            samples = samples or run.samples()
        except Diverged as error:
            why = f"seed {seed}: {error}"
    metric = baseline.judged_by
    scores = means(ends)
    bars = []
    for method, predict in baseline.classical(setting.size, data).items():
        theirs = baseline.mean_scores(predict, batches)
        passed = at_least_as_good(scores.get(metric, math.nan), theirs[metric], metric)
        bars.append(Bar(method=method, scores=theirs, passed=passed))
    return LearnedReference(
        conditions=conditions_of(setting),
        code=code_of(setting, BASELINE),
        made=datetime.now(UTC).date(),
        judged_by=metric,
        quality=baseline.quality,
        seeds=ends,
        bars=bars,
        further=means(further),
        samples=[*map(_picture, samples)],
        why=why,
    )


def _learned_apart(setting: Setting, seeds: Sequence[int]) -> LearnedReference:
    """Trains and scores as :func:`learned` does, in another process, which answers by a file: a reply's texts are
    short, and pictures are not."""
    answer = scratch() / "reference.json"
    in_child(_write, setting, seeds, answer, limit_s=LIMIT_S, mendable=(ValueError,))
    return LearnedReference.model_validate_json(answer.read_bytes())


def _write(setting: Setting, seeds: Sequence[int], answer: Path) -> None:
    torch.set_num_threads(setting.threads)
    answer.write_text(learned(setting, seeds).model_dump_json(), "utf-8")


def _picture(sample: Sample) -> Picture:
    if sample.picture is None:
        return Picture(caption=sample.caption, text=sample.text)
    written = BytesIO()
    Image.fromarray(sample.picture.numpy()).save(written, "png", optimize=True)
    height, width = sample.picture.shape
    png = b64encode(written.getvalue()).decode()
    return Picture(caption=sample.caption, text=sample.text, png=png, height=height, width=width)


def at_least_as_good(reference: float, bar: float, metric: str) -> bool:
    """Tells whether the reference's score reaches the bar's; a score that is no number does not."""
    return reference >= bar if metric in HIGHER_IS_BETTER else reference <= bar


def learned_references(
    settings: Sequence[Setting],
    seeds: int,
    progress: Progress = silent,
    keep: Callable[[LearnedReference], None] = lambda reference: None,
) -> list[LearnedReference]:
    """Returns the references of several settings, one after the other; each is handed to ``keep`` as soon as it is
    known."""
    references = []
    for number, setting in enumerate(settings):
        progress(number / len(settings), str(setting))
        references.append(_learned_apart(setting, range(seeds)))
        keep(references[-1])
    progress(1.0, "all references")
    return references

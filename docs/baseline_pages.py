"""A page for each baseline: its recipe by size, what its reference has learned, and the classical methods below it.

What it has learned is in ``results/references.json``: ``leantrain baselines --json | python -m json.tool --compact``.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from html import escape as html_escape
from itertools import groupby
from pathlib import Path
from typing import Any

from suite.contract.baseline import Baseline, baselines
from suite.contract.recipe import Recipe
from suite.record.job import Size
from suite.show.charts import ruler
from suite.show.markdown import escape
from suite.show.report import Report

SIZES: tuple[Size, ...] = ("nano", "micro", "base", "large")


def names() -> list[str]:
    """The baselines that the project has, by id."""
    return [name for name, each in baselines().items() if type(each).__module__ == f"baselines.{name}"]


def pages(root: Path, report: Report) -> dict[str, str]:
    """The pages by name."""
    index = ["# Baselines", "What techniques are measured against: a fixed model, its data and its recipe, by size."]
    index += [f"- [{name}]({name}.md): {escape(baselines()[name].quality)}" for name in names()]
    return {"index": "\n\n".join(index) + "\n"} | {name: page(baselines()[name], root, report) for name in names()}


def page(baseline: Baseline, root: Path, report: Report) -> str:
    """One baseline's page."""
    reference = _references(root).get(baseline.id)
    sections = (
        [f"# {baseline.id}", f"::: baselines.{baseline.id}"],
        _recipes(baseline),
        _learned(reference) if reference else (),
        _ruler(baseline, report),
    )
    return "\n\n".join(part for section in sections for part in section) + "\n"


def _recipes(baseline: Baseline) -> Iterator[str]:
    yield "## The recipe, by size"
    yield (
        f"Version {baseline.version}; quality is {escape(baseline.quality)}. The recipe `modern`, pre-training; "
        "[sizes](../README.md#what-is-covered-and-what-is-not)."
    )
    recipes = [baseline.recipe(size, "modern", "pretrain") for size in SIZES]
    lines = [f"| | {' | '.join(SIZES)} |", f"|---|{'--:|' * len(SIZES)}"]
    for field in fields(Recipe):
        values = [getattr(recipe, field.name) for recipe in recipes]
        lines.append(f"| {field.name.replace('_', ' ')} | {' | '.join(str(value) for value in values)} |")
    yield "\n".join(lines)


@cache
def _references(root: Path) -> Mapping[str, Any]:
    path = root / "results" / "references.json"
    return {each["baseline"]: each for each in json.loads(path.read_text("utf-8"))} if path.is_file() else {}


def _learned(reference: Mapping[str, Any]) -> Iterator[str]:
    yield f"## What it has learned at {reference['size']}"
    yield (
        "A ratio of two plateaus is noise. So the reference stands beside classical methods on the same data, batches, "
        f"masks and noise; it is judged by {reference['judged_by']}."
    )
    yield f"```console\n$ leantrain baselines -b {reference['baseline']}\n```"
    metrics = list(reference["scores"])
    lines = [f"| | {' | '.join(metrics)} | |", f"|---|{'--:|' * len(metrics)}---|"]
    lines.append(f"| **the reference** | {_scores(reference['scores'], metrics)} | |")
    for bar in reference["bars"]:
        says = "beaten" if bar["passed"] else "not beaten"
        lines.append(f"| {escape(bar['method'])} | {_scores(bar['scores'], metrics)} | {says} |")
    yield "\n".join(lines)
    if further := reference["further"]:
        yield "\n".join(f"- {escape(name)}: {value:.4g}" for name, value in further.items())
    for caption, samples in groupby(reference["samples"], lambda sample: sample["caption"]):
        shown = list(samples)
        yield f"{escape(caption)}:"
        pictures = "".join(_picture(each["picture"], caption) for each in shown if each["picture"])
        if pictures:
            yield f'<p class="pictures">{pictures}</p>'
        if texts := [each["text"] for each in shown if each["text"]]:
            yield "```text\n" + "\n".join(texts) + "\n```"


def _scores(scores: Mapping[str, float], metrics: list[str]) -> str:
    return " | ".join(f"{scores[metric]:.4g}" for metric in metrics)


def _picture(rows: list[list[int]], caption: str) -> str:
    """Grey values as an image in the page."""
    import numpy as np
    from PIL import Image

    written = io.BytesIO()
    Image.fromarray(np.array(rows, dtype=np.uint8)).save(written, "png")
    source = base64.b64encode(written.getvalue()).decode()
    return f'<img src="data:image/png;base64,{source}" alt="{html_escape(caption)}">'


def _ruler(baseline: Baseline, report: Report) -> Iterator[str]:
    rows = [
        row
        for row in report.rows
        if (row.conditions.baseline, row.conditions.task, row.reference) == (baseline.id, "pretrain", "baseline")
    ]
    if drawn := ruler(rows):
        yield "## Its scaling curve"
        yield (
            "The reference trained at several budgets, each with its full schedule; the small dots are seeds. Every "
            "technique stands where it ended: [the ruler](../methods/ruler.md)."
        )
        yield drawn

"""A page for each baseline: its recipe by size, what its reference has learned, and the classical methods below it.

What it has learned is in the results folder, where ``leantrain baselines`` keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from suite.entries.installed import baselines
from suite.loop.baseline import Baseline
from suite.loop.recipe import Recipe
from suite.record.job import SIZES
from suite.show.pictures.charts import by_curve, ruler
from suite.topics.board.markdown import escape
from suite.topics.board.report import Report
from suite.topics.references import references_on_board as references
from suite.topics.references.learned_references import LearnedReference, Power

SHOWN = [size for size in SIZES if size != "pico"]  # which is for tests


def names() -> list[str]:
    """The baselines that the project has, by id."""
    return [name for name, baseline in baselines().items() if type(baseline).__module__ == f"baselines.{name}"]


def pages(report: Report) -> dict[str, str]:
    """The pages by name."""
    index = ["# Baselines", "What techniques are measured against: a fixed model, its data and its recipe, by size."]
    index += [f"- [{name}]({name}.md): {escape(baselines()[name].quality)}" for name in names()]
    return {"index": "\n\n".join(index) + "\n"} | {name: page(baselines()[name], report) for name in names()}


def page(baseline: Baseline, report: Report) -> str:
    """One baseline's page."""
    known = report.references.on([baseline.id]).references
    sections = (
        [f"# {baseline.id}", f"::: baselines.{baseline.id}"],
        _recipes(baseline),
        *map(_learned, known.learned),
        *map(_power, known.power),
        _ruler(baseline, report),
    )
    return "\n\n".join(part for section in sections for part in section) + "\n"


def _recipes(baseline: Baseline) -> Iterator[str]:
    yield "## The recipe, by size"
    yield (
        f"Version {baseline.version}; quality is {escape(baseline.quality)}. The recipe `modern`, pre-training; "
        "[sizes](../reading.md#what-is-covered-and-what-is-not)."
    )
    recipes = [baseline.recipe(size, "modern", "pretrain") for size in SHOWN]
    lines = [f"| | {' | '.join(SHOWN)} |", f"|---|{'--:|' * len(SHOWN)}"]
    for field in fields(Recipe):
        values = [getattr(recipe, field.name) for recipe in recipes]
        lines.append(f"| {field.name.replace('_', ' ')} | {' | '.join(str(value) for value in values)} |")
    yield "\n".join(lines)


def _learned(reference: LearnedReference) -> Iterator[str]:
    yield f"## What it has learned at {reference.conditions.size}"
    yield escape(f"{references.READING} {references.verdict(reference)}")
    yield f"```console\n$ leantrain baselines -b {reference.conditions.baseline}\n```"
    yield _table(*references.scores(reference))
    if reference.further:
        yield escape(f"{references.further(reference)}.")
    for caption, samples in references.captioned(reference):
        yield f"{escape(caption)}:"
        if pictures := "".join(references.drawn(sample) for sample in samples if sample.png):
            yield f'<p class="pictures">{pictures}</p>'
        if texts := [" ".join(sample.text.split()) for sample in samples if sample.text]:
            yield "```text\n" + "\n".join(texts) + "\n```"


def _power(power: Power) -> Iterator[str]:
    yield f"## What it can tell apart at {power.conditions.size}"
    yield escape(f"{references.sees(power)} {references.CONTROLS}")
    yield f"```console\n$ leantrain baselines --power -b {power.conditions.baseline}\n```"
    yield _table(*references.controls(power))


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(map(escape, line))} |" for line in (head, *lines)]
    return "\n".join([rows[0], f"|---|{'--:|' * (len(head) - 1)}", *rows[1:]])


def _ruler(baseline: Baseline, report: Report) -> Iterator[str]:
    rows = [
        row
        for row in report.rows
        if (row.conditions.baseline, row.conditions.task, row.reference) == (baseline.id, "pretrain", "baseline")
    ]
    for apart, read_off in by_curve(rows):
        if drawn := ruler(read_off):
            yield f"## Its scaling curve{f': {apart}' if apart else ''}"
            yield (
                "The reference trained at several budgets, each with its full schedule; the small dots are seeds. "
                "Every technique stands where it ended: [the ruler](../methods/ruler.md)."
            )
            yield drawn.svg()

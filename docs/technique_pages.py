"""A page for each technique: what its card says, what the committed records say of it, and how to use it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, fields
from html import escape as html_escape
from typing import Any

import leantrain
from suite.entries import origins
from suite.entries.catalogue import Entry, catalogue
from suite.entries.spelling import build
from suite.judge.metrics import METRICS
from suite.judge.rows import Row
from suite.measure.mutants import mutants_of
from suite.pipeline.timetable import PipelineSchedule
from suite.record.job import StackError
from suite.show.bibtex import bibtex
from suite.show.described import Figure
from suite.show.pages.board import (
    HEADLINE,
    leaning,
    machine_line,
    seeds_text,
    shown_interval,
    text,
    timings_text,
    unverified_text,
)
from suite.show.pages.markup import fragments
from suite.show.pages.rendered import as_markdown
from suite.show.pictures.charts import curves, span, whisker
from suite.show.pipelines import picture
from suite.topics.board.goals import GoalTable
from suite.topics.board.markdown import code, escape
from suite.topics.board.report import Report
from suite.topics.by_others import by_others_on_page as by_others
from suite.topics.claims import claims_on_board as claims
from suite.topics.modelled_time import gpu_time_on_page
from suite.topics.models import models_on_page
from suite.topics.peers import peers_on_board as peers
from suite.topics.published_quality import quality_on_page
from suite.topics.studies.studies_on_board import placed_studies, plot_of, section
from suite.topics.studies.study_plots import MOST_ROWS

DRAWN_RANKS = 4
SHOWN = [HEADLINE, *(METRICS[name] for name in ("step_time", "peak_tensor_bytes", "training_flops", "loss"))]


def index(of_goals: Sequence[GoalTable]) -> str:
    """All techniques, category by category, each in a line."""
    answers = {line.stack: str(line.verdict) for table in of_goals for line in table.lines}
    lines = [
        "# Techniques",
        "",
        "What each changes, and whether the committed records say that it helps.",
        "",
    ]
    lines += ["| technique | category | what it changes | seen |", "|---|---|---|---|"]
    for entry in sorted(catalogue().values(), key=lambda entry: (entry.card.category, entry.id)):
        card = entry.card
        words = (card.category.replace("_", " "), card.summary, answers.get(entry.id, ""))
        lines.append(f"| [{escape(card.name)}]({entry.id}.md) | {' | '.join(map(escape, words))} |")
    return "\n".join(lines) + "\n"


def page(entry: Entry, report: Report, of_goals: Sequence[GoalTable]) -> str:
    """One technique's page."""
    sections = (
        _schedule,
        _results,
        _by_others,
        _on_models,
        _studies,
        _use,
        _about,
        _claims,
        _peers,
        _hyper_parameters,
        _published,
        _mutants,
        _source,
    )
    parts = [list(_head(entry, of_goals)), *(list(section(entry, report)) for section in sections)]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _head(entry: Entry, of_goals: Sequence[GoalTable]) -> Iterator[str]:
    card, paper = entry.card, entry.card.paper
    yield f"# {escape(card.name)}\n\n{escape(card.summary)}\n"
    for table in of_goals:
        for line in (line for line in table.lines if line.stack == entry.id):
            yield f"**{escape(table.goal.title)}?** {escape(str(line.verdict).capitalize())}.\n"
            cells = zip(table.heads[1:], (line.saves, line.step, line.quality, line.others, line.works), strict=False)
            said = [f"{head}: {f'{cell.words} {cell.ends}'.strip()}" for head, cell in cells if cell.words]
            yield f"{escape('; '.join(said))}.\n" if said else ""
    arxiv = f", [arXiv {paper.arxiv}](https://arxiv.org/abs/{paper.arxiv})" if paper.arxiv else ""
    link = f", [source]({paper.url})" if paper.url and not paper.arxiv else ""
    yield f"{escape(paper.authors)}: *{escape(paper.title)}*. {escape(paper.venue)}{arxiv}{link}.\n"
    yield from _folded("BibTeX", "bibtex", bibtex(card))


def _schedule(entry: Entry, report: Report) -> Iterator[str]:
    """Of a pipeline, what its papers draw: who does what when."""
    technique: Any = entry.technique
    plan = technique(ranks=DRAWN_RANKS).schedule() if {"schedule", "ranks"} <= {*dir(technique)} else None
    if isinstance(plan, PipelineSchedule):
        yield f"## Schedule\n\n{picture(plan).svg()}\n"
        yield (
            "Blue boxes are forward passes, orange ones backward passes of twice the length, each with the number of "
            "its micro-batch; a line is an update of the rank's weights.\n"
        )


def _on_models(entry: Entry, report: Report) -> Iterator[str]:
    section = models_on_page.section(entry.id, report.models)
    if section is not None:
        yield from as_markdown(section, "##")


def _use(entry: Entry, report: Report) -> Iterator[str]:
    on, settings = entry.card.baselines[0], _settings(entry)
    commands = [f"compare {entry.id} -b {on}"]
    if settings:
        name, default = settings[0]
        commands.append(f"compare {entry.id}:{name}={default} -b {on}")
    if partner := _partner(entry):
        commands.append(f"stack {entry.id}+{partner} -b {on}")
    commands += [f"count -t {entry.id} -b {on} --size base", f"claims {entry.id}"]
    yield "## Use it\n"
    yield from ("```console", *(f"$ leantrain {command}" for command in commands), "```\n")
    for module, name in exported(entry):
        if snippet := own_loop(module, name):
            yield f"In your own loop:\n\n```python\n{snippet}\n```\n"
        options = ("show_root_heading: true", "show_root_toc_entry: true", "heading_level: 3")
        yield "\n".join([f"::: leantrain.{module}.{name}", "    options:", *(f"      {line}" for line in options), ""])


def _partner(entry: Entry) -> str:
    """A technique of another category that stacks with this one; empty where none does."""
    on = set(entry.card.baselines)
    for id, other in catalogue().items():
        if (
            other.card.category != entry.card.category
            and other.card.task == entry.card.task
            and on <= set(other.card.baselines)
        ):
            try:
                build(f"{entry.id}+{id}")
            except StackError:
                continue
            return id
    return ""


def exported(entry: Entry) -> list[tuple[str, str]]:
    """(module of leantrain, name) of what the library hands on of the technique: of its folder, or named as it is."""
    package = entry.module.rpartition(".")[0]
    return [
        (module.__name__.rpartition(".")[2], name)
        for module in (leantrain.optim, leantrain.layers, leantrain.communication)
        for name in module.__all__
        if any(own.startswith(f"{package}.") for own in _modules_of(getattr(module, name)))
        or (getattr(module, name).__module__.startswith("leantrain.") and name.lower() == entry.id.rpartition("_")[2])
    ]


def _modules_of(handed_on: Any) -> list[str]:
    """Where something is defined; of a class its bases, too: the library gives the arguments of some defaults."""
    return [definition.__module__ for definition in (handed_on.mro() if isinstance(handed_on, type) else [handed_on])]


def own_loop(module: str, name: str) -> str:
    """How an optimizer takes the place of torch's; empty of what is no plain optimizer: its docstring shows its use."""
    cls = getattr(getattr(leantrain, module), name)
    parameters = inspect.signature(cls).parameters if isinstance(cls, type) else {}
    if "params" not in parameters:
        return ""
    rate = parameters["lr"].default
    construction = f"optimizer = {name}(model.parameters(), lr={1e-3 if rate is inspect.Parameter.empty else rate})"
    closure = inspect.signature(cls.step).parameters["closure"].default is inspect.Parameter.empty
    step = ["optimizer.step(closure)  # which returns the loss after its backward pass"]
    return "\n".join(
        [
            f"from leantrain.{module} import {name}",
            "",
            construction,
            *(step if closure else ["loss.backward()", "optimizer.step()"]),
        ]
    )


def _about(entry: Entry, report: Report) -> Iterator[str]:
    card = entry.card
    for title, words in (
        ("Which form, and why", card.variant),
        ("What the numbers do not show", card.limitations),
        ("Why it does not apply to a loop of your own", card.own_loop),
        ("Counter-evidence", card.counter_evidence),
    ):
        if words.strip():
            yield f"## {title}\n\n{escape(words)}\n"


def _results(entry: Entry, report: Report) -> Iterator[str]:
    rows = sorted((row for row in report.rows if row.stack == entry.id), key=lambda row: row.conditions.baseline)
    if not rows:
        yield f"## Results\n\nNone yet: no record here is of it. `leantrain run -t {entry.id}` makes some.\n"
        return
    intervals = [shown_interval(row.value(HEADLINE.name), HEADLINE.direction) for row in rows]
    width = span(bounds for bounds in intervals if bounds)
    yield "## Results\n"
    yield "Ratios to the reference: ↑ higher is better, ↓ lower is better; brackets hold 95 % intervals, = is exact.\n"
    heads = "".join(f"<th>{html_escape(metric.heading)} {metric.arrow}</th>" for metric in SHOWN)
    heads = f"<th></th><th></th>{heads}<th>seeds</th><th>timings</th>"
    yield f'<div class="scroll"><table class="results"><thead><tr>{heads}</tr></thead>'
    for row, interval in zip(rows, intervals, strict=True):
        drawn = whisker(interval, width) if interval else ""
        yield f"<tr>{_row(row, drawn)}</tr>"
    yield "</table></div>\n"
    pages = sorted({row.conditions.baseline for row in rows})
    boards = ", ".join(f"[{escape(name)}](../results/boards/{name}.md)" for name in pages)
    yield f"Beside all others, with notes: {boards}. † Evidence of code that changed since.\n"
    drawings = [(row, drawn) for row in rows if (drawn := curves(row))]
    if drawings:
        yield "Validation loss, technique (line) and reference (dashes); every seed is a thin line:\n"
        figures = "".join(
            f"<figure>{drawn.svg()}<figcaption>{html_escape(_where(row))}</figcaption></figure>"
            for row, drawn in drawings
        )
        yield f'<div class="curves-of">{figures}</div>'


def _studies(entry: Entry, report: Report) -> Iterator[str]:
    """Every table of its studies, in which each number says what kind it is, and the plots."""
    own = placed_studies([studied for studied in report.studies if studied.study.technique == entry.id], report.cards)
    if studies := section(own, report.cards, MOST_ROWS):
        yield from (*as_markdown(studies), "")
        yield from (
            f"<figure>{part.svg}</figure>" for placed in own for part in plot_of(placed) if isinstance(part, Figure)
        )


def _modelled(entry: Entry, report: Report) -> Iterator[str]:
    """Its step on named GPUs."""
    if modelled := gpu_time_on_page.section(entry.card, report.gpu_times):
        yield from (*as_markdown(modelled), "")


def _by_others(entry: Entry, report: Report) -> Iterator[str]:
    """What others published of it."""
    if published := by_others.section(entry.card):
        yield from (*as_markdown(published), "")
    if published := quality_on_page.section(entry.card, report.rows):
        yield from (*as_markdown(published), "")


def _row(row: Row, drawn: str) -> str:
    lean = LEANS[leaning(row.value(HEADLINE.name))]
    mark = fragments.unverified(unverified_text(row))
    head = f"<th>{html_escape(_where(row))}{mark}</th><td class='{lean}'>{drawn}</td>"
    if row.failed:
        reason = "; ".join(dict.fromkeys(f"{failure.status}: {failure.reason}" for failure in row.failures))
        return f'{head}<td colspan="{len(SHOWN) + 2}">{html_escape(reason)}</td>'
    cells = [
        f'<td class="{lean if metric is HEADLINE else ""}">'
        f"{html_escape(text(row.value(metric.name), metric.direction))}</td>"
        for metric in SHOWN
    ]
    return f"{head}{''.join(cells)}<td>{seeds_text(row)}</td><td>{timings_text(row)}</td>"


LEANS = {1: "better", -1: "worse", 0: "same"}


def _where(row: Row) -> str:
    at = row.conditions
    return " ".join((at.baseline, at.size, at.recipe, *([at.task] if at.task != "pretrain" else [])))


def _claims(entry: Entry, report: Report) -> Iterator[str]:
    by_worth = claims.sort([judgement for judgement in report.verdicts if judgement.technique == entry.id])
    if not by_worth.parts:
        return
    yield f"## Claims of the paper\n\n{escape(by_worth.sentence)} {escape(claims.READING)}\n"
    for title, part in by_worth.parts:
        yield f"### {escape(title)}\n"
        verdict, _, *others = claims.columns(title)
        yield from _grid((verdict, *others), part)
        yield ""


def _grid(heads: Sequence[str], part: Iterable[claims.ClaimLine]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for claim in part:
        cells = (f"**{claim.verdict}**", *map(escape, claim.cells[2:]))
        yield f"| {' | '.join(cells)} |"


def _peers(entry: Entry, report: Report) -> Iterator[str]:
    """Beside other packages' implementations, and why some are not."""
    own = [peer for peer in report.peers if peer.technique == entry.id]
    if not own and not entry.card.peers:
        return
    yield f"## {peers.TITLE}\n"
    if own:
        yield f"{escape(peers.READING)}\n"
        yield f"| {' | '.join(peers.HEAD[1:])} |"
        yield f"|{'---|' * len(peers.HEAD[1:])}"
        yield from (f"| {' | '.join(map(escape, peer.cells[1:]))} |" for peer in own)
        machines = dict.fromkeys(f"{peer.row.machine.name}: {machine_line(peer.row.machine.facts)}" for peer in own)
        yield f"\nOn {escape('; '.join(machines))}.\n"
    if why := peers.missing({entry.id: entry.card}, report.peers).get(entry.id):
        yield f"Not in the table: {escape(why)}.\n"


def _settings(entry: Entry) -> list[tuple[str, object]]:
    return [
        (field.name, "required" if field.default is MISSING else field.default)
        for field in fields(entry.technique)
        if field.init
    ]


def _hyper_parameters(entry: Entry, report: Report) -> Iterator[str]:
    if settings := _settings(entry):
        yield f"## Hyper-parameters\n\n`{entry.id}:name=value,name=value` sets them.\n"
        yield from (
            "| | default |",
            "|---|---|",
            *(f"| {code(name)} | {code(str(value))} |" for name, value in settings),
        )


def _published(entry: Entry, report: Report) -> Iterator[str]:
    """Where each number comes from: the paper, with the place, or this entry, with the reason."""
    if rows := [*origins.rows(entry)]:
        yield f"## {origins.TITLE}\n"
        yield f"| {' | '.join(origins.HEAD)} |"
        yield f"|{'---|' * len(origins.HEAD)}"
        yield from (f"| {code(name)} | {code(value)} | {escape(place)} |" for name, value, place in rows)


def _mutants(entry: Entry, report: Report) -> Iterator[str]:
    mutants = mutants_of(entry)
    names = ", ".join(escape(mutant.name) for mutant in mutants)
    yield f"## Mutants\n\n{len(mutants)} broken variants, each of which an exact claim must notice: {names}.\n"
    yield f"```console\n$ leantrain claims {entry.id} --mutants\n```"


def _source(entry: Entry, report: Report) -> Iterator[str]:
    path = entry.folder / "technique.py"
    yield "## The code\n"
    yield from _folded(f"{path.parent.parent.name}/{entry.id}/technique.py", "python", path.read_text("utf-8"))


def _folded(title: str, language: str, content: str) -> Iterator[str]:
    yield f'??? quote "{title}"\n'
    yield f"    ```{language}"
    yield from (f"    {line}" if line else "" for line in content.rstrip().splitlines())
    yield "    ```"

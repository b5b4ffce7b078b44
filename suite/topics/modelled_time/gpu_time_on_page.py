"""Shows a technique's step on named GPUs, for its page and for a terminal: modelled, with its band; and its paper's
claims beside."""

from __future__ import annotations

from suite.entries.card import Card
from suite.judge.rows import Row
from suite.show.described import Item, Items, PageTable, Paragraph, Part, Section, Subheading, TableCell, TableRow
from suite.topics.modelled_time.claimed import beside_model
from suite.topics.modelled_time.gpu_times import GpuTimes, ModelledTime
from suite.topics.modelled_time.modelled import PROVENANCE
from suite.topics.on_board import OnPage, of_card

TITLE = "On a GPU, modelled"
READING = (
    "One training step at the paper's size, modelled from its operators and never measured; the ratio is to the "
    "reference's step, and its band what 9 of 10 published ratios of that kind kept within that the model had not seen."
)
COLUMNS = ("where", "GPU", "step, ms", "ratio", "band")


def section(card: Card, times: GpuTimes) -> Section | None:
    """Builds the section; None where nothing is known of the technique's step."""
    own = [time for time in times.times if time.stack == card.id]
    if not own:
        return None
    anchor = f"{card.id}--gpu"
    parts: list[Part] = []
    known = [time for time in own if time.step_s is not None]
    if known:
        lines = list(map(_line, known))
        parts.append(PageTable(f"{anchor}-table", f"{TITLE}: {card.name}", COLUMNS, lines, sorted_by=None))
    lacking = dict.fromkeys(f"{time.place.title}: {time.unavailable}" for time in own if time.step_s is None)
    if lacking:
        parts += [Paragraph("Unavailable:"), Items([Item(sentence) for sentence in lacking])]
    if said := beside_model(card.claim, own):
        parts += [
            Subheading("The paper's claims about a step's time, beside the model"),
            Items(
                [
                    Item(
                        f"{pair.words}, on {pair.time.gpu} ({pair.time.place.title}): {pair.claim.statement}",
                        pair.claim.id,
                    )
                    for pair in said
                ]
            ),
        ]
    return Section(anchor, TITLE, READING, parts, is_open=True)


def of_pair(row: Row, times: GpuTimes) -> list[ModelledTime]:
    """Finds what is kept of the pair's steps at the papers' sizes of its baseline; nothing of a user's own model."""
    at = row.conditions
    return [
        time
        for time in times.times
        if (time.stack, time.reference) == (row.stack, row.reference)
        and (time.place.baseline, time.place.task, at.model) == (at.baseline, at.task, None)
    ]


def sentences(row: Row, times: GpuTimes) -> list[str]:
    """Writes the pair's steps as lines of a terminal, or by which command they are modelled."""
    steps = of_pair(row, times)
    if not steps:
        command = f"leantrain count -t {row.stack} -b {row.conditions.baseline} --keep --gpu A100-80"
        return [f"no {PROVENANCE} step at the papers' size is kept: {command}"]
    lines = []
    for time in steps:
        step, ratio, band = _cells(time)
        why = f"unavailable: {time.unavailable}"
        amounts = f"a step of {step} ms, {ratio} of the reference's, {band}" if ratio else f"a step of {step} ms"
        where = f"{PROVENANCE}, not measured, on {time.gpu} ({time.place.title})"
        lines.append(f"{where}: {why if time.step_s is None else amounts}")
    return lines


def _cells(time: ModelledTime) -> tuple[str, str, str]:
    """Writes the step in ms, the ratio and its band."""
    ratio, band = "", ""
    if time.ratio is not None:
        width = 1 + (time.half_width or 0.0)
        ratio = f"≈{time.ratio:.2f}"
        equal = "both run equal operators"
        band = f"[{time.ratio / width:.2f}, {time.ratio * width:.2f}]" if time.half_width else equal
    return f"≈{1e3 * (time.step_s or 0.0):.4g}", ratio, band


def _line(time: ModelledTime) -> TableRow:
    cells = (time.place.title, time.gpu, *_cells(time))
    return TableRow([TableCell(cell, head=not at, kind="modelled" if at > 1 else "") for at, cell in enumerate(cells)])


ON_PAGE = OnPage(50, lambda report: of_card(report.cards, lambda card: section(card, report.gpu_times)), TITLE)

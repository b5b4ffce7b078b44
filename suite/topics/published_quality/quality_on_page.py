"""Shows what others measured of a technique's quality, for its page: as published beside as judged here."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from suite.entries.card import Card
from suite.judge.helps import withheld
from suite.judge.rows import Row
from suite.judge.statistics import Interval
from suite.show.described import Folded, PageTable, Paragraph, Part, Section, TableCell, TableRow
from suite.topics.on_board import OnPage, of_card
from suite.topics.published_quality.judged_quality import JudgedQuality, QualityByOthers, quality_by_others
from suite.topics.published_quality.quality_rows import SCALES, PublishedQuality, Scale

TITLE = "Quality, measured by others"
READING = (
    "Published by others and not repeated here. As judged: the gain over the reference in the metric's own unit, above "
    "0 is better, with the 95 % interval that the source's seeds or its stated error allow; and the equivalent budget, "
    "how much of the reference's own budget its result takes, above 1 is better. Budgets in tokens, steps, samples, "
    "computation and time are not comparable with one another."
)
HEAD = (
    "model",
    "technique / reference",
    "metric",
    "as published",
    "gain, as judged",
    "could have shown",
    "budget, published",
    "budget, as judged",
    "runs",
    "tuned",
    "measured by",
    "source",
)
TUNED = {"yes": "both sides", "no": "one side", "same recipe": "one recipe", "unknown": "unsaid"}


def section(card: Card, rows: Iterable[Row] | None = None, scales: Collection[Scale] = tuple(SCALES)) -> Section | None:
    """Builds the section of one technique, whose ``rows`` are those measured here, with tables of some ``scales``; None
    where nothing is published."""
    known = quality_by_others(card.id)
    if known is None:
        return None
    anchor = f"{card.id}--quality-by-others"
    parts: list[Part] = [Paragraph(sentence(known, rows))]
    by_scale = sorted(known.every, key=lambda one: [*SCALES].index(one.row.scale))
    for scale, own in ((scale, list(group)) for scale, group in groupby(by_scale, key=lambda one: one.row.scale)):
        if scale not in scales:
            continue
        caption = f"{card.name} on {SCALES[scale]}"
        table = PageTable(f"{anchor}-{scale}", caption, HEAD, list(map(_line, own)), sorted_by=None)
        parts.append(Folded(f"Published on {SCALES[scale]}", [table], len(own)))
    notes = dict.fromkeys(f"{one.row.table.replace('_', ' ')}: {one.row.note}." for one in known.every if one.row.note)
    parts += [Folded("What to beware of", [Paragraph(note) for note in notes], len(notes))] if notes else []
    parts.append(Paragraph(f"To repeat it: leantrain published {card.id}"))
    return Section(anchor, TITLE, READING, parts, is_open=True)


def sentence(known: QualityByOthers, rows: Iterable[Row] | None = None) -> str:
    """Says what is published at scale, by whom, and whether it points where the ``rows`` here point, where there are
    any."""
    if not known.at_scale:
        return "Nothing is published on a Transformer of 10 million parameters and more."
    judged = [one.word for one in known.at_scale]
    counts = (f"{judged.count(word)} {word}" for word in ("better", "worse", "no difference shown", "not judged"))
    size = f", up to {in_millions(known.parameters)} parameters" if known.parameters else ""
    authors = "its authors alone" if known.by_authors_alone else "others than its authors"
    here = "" if rows is None else f" Beside the rows here: {known.agrees(intervals_here(known, rows))}."
    return (
        f"On Transformers{size}, {len(judged)} comparison{'s' * (len(judged) != 1)}, measured by {authors}: "
        f"{known.words}; as judged: {', '.join(part for part in counts if not part.startswith('0 '))}.{here}"
    )


def intervals_here(known: QualityByOthers, rows: Iterable[Row]) -> list[Interval]:
    """Returns the intervals of what rows of today's version gained here: the equivalent budget; where the published
    budgets are of computation or time, over the FLOPs that it took. A row whose rate is not settled says nothing."""
    of_cost = known.main_unit in ("computation", "time")
    gains = []
    for row in rows:
        if row.stack != known.technique or row.failed or row.newer_version or row.reference != "baseline":
            continue
        value, flops = row.value("equivalent_budget"), row.value("training_flops")
        if value.kind != "measured" or not value.speedup or value.control or withheld(row):
            continue
        if not of_cost:
            gains.append(value.speedup)
        elif flops.known and flops.number:
            ends = (value.speedup.estimate, value.speedup.low, value.speedup.high)
            estimate, low, high = (end / flops.number for end in ends)
            gains.append(replace(value.speedup, estimate=estimate, low=low, high=high))
    return gains


def in_millions(parameters: float | None) -> str:
    """Writes a number of parameters with M or B."""
    if parameters is None:
        return ""
    return f"{parameters / 1e9:.3g}B" if parameters >= 1e9 else f"{parameters / 1e6:.3g}M"


def _line(one: JudgedQuality) -> TableRow:
    row = one.row
    size = in_millions(row.parameters)
    cells = (
        f"{row.model}{f' ({size})' if size else ''}{f', {row.budget}' if row.budget else ''}",
        f"{row.variant.strip()} / {row.reference.strip()}",
        f"{row.metric}, {row.better} is better{f'; {row.data}' if row.data else ''}",
        _published(row),
        _gain(one),
        f"{one.detectable:.3g}" if math.isfinite(one.detectable) else "",
        f"{'at least ' if row.at_least else ''}×{row.budget_ratio:.3g} {row.unit}" if row.budget_ratio else "",
        f"×{_interval(one.budget, 3)} {one.unit}" if one.budget else "",
        _runs(row),
        f"{TUNED[row.tuned]}{f': {row.tuned_note}' if row.tuned_note else ''}",
        "its authors" if row.authors else "others",
        f"{row.source}{f' ({row.licence})' if row.licence else ''}",
    )
    return TableRow([TableCell(cell, head=not at) for at, cell in enumerate(cells)])


def _published(row: PublishedQuality) -> str:
    if row.value is None or row.value_reference is None:
        return row.unfinished or "no pair of values"
    time = f"; {row.time_ratio:.3g} of the time" if row.time_ratio else ""
    return f"{row.value:.6g} / {row.value_reference:.6g}{time}"


def _gain(one: JudgedQuality) -> str:
    if one.gain is None:
        return "not judged"
    if not math.isfinite(one.gain.half_width):
        return f"{one.gain.estimate:+.3g}: not judged, {one.basis}"
    return f"{_interval(one.gain, 3, '+')}: {one.word} ({one.basis})"


def _interval(of: Interval, digits: int, sign: str = "") -> str:
    """Writes an estimate with its interval where it has one."""
    ends: Sequence[float] = (of.low, of.high) if math.isfinite(of.half_width) else ()
    shown = f" [{', '.join(f'{end:{sign}.{digits}g}' for end in ends)}]" if ends else ""
    return f"{of.estimate:{sign}.{digits}g}{shown}"


def _runs(row: PublishedQuality) -> str:
    runs = "" if row.seeds is None else f"{row.seeds} / {row.seeds_reference or row.seeds}"
    return "; ".join(filter(None, (runs, row.uncertainty))) or "unsaid"


ON_PAGE = OnPage(
    65, lambda report: of_card(report.cards, lambda card: section(card, report.rows, ["transformer"])), TITLE
)

"""Shows what techniques take at the papers' own sizes: for each place a table of counts, the smallest peak first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from suite.judge.at_scale import CountsAtScale
from suite.judge.metrics import METRICS
from suite.record.paper_scale import Beside, PaperScale
from suite.record.placed import CountPlace
from suite.show.amounts_in_words import amount
from suite.show.described import (
    Folded,
    Item,
    Items,
    PageTable,
    Paragraph,
    Part,
    Section,
    Subheading,
    TableCell,
    TableRow,
    slug,
)
from suite.topics.on_board import OnBoard

TITLE = "At the papers' own sizes"
READING = (
    "One training step of the full-size model, counted on tensors that have shapes and no values: exact, and nothing "
    "was run. Ratios are to the reference; below 1 is less. Times are not counted, and what a technique learns at that "
    "size is not known here."
)
PEAK = "peak_tensor_bytes"
RATIOS = (PEAK, "saved_activation_bytes", "optimizer_state_bytes", "flops")
HEADINGS = ("technique", "peak tensors", *(f"{METRICS[name].title}, ratio" for name in RATIOS))


@dataclass(frozen=True)
class CountTable:
    """Holds one place: the reference's own numbers in words, the stacks that were counted, and why others were not."""

    place: CountPlace
    reference: str
    counted: Sequence[Beside]
    uncounted: Sequence[Beside]


def tables(counts: PaperScale) -> Iterator[CountTable]:
    """Makes a table for each place, the smallest peak first."""
    for place, beside in counts.beside().items():
        known = [pair for pair in beside if pair.ratio(PEAK) is not None]
        if known:
            shapes = known[0].reference.batch.items()
            batch = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes)
            own = known[0].reference.quantities
            numbers = ", ".join(f"{METRICS[name].title} {amount(name, own[name])}" for name in RATIOS)
            reference = f"{known[0].reference.stack}: {numbers}; batch {batch}"
            ordered = sorted(known, key=lambda pair: (pair.ratio(PEAK) or 0.0, pair.stack.stack))
            yield CountTable(place, reference, ordered, [pair for pair in beside if pair not in known])


def cells(pair: Beside) -> list[str]:
    """Writes the numbers of a line, behind the technique's name."""
    ratios = [pair.ratio(name) for name in RATIOS]
    peak = amount(PEAK, pair.stack.quantities[PEAK])
    return [peak, *("" if ratio is None else f"{ratio:.3f}" for ratio in ratios)]


def sentence(shown: CountsAtScale) -> str:
    """Says how many were counted, when, and with which libraries."""
    counts = shown.counts
    stacks = {counted.stack for counted in counts.counts if counted.stack != counted.reference}
    libraries = ", ".join(f"{name} {version}" for name, version in counts.versions.items())
    places = len(list(tables(counts)))
    old = " † The code changed since: leantrain count --keep" if shown.changed else ""
    return f"{len(stacks)} techniques in {places} settings (leantrain count --keep, {counts.made}; {libraries}).{old}"


def section(shown: CountsAtScale) -> Section:
    """Builds a table for each setting, and says why some techniques are not counted."""
    parts: list[Part] = []
    for table in tables(shown.counts):
        title = table.place.title
        lines = [_line(pair, mark(shown, pair)) for pair in table.counted]
        drawn = PageTable(f"paper-scale-{slug(title)}", title, HEADINGS, lines, sorted_by=2)
        parts += [Subheading(title), Paragraph(table.reference), drawn]
        if why := [Item(pair.stack.unavailable, pair.stack.stack) for pair in table.uncounted]:
            parts.append(Folded("Not counted, and why", [Items(why)]))
    return Section("paper-scale", TITLE, sentence(shown), parts, READING)


def mark(shown: CountsAtScale, pair: Beside) -> str:
    """Puts a dagger behind what older code was counted of."""
    return "†" if shown.has_changed(pair) else ""


def _line(pair: Beside, mark: str) -> TableRow:
    """Builds a row; a ratio is coloured where it is apart from 1 as one reads it."""
    drawn = [TableCell(pair.stack.stack, code=True, head=True, mark=mark)]
    for number, words in zip((pair.stack.quantities[PEAK], *map(pair.ratio, RATIOS)), cells(pair), strict=True):
        apart = isinstance(number, float) and words != "1.000"
        lean = ("better" if number < 1 else "worse") if apart and number is not None else ""
        drawn.append(TableCell(words, "" if number is None else f"{number:.6g}", lean))
    return TableRow(drawn)


ON_BOARD = OnBoard(
    50, lambda report: section(report.paper_scale) if report.paper_scale else None, "the papers' own sizes"
)

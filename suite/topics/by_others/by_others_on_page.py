"""Shows what others measured of a technique, for its page: each with its source, beside model and counts of its
setting."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from suite.entries.card import Card
from suite.show.described import Folded, PageTable, Paragraph, Part, Section, TableCell, TableRow
from suite.topics.by_others.by_others import OthersLine, RatioByOthers, lines_by_others
from suite.topics.on_board import OnPage, of_card

TITLE = "Measured by others"
READING = (
    "Published by others and not repeated here: what a row with the technique took over what one without it did, both "
    "of one set-up. Modelled is the same ratio by constants of other sources' rows alone; FLOPs and peaks are counted "
    "from the set-up's own operators. Below 1 is less."
)
COLUMNS = (
    "source",
    "settings",
    "with / without",
    "time, measured",
    "modelled",
    "FLOPs",
    "peak, measured",
    "counted",
    "in words",
)
EACH = ("setting", "GPU", "time, measured", "modelled", "band", "source")


def section(card: Card) -> Section | None:
    """Builds the section; None where no published row is of the technique."""
    lines = lines_by_others(card.by_others)
    if not lines:
        return None
    anchor = f"{card.id}--by-others"
    differing = [
        Paragraph(f"{line.of.table.replace('_', ' ')}: {line.of.differs}.") for line in lines if line.of.differs
    ]
    every = PageTable(
        f"{anchor}-each",
        f"Every setting of {card.name}",
        EACH,
        [_each(own) for line in lines for own in line.ratios],
        most_in_text=40,
    )
    parts: list[Part] = [
        PageTable(f"{anchor}-table", f"{TITLE}: {card.name}", COLUMNS, list(map(_line, lines)), sorted_by=None),
        *differing,
        Folded("Every setting", [every], len(every.lines)),
    ]
    return Section(anchor, TITLE, READING, parts, is_open=True)


def _line(of: OthersLine) -> TableRow:
    ratios = of.ratios
    words = (
        of.of.table.replace("_", " "),
        str(len(ratios)),
        f"{of.of.technique.strip(' +')} / {of.of.against or 'without'}",
        _range([ratio.measured for ratio in ratios]),
        _range([ratio.modelled for ratio in of.modelled if ratio.modelled], "≈"),
        _range([ratio.flops for ratio in of.modelled if ratio.flops], "="),
        _range([ratio.measured_peak for ratio in ratios if ratio.measured_peak]),
        _range([ratio.peak for ratio in ratios if ratio.peak], "="),
        of.verdict,
    )
    return TableRow([TableCell(word, head=not at) for at, word in enumerate(words)])


def _range(values: Sequence[float], sign: str = "") -> str:
    """Writes the median, and in brackets from where to where."""
    if not values:
        return "unavailable"
    middle = f"{sign}{median(values):.2f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.2f} to {max(values):.2f})"


def _each(of: RatioByOthers) -> TableRow:
    setting = f"{of.technique.strip()} · {of.setting}"
    modelled = "unavailable" if of.modelled is None else f"≈{of.modelled:.3f}"
    band = "" if of.modelled is None else f"±{of.half_width:.0%}"
    cells = (setting, of.gpus, f"{of.measured:.3f}", modelled, band, of.source)
    return TableRow([TableCell(cell, head=not at) for at, cell in enumerate(cells)])


ON_PAGE = OnPage(60, lambda report: of_card(report.cards, section), TITLE)

"""Compares what others measured of a technique itself with the model of the same setting: agreement or not, in words.

A card says which published rows are of its technique, and what their technique column would say without it. Two rows
that differ in nothing else have a measured ratio; where both are expressed, a modelled one by constants of the other
sources, a ratio of FLOPs and one of peaks, both counted. Imports no torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from suite.entries.card import MeasuredByOthers
from suite.topics.modelled_time.gpu_links import NODE
from suite.topics.modelled_time.modelled import RUNS, TIME_ACROSS_NODES, believed
from suite.topics.modelled_time.roofline import change_between
from suite.topics.published_steps.published_fit import step_of_row, why_not
from suite.topics.published_steps.published_rows import PublishedRow, predicted, rows, traces

AGREES, DISAGREES = "agrees within the model's error", "disagrees beyond the model's error"


@dataclass(frozen=True)
class RatioByOthers:
    """Compares one row with its partner.

    Attributes:
        measured: of the steps' times; modelled: of the same, None where it is not, for the reason ``why_not``.
        half_width: 0.2 says that the modelled ratio is believed from a factor of 1/1.2 to one of 1.2.
        flops, peak: counted, stack over reference; ``measured_peak``: published. None where there are none.
    """

    row: PublishedRow
    partner: PublishedRow
    measured: float
    modelled: float | None = None
    half_width: float = 0.0
    flops: float | None = None
    peak: float | None = None
    measured_peak: float | None = None
    why_not: str = ""

    @property
    def verdict(self) -> str:
        """Tells agreement or not, in words."""
        if self.modelled is None:
            return f"not modelled: {self.why_not}"
        return AGREES if self.inside else f"{DISAGREES} (±{self.half_width:.0%})"

    @property
    def inside(self) -> bool:
        width = 1 + self.half_width
        return self.modelled is not None and self.modelled / width <= self.measured <= self.modelled * width


def ratios_by_others(of: MeasuredByOthers) -> list[RatioByOthers]:
    """Returns the ratios of every row that the card's line is of, and whose partner was published, too."""
    known = _set_ups().get(of.table, {})
    ratios = []
    for row in (row for own in known.values() for row in own if of.technique in row.technique):
        name = row.technique.replace(of.technique, of.against, 1)
        partners = [partner for partner in known[_set_up(row)] if partner.technique == name]
        if partners and row.measured_s:
            ratios.append(_ratio(row, partners[0]))
    return ratios


@cache
def _set_ups() -> Mapping[str, Mapping[str, list[PublishedRow]]]:
    """Returns the rows that were measured, by table and set-up."""
    set_ups: dict[str, dict[str, list[PublishedRow]]] = defaultdict(lambda: defaultdict(list))
    for row in rows():
        if row.measured_s and _set_up(row):
            set_ups[row.table][_set_up(row)].append(row)
    return set_ups


def _set_up(row: PublishedRow) -> str:
    return row.alike or row.set_up


def _ratio(row: PublishedRow, partner: PublishedRow) -> RatioByOthers:
    assert row.measured_s and partner.measured_s
    measured = row.measured_s / partner.measured_s
    across = believed().no_bands.get(TIME_ACROSS_NODES, "")
    if across and row.gpus > NODE:
        return RatioByOthers(row, partner, measured, why_not=across)
    ours, theirs = (predicted().get((side.table, side.line)) for side in (row, partner))
    after, before = step_of_row(row), step_of_row(partner)
    if ours is None or theirs is None or after is None or before is None:
        why = next(filter(None, (why_not(row), why_not(partner))), "the study was not made again since")
        return RatioByOthers(row, partner, measured, why_not=why)
    change = RUNS if before == after else change_between(before, after)
    published = (row.peak_bytes, partner.peak_bytes)
    peaks = [traces()[side.case.key].peak_bytes for side in (row, partner) if side.case]
    return RatioByOthers(
        row,
        partner,
        measured,
        ours / theirs,
        believed().band(change).half_width,
        after.flops / before.flops if before.flops else None,
        peaks[0] / peaks[1] if all(published) and all(peaks) else None,
        published[0] / published[1] if published[0] and published[1] else None,
    )


@dataclass(frozen=True)
class OthersLine:
    """Sums up all ratios of one line of a card: medians of what is known, and how many settings the model agrees
    with."""

    of: MeasuredByOthers
    ratios: Sequence[RatioByOthers]

    @property
    def modelled(self) -> list[RatioByOthers]:
        return [ratio for ratio in self.ratios if ratio.modelled is not None]

    @property
    def verdict(self) -> str:
        """Tells agreement or not, in words; of several settings of most."""
        others = next((ratio.verdict for ratio in self.ratios if ratio.modelled is None), "")
        if not self.modelled:
            return others
        inside = sum(ratio.inside for ratio in self.modelled)
        words = AGREES if 2 * inside > len(self.modelled) else DISAGREES
        said = f"{words} in {inside if words == AGREES else len(self.modelled) - inside} of {len(self.modelled)}"
        return f"{said}; {len(self.ratios) - len(self.modelled)} {others}" if others else said


def lines_by_others(of: Iterable[MeasuredByOthers]) -> list[OthersLine]:
    """Returns a line for each of a card's that has rows."""
    lines = [OthersLine(line, ratios_by_others(line)) for line in of]
    return [line for line in lines if line.ratios]

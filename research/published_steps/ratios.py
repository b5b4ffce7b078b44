"""Compares published rows of one set-up, two by two: what ships for the pages of techniques that cards name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from research.published_steps.published_fit import step_of_row, why_not
from research.published_steps.published_rows import PublishedRow, rows, traces
from suite.topics.by_others.by_others import RatioByOthers
from suite.topics.modelled_time.modelled import RUNS, TIME_ACROSS_NODES, Believed
from suite.topics.modelled_time.roofline import change_between

Times = Mapping[tuple[str, int], float]
"""Modelled times, s, by table and line."""


def pairs() -> Iterator[tuple[PublishedRow, PublishedRow]]:
    """Yields each row that was measured with the first of its set-up of each other technique."""
    set_ups: dict[tuple[str, str], list[PublishedRow]] = defaultdict(list)
    for row in rows():
        if row.measured_s and (set_up := row.alike or row.set_up):
            set_ups[row.table, set_up].append(row)
    for own in set_ups.values():
        firsts: dict[str, PublishedRow] = {}
        for row in own:
            firsts.setdefault(row.technique, row)
        for row in own:
            yield from ((row, other) for name, other in firsts.items() if name != row.technique)


def ratio_of(row: PublishedRow, partner: PublishedRow, predicted: Times, believed: Believed) -> RatioByOthers:
    """Returns one row over the other: the times as published and as modelled, what is counted of both."""
    batch = f", {row.case.batch} x {row.case.length}" if row.case else ""
    assert row.measured_s and partner.measured_s
    ratio = RatioByOthers(
        table=row.table,
        line=row.line,
        source=row.source,
        technique=row.technique,
        against=partner.technique,
        setting=f"{row.kind}{batch}",
        gpus=f"{row.gpus} x {row.device}" if row.device and row.gpus > 1 else row.device or f"{row.gpus} GPUs",
        measured=row.measured_s / partner.measured_s,
    )
    across = believed.no_bands.get(TIME_ACROSS_NODES, "")
    if across and row.gpus > row.node:
        return replace(ratio, why_not=across)
    ours, theirs = (predicted.get((side.table, side.line)) for side in (row, partner))
    after, before = step_of_row(row), step_of_row(partner)
    if ours is None or theirs is None or after is None or before is None:
        return replace(ratio, why_not=next(filter(None, (why_not(row), why_not(partner)))))
    published = (row.peak_bytes, partner.peak_bytes)
    peaks = [traces()[side.case.key].peak_bytes for side in (row, partner) if side.case]
    return replace(
        ratio,
        modelled=ours / theirs,
        change=RUNS if before == after else change_between(before, after),
        flops=after.flops / before.flops if before.flops else None,
        peak=peaks[0] / peaks[1] if all(published) and all(peaks) else None,
        measured_peak=published[0] / published[1] if published[0] and published[1] else None,
    )

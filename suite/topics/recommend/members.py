"""Describes the entries as a choice sees them: what their cards and contracts say, and what records say they cost.

Quality is of the baseline's newest version that an entry was learned with, and there of the largest size, since what
helps there is nearest to a model that is larger still; where several sizes are known, so is the trend. One seed says
nothing of it, as seeds scatter as much as techniques differ; one set of processes says enough of a time to plan by.
Times are measured on CPUs, and those of the reader's machine are none of them; where a GPU is named, times are those
modelled for it, else FLOPs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from suite.entries.cards import with_cards
from suite.entries.catalogue import Entry, catalogue
from suite.judge.metrics import MetricValue
from suite.judge.rows import Row, rows
from suite.judge.trend import in_words, trend
from suite.loop.technique import CHAINED, PLANS, SLOTS, overrides
from suite.process.child import ContenderFailed
from suite.process.groups import Deputy
from suite.record import paper_scale
from suite.record.job import BASELINE, SIZES, Setting, StackError
from suite.record.paper_scale import Beside
from suite.record.store import Records, Store
from suite.topics.modelled_time import gpu_times
from suite.topics.modelled_time.aside import deputy
from suite.topics.recommend.choice import Estimate, Member, StepCost

LIMIT_S = 120.0  # for a technique to be loaded
TREND = {"↘": "worth less at larger sizes, by the records", "↗": "worth more at larger sizes, by the records"}


def members_for(setting: Setting, folder: Path, gpu: str | None, plain: StepCost) -> list[Member]:
    """Returns every entry of the catalogue, for a model that is trained as ``setting`` says; what is known of it is in
    the records of ``folder``. ``gpu``: whose times; those measured where None. ``plain``: what the model takes without
    any of them."""
    known = _rows_by_stack(setting, folder)
    at_scale, uncountable = _at_scale(setting, folder, plain)
    modelled = {
        time.stack: Estimate(math.log(time.ratio), source=f"modelled on {gpu}")
        for time in gpu_times.read(folder).times
        if gpu and time.gpu == gpu and time.ratio and time.place.baseline == setting.baseline
    }
    sound, broken = with_cards(catalogue())
    with deputy(LIMIT_S) as asked:
        members = [
            _member(entry, setting, known.get(name, ()), at_scale.get(name, {}), modelled.get(name), gpu, asked)
            for name, entry in sound.items()
        ]
    members = [replace(member, why_not=member.why_not or uncountable.get(member.id, "")) for member in members]
    return [*members, *(Member(name, "", why_not=why) for name, why in broken.items())]


def _rows_by_stack(setting: Setting, folder: Path) -> Mapping[str, Sequence[Row]]:
    """Returns the rows against the baseline, under the same recipe and on its own model and data; the largest size
    first."""
    lines = [
        line
        for line in Store(folder).read()[0].lines
        if (at := getattr(line, "conditions", None)) is None
        or (at.baseline == setting.baseline and at.recipe == setting.recipe and at.model is None)
    ]
    by_stack: dict[str, list[Row]] = {}
    for row in rows(Records.of(lines), catalogue().__contains__):
        if row.reference == BASELINE and not row.failed:
            by_stack.setdefault(row.stack, []).append(row)
    for stack in by_stack:
        by_stack[stack].sort(key=_preference, reverse=True)
    return by_stack


def _preference(row: Row) -> tuple[bool, int, int]:
    """Returns the key of the order: the baseline as it is now before one of before, larger sizes before smaller, more
    seeds."""
    return row.newer_version is None, SIZES.index(row.conditions.size), len(row.seeds)


def _at_scale(
    setting: Setting, folder: Path, plain: StepCost
) -> tuple[Mapping[str, Mapping[str, Estimate]], Mapping[str, str]]:
    """Returns what was counted at the papers' sizes over the baseline's, by stack and quantity, and why others cannot
    be counted there, by stack.

    What a technique saves of a peak depends on what the peak is made of: of each kind it is taken to leave the share
    that it left at the paper's size.
    """
    estimates: dict[str, dict[str, Estimate]] = {}
    uncountable: dict[str, str] = {}
    for place, pairs in paper_scale.read(folder).beside().items():
        if (place.baseline, place.recipe) != (setting.baseline, setting.recipe):
            continue
        for pair in pairs:
            stack = pair.stack.stack
            if pair.reference.stack != BASELINE:
                continue
            if pair.stack.unavailable and place.task == setting.task:
                uncountable[stack] = f"no size is counted of it: {pair.stack.unavailable}"
            source, of_stack = f"counted at {place.size}", estimates.setdefault(stack, {})
            if flops := pair.ratio("flops"):
                of_stack["flops"] = Estimate(math.log(flops), source=source)
            if peak := _peak_ratio(pair, plain):
                of_stack["peak_tensor_bytes"] = Estimate(math.log(peak), source=source)
    return estimates, {stack: why for stack, why in uncountable.items() if not estimates[stack]}


def _peak_ratio(pair: Beside, plain: StepCost) -> float | None:
    """Returns a stack's peak at the user's size over the baseline's there, by the shares of its kinds at the paper's;
    a kind that the baseline has none of there stays as it is."""
    if not pair.stack.quantities:
        return None
    shares = {kind: pair.ratio(f"peak.{kind}") for kind in plain.peak_by_kind}
    left = sum(size * (1.0 if (share := shares[kind]) is None else share) for kind, size in plain.peak_by_kind.items())
    return left / plain.peak_bytes if left else None


def _member(
    entry: Entry,
    setting: Setting,
    known: Sequence[Row],
    counts: Mapping[str, Estimate],
    modelled: Estimate | None,
    gpu: str | None,
    asked: Deputy,
) -> Member:
    card, changes, plans, why_not = entry.card, frozenset[str](), False, entry.card.own_loop
    if card.task == "adapt" and setting.task != "adapt":
        why_not = why_not or "it adapts a model that is trained already: --task adapt"
    if not why_not:
        try:
            changed, plans = asked(_contract, entry.id, mendable=(StackError,))
            changes = frozenset(changed)
        except (StackError, ContenderFailed) as broken:
            why_not = str(broken)
    slope = trend(known)
    measured = _first(known, "training_time", alone=True)
    return Member(
        entry.id,
        card.category,
        changes,
        plans,
        time=(modelled or counts.get("flops")) if gpu else measured,
        quality=_first(known, "equivalent_budget"),
        peak=counts.get("peak_tensor_bytes") or _first(known, "peak_tensor_bytes"),
        progress=next(filter(None, map(_progress, known)), 0.0),
        why_not=why_not,
        note=f"{entry.id}: {TREND[word]}" if (word := in_words(slope)) in TREND else "",
    )


def _contract(id: str) -> tuple[list[str], bool]:
    """Returns what a technique overrides, and whether it plans schedules."""
    cls = catalogue()[id].technique
    return [name for name in (*CHAINED, *SLOTS) if overrides(cls, name)], cls.takes == PLANS


def _first(known: Iterable[Row], metric: str, alone: bool = False) -> Estimate | None:
    """Returns what the first row says of the metric that has it of several replicates, or ``alone`` of one."""
    for row in known:
        older = f", version {row.conditions.baseline_version} of the baseline" if row.newer_version else ""
        estimate = _estimate(row.value(metric), row.conditions.size + older)
        if estimate and (alone or math.isfinite(estimate.error)):
            return estimate
    return None


def _estimate(value: MetricValue, at: str) -> Estimate | None:
    if not value.number > 0:
        return None
    if value.kind == "bound":
        return Estimate(math.log(value.number), source=f"{'at most' if value.at_most else 'at least'}, at {at}")
    if value.log is None:
        return Estimate(math.log(value.number), source=f"exact at {at}")
    return Estimate.of(value.log, f"measured at {at}")


def _progress(row: Row) -> float:
    """Returns ln of the contender's steps over the reference's: exact, as recipes say."""
    sides = row.known.timed[0].sides if row.known.timed else row.known.learned[0].sides if row.known.learned else ()
    theirs, ours = (side.steps for side in sides) if sides else (None, None)
    return math.log(ours / theirs) if theirs and ours else 0.0

"""Tells how far modelled step times can be believed: held against steps that others measured and published.

Every row of :mod:`research.published_steps.published_rows` that this suite can express is predicted from its trace.
The constants are those of the table of GPUs, and multipliers that are fitted to rows:

    product  of a rate in half precision, in float32 and in FP8: of all GPUs, of a generation, of a GPU
    attention  of a rate: of all kernels, and by the generation of the kernel and of the GPU
    moving   of the bandwidth that memory-bound operators reach, by generation
    link     of the bandwidth that collectives reach, inside nodes and across; of how fast ranks meet for one
    step     a time a step that no operator explains, by source

Rows with products in FP8 come second, and say what FP8 does (:func:`multipliers_of`).

A source is predicted by multipliers that were fitted to the *other* sources alone: its residuals are those of a source
that the fit never saw; and once more by those of rows that are neither of its source nor of its GPU, which is what a
GPU without rows may expect. Bands are the 90 % quantile of such residuals, by kind of change; a source's coverage is by
bands of the others' residuals. Imports no torch.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from research.published_steps.published_rows import Case, PublishedRow, rows, traces
from suite.record.operator_counts import PHASES, Operator, TracedStep
from suite.topics.modelled_time.devices import Gpu, devices, width_of
from suite.topics.modelled_time.gpu_links import FABRICS, NODES, REACHED_ACROSS, REACHED_INSIDE, Sent, sent
from suite.topics.modelled_time.modelled import (
    RANKS,
    RANKS_ACROSS,
    TIME_ACROSS_NODES,
    TIME_FAR,
    UNSEEN,
    WIDEST,
    Band,
    Believed,
    Change,
    time_on,
)
from suite.topics.modelled_time.roofline import Parts, Software, beside, change_between, parts_of, widest

SOFTWARE: Mapping[str, Software] = {
    "timm_vit_train": Software("torch 1.12, CUDA 11.3, eager", synchronised=True),
    "neusight_steps": Software("torch 2.1, CUDA 12.1, eager", synchronised=True),
    "fms_finetune_techniques": Software("torch 2.4, flash-attn 2, transformers 4.4x"),
    "llm_foundry_mpt": Software("torch 1.13 to 2.1, FSDP, flash 1 in Triton", "flash 1"),
    "nanotron_ultrascale": Software("nanotron, torch version not stated, flash 2"),
    "simumax_b200": Software("torch 2.10, Megatron-LM, Transformer Engine 2.11", "flash 3"),
    "megatron_bridge": Software("NeMo containers 25.09 to 26.06, Megatron-LM, Transformer Engine", "flash 3"),
    "mlperf_llama31_8b": Software("NeMo of MLPerf v5.1, Megatron-LM, Transformer Engine", "flash 3"),
    "peft_methods": Software("torch 2.13, transformers 5, peft 0.19", synchronised=True),
}
"""What each source's rows ran under."""

SPREAD = {"product": 0.15, "attention": 0.30, "moving": 0.15, "link": 0.10, "step": 0.02}
"""How far a multiplier's logarithm is from 0 before a row was seen, and a step's own time in s: one deviation."""
MEETING_SPREAD = 2.0
"""The same of how fast ranks meet, of which no datasheet says anything."""
NOISE = 0.05
"""Of a row's logarithm: equal systems differ by 1 to 2 %, software by up to 19 %."""
LEVELS = 3
"""Multipliers of one operator's rate at most."""
COVERED = 0.90
"""Of all residuals, each source's by the band of the others."""
FEWEST, SOURCES = 8, 2
"""Residuals that a band takes, and the sources that they are of."""

NO_RESULT = "it has no result"
WHERE = ("inside", "across")
"""A node's links, and those between nodes."""
MEETING = ("link", "meeting")
MOST: Mapping[tuple[str, ...], float] = {
    ("link", "inside"): -math.log(REACHED_INSIDE),
    ("link", "across"): -math.log(REACHED_ACROSS),
}
"""Links carry no more than their datasheet says."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Predictable:
    """Describes a row that can be predicted."""

    row: PublishedRow
    step: TracedStep
    device: Gpu

    @property
    def measured_s(self) -> float:
        assert self.row.measured_s is not None
        return self.row.measured_s


@cache
def known_rows() -> tuple[Predictable, ...]:
    """Returns the rows that have a time and a trace."""
    rows_with_steps = ((row, step_of_row(row)) for row in rows() if row.measured_s)
    return tuple(Predictable(row, step, devices()[row.device]) for row, step in rows_with_steps if step is not None)


def step_of_row(row: PublishedRow) -> TracedStep | None:
    """Returns the operators of one update of the row: as many passes as it accumulates, its share of the update (what
    clips gradients is part of it). Where stages share the model, of those that run one after the other: all stages'
    first pass, the dearest's others."""
    known = traces().get(row.case.key) if row.case is not None else None
    if row.case is None or known is None or known.step is None:
        return None
    other = _other_depth(row) if row.stages > 1 else None
    counts: Counter[Operator] = Counter()
    for operator, count in known.step:
        if "optimizer" in (operator.phase, operator.kind):
            share = row.update_share or 1 / row.shards
            read, written = int(operator.read_bytes * share), int(operator.written_bytes * share)
            counts[replace(operator, read_bytes=read, written_bytes=written)] += count
        elif other is None:
            counts[operator] += count * row.accumulated
        elif operator not in other[1].counts:  # takes all of a model's tensors at once
            counts[operator] += count
        else:
            layers, deeper = other
            of_layer = (deeper.counts[operator] - count) // (layers - row.case.layers)
            rest = count - row.case.layers * of_layer
            counts[operator] += row.layer_runs * of_layer + row.head_runs * rest
    return replace(known.step, counts=counts)


def _other_depth(row: PublishedRow) -> tuple[int, TracedStep] | None:
    """Returns the trace of the row's case with another number of layers; None where there is none."""
    assert row.case is not None
    case = row.deeper or _depths().get(replace(row.case, layers=0).key, {}).get(row.case.layers)
    step = traces()[case.key].step if case is not None and case.key in traces() else None
    return (case.layers, step) if case is not None and step is not None else None


@cache
def _depths() -> Mapping[str, Mapping[int, Case]]:
    """Returns, by what cases share but for their depth and by a depth, one of another depth that is traced."""
    alike: dict[str, dict[int, Case]] = defaultdict(dict)
    for row in rows():
        if row.case is not None and row.memory is not None and row.measured_s and row.case.key in traces():
            alike[replace(row.case, layers=0).key][row.case.layers] = row.case
    return {
        key: {layers: known[max(known, key=lambda other, own=layers: abs(other - own))] for layers in known}  # type: ignore[misc]
        for key, known in alike.items()
        if len(known) > 1
    }


def why_not(row: PublishedRow) -> str:
    """Tells why a row is not predicted; empty for one that is."""
    if row.case is None:
        return row.why_not
    if row.power_w:
        return "its time is of an epoch, of as many examples as it does not state; its power is compared"
    if not row.measured_s:
        return NO_RESULT
    traced = traces().get(row.case.key)
    return "it is not traced yet" if traced is None else traced.why_not


# the fit --------------------------------------------------------------------------------------------------------------


class Fit:
    """Holds rows as arrays, and the multipliers that bring their modelled times nearest to the measured ones."""

    def __init__(self, of: Sequence[Predictable]) -> None:
        self.rows = of
        alike: dict[object, int] = {}  # rows that run the same take the same
        self._alike = [alike.setdefault(_same(point), len(alike)) for point in of]
        firsts = {group: point for point, group in reversed([*zip(of, self._alike)])}
        of = [firsts[group] for group in range(len(alike))]
        self._groups = len(of)
        named = {name for point in of for name in _names(point)} | {("link", where) for where in WHERE} | {MEETING}
        self.names: list[tuple[str, ...]] = sorted(named)
        at = {name: index for index, name in enumerate(self.names)}
        none = len(at)  # of what nothing multiplies
        parts = [_parts(point) for point in of]
        own = [[_of(operator, point) for operator in part.operators] for point, part in zip(of, parts)]
        kinds = sorted({names for of_point in own for names in of_point})
        self._levels = np.array(
            [[*(at[name] for name in names), *[none] * (LEVELS - len(names))] for names in kinds], dtype=np.intp
        ).reshape(-1, LEVELS)
        of_kind = {names: index for index, names in enumerate(kinds)}
        self._own = np.array([of_kind[names] for of_point in own for names in of_point], dtype=np.intp)
        sizes = [len(part.operators) for part in parts]
        self._moving = np.repeat([at["moving", point.device.generation] for point in of], sizes)
        self._at = np.repeat(np.arange(len(of)) * len(PHASES), sizes)
        self._step = np.array([at["step", point.row.table] for point in of], dtype=np.intp)
        if parts:
            self._computed_s = np.concatenate([part.computed_s for part in parts])
            self._moved_s = np.concatenate([part.moved_s for part in parts])
            self._in_cycles_s = np.concatenate([part.in_cycles_s for part in parts])
            self._gaps_s = np.concatenate([part.gaps_s for part in parts])
            self._at = self._at + np.concatenate([part.phases for part in parts])
        ways = [sent_by(point.row) for point in of]
        self._host_s = np.array(
            [[part.host[phase] + way.asked[phase] for phase in PHASES] for part, way in zip(parts, ways)]
        )
        self._links = [at["link", where] for where in WHERE]
        self._hidden_s, self._waited_s = (
            np.array([[[way[phase, across] for across in (False, True)] for phase in PHASES] for way in kind])
            for kind in ([way.hidden for way in ways], [way.waited for way in ways])
        )
        self._most = np.array([MOST.get(name, math.inf) for name in self.names])
        self._met_s = np.array([[way.met[phase] for phase in PHASES] for way in ways])
        self._meeting = at[MEETING]
        self._synchronised = np.array([SOFTWARE[point.row.table].synchronised for point in of])

    def seconds(self, multipliers: Floats) -> Floats:
        """Returns the modelled times of all rows, s: :func:`suite.topics.modelled_time.roofline.modelled`, of all at
        once."""
        if not self.rows:
            return np.zeros(0)
        scale = np.exp(np.append(np.minimum(multipliers, self._most), 0.0))
        computed_s = self._computed_s / scale[self._levels].prod(1)[self._own]
        moved_s = np.maximum(self._moved_s / scale[self._moving], self._in_cycles_s)
        cost_s = np.maximum(computed_s, moved_s) + self._gaps_s
        by_phase: Floats = np.bincount(self._at, cost_s, self._groups * len(PHASES)).astype(np.float64)
        links = 1 / scale[self._links]
        waited_s = self._waited_s @ links + self._met_s / scale[self._meeting]
        busy_s = beside(by_phase.reshape(-1, len(PHASES)), self._hidden_s @ links) + waited_s
        plain_s = np.maximum(busy_s.sum(1), self._host_s.sum(1))
        ways = [self._host_s[:, :at].sum(1) + busy_s[:, at:].sum(1) for at in range(len(PHASES) + 1)]
        timeline_s: Floats = np.where(self._synchronised, np.max(ways, axis=0), plain_s)
        times: Floats = timeline_s + np.maximum(0.0, multipliers[self._step])
        return times[self._alike]

    def solved(self, known: Mapping[tuple[str, ...], float] | None = None) -> dict[tuple[str, ...], float]:
        """Returns the multipliers' logarithms by name (of a step's own time: s), those of ``known`` as they are. Each
        source weighs as much as 30 rows do at most."""
        tables = Counter(point.row.table for point in self.rows)
        weight = np.array([math.sqrt(min(1.0, 30 / tables[point.row.table])) for point in self.rows])
        measured = np.array([point.measured_s for point in self.rows])
        spread = np.array([MEETING_SPREAD if name == MEETING else SPREAD[name[0]] for name in self.names])
        begin = np.array([(known or {}).get(name, 0.0) for name in self.names])
        free = np.array([name not in (known or {}) for name in self.names])

        def all_of(values: Floats) -> Floats:
            every = begin.copy()
            every[free] = values
            return every

        def residuals(values: Floats) -> Floats:
            off = weight * np.log(self.seconds(all_of(values)) / measured) / NOISE
            return np.concatenate([off, values / spread[free]])

        if not self.rows or not free.any():
            return {}
        fit = least_squares(residuals, np.zeros(int(free.sum())), loss="soft_l1", max_nfev=40)
        return dict(zip(self.names, map(float, np.minimum(all_of(fit.x), self._most))))

    def predicted(self, solved: Mapping[tuple[str, ...], float]) -> Floats:
        """Returns modelled times, s, by multipliers that may be of other rows; what they lack is as the table has
        it."""
        return self.seconds(np.array([solved.get(name, 0.0) for name in self.names]))


_KNOWN_WIDE: dict[object, dict[tuple[str, ...], float]] = {}


def multipliers_of(seen: Sequence[Predictable]) -> dict[tuple[str, ...], float]:
    """Fits the rows without products in FP8 first: whatever rows in FP8 are left out, that fit is the same. What rows
    with such products say comes after, of FP8 and of what no other row shows: of what both share they say nothing apart
    from FP8."""
    worth = worth_fitting(seen)
    wide = [point for point in worth if not _in_fp8(point)]
    key = tuple((point.row.table, point.row.line, point.measured_s) for point in wide)
    if key not in _KNOWN_WIDE:
        _KNOWN_WIDE[key] = Fit(wide).solved()
    known = _KNOWN_WIDE[key]
    return known | Fit([point for point in worth if _in_fp8(point)]).solved(known)


def _in_fp8(point: Predictable) -> bool:
    return point.row.case is not None and point.row.case.eight_bits is not None


_KNOWN_PARTS: dict[object, Parts] = {}


def _parts(point: Predictable) -> Parts:
    """Returns the terms of a row's operators: fits of other rows have them, too."""
    key = _same(point)
    if key not in _KNOWN_PARTS:
        _KNOWN_PARTS[key] = parts_of(point.step, point.device, SOFTWARE[point.row.table])
    return _KNOWN_PARTS[key]


def _same(point: Predictable) -> object:
    """Returns a key that is equal for rows that run the same, on the same."""
    row = point.row
    runs = row.accumulated, row.layer_runs, row.head_runs, row.shards, row.update_share
    return row.table, row.case, row.device, runs, row.collectives, row.fabric


def sent_by(row: PublishedRow) -> Sent:
    """Returns what the row's ranks send a step."""
    return sent(row.collectives, FABRICS[row.fabric] if row.fabric else FABRICS["PCIe"])


def _attention(operator: Operator, software: Software) -> str:
    return software.attention if "flash" in operator.name or "cudnn" in operator.name else "efficient"


def _of(operator: Operator, point: Predictable) -> tuple[tuple[str, ...], ...]:
    """Returns the multipliers of an operator's rate."""
    generation, name = point.device.generation, point.device.name
    if operator.kind == "product":
        width = width_of(operator.dtype)
        return ("product", width), ("product", generation, width), ("product", generation, width, name)
    if operator.kind == "attention":
        kernel = _attention(operator, SOFTWARE[point.row.table])
        return ("attention", "any"), ("attention", kernel, generation)
    return ()


def _names(point: Predictable) -> set[tuple[str, ...]]:
    own = {name for operator, _ in point.step for name in _of(operator, point)}
    return own | {("moving", point.device.generation), ("step", point.row.table)}


# what was not seen ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Residual:
    """Holds a prediction beside its measurement: log(modelled / measured), of a step's time or of a ratio of two.
    ``unseen`` says that the fit saw no row of its GPU."""

    of: Predictable
    to: Predictable | None
    change: Change | None
    log_error: float
    modelled: float
    measured: float
    unseen: bool = False


def worth_fitting(of: Iterable[Predictable]) -> list[Predictable]:
    """Returns the rows that say something of a GPU or of links: the host does not bound them, nothing sets them apart,
    no stages wait for one another, and they are on as many nodes as are modelled."""
    return [point for point in of if not point.row.host_bound and is_judged(point.row)]


def is_judged(row: PublishedRow) -> bool:
    """Tells whether a row's time is one of those that the model speaks of."""
    return not row.set_apart and row.stages == 1 and row.gpus <= row.node * NODES


def held_out() -> list[Residual]:
    """Returns each row's time, by multipliers fitted to the other sources alone."""
    return [residual for table in SOFTWARE for residual in _residuals(*_split(table))]


def fitted() -> list[Residual]:
    """Returns each row's time, by multipliers fitted to all: what the fit can express, not what it foretells."""
    return _residuals(known_rows(), known_rows())


def on_unseen_gpus(by_source: Sequence[Residual]) -> list[Residual]:
    """Returns each judged row's time, by multipliers fitted to other sources' rows on other GPUs; ``by_source`` has
    those of GPUs that one source alone has."""
    sources: dict[str, set[str]] = defaultdict(set)
    for point in known_rows():
        sources[point.device.name].add(point.row.table)
    known = [residual for residual in by_source if len(sources[residual.of.device.name]) == 1]
    for table, name in sorted({(point.row.table, point.device.name) for point in known_rows()}):
        if len(sources[name]) > 1:
            seen, own = _split(table)
            others = [point for point in seen if point.device.name != name]
            known += _residuals(others, [point for point in own if point.device.name == name])
    return [replace(residual, unseen=True) for residual in known if is_judged(residual.of.row)]


def gpus_in_order(of: Sequence[Residual]) -> tuple[int, int]:
    """Counts pairs of rows of one source that run the same on different GPUs: whose order is modelled right, and
    all."""
    alike: dict[object, list[Residual]] = defaultdict(list)
    for residual in of:
        row = residual.of.row
        if is_judged(row):
            alike[row.table, row.case, row.accumulated, row.gpus, row.technique].append(residual)
    pairs = [(a, b) for own in alike.values() for a, b in combinations(own, 2) if a.of.device.name != b.of.device.name]
    return sum((a.modelled < b.modelled) == (a.measured < b.measured) for a, b in pairs), len(pairs)


def _split(table: str) -> tuple[list[Predictable], list[Predictable]]:
    own = [point for point in known_rows() if point.row.table == table]
    return [point for point in known_rows() if point.row.table != table], own


def _residuals(seen: Sequence[Predictable], predicted: Sequence[Predictable]) -> list[Residual]:
    times = Fit(predicted).predicted(multipliers_of(seen))
    return [
        Residual(point, None, None, math.log(time / point.measured_s), float(time), point.measured_s)
        for point, time in zip(predicted, times)
    ]


def ratios(of: Iterable[Residual]) -> list[Residual]:
    """Returns the ratios of rows that differ in their technique alone, and of neighbours that differ in their sizes:
    time over time."""
    groups: dict[tuple[str, str], list[Residual]] = defaultdict(list)
    neighbours: dict[tuple[str, ...], list[Residual]] = defaultdict(list)
    for residual in of:
        row = residual.of.row
        if not is_judged(row):
            continue
        if row.alike:
            groups[row.table, row.alike].append(residual)
        if row.stages == 1 and row.memory is None:  # neighbours of a grid over ranks differ in more than their sizes
            key = (row.table, row.device, row.precision, row.technique, row.kind, str(row.gpus))
            neighbours[key].append(residual)
    pairs = [pair for group in groups.values() for pair in combinations(group, 2)]
    pairs += [pair for group in neighbours.values() for pair in pairwise(group)]
    return [_ratio(*pair) for pair in pairs if pair[0].of.row.case != pair[1].of.row.case]


def _ratio(a: Residual, b: Residual) -> Residual:
    ranks = RANKS if b.of.row.gpus <= b.of.row.node else RANKS_ACROSS
    change = ranks if a.of.row.collectives != b.of.row.collectives else change_between(a.of.step, b.of.step)
    return Residual(b.of, a.of, change, b.log_error - a.log_error, b.modelled / a.modelled, b.measured / a.measured)


# bands ----------------------------------------------------------------------------------------------------------------


def quantile(errors: Iterable[float], share: float = COVERED) -> float:
    """Returns the smallest error that at least ``share`` of them do not exceed, conservatively (the next larger
    one)."""
    ordered = sorted(map(abs, errors))
    return ordered[min(len(ordered) - 1, math.ceil(share * (len(ordered) + 1)) - 1)] if ordered else math.nan


def level_for_new_sources(of: Sequence[Residual]) -> float:
    """Returns the share of the residuals that a band has to hold so that 90 % keep within a band that never saw their
    source.

    The residuals of one source are alike, so the share is larger than that: the least, in steps of 1 %, at which the
    quantiles of the others hold 90 % of all, each source left out in turn; 1 where none does. Of one source nothing can
    be left out: 90 %.
    """
    by_source: dict[str, list[float]] = defaultdict(list)
    for residual in of:
        by_source[residual.of.row.table].append(abs(residual.log_error))
    if len(by_source) < 2:
        return COVERED
    others = {
        source: [error for other, own in by_source.items() if other != source for error in own] for source in by_source
    }
    for level in np.arange(COVERED, 1.0, 0.01).round(2).tolist():
        ends = {source: quantile(others[source], level) for source in by_source}
        if sum(error <= ends[source] for source, own in by_source.items() for error in own) >= COVERED * len(of):
            return level
    return 1.0


def band_half_width(of: Sequence[Residual]) -> float:
    """Returns half the width, in ln, of the band that residuals give. Where no level holds 90 % of a new source's, and
    the widest residual would say nothing, it is 90 % of all: one source is then far worse than the others say."""
    errors = [residual.log_error for residual in of]
    width = quantile(errors, level_for_new_sources(of))
    return width if math.expm1(width) <= WIDEST else quantile(errors)


def bands(times: Sequence[Residual], of_ratios: Sequence[Residual], fewest_sources: int = SOURCES) -> dict[str, Band]:
    """Returns the bands by kind of change, and of a step's time: what 90 % of the residuals keep within that never had
    a part in it. A kind has none where too few sources show it, or where it would say nothing (:func:`no_bands`)."""
    by_kind = {}
    for kind, own in _by_band([*times, *of_ratios]).items():
        band = Band(math.expm1(band_half_width(own)), len(own), len(_sources(own)))
        if _say_enough(own, fewest_sources) and band.half_width <= WIDEST:
            by_kind[kind] = band
    return by_kind


def no_bands(times: Sequence[Residual], of_ratios: Sequence[Residual]) -> dict[str, str]:
    """Tells why other kinds have no bands."""
    lacking, known = {}, bands(times, of_ratios)
    for kind, own in _by_band([*times, *of_ratios]).items():
        if kind not in known:
            factor = math.exp(quantile(residual.log_error for residual in own))
            lacking[kind] = f"{len(own)} published ones, of {len(_sources(own))}, are too few to say"
            if _say_enough(own):
                what = "links of several nodes" if kind in (TIME_ACROSS_NODES, TIME_FAR) else "such steps"
                lacking[kind] = (
                    f"{what} are not modelled well enough: of {len(own)} published ones 9 of 10 keep within a factor "
                    f"of {factor:.3g}"
                )
    return lacking


def _say_enough(own: Sequence[Residual], fewest_sources: int = SOURCES) -> bool:
    return len(own) >= FEWEST and len(_sources(own)) >= fewest_sources


def too_wide(of: Sequence[Residual]) -> frozenset[str]:
    """Returns the kinds of which enough is published to say that they are not modelled well enough."""
    return frozenset(
        kind for kind, own in _by_band(of).items() if _say_enough(own) and math.expm1(band_half_width(own)) > WIDEST
    )


def _by_band(of: Iterable[Residual]) -> dict[str, list[Residual]]:
    """Returns the residuals that bands are of; a time that its host bounds says nothing of the others."""
    kinds: dict[str, list[Residual]] = {}
    for residual in of:
        row = residual.of.row
        if residual.change is not None or (not row.host_bound and (is_judged(row) or row.gpus > row.node * NODES)):
            kinds.setdefault(band_name(residual), []).append(residual)
    return kinds


def band_name(of: Residual) -> str:
    """Names the band that a residual belongs to."""
    if of.change is not None:
        return of.change
    row = of.of.row
    return time_on(row.gpus, row.node, widest(of.of.step, products_alone=True)) + UNSEEN * of.unseen


def _sources(of: Iterable[Residual]) -> set[str]:
    return {residual.of.row.table for residual in of}


def covered(residuals: Sequence[Residual], band_of: Callable[[str], Mapping[str, Band]]) -> float:
    """Returns the share that keeps within the bands that the *other* sources' residuals give (of a ratio: its
    kind's)."""
    inside = []
    for residual in residuals:
        band = band_of(residual.of.row.table).get(band_name(residual))
        if band is not None:
            inside.append(abs(residual.log_error) <= math.log1p(band.half_width))
    return sum(inside) / len(inside) if inside else math.nan


@dataclass(frozen=True)
class StudySummary:
    """Sums up what one group of rows says: how many there are, the median absolute error, the median signed one, and
    how many keep within."""

    by: str
    group: str
    count: int
    error: float
    bias: float
    coverage: float


BY: Mapping[str, Callable[[PublishedRow], str]] = {
    "source": lambda row: row.table,
    "GPU": lambda row: row.device,
    "model": lambda row: row.kind,
    "precision": lambda row: row.precision,
    "attention": lambda row: row.attention,
    "technique": lambda row: row.technique,
    "GPUs": lambda row: kind_of(row),
}


def kind_of(row: PublishedRow) -> str:
    """Says of a row how many GPUs it is of, and what sets it apart."""
    if row.gpus == 1:
        return "one, bound by the host" if row.host_bound else "one"
    where = (
        "a node" if row.gpus <= row.node else f"2 to {NODES} nodes" if row.gpus <= row.node * NODES else "more nodes"
    )
    if row.case is not None and row.case.eight_bits is not None:
        where += ", FP8"
    if row.set_apart:
        return f"{where}, set apart: {row.set_apart.partition(':')[0]}"
    return f"{where}, stages" if row.stages > 1 else where


@dataclass(frozen=True)
class Comparison:
    """Holds what is published of the comparison."""

    times: list[Residual]
    ratios: list[Residual]
    bands: Mapping[str, Band]
    no_bands: Mapping[str, str]
    lines: list[StudySummary]
    ratio_lines: list[StudySummary]
    not_expressed: Mapping[tuple[str, str], int]
    too_wide: frozenset[str]
    in_order: tuple[int, int] = (0, 0)
    unseen: Sequence[Residual] = ()

    def believed(self) -> Believed:
        """Returns what ships with the model: bands, and the multipliers of all rows."""
        solved = multipliers_of(known_rows())
        return Believed(
            bands=dict(self.bands),
            no_bands=dict(self.no_bands),
            too_wide=sorted(self.too_wide),
            multipliers={" ".join(name): value for name, value in solved.items()},
            rows=len(self.times),
            sources=sorted({residual.of.row.table for residual in self.times}),
        )


def study() -> Comparison:
    """All of it, from the rows and traces beside :mod:`research.published_steps.published_rows`."""
    times = held_out()
    of_ratios, unseen = ratios(times), on_unseen_gpus(times)
    shipped = bands([*times, *unseen], of_ratios)

    @cache
    def others(table: str) -> Mapping[str, Band]:
        theirs = bands(
            [residual for residual in times if residual.of.row.table != table],
            [residual for residual in of_ratios if residual.of.row.table != table],
            fewest_sources=1,
        )
        return {kind: band for kind, band in theirs.items() if kind in shipped}

    def lines(residuals: Sequence[Residual], by: str, key: Callable[[Residual], str]) -> list[StudySummary]:
        groups: dict[str, list[Residual]] = defaultdict(list)
        for residual in residuals:
            groups[key(residual)].append(residual)
        return [
            StudySummary(
                by,
                group,
                len(own),
                _median([abs(member.log_error) for member in own]),
                _median([member.log_error for member in own]),
                covered(own, others),
            )
            for group, own in sorted(groups.items())
        ]

    def all_lines(residuals: Sequence[Residual]) -> list[StudySummary]:
        summaries = lines(residuals, "all", lambda _: "all")
        for by, key in BY.items():
            summaries += lines(residuals, by, lambda residual, key=key: key(residual.of.row))  # type: ignore[misc]
        return summaries

    return Comparison(
        times,
        of_ratios,
        shipped,
        no_bands([*times, *unseen], of_ratios),
        [*all_lines(times), *lines(unseen, "GPUs, on a GPU that the fit never saw", lambda one: kind_of(one.of.row))],
        [
            *all_lines([ratio for ratio in of_ratios if ratio.change not in (RANKS, RANKS_ACROSS)]),
            *lines(of_ratios, "change", lambda residual: str(residual.change)),
        ],
        Counter((row.table, why) for row in rows() if (why := why_not(row))),
        too_wide([*times, *unseen, *of_ratios]),
        gpus_in_order(times),
        unseen,
    )


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else math.nan


@dataclass(frozen=True)
class Peak:
    """Holds a row's peak of allocated bytes, counted without values, beside the published one."""

    row: PublishedRow
    counted_bytes: int
    published_bytes: float

    @property
    def log_error(self) -> float:
        return math.log(self.counted_bytes / self.published_bytes)


PRODUCT_WORKSPACE_BYTES = {"hopper": 32 << 20}
"""What torch allocates for the products of a thread, by generation of GPU; 8.125 MiB on all others."""
PRODUCT_THREADS = 2  # the caller's and that of the backward pass


def _workspace_bytes(device: Gpu) -> int:
    return PRODUCT_THREADS * PRODUCT_WORKSPACE_BYTES.get(device.generation, (8 << 20) + (128 << 10))


def peaks() -> list[Peak]:
    """Returns the peaks of the rows that have an allocated peak: nothing is fitted."""
    rows_with_traces = ((row, traces().get(row.case.key)) for row in rows() if row.case is not None and row.peak_bytes)
    return [
        Peak(row, traced.peak_bytes + _workspace_bytes(devices()[row.device]), row.peak_bytes or math.nan)
        for row, traced in rows_with_traces
        if traced and traced.peak_bytes
    ]

"""Forecasts what a campaign would measure, how long that takes and how much disk: read off evidence of the same kind.

A run's length is the median of what is known of its stack on its baseline at its size and recipe, else of any stack
there. Where nothing is known, nothing is guessed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from suite.measure.learning import cores
from suite.measure.missing import CampaignPlan
from suite.record.job import Setting
from suite.record.schema import Counted, Learned, Line, Timed
from suite.record.store import Records

CostKey = tuple[str, str, str, str]


@dataclass(frozen=True)
class Share:
    """Describes one kind of evidence that is missing. ``seconds`` and ``size_bytes`` are of those that are
    ``foreseen``."""

    what: str
    number: int
    foreseen: int
    seconds: float
    size_bytes: float


@dataclass(frozen=True)
class Forecast:
    """Holds ``parts`` in the order in which they would be measured; ``cores`` count and learn side by side."""

    parts: tuple[Share, ...]
    cores: int

    @property
    def sentence(self) -> str:
        """Returns ``108 counts, 40 learned runs, 27 timings: about 35 min on 2 cores, 1.2 MB; 3 of them of unknown
        length``."""
        number = sum(part.number for part in self.parts)
        if not number:
            return "nothing is missing"
        what = ", ".join(f"{part.number} {part.what}" for part in self.parts if part.number)
        side_by_side, alone = ([part for part in self.parts if (part.what != "timings") == so] for so in (True, False))
        seconds = sum(p.seconds for p in side_by_side) / self.cores + sum(p.seconds for p in alone)
        size = sum(part.size_bytes for part in self.parts)
        known = sum(part.foreseen for part in self.parts)
        about = f": about {max(1, round(seconds / 60))} min on {self.cores} cores, {size / 1e6:.1f} MB" if known else ""
        return what + about + (f"; {number - known} of unknown length" if known < number else "")


def forecast(plan: CampaignPlan, records: Records) -> Forecast:
    """Forecasts what the plan lacks. Repeats that renew runs of other code are learned runs; what they renew is
    none."""
    repeats = plan.repeats()
    renewed = {(job.setting.baseline, job.stack) for job in repeats}
    fresh = [job for job in plan.jobs() if not (plan.unverified(job) and (job.setting.baseline, job.stack) in renewed)]
    parts = (
        _part("counts", [*plan.counts()], records.counted, _run),
        _part("learned runs", [(job.setting, job.stack) for job in (*repeats, *fresh)], records.learned, _run),
        _part(
            "timings",
            [(timing.setting, stack) for timing in plan.timings() for stack in timing.stacks[1:]],
            records.timed,
            _timing,
        ),
    )
    return Forecast(parts, cores())


def sides_s(known: Iterable[Timed]) -> Callable[[Setting, str], float]:
    """Returns how long a stack's side of a timing takes, from its set-up to its last block, by those that are known of
    whichever machine, of the baseline's newest version: the median; 0 where there is none."""
    lengths: dict[CostKey, dict[int, list[float]]] = {}
    for timed in known:
        for side in filter(lambda side: side.status == "ok", timed.contenders):
            blocks = (seconds for window in side.windows for pair in window.block_s for seconds in pair)
            of_key = lengths.setdefault(_cost_key(timed.conditions, side.stack), {})
            version = timed.conditions.baseline_version
            of_key.setdefault(version, []).append((side.setup_s or 0.0) + sum(blocks))

    def of(setting: Setting, stack: str) -> float:
        of_key = lengths.get(_cost_key(setting, stack))
        return statistics.median(of_key[max(of_key)]) if of_key else 0.0

    return of


def _part(
    what: str,
    wanted: Sequence[tuple[Setting, str]],
    known: Iterable[Line],
    keys_of: Callable[[Line], Sequence[CostKey]],
) -> Share:
    lengths: dict[CostKey | tuple[str, ...], list[tuple[float, float]]] = {}
    for line in known:
        keys = keys_of(line)
        if keys and isinstance(line, Counted | Learned | Timed):
            of_one = line.duration_s / len(keys), len(line.model_dump_json()) / len(keys)
            for key in keys:
                for known_by in (key, key[1:]):
                    lengths.setdefault(known_by, []).append(of_one)
    seconds, size, foreseen = 0.0, 0.0, 0
    for setting, stack in wanted:
        key = _cost_key(setting, stack)
        if samples := lengths.get(key) or lengths.get(key[1:]):
            foreseen += 1
            seconds += statistics.median(length for length, _ in samples)
            size += statistics.median(length for _, length in samples)
    return Share(what, len(wanted), foreseen, seconds, size)


def _run(line: Line) -> list[CostKey]:
    return [_cost_key(line.conditions, line.stack)] if isinstance(line, Counted | Learned) else []


def _timing(line: Line) -> list[CostKey]:
    """Returns the keys of all contenders of a set, which share what it took."""
    return [_cost_key(line.conditions, side.stack) for side in line.contenders[1:]] if isinstance(line, Timed) else []


def _cost_key(setting: Setting, stack: str) -> CostKey:
    return stack, setting.baseline, setting.size, setting.recipe

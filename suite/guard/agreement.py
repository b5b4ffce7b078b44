"""Tells whether a record repeats: its run once more, from its own configuration, and both compared, each kind by its
nature.

Counted: counters are equal, on any machine.

Learned: the same seed has the same trajectory and the same end, to the bit, under the same arithmetic, on any machine
that has it (on a GPU last bits may differ). Under another the first losses must be equal up to rounding
(:mod:`suite.judge.repetition`).

Timed: cost ratios differ by noise. The log ratios x_1 and x_2 of one pair in two sets of processes agree when

    |x_2 - x_1| <= t sqrt(2 sigma^2 + w_1^2 + w_2^2)        (:func:`suite.judge.statistics.replication_interval`)

w_i is the noise of a set's own rounds, sigma how sets of the same code differ. One set cannot tell sigma from the
effect, so it comes from the spread over the replicates of the same row. Without them, and where the interval would hide
a change of MEANINGFUL, nothing is decided. The ratios of one record share an
error of 5 % (Bonferroni): two runs of the same code are said to disagree in at most one of twenty repetitions.

Other libraries issue other operators, so they forbid a repetition. Other code does not: whether its numbers are the old
ones is the question, and a learned run that is equal to the bit under it renews what the old code learned. Set-up time,
memory of the process, energy and probes are not judged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from suite.entries.catalogue import catalogue, lookup
from suite.entries.installed import baselines
from suite.entries.sources import installed_code
from suite.guard.findings import Difference, Finding, changes_between, flat
from suite.judge.known import timed_pair
from suite.judge.metrics import BY_ROUND
from suite.judge.repetition import envelope, repetition
from suite.judge.rows import pairs
from suite.judge.statistics import Floats, median, replication_interval
from suite.judge.verdicts import ChangeVerdict
from suite.measure.contenders.contender import Limits
from suite.measure.counting import count
from suite.measure.learning import equal_to_the_bit, learn, renewal_of
from suite.measure.provenance import Progress, conditions_of, silent
from suite.measure.rounding import nudged_losses
from suite.measure.timing import ROUNDS, Protocol, time_together
from suite.process.child import KILLED
from suite.record.job import RECIPES, SIZES, TASKS, Job, Setting, Spelling
from suite.record.machine import differing, fingerprint, unrecorded
from suite.record.schema import (
    FIFTHS,
    TIMING_PROTOCOL,
    Counted,
    Ended,
    Learned,
    Line,
    Machine,
    Timed,
)
from suite.record.store import NoRecord, Records, Store

ALPHA = 0.05
MEANINGFUL = 0.10
OF_THE_LOAD = ("timeout", "hung", "out_of_memory")  # what else ran may decide these

NO_ROOM: Floats = np.empty(0)
CURVES: Mapping[str, str] = {
    "equal": "equal to the bit",
    "equivalent": "equal up to rounding",
    "changed": "differs",
}
"""What a verdict on a curve is called."""

Piece = Counted | Learned | Timed
"""What can be repeated."""

NoiseOf = Callable[[int, str], "Noise | None"]
"""``(contender's index, ratio's name)`` -> what is known of the noise between sets of processes."""


@dataclass(frozen=True)
class Noise:
    """Holds the standard deviation of a log ratio over sets of processes that run the same code, and where it is
    from."""

    sigma: float
    degrees_of_freedom: float
    source: str


def overall(findings: Iterable[Finding]) -> ChangeVerdict:
    """Returns the overall verdict, changed if anything is; equal, or equivalent, only if everything is that."""
    verdicts = {finding.verdict for finding in findings}
    if "changed" in verdicts:
        return "changed"
    if not verdicts or not verdicts <= {"equal", "equivalent"}:
        return "inconclusive"
    return "equivalent" if "equivalent" in verdicts else "equal"


def in_words(old: Piece, verdict: ChangeVerdict) -> str:
    """Returns the verdict on a repetition, as one says it of such a record."""
    return CURVES.get(verdict, verdict) if isinstance(old, Learned) else verdict


# before -------------------------------------------------------------------------------------------------------------


def find(records: Records, beginning: str) -> Piece:
    """Returns the one record whose id begins so. Raises NoRecord."""
    pieces: list[Piece] = [*records.counted, *records.learned, *records.timed]
    candidates = [piece for piece in pieces if piece.id.startswith(beginning)] if beginning else []
    exact = [candidate for candidate in candidates if candidate.id == beginning]
    if len(exact or candidates) == 1:
        return (exact or candidates)[0]
    if candidates:
        some = ", ".join(candidate.id for candidate in candidates[:3])
        raise NoRecord(f"{len(candidates)} records begin with {beginning!r} ({some}, ...); give more of the id")
    raise NoRecord.beginning(beginning)


def quickest(records: Records, machine: Machine) -> Learned:
    """Returns the curve to repeat: of those that somebody learned by the installed code and libraries, with embedded
    data, the one that takes least to learn again; rather one of another machine's. Raises NoRecord."""
    known = [
        run
        for run in records.learned
        if run.status == "ok"
        and run.conditions.device == "cpu"
        and not run.conditions.model
        and not obstacles(run, machine)
        and not other_code(run)
        and _is_embedded(run)
    ]
    if not known:
        raise NoRecord("no learned run of the installed code and libraries is known; learn one: leantrain run -b gpt")
    return min(known, key=lambda run: (run.home.key == machine.key, run.cpu_s or math.inf))


def _is_embedded(learned: Learned) -> bool:
    try:
        setting_of(learned)
    except (ValueError, LookupError, OSError):
        return False
    return True


def title(piece: Piece) -> str:
    """Tells what it is, in words."""
    stacks = ", ".join(side.stack for side in sides_of(piece))
    seed = f", seed {piece.seed}" if isinstance(piece, Learned) else ""
    replicate = f", replicate {piece.replicate}" if isinstance(piece, Timed) else ""
    return f"{piece.id}, {piece.kind} {stacks} on {piece.conditions} of machine {piece.machine.name}{seed}{replicate}"


def sides_of(piece: Piece) -> Sequence[Ended]:
    """Returns the runs that it is of, the reference first."""
    return piece.contenders if isinstance(piece, Timed) else [piece]


def obstacles(old: Piece, machine: Machine) -> list[str]:
    """Tells why the record cannot be repeated with what is installed here."""
    name, version = old.conditions.baseline, old.conditions.baseline_version
    techniques = dict.fromkeys(name for side in sides_of(old) for name in Spelling(side.stack).names)
    reasons = [f"{technique} is not installed" for technique in techniques if technique not in catalogue()]
    if name not in baselines():
        reasons.append(f"{name} is not installed")
    elif baselines()[name].version != version:
        reasons.append(f"the baseline {name} is version {baselines()[name].version}, was {version}")
    then, now = _libraries(old.machine), _libraries(machine)
    return reasons + [
        f"{library} is {now[library]}, was {was}" for library, was in then.items() if now.get(library, was) != was
    ]


def other_code(old: Piece) -> list[str]:
    """Tells what changed since in the code that a repetition runs; nothing of what is not installed."""
    changes = []
    if isinstance(old, Timed) and old.protocol != TIMING_PROTOCOL:
        changes.append("how leantrain times changed")
    for side in sides_of(old):
        code = installed_code(old.conditions, side.stack)
        layer = "counts" if isinstance(old, Counted) else "trajectory"
        if code and getattr(code, layer) != getattr(side.code, layer):
            changes.append(f"the code of {side.stack} changed")
    return changes


def way_back(old: Piece) -> list[str]:
    """Tells how to get the code that the record is of, where it says that."""
    commit = str(old.machine.context.get("git_commit"))
    if not re.fullmatch("[0-9a-f]{40}", commit):
        return []
    dirty = " with uncommitted changes" if old.machine.context.get("git_dirty") else ""
    return [f"it was measured at commit {commit}{dirty}: git checkout {commit[:12]}"]


def _libraries(machine: Machine) -> dict[str, str]:
    """Returns the versions of the libraries that decide which operators a step issues."""
    known = {"torch": machine.facts.get("torch"), **(machine.context.get("packages") or {})}
    return {name: str(version) for name, version in known.items() if version}


def setting_of(old: Piece, location: str | None = None) -> Setting:
    """Returns the setting that the record is of. ``location`` is where its data lies, unless that is embedded.

    Raises ValueError if the data is not the record's, UnknownId for names that are not known here.
    """
    conditions = old.conditions
    setting = Setting(**conditions.model_dump(include=set(Setting.model_fields)) | {"data": location})
    lookup("size", setting.size, dict.fromkeys(SIZES))
    lookup("recipe", setting.recipe, dict.fromkeys(RECIPES))
    lookup("task", setting.task, dict.fromkeys(TASKS))
    here = conditions_of(setting)
    if here.data_sha256 != conditions.data_sha256:
        raise ValueError(
            f"the data here is {here.data} ({here.data_sha256[:12]}), the record's is {conditions.data} "
            f"({conditions.data_sha256[:12]}); say where that is with --data"
        )
    return setting


# again --------------------------------------------------------------------------------------------------------------


def repeat(
    old: Piece,
    setting: Setting,
    *,
    keep: Path | None = None,
    limits: Limits = Limits(),  # noqa: B008  it is frozen
    progress: Progress = silent,
) -> Piece:
    """Measures the same once more, and appends it, or the renewal that it is, to the results folder ``keep``, if named.

    Raises StoreError.
    """

    def report(share: float, what: str) -> None:
        progress(share, f"repeating {old.id[:8]} ({what})")

    if keep is None:
        return _again(old, setting, limits, report)
    store, machine = Store(keep), fingerprint(setting.device, setting.threads).name
    with store.writing(machine):
        new = _again(old, setting, limits, report)
        store.append(_kept(old, new), machine)
    return new


def _again(old: Piece, setting: Setting, limits: Limits, progress: Progress) -> Piece:
    if isinstance(old, Counted):
        progress(0.0, old.stack)
        return count(setting, old.stack, limits)
    if isinstance(old, Learned):
        return learn(Job(setting=setting, stack=old.stack, seed=old.seed), limits=limits, progress=progress)
    stacks = tuple(side.stack for side in old.contenders)
    windows = FIFTHS if any(len(side.windows) > 1 for side in old.contenders) else 1
    rounds = len(old.orders) if old.reference.status == "ok" else ROUNDS
    protocol = Protocol(windows, rounds, old.pairing == "sequential", limits)
    return time_together(setting, stacks, old.replicate, protocol, progress)


def _kept(old: Piece, new: Piece) -> Line:
    """Returns what a results folder gets of a repetition."""
    renewal = renewal_of(old, new) if isinstance(old, Learned) and isinstance(new, Learned) else None
    return renewal or new


# noise --------------------------------------------------------------------------------------------------------------


def noise_of(old: Piece, index: int, ratio: str, timed: Iterable[Timed]) -> Noise | None:
    """What ``timed``, all timings, tell of the noise between sets of processes in a ratio of a record: the sample
    standard deviation over the replicates of the record's own row that the same code made; None with fewer than two.
    """
    if not isinstance(old, Timed):
        return None
    sides = old.reference.stack, old.contenders[index].stack

    def code(timing: Timed) -> list[str | None]:
        known = {side.stack: side.code.trajectory for side in timing.contenders}
        return [str(timing.protocol), *(known.get(stack) for stack in sides)]

    alike = [timing for timing in timed if timing.replicate != old.replicate and code(timing) == code(old)]
    of_row = next(
        (
            row.known.timed
            for row in pairs(Records(timed=[old, *alike]), lambda _: sides[0])
            if old.id in row.records and row.stack == sides[1]
        ),
        (),
    )
    medians = [median(BY_ROUND[ratio](timing)) for timing in of_row]
    if len(medians) < 2:
        return None
    return Noise(float(np.std(medians, ddof=1)), len(medians) - 1, f"spread over {len(medians)} replicates")


# comparing ----------------------------------------------------------------------------------------------------------


def room(old: Piece, new: Piece, setting: Setting, limits: Limits = Limits()) -> Floats:  # noqa: B008  it is frozen
    """Tells how far rounding may part what was learned with other arithmetic from its repetition: what
    :func:`suite.judge.repetition.envelope` says of the new run's first steps, which are trained for that. Empty where
    the bits must be equal, or are.

    Raises ContenderFailed.
    """
    if (
        not (isinstance(old, Learned) and isinstance(new, Learned))
        or old.bits == new.bits
        or equal_to_the_bit(old, new)
    ):
        return NO_ROOM
    steps = min(len(old.first_losses), len(new.first_losses))
    if not steps or new.status != "ok":
        return NO_ROOM
    job = Job(setting=setting, stack=new.stack, seed=new.seed)
    return envelope(new.first_losses[:steps], nudged_losses(job, steps, limits))


def compare(old: Piece, new: Piece, noise: NoiseOf, allowed: Floats = NO_ROOM) -> list[Finding]:
    """Returns a finding for everything that two records of the same can be compared in; ``noise`` is of times,
    ``allowed`` what :func:`room` says."""
    elsewhere = _elsewhere(old.machine, new.machine)
    sides = list(zip(sides_of(old), sides_of(new), strict=True))
    ended = [_ended(*pair) for pair in sides if {side.status for side in pair} != {"ok"}]
    if isinstance(old, Timed) and isinstance(new, Timed):
        return ended + _times(old, new, noise, elsewhere)
    if ended:
        return ended
    if isinstance(old, Counted) and isinstance(new, Counted):
        return [_counters(old, new)]
    assert isinstance(old, Learned) and isinstance(new, Learned)
    return [_curves(old, new, elsewhere, allowed)]


def _elsewhere(old: Machine, new: Machine) -> str:
    """Tells how the machines differ; empty where they are the same."""
    if old.key == new.key:
        return ""
    unlike = differing(old.facts, new.facts).items()
    changes = ", ".join(str(Difference(name, str(then), str(now))) for name, (then, now) in unlike)
    unknown = ", ".join(unrecorded(old.facts, new.facts))
    said = filter(None, (changes, f"not recorded then: {unknown}" if unknown else ""))
    return f"another machine, {old.name} → {new.name}: {'; '.join(said) or 'another key'}"


def _ended(old: Ended, new: Ended) -> Finding:
    if old.status == new.status:
        return Finding(old.stack, "status", "equal", f"{new.status} in both: {new.reason}")
    why = f"{old.status} then ({old.reason or 'no reason'}), {new.status} now ({new.reason or 'no reason'})"
    by_load = any(side.status in OF_THE_LOAD or KILLED in side.reason for side in (old, new))
    return Finding(old.stack, "status", "inconclusive" if by_load else "changed", why)


# counted


def _counters(old: Counted, new: Counted) -> Finding:
    if not (old.points and new.points):
        return Finding(old.stack, "counters", "not comparable", "not counted")
    if len(old.points) != len(new.points):
        unlike = Difference("steps with other counts along the run", len(old.points), len(new.points))
        return Finding(old.stack, "counters", "changed", changes=(unlike,))
    for then, now in zip(old.points, new.points, strict=True):
        if changes := changes_between(then.counters, now.counters):
            where = f"at {now.progress:.0%} of the run" if len(new.points) > 1 else ""
            return Finding(old.stack, "counters", "changed", where, changes)
    counters = sum(len(flat(point.counters)) for point in old.points)
    return Finding(old.stack, "counters", "equal", f"all {counters} equal")


# learned


def _curves(old: Learned, new: Learned, elsewhere: str, allowed: Floats) -> Finding:
    def finding(verdict: ChangeVerdict, why: str) -> Finding:
        return Finding(old.stack, "curve", verdict, why)

    seen = repetition(old, new, equal_to_the_bit(old, new), allowed)
    arithmetic = "" if old.numerics == new.numerics else f"arithmetic {old.numerics} then, {new.numerics} now"
    where = "; ".join(filter(None, (arithmetic, elsewhere)))
    if seen.equality == "equal to the bit":
        return finding("equal", f"{seen.equality}: all {new.steps} steps and the end{f' ({where})' if where else ''}")
    if seen.equality == "equal up to rounding":
        apart = f"the first {seen.steps} losses differ by at most {seen.distance:.1e}, as rounding alone makes them"
        return finding("equivalent", f"{seen.equality}: {apart}; {_distance(old, new)} ({where})")
    if seen.step:
        apart = f"by up to {seen.distance:.1e}, from step {seen.step} on by more than rounding makes of it"
        return finding(
            "changed", f"{seen.equality}: the first {seen.steps} losses {apart}; {_distance(old, new)} ({where})"
        )
    if old.bits != new.bits:
        return finding("not comparable", f"{where}; no losses of single steps were kept; {_distance(old, new)}")
    why = _first_difference(old, new) or "the trajectories differ in less than the stored curves show"
    if old.conditions.device != "cpu":
        return finding("inconclusive", f"{why}; on a GPU, sums in no fixed order change the last bits")
    return finding("changed", f"{seen.equality}: {why}")


def _first_difference(old: Learned, new: Learned) -> str:
    """Tells what differs first along the run; empty where nothing that is stored does."""
    before, after = _course(old), _course(new)
    for name in dict.fromkeys([*before, *after]):
        was, now = before.get(name), after.get(name)
        if was is None or now is None:
            return f"{name}: {'only then' if now is None else 'only now'}"
        if was != now and not (math.isnan(was) and math.isnan(now)):
            return f"{name}: {was!r} → {now!r}"
    return ""


def _course(run: Learned) -> dict[str, float]:
    """Returns every stored loss and metric by name, in the order of the run."""
    steps = run.steps or 0
    parts = np.array_split(np.arange(steps), max(1, len(run.train_loss)))  # as they were averaged
    course = [
        (int(part[-1]) + 1, f"mean training loss of steps {part[0] + 1} to {part[-1] + 1}", loss)
        for part, loss in zip(parts, run.train_loss, strict=False)
        if len(part)
    ]
    evaluations = [("validation", point) for point in run.curve] + [("test", run.final)] * (run.final is not None)
    for split, evaluation in evaluations:
        assert evaluation is not None
        scores = {"loss": evaluation.loss, **evaluation.metrics}
        course += [
            (evaluation.step, f"{split} {name} after step {evaluation.step}", score) for name, score in scores.items()
        ]
    return {name: score for _, name, score in sorted(course, key=lambda entry: entry[0])}


def _distance(old: Learned, new: Learned) -> str:
    """Tells how far two curves of one seed are from each other: at most, and at the end."""
    then = {point.step: point.loss for point in old.curve}
    apart = {point.step: abs(point.loss / then[point.step] - 1) for point in new.curve if then.get(point.step)}
    if not (apart and old.final and new.final and old.final.loss):
        return "there are no losses of the same steps to compare"
    step = max(apart, key=apart.__getitem__)
    end = abs(new.final.loss / old.final.loss - 1)
    return (
        f"validation losses differ by at most {100 * apart[step]:.2g} % (after step {step}), "
        f"final test losses by {100 * end:.2g} %"
    )


# timed


def _times(old: Timed, new: Timed, noise: NoiseOf, elsewhere: str) -> list[Finding]:
    ok = [a.status == b.status == "ok" for a, b in zip(old.contenders, new.contenders, strict=True)]
    indices = [index for index, is_ok in enumerate(ok) if index and is_ok and ok[0]]
    level = 1 - ALPHA / max(1, len(BY_ROUND) * len(indices))
    return [
        _ratio(old, new, index, name, noise(index, name), elsewhere, level) for index in indices for name in BY_ROUND
    ]


def _ratio(old: Timed, new: Timed, index: int, name: str, noise: Noise | None, elsewhere: str, level: float) -> Finding:
    def finding(verdict: ChangeVerdict, why: str) -> Finding:
        return Finding(old.contenders[index].stack, name, verdict, why)

    try:
        first, second = (BY_ROUND[name](timed_pair(timing, index)) for timing in (old, new))
    except (ValueError, ArithmeticError) as error:
        return finding("not comparable", str(error))
    was, now = (math.exp(median(log_ratios)) for log_ratios in (first, second))
    change = f"{was:.3f} → {now:.3f} of the reference's ({now / was - 1:+.1%})"
    if elsewhere:
        return finding("not comparable", f"{change}; {elsewhere}")
    if "sequential" in (old.pairing, new.pairing):
        return finding("inconclusive", f"{change}; timed one after the other, so the machine's drift is in it")
    if noise is None:
        more = "time more sets of processes of the comparison"
        return finding("inconclusive", f"{change}; nothing says yet how far processes of the same code differ: {more}")
    interval = replication_interval(first, second, noise.sigma, noise.degrees_of_freedom, level)
    allowed = math.expm1(min(interval.half_width, 700.0))
    why = f"{change}; noise alone reaches {allowed:.1%} ({noise.source})"
    if not interval.contains(0):
        return finding("changed", why)
    if interval.half_width > math.log1p(MEANINGFUL):
        return finding("inconclusive", f"{why}, which would hide a change of {MEANINGFUL:.0%}")
    return finding("equivalent", why)

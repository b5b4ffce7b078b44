"""Whether a record repeats: its comparison run once more, from its own configuration, and both compared.

Same sources and libraries are needed; then, in the order of what they can show:

1. exact counters are equal, on any machine;
2. losses, of every step and every evaluation, are equal to the bit on the same machine (on a GPU last bits may differ);
3. cost ratios differ by noise. The log ratios x_1 and x_2 of one seed in two sets of processes agree when

       |x_2 - x_1| <= t sqrt(2 sigma^2 + w_1^2 + w_2^2)        (:func:`suite.judge.statistics.replication_interval`)

   w_i is the noise of a record's own rounds, sigma how processes of the same code differ. One seed cannot tell sigma
   from the effect, so it comes from this machine's calibration, or else from the spread over the seeds of the same row,
   which holds what the seeds do, too: the interval is then too wide rather than too narrow. With neither, and where the
   interval would hide a change of MEANINGFUL, nothing is decided. The ratios of one record share an error of 5 %
   (Bonferroni): two runs of the same code are said to disagree in at most one of twenty repetitions.

Set-up time, memory of the process, energy, probes, and the run at equal time (whose length depends on times) are not
judged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from suite.contract.baseline import baselines
from suite.contract.catalogue import lookup
from suite.contract.sources import Sources
from suite.guard.calibration import Calibration, Uncalibrated, stored
from suite.guard.findings import Difference, Finding, changes_between, flat
from suite.judge.metrics import BY_ROUND
from suite.judge.replicate import replicate_of
from suite.judge.rows import pairs
from suite.judge.statistics import replication_interval
from suite.judge.verdicts import ChangeVerdict
from suite.measure.comparison import ROUNDS, Comparison, Procedure, Progress, silent, train_in_lock_step
from suite.measure.contender import Limits
from suite.record.job import RECIPES, SIZES, TASKS, Setting
from suite.record.machine import fingerprint
from suite.record.schema import Machine, Outcome, Record
from suite.record.store import NoRecord, Store

ALPHA = 0.05
MEANINGFUL = 0.10
OF_THE_LOAD = ("timeout", "hung", "out_of_memory")  # what else ran may decide these


@dataclass(frozen=True)
class Noise:
    """Standard deviation of a log ratio over sets of processes that run the same code, and where it is from."""

    sigma: float
    degrees_of_freedom: float
    source: str


def overall(findings: Iterable[Finding]) -> ChangeVerdict:
    """Changed if anything is; equal, or equivalent, only if everything is that."""
    verdicts = {each.verdict for each in findings}
    if "changed" in verdicts:
        return "changed"
    if not verdicts or not verdicts <= {"equal", "equivalent"}:
        return "inconclusive"
    return "equivalent" if "equivalent" in verdicts else "equal"


# before -------------------------------------------------------------------------------------------------------------


def find(records: Sequence[Record], beginning: str) -> Record:
    """The one record whose id begins so. Raises NoRecord."""
    candidates = [record for record in records if record.id.startswith(beginning)] if beginning else []
    exact = [record for record in candidates if record.id == beginning]
    if len(exact or candidates) == 1:
        return (exact or candidates)[0]
    if candidates:
        some = ", ".join(record.id for record in candidates[:3])
        raise NoRecord(f"{len(candidates)} records begin with {beginning!r} ({some}, ...); give more of the id")
    raise NoRecord(
        f"no record of {len(records)} begins with {beginning!r}; leantrain leaderboard --json and leantrain claims ID "
        f"print the ids, --results names another folder"
    )


def obstacles(record: Record, current: Sources, machine: Machine) -> list[str]:
    """Why the code and libraries that are here cannot repeat the record; the last one says how to get the record's."""
    techniques = {each: sha256 for outcome in record.contenders for each, sha256 in outcome.sources.items()}
    then = Sources(record.harness_sha256, {record.conditions.baseline: record.baseline_sha256}, techniques)
    libraries, here = _libraries(record.machine), _libraries(machine)
    reasons = [
        *current.changes(then),
        *(
            f"{each} is {here[each]}, was {version}"
            for each, version in libraries.items()
            if here.get(each, version) != version
        ),
    ]
    commit = str(record.machine.context.get("git_commit"))
    if reasons and re.fullmatch("[0-9a-f]{40}", commit):
        dirty = " with uncommitted changes" if record.machine.context.get("git_dirty") else ""
        reasons.append(f"it was measured at commit {commit}{dirty}: git checkout {commit[:12]}")
    return reasons


def _libraries(machine: Machine) -> dict[str, str]:
    """Versions of the libraries that decide which operators a step issues."""
    known = {"torch": machine.facts.get("torch"), **(machine.context.get("packages") or {})}
    return {name: str(version) for name, version in known.items() if version}


def repetition_of(record: Record, location: str | None = None) -> Comparison:
    """The comparison that the record is of. ``location`` is where its data lies, unless that is embedded.

    Raises ValueError if the data is not the record's, UnknownId for names that are not known here.
    """
    conditions = record.conditions
    setting = Setting(**conditions.model_dump(include=set(Setting.model_fields)) | {"data": location})
    lookup("size", setting.size, dict.fromkeys(SIZES))
    lookup("recipe", setting.recipe, dict.fromkeys(RECIPES))
    lookup("task", setting.task, dict.fromkeys(TASKS))
    data = lookup("baseline", setting.baseline, baselines()).data(setting.size, setting.task, location)
    if conditions.data_sha256 not in (data.sha256, ""):
        raise ValueError(
            f"the data here is {data.name} ({data.sha256[:12]}), the record's is {conditions.data} "
            f"({conditions.data_sha256[:12]}); say where that is with --data"
        )
    rounds = len(record.orders) if record.reference.status == "ok" else ROUNDS
    return Comparison(setting, tuple(each.stack for each in record.contenders), rounds)


def repeat(
    record: Record,
    comparison: Comparison,
    *,
    keep: Path | None = None,
    limits: Limits = Limits(),  # noqa: B008  it is frozen
    progress: Progress = silent,
) -> Record:
    """Run the same seed of the same comparison, and append it to the results folder ``keep``, if one is named.

    Raises StoreError.
    """

    def report(share: float, what: str) -> None:
        progress(share, f"repeating {record.id[:8]} ({what})")

    def run() -> Record:
        procedure = Procedure(limits, sequential=record.pairing == "sequential", equal_time=keep is not None)
        return train_in_lock_step(comparison, record.seed, procedure, report)

    if keep is None:
        return run()
    store, setting = Store(keep), comparison.setting
    with store.writing(fingerprint(setting.device, setting.threads).name):
        repetition = run()
        store.append(repetition)
    return repetition


# noise --------------------------------------------------------------------------------------------------------------


def noise_of(record: Record, records: Iterable[Record], machine: Machine) -> Callable[[int, str], Noise | None]:
    """``(contender's index, ratio's name)`` -> what is known of the noise between processes on this ``machine``."""
    try:
        calibrated = noise_when_calibrated(stored(machine, margin=math.inf, budget_s=0.0))
    except Uncalibrated:
        known = list(records)
        return lambda index, ratio: noise_over_seeds(record, index, ratio, known)
    return lambda index, ratio: calibrated


def noise_when_calibrated(calibration: Calibration) -> Noise:
    """The noise of process pairs of unchanged code, whose log ratio has mean 0; one baseline's, taken for all."""
    count = sum(len(each.pairs) for each in calibration.unchanged)
    return Noise(calibration.sigma, count, f"calibration, {count} process pairs")


def noise_over_seeds(record: Record, index: int, ratio: str, records: Iterable[Record]) -> Noise | None:
    """Sample standard deviation over the seeds of the record's own row; None with fewer than two."""
    alike_before = sum(each.stack == record.contenders[index].stack for each in record.contenders[1:index])
    others = [each for each in records if each.seed != record.seed]
    rows = [
        row
        for row in pairs([record, *others])
        if record.id in row.records and row.stack == record.contenders[index].stack
    ]
    medians = [float(np.median(BY_ROUND[ratio](each))) for each in rows[alike_before].replicates]
    if len(medians) < 2:
        return None
    return Noise(float(np.std(medians, ddof=1)), len(medians) - 1, f"spread over {len(medians)} seeds")


# comparing ----------------------------------------------------------------------------------------------------------


def compare(old: Record, new: Record, noise: Callable[[int, str], Noise | None]) -> list[Finding]:
    """A finding for everything that two records of one comparison can be compared in."""
    elsewhere = _elsewhere(old.machine, new.machine)
    outcomes = list(zip(old.contenders, new.contenders, strict=True))
    ratios = len(BY_ROUND) * sum(a.status == b.status == "ok" for a, b in outcomes[1:])
    findings = []
    for index, (before, after) in enumerate(outcomes):
        if before.status != "ok" or after.status != "ok":
            findings.append(_ended(before, after))
            continue
        findings += [_counters(before, after), _losses(before, after, elsewhere, old.conditions.device)]
        if index:
            level = 1 - ALPHA / ratios
            findings += [_ratio(old, new, index, name, noise(index, name), elsewhere, level) for name in BY_ROUND]
    return findings


def _elsewhere(old: Machine, new: Machine) -> str:
    """How the machines differ; empty where they are the same."""
    if old.key == new.key:
        return ""
    names = dict.fromkeys([*old.facts, *new.facts])
    unlike = [each for each in names if old.facts.get(each) != new.facts.get(each)]
    changes = ", ".join(str(Difference(each, str(old.facts.get(each)), str(new.facts.get(each)))) for each in unlike)
    return f"another machine: {changes or old.name}"


def _ended(old: Outcome, new: Outcome) -> Finding:
    if old.status == new.status:
        return Finding(old.stack, "status", "equal", f"{new.status} in both: {new.reason}")
    why = f"{old.status} then ({old.reason or 'no reason'}), {new.status} now ({new.reason or 'no reason'})"
    by_load = old.status in OF_THE_LOAD or new.status in OF_THE_LOAD
    return Finding(old.stack, "status", "inconclusive" if by_load else "changed", why)


def _counters(old: Outcome, new: Outcome) -> Finding:
    if old.counters is None or new.counters is None:
        return Finding(old.stack, "counters", "not comparable", "not counted")
    if changes := changes_between(old.counters, new.counters):
        return Finding(old.stack, "counters", "changed", changes=changes)
    return Finding(old.stack, "counters", "equal", f"all {len(flat(old.counters))} equal")


def _losses(old: Outcome, new: Outcome, elsewhere: str, device: str) -> Finding:
    def finding(verdict: ChangeVerdict, why: str) -> Finding:
        return Finding(old.stack, "losses", verdict, why)

    if elsewhere:
        return finding("not comparable", elsewhere)
    before, after = _trajectory(old), _trajectory(new)
    if not before and not after:
        return finding("not comparable", "none recorded")
    for name in dict.fromkeys([*before, *after]):
        was, now = before.get(name), after.get(name)
        if was is None or now is None:
            return finding("changed", f"{name}: {'only then' if now is None else 'only now'}")
        if was != now and not (math.isnan(was) and math.isnan(now)):
            why = f"{name}: {was!r} → {now!r}"
            if device != "cpu":
                return finding("inconclusive", f"{why}; on a GPU, sums in no fixed order change the last bits")
            return finding("changed", why)
    return finding("equal", f"all {len(before)} equal to the bit")


def _trajectory(outcome: Outcome) -> dict[str, float]:
    """Every loss by name: of each step, then of each evaluation with its further metrics."""
    losses = {f"training loss of step {step}": loss for step, loss in enumerate(outcome.train_loss, 1)}
    for each in outcome.curve:
        scores = {"loss": each.loss, **each.metrics}
        losses |= {f"test {name} after step {each.step}": score for name, score in scores.items()}
    return losses


def _ratio(
    old: Record, new: Record, index: int, name: str, noise: Noise | None, elsewhere: str, level: float
) -> Finding:
    def finding(verdict: ChangeVerdict, why: str) -> Finding:
        return Finding(old.contenders[index].stack, name, verdict, why)

    try:
        first, second = (BY_ROUND[name](replicate_of(record, index)) for record in (old, new))
    except ValueError as error:
        return finding("not comparable", str(error))
    was, now = (math.exp(float(np.median(each))) for each in (first, second))
    change = f"{was:.3f} → {now:.3f} of the reference's ({now / was - 1:+.1%})"
    if elsewhere:
        return finding("not comparable", f"{change}; {elsewhere}")
    if "sequential" in (old.pairing, new.pairing):
        return finding("inconclusive", f"{change}; timed one after the other, so the machine's drift is in it")
    if noise is None:
        more = "leantrain calibrate, or measure more seeds of the comparison"
        return finding("inconclusive", f"{change}; nothing says yet how far processes of the same code differ: {more}")
    interval = replication_interval(first, second, noise.sigma, noise.degrees_of_freedom, level)
    allowed = math.expm1(min(interval.half_width, 700.0))
    why = f"{change}; noise alone reaches {allowed:.1%} ({noise.source})"
    if not interval.contains(0):
        return finding("changed", why)
    if interval.half_width > math.log1p(MEANINGFUL):
        return finding("inconclusive", f"{why}, which would hide a change of {MEANINGFUL:.0%}")
    return finding("equivalent", why)

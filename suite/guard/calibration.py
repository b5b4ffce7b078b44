"""How often the gate errs on this machine: gates of unchanged code count false alarms, planted slow-downs misses.

Both are runs of the very gate that ``leantrain check`` runs, of one tree against itself. An uncalibrated machine does
not gate: what its noise does to a decision is measured, not assumed. Valid for a week under the machine's fingerprint,
which changes with kernel, driver and torch; a copy stays with the machine's records, so that the board can show it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from suite.guard.calibrated import AGAIN, ALPHA, VALID, read
from suite.guard.calibrated import Calibration as Calibration
from suite.guard.calibrated import Gate as Gate
from suite.guard.calibrated import Uncalibrated as Uncalibrated
from suite.guard.calibrated import beside as beside
from suite.guard.calibrated import report as report
from suite.guard.gate import DESIGN, gate
from suite.guard.trees import TreeWorker
from suite.measure.evidence import Progress, silent
from suite.record.files import cache_folder, write_json
from suite.record.job import Job, Setting
from suite.record.schema import Machine

GATES, PLANTED = 20, 4
QUICK_GATES, QUICK_PLANTED = 6, 2
PLANTED_SLOWER = 0.10
CAUGHT = 0.9  # of the planted slow-downs, at least: all, up to nine of them


def timed_job(device: str, threads: int) -> Job:
    """What a calibration times: the plain gpt baseline."""
    return Job(setting=Setting(baseline="gpt", device=device, threads=threads))


def unfit(calibration: Calibration, machine: Machine, *, margin: float, budget_s: float, now: datetime) -> str:
    """Why a machine with this calibration must not gate with these settings; empty when it may."""
    rate = calibration.false_alarms
    if calibration.machine.key != machine.key:
        return f"the calibration is of another machine ({calibration.machine.name}); {AGAIN}"
    if now - calibration.made > VALID:
        return f"the calibration of {calibration.made:%Y-%m-%d} is older than {VALID.days} days; {AGAIN}"
    if calibration.design != DESIGN:
        return f"the calibration is of another gate design; {AGAIN}"
    if margin < calibration.margin or budget_s > calibration.budget_s:
        return (
            f"calibrated for a margin of {calibration.margin:.1%} and {calibration.budget_s:g} s an item; "
            f"{AGAIN} --margin {margin:g} --budget {budget_s:g}"
        )
    if rate.low > ALPHA:
        return (
            f"{calibration.alarms} of {len(calibration.unchanged)} gates of unchanged code raised an alarm (at least "
            f"{rate.low:.0%} of all would, {ALPHA:.0%} may); quieten the machine, then {AGAIN}"
        )
    if calibration.caught < CAUGHT * len(calibration.planted):
        return (
            f"only {calibration.caught} of {len(calibration.planted)} planted slow-downs of "
            f"{calibration.planted_slower:.0%} were caught; quieten the machine, then {AGAIN}"
        )
    return ""


# storing -------------------------------------------------------------------------------------------------------------


def path_of(machine: Machine) -> Path:
    return cache_folder() / "calibration" / f"{machine.key}.json"


def path_beside(records: Path, machine: Machine) -> Path:
    """Where a results folder keeps a copy, with the machine's records, for whoever reads those elsewhere."""
    return records / machine.name / "calibration.json"


def store(calibration: Calibration, path: Path | None = None) -> Path:
    """Writes the calibration, whole or not at all, to the cache that ``check`` reads or to ``path``."""
    path = path or path_of(calibration.machine)
    write_json(calibration, path)
    return path


def stored(machine: Machine, *, margin: float, budget_s: float) -> Calibration:
    """The machine's calibration, if it may gate with these settings. Raises Uncalibrated."""
    try:
        calibration = read(path_of(machine))
    except FileNotFoundError:
        raise Uncalibrated(f"this machine ({machine.name}) is not calibrated; {AGAIN}") from None
    if why := unfit(calibration, machine, margin=margin, budget_s=budget_s, now=datetime.now(UTC)):
        raise Uncalibrated(why)
    return calibration


def begun(machine: Machine, job: Job, *, margin: float, budget_s: float) -> Calibration:
    """The machine's calibration, to be continued with these settings. Raises Uncalibrated where it cannot be."""
    try:
        calibration = read(path_of(machine))
    except FileNotFoundError:
        raise Uncalibrated(f"this machine ({machine.name}) has no calibration to continue; {AGAIN}") from None
    if datetime.now(UTC) - calibration.made > VALID:
        raise Uncalibrated(f"the calibration to continue is older than {VALID.days} days; {AGAIN}")
    before = calibration
    settings = (before.design, before.margin, before.budget_s, before.job, before.planted_slower)
    if settings != (DESIGN, margin, budget_s, job, PLANTED_SLOWER):
        raise Uncalibrated(f"the calibration to continue was made with other settings; {AGAIN}")
    return calibration


# running -------------------------------------------------------------------------------------------------------------


def calibrate(
    tree: Path,
    machine: Machine,
    job: Job,
    *,
    gates: int,
    planted: int,
    margin: float,
    budget_s: float,
    earlier: Calibration | None = None,
    progress: Progress = silent,
) -> Calibration:
    """Runs the gates of ``tree`` against itself, the planted ones spread among them. Raises ContenderFailed.

    Ctrl-C ends it with the gates that were run, if there is one of each kind: fewer gates, a wider interval. Those of
    an ``earlier`` calibration count, and its date stays.
    """
    coin = random.Random()
    done: dict[float, list[Gate]] = {0.0: [], PLANTED_SLOWER: []}
    if earlier:
        done = {0.0: [*earlier.unchanged], PLANTED_SLOWER: [*earlier.planted]}
    wanted = {0.0: gates, PLANTED_SLOWER: planted}
    runs = [slower for slower, count in wanted.items() for _ in range(count - len(done[slower]))]
    coin.shuffle(runs)
    for number, slower in enumerate(runs):
        alarms = sum(outcome.verdict == "regressed" for outcome in done[0.0])
        caught = sum(outcome.verdict == "regressed" for outcome in done[PLANTED_SLOWER])
        progress(
            number / len(runs),
            f"gate {number + 1} of {len(runs)} ({alarms} false alarms in {len(done[0.0])}, caught {caught} of "
            f"{len(done[PLANTED_SLOWER])} planted)",
        )
        try:
            with _fresh(tree, job) as (old, new):
                timing = gate(old, new, job, coin=coin, margin=margin, budget_s=budget_s, slower=slower)
        except KeyboardInterrupt:
            if not all(done.values()):
                raise
            break
        done[slower].append(
            Gate(verdict=timing.decision.verdict, pairs=list(timing.pairs), seconds=round(timing.seconds, 3))
        )
    return Calibration(
        machine=machine,
        made=earlier.made if earlier else datetime.now(UTC),
        design=DESIGN,
        margin=margin,
        budget_s=budget_s,
        job=job,
        planted_slower=PLANTED_SLOWER,
        unchanged=done[0.0],
        planted=done[PLANTED_SLOWER],
    )


@contextmanager
def _fresh(tree: Path, job: Job) -> Iterator[tuple[TreeWorker, TreeWorker]]:
    """Two workers with the libraries loaded, which is off the budget. New for every gate, as every ``check`` has its
    own: a gate that shared them with the gate before would not be another draw of what differs between two workers."""
    short = Job(setting=job.setting.but(steps=2), stack=job.stack)

    def load(worker: TreeWorker) -> None:
        worker.ask("start", job=short.model_dump())
        worker.ask("close")

    with TreeWorker(tree) as old, TreeWorker(tree) as new, ThreadPoolExecutor(2) as pool:
        list(pool.map(load, (old, new)))
        yield old, new

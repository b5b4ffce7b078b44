"""Rehearses the first minutes on a device: does each thing that a measurement needs work there at all? ``leantrain
doctor --rehearse``.

In this order, the most informative first, each in a process of its own with a limit::

    step      every technique's first training steps, at ``pico`` on its first baseline
    kernel    every kernel against its float64 reference
    noise     an A/A timing: two processes of one baseline in lock-step, as `suite.measure.timing` drives them
    energy    the device's counter, over a window of steps

What is found is written at once, a line of JSON each, so that it may be cut off at any time; the same command goes on
where it stopped. A line holds for the machine and the code that it names.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from suite.entries.catalogue import Entry, catalogue
from suite.entries.module_files import package_folder
from suite.kernels.bench import examinations
from suite.loop.technique import Unavailable
from suite.measure.contenders.contender import Contender, Limits
from suite.measure.contenders.fork_servers import of_one_timing
from suite.measure.contenders.lockstep import in_rounds
from suite.measure.provenance import Progress, silent
from suite.process.child import ContenderFailed
from suite.record.job import BASELINE, Job, Setting
from suite.record.machine import fingerprint

STEPS = 2  # the second one has what the first leaves: moments, prefetched data
LIMIT_S = 60.0  # of one thing: what takes longer at pico hangs
MOST_AT_ONCE = 8  # each has libraries, and on a GPU a context of half a GB
AA_SETS, AA_ROUNDS, AA_STEPS = 3, 6, 2
ENERGY_WINDOW_S = 3.0  # enough to see whether the counter moves
PACKAGES = ("suite", "techniques", "baselines")
PARTS = ("step", "kernel", "noise", "energy")


@dataclass(frozen=True)
class Outcome:
    """Records what one thing did. ``status``: works, or one of a record's failures; ``reason`` says why, or what was
    seen."""

    part: str
    name: str
    status: str
    reason: str = ""
    seconds: float = 0.0

    @property
    def works(self) -> bool:
        return self.status == "works"


Task = tuple[str, str, Callable[[], str]]
"""Part, name, and what does it: its answer says what was seen."""


def code_key(packages: Sequence[str] = PACKAGES) -> str:
    """Returns what all code of the project hashes to: any change, and everything is rehearsed anew."""
    digest = hashlib.sha256()
    for package in packages:
        root = package_folder(package)
        for path in sorted(root.rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def rehearse(
    device: str,
    threads: int,
    minutes: float,
    file: Path | None = None,
    ids: Sequence[str] = (),
    parts: Sequence[str] = PARTS,
    progress: Progress = silent,
) -> tuple[list[Outcome], list[tuple[str, str]]]:
    """Returns what was found of the techniques ``ids`` (all where empty), and the parts and names that there was no
    time for.

    Raises OSError where ``file`` cannot be read or written.
    """
    deadline_s = time.monotonic() + 60 * minutes
    stamp = {"machine": fingerprint(device, threads).key, "device": device, "code": code_key()}
    known = _read(file, stamp) if file else {}
    tasks = [task for task in _tasks(device, threads, ids) if task[0] in parts]
    outcomes = [known[part, name] for part, name, _ in tasks if (part, name) in known]
    left = [task for task in tasks if task[:2] not in known]
    late: list[tuple[str, str]] = []
    for finding in _worked_off(left, deadline_s):
        if finding.status == "late":
            late.append((finding.part, finding.name))
            continue
        outcomes.append(finding)
        if file:
            _append(file, finding, stamp)
        progress(len(outcomes) / len(tasks), f"{finding.part} {finding.name}")
    order = {task[:2]: number for number, task in enumerate(tasks)}
    return sorted(outcomes, key=lambda outcome: order[outcome.part, outcome.name]), late


def _tasks(device: str, threads: int, ids: Sequence[str]) -> list[Task]:
    chosen = [catalogue()[id] for id in ids] if ids else list(catalogue().values())
    setting = Setting(baseline="gpt", size="pico", device=device, threads=threads)
    steps: list[Task] = [("step", BASELINE, partial(_steps, setting, BASELINE))]
    for entry in chosen:
        own = setting.but(baseline=entry.card.baselines[0], task=entry.card.task)
        steps.append(("step", entry.id, partial(_steps, own, entry.id)))
    kernels: list[Task] = [
        ("kernel", entry.id, partial(_kernels, entry, device))
        for entry in chosen
        if (entry.folder / "kernel.py").is_file()
    ]
    noise: list[Task] = [
        ("noise", f"{setting.baseline} nano {number}", partial(_noise, setting.but(size="nano"), number))
        for number in range(AA_SETS)
    ]
    return [*steps, *kernels, *noise, ("energy", device, partial(_energy, setting.but(size="nano")))]


def _worked_off(tasks: Sequence[Task], deadline_s: float) -> Iterator[Outcome]:
    """Steps and kernels side by side, the rest alone, since it reads a clock or a counter; none begins too late."""
    together = [task for task in tasks if task[0] in ("step", "kernel")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(max(1, min(MOST_AT_ONCE, cores // 2))) as pool:
        running = [pool.submit(_found, task, deadline_s) for task in together]
        for done in as_completed(running):
            yield done.result()
    for task in tasks:
        if task not in together:
            yield _found(task, deadline_s)


def _found(task: Task, deadline_s: float) -> Outcome:
    part, name, do = task
    begin_s = time.monotonic()
    if begin_s >= deadline_s:
        return Outcome(part, name, "late")
    try:
        status, reason = "works", do()
    except ContenderFailed as failed:
        status, reason = failed.status, failed.reason
    except Unavailable as unavailable:
        status, reason = "unavailable", str(unavailable)
    except Exception as error:  # whatever it is: a row, never a lost list
        status, reason = "failed", f"{type(error).__name__}: {error}"
    return Outcome(part, name, status, reason, round(time.monotonic() - begin_s, 2))


# what is tried ------------------------------------------------------------------------------------------------------


def _steps(setting: Setting, stack: str) -> str:
    with Contender(Job(setting=setting, stack=stack), Limits(LIMIT_S, LIMIT_S)) as contender:
        contender.prepare()
        contender.set_up()
        losses = contender.block(STEPS).losses
    if not all(map(math.isfinite, losses)):
        raise ContenderFailed("diverged", f"losses {losses}")
    return f"losses {', '.join(f'{loss:.4g}' for loss in losses)}"


def _kernels(entry: Entry, device: str) -> str:
    examined = examinations(entry.module.removesuffix("technique") + "peer", device, timed=False)
    if wrong := [f"{name}: {examination.trouble}" for name, examination in examined.items() if examination.trouble]:
        raise ContenderFailed("failed", "; ".join(wrong))
    # a tolerance of 0 is that of whole numbers: they are equal
    worst = max((examination.error_units or 0.0) / (examination.tolerance or 1.0) for examination in examined.values())
    return f"{len(examined)} kernels, at most {worst:.0%} of what their roundings allow"


def _noise(setting: Setting, number: int) -> str:
    """Returns the median log ratio of two processes that run the same, and how far its rounds are apart."""
    coin, limits = random.Random(number), Limits(LIMIT_S, LIMIT_S)
    job, server = Job(setting=setting, stack=BASELINE), of_one_timing(coin)
    try:
        with Contender(job, limits, server) as one, Contender(job, limits, server) as other:
            sides = {"one": one, "other": other}
            for contender in sides.values():
                contender.prepare()
                contender.set_up()
                contender.block(AA_STEPS)
            rounds = in_rounds(list(sides), AA_ROUNDS, coin, lambda side, _: sides[side].block(AA_STEPS).seconds)
            blocks = [turn.block_s for turn in rounds]
    finally:
        server.close()
    ratios = [sum(map(math.log, block["one"])) / 2 - sum(map(math.log, block["other"])) / 2 for block in blocks]
    step_s = statistics.median(seconds for block in blocks for side in block.values() for seconds in side) / AA_STEPS
    return (
        f"equal processes differ by {math.expm1(statistics.median(ratios)):+.2%}, their rounds by "
        f"{statistics.pstdev(ratios):.2%}; a step takes {step_s * 1000:.3g} ms"
    )


def _energy(setting: Setting) -> str:
    with Contender(Job(setting=setting, stack=BASELINE), Limits(LIMIT_S, LIMIT_S)) as contender:
        contender.prepare()
        contender.set_up()
        contender.block(STEPS)
        memory, energy = contender.usage(ENERGY_WINDOW_S)
    if setting.device != "cpu" and not memory.cuda_allocated_peak_bytes:
        raise ContenderFailed("failed", "the allocator says that no byte was ever allocated")
    if energy.joules_per_step is None:
        raise Unavailable(energy.reason)
    return f"{energy.joules_per_step:.3g} J a step, by {energy.method}"


# the file -----------------------------------------------------------------------------------------------------------


def _read(file: Path, stamp: Mapping[str, str]) -> dict[tuple[str, str], Outcome]:
    """Returns what the file has of this machine and code; a line that was cut off, or is of others, is none."""
    known = {}
    for line in file.read_text("utf-8").splitlines() if file.exists() else ():
        try:
            said: dict[str, Any] = json.loads(line)
            if all(said.pop(name, None) == value for name, value in stamp.items()):
                finding = Outcome(**said)
                known[finding.part, finding.name] = finding
        except (ValueError, TypeError, AttributeError):
            continue
    return known


def _append(file: Path, finding: Outcome, stamp: Mapping[str, str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    cut_off = file.exists() and file.stat().st_size > 0 and not file.read_bytes().endswith(b"\n")
    with file.open("a", encoding="utf-8") as lines:
        lines.write("\n" * cut_off + json.dumps(asdict(finding) | dict(stamp)) + "\n")


# what it comes to ---------------------------------------------------------------------------------------------------


def report(
    outcomes: Sequence[Outcome], late: Sequence[tuple[str, str]], device: str, threads: int
) -> dict[str, list[str]]:
    """Returns lines by heading: what works, what does not and why, what there was no time for, and the plan for the
    rest."""
    lines: dict[str, list[str]] = {"works": [], "does not work": [], "cannot be had here": []}
    for part in PARTS:
        works = [outcome for outcome in outcomes if outcome.part == part and outcome.works]
        tried = sum(outcome.part == part for outcome in outcomes)
        if part in ("step", "kernel"):
            names = " ".join(work.name for work in works)
            lines["works"] += [f"{part}: {len(works)} of {tried}: {names}"] if tried else []
        else:
            lines["works"] += [f"{part} {work.name}: {work.reason}" for work in works]
    for outcome in outcomes:
        if not outcome.works:
            heading = "cannot be had here" if outcome.status == "unavailable" else "does not work"
            lines[heading].append(f"{outcome.part} {outcome.name}: {outcome.status}: {outcome.reason}")
    if late:
        lines["no time was left for"] = [", ".join(f"{part} {name}" for part, name in late)]
    lines["plan for the rest"] = plan(outcomes, late, device, threads)
    return {heading: of for heading, of in lines.items() if of}


def plan(outcomes: Sequence[Outcome], late: Sequence[tuple[str, str]], device: str, threads: int) -> list[str]:
    """Returns the commands that come next, in their order."""
    size = "base" if device == "cuda" else "nano"
    runs = [
        outcome.name for outcome in outcomes if outcome.part == "step" and outcome.works and outcome.name != BASELINE
    ]
    steps = []
    if late:
        steps.append(f"rehearse what is left: leantrain doctor --rehearse --device {device}, again with the same file")
    if any(outcome.part == "step" and not outcome.works and outcome.status != "unavailable" for outcome in outcomes):
        steps.append("mend what does not work above: leantrain run records it as a failure, and goes on")
    if device == "cuda":
        steps.append("time the kernels against their floor and peers: leantrain kernels --device cuda")
    steps.append(
        f"measure the {len(runs)} techniques that make steps: leantrain run --device {device} --size {size} "
        f"--threads {threads} --minutes 20; how long all of it takes: the same with --dry-run"
    )
    return steps

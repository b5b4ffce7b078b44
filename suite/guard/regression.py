"""Implements the exact tier of the regression gate: what a step costs and what training does, compared without any
noise.

Counters (FLOPs, tensor bytes, operators, communication) and the loss trajectory of a fixed seed are the same numbers in
every run of the same code, so any difference is a change of the code: no statistics, no threshold, no false alarm.
Counters do not depend on the machine, only on the libraries that issue the operators; losses depend on both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

from pydantic import Field

from suite.guard.findings import Difference, Finding, changes_between, speed
from suite.guard.gate_worker import COUNTED_STEPS, SEED, Worker
from suite.judge.verdicts import ChangeVerdict
from suite.process.child import ContenderFailed
from suite.process.replies import first_line
from suite.record.files import Stored, parse_versioned, read_plain, write_json
from suite.record.job import BASELINE, Job, RecipeName, Setting, Size, Spelling, Task
from suite.record.machine import LIBRARIES
from suite.record.schema import Counters, Machine, Status
from suite.record.text import code_in_markdown, in_markdown

SCHEMA_VERSION = 2


class BadReference(ValueError):
    """Is raised for a stored reference that cannot be used; the message says why and what to do."""


class CountedJob(Stored):
    """Holds one job's exact numbers, or how its run ended."""

    job: Job
    status: Status = "ok"
    reason: str = ""
    data_sha256: str = ""
    losses: list[float] = Field(default_factory=list)
    counters: Counters | None = None


class Reference(Stored):
    """Holds a file of counted jobs to compare later trees with."""

    schema_version: int = SCHEMA_VERSION
    leantrain: str
    counted: str  # when: ISO 8601, UTC
    machine: Machine
    libraries: dict[str, str]
    jobs: list[CountedJob]


def item_of(job: Job) -> str:
    """Returns what a report calls the job, and what jobs of two trees have in common: stack, baseline, recipe and
    task."""
    setting = job.setting
    return f"{job.stack} on {setting.baseline} ({setting.recipe}, {setting.task})"


# counting ------------------------------------------------------------------------------------------------------------


def count(job: Job, ask: Callable[..., Any]) -> CountedJob:
    """Returns the job's numbers, from ``ask("count", job=...)``: a TreeWorker's, or :func:`here`. Failures are rows."""
    try:
        numbers = ask("count", job=job.model_dump())
    except ContenderFailed as failure:
        return CountedJob(job=job, status=failure.status, reason=failure.reason)
    return CountedJob(job=job, **numbers)


def here(command: str, **arguments: Any) -> Any:
    """Answers as a TreeWorker does, from the code that this process has."""
    try:
        return getattr(Worker(), command)(**arguments)
    except ContenderFailed:
        raise
    except Exception as error:
        raise ContenderFailed("failed", first_line(error)) from None


def jobs_of(
    offer: Mapping[str, Any],
    stacks: Sequence[str],
    on: Sequence[str],
    recipes: Iterable[RecipeName],
    *,
    size: Size = "nano",
    device: str = "cpu",
    threads: int = 1,
) -> list[Job]:
    """Returns the stacks (all techniques, when none) on those of the baselines ``on`` (all) that a tree offers, with
    the plain baselines; what the tree lacks is left out, for the other tree's job to have no partner.
    """
    known, offered = offer["techniques"], offer["baselines"]
    places: list[tuple[str, RecipeName, Task, str]] = []
    for recipe in recipes:
        places += [(baseline, recipe, "pretrain", BASELINE) for baseline in on or offered if baseline in offered]
        for stack in stacks or known:
            names = Spelling(stack).names
            if not all(name in known for name in names):
                continue
            task: Task = "adapt" if any(known[name]["task"] == "adapt" for name in names) else "pretrain"
            places += [
                (baseline, recipe, task, stack)
                for baseline in on or offered
                if baseline in offered and all(baseline in known[name]["baselines"] for name in names)
            ]
    return [
        Job(
            setting=Setting(
                baseline=baseline,
                size=size,
                recipe=recipe,
                task=task,
                steps=COUNTED_STEPS,
                device=device,
                threads=threads,
            ),
            stack=stack,
            seed=SEED,
        )
        for baseline, recipe, task, stack in places
    ]


# storing -------------------------------------------------------------------------------------------------------------


def reference(machine: Machine, jobs: Iterable[CountedJob]) -> Reference:
    """Returns the counted jobs with what decides whether later ones are comparable to them."""
    return Reference(
        leantrain=version("leantrain"),
        counted=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine.model_copy(update={"context": {}}),
        libraries={name: version(name) for name in LIBRARIES},
        jobs=list(jobs),
    )


def save(stored: Reference, path: Path) -> None:
    """Writes the reference, whole or not at all."""
    try:
        write_json(stored, path)
    except OSError as error:
        raise BadReference(f"cannot write {path}: {error.strerror}; choose another file") from None


def load(path: Path) -> Reference:
    """Returns the reference at ``path``. Raises BadReference with one sentence: unreadable, damaged, of another
    schema."""
    try:
        return parse_versioned(read_plain(path), Reference, SCHEMA_VERSION, oldest=SCHEMA_VERSION)
    except OSError as error:
        raise BadReference(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise BadReference(f"{path}: {error}; save it again with: leantrain check --save {path}") from None


# comparing -----------------------------------------------------------------------------------------------------------


def compare(old: Reference, new: Reference) -> list[Finding]:
    """Returns a finding for every job of either side, in the order of the new one."""
    libraries_differ = _other_libraries(old, new)
    machine_differs = _other_machine(old, new)
    before = {item_of(job.job): job for job in old.jobs}
    after = {item_of(job.job): job for job in new.jobs}
    findings = [_finding(before.get(item), job, libraries_differ, machine_differs) for item, job in after.items()]
    return findings + [
        Finding(item, "exact", "gone", "the reference has it, this tree does not")
        for item in before
        if item not in after
    ]


def _other_libraries(old: Reference, new: Reference) -> str:
    """Tells why no number of the one reference can be compared with the other's; empty when they can."""
    differing = [
        f"{name} {old.libraries.get(name)}, this is {now}"
        for name, now in new.libraries.items()
        if old.libraries.get(name) != now
    ]
    return f"counted with {'; '.join(differing)}: operators may differ; save a new reference" if differing else ""


def _other_machine(old: Reference, new: Reference) -> str:
    if old.machine.key == new.machine.key:
        return ""
    return f"losses not compared: the reference is from another machine ({old.machine.name})"


def _other_job(old: Job, new: Job) -> str:
    """Tells why the numbers of two jobs of one item cannot be compared; empty when they can."""
    before, after = ({**job.setting.model_dump(), "seed": job.seed} for job in (old, new))
    differing = [f"{name} {before[name]} instead of {now}" for name, now in after.items() if before[name] != now]
    return f"counted with {', '.join(differing)}; use the same options, or save a new reference" if differing else ""


def _finding(old: CountedJob | None, new: CountedJob, libraries_differ: str, machine_differs: str) -> Finding:
    item = item_of(new.job)
    if new.status != "ok":
        same = old is not None and old.status == new.status
        ended = f"{new.status}: {new.reason}"
        return Finding(item, "exact", "equal" if same and new.status == "unavailable" else "failed", ended)
    if old is None:
        return Finding(item, "exact", "new", "the reference does not have it")
    if why := _other_job(old.job, new.job) or libraries_differ:
        return Finding(item, "exact", "not comparable", why)
    if old.status != "ok" or old.counters is None or new.counters is None:
        return Finding(item, "exact", "not comparable", f"the reference's run ended: {old.status}: {old.reason}")
    costs = changes_between(old.counters, new.counters)
    training = () if machine_differs else _training_changes(old, new)
    return Finding(item, "exact", _verdict(costs, training), machine_differs, (*costs, *training))


def _training_changes(old: CountedJob, new: CountedJob) -> tuple[Difference, ...]:
    if old.data_sha256 != new.data_sha256:
        return (Difference("data", old.data_sha256[:12], new.data_sha256[:12], True),)
    if len(old.losses) != len(new.losses):
        return (Difference("steps", len(old.losses), len(new.losses), True),)
    for step, (was, now) in enumerate(zip(old.losses, new.losses, strict=True), 1):
        if was != now:
            return (Difference(f"loss of step {step}", was, now, True),)
    return ()


def _verdict(counters: Sequence[Difference], training: Sequence[Difference]) -> ChangeVerdict:
    """A cost that rose weighs most; then what training does; a cost that fell is good only where nothing else moved."""
    costs = [counter for counter in counters if counter.is_cost]
    if any(cost.new > cost.old for cost in costs):
        return "regressed"
    if training or any(counter.is_of_the_model for counter in counters):
        return "changed"
    if costs:
        return "improved"
    return "changed" if counters else "equal"


# reporting -----------------------------------------------------------------------------------------------------------


def exit_code(findings: Iterable[Finding], accept_changes: bool) -> int:
    """Returns 0 fine, 1 regressed (or changed, or gone, unless that is meant), 5 a run failed, 4 unfit, 3 not
    decided."""
    verdicts = {finding.verdict for finding in findings}
    if "regressed" in verdicts or (verdicts & {"changed", "gone"} and not accept_changes):
        return 1
    if "failed" in verdicts:
        return 5
    if "unfit" in verdicts:
        return 4
    return 3 if verdicts & {"inconclusive", "not comparable"} else 0


def notable(findings: Iterable[Finding]) -> list[Finding]:
    """Returns the findings that say more than that exact numbers, or code, are equal."""
    return [finding for finding in findings if finding.verdict != "equal"]


def tally(findings: Sequence[Finding]) -> str:
    """Returns how many of each verdict, in words, and what is known of speed."""
    exact = [finding for finding in findings if finding.aspect != "timing"]
    said = notable(exact)
    number = Counter(finding.verdict for finding in said)
    parts = [f"{number[verdict]} {verdict}" for verdict in get_args(ChangeVerdict) if number[verdict]]
    silent = len(exact) - len(said)
    parts += [f"{silent} item{'s' if silent != 1 else ''} exactly equal"] if silent else []
    return f"{', '.join(parts) or 'nothing to compare'}; speed: {speed(findings)}"


def markdown(findings: Sequence[Finding], against: str) -> str:
    """Returns a summary fit for a comment: how many of each verdict, a row for every number that differs, then the
    reasons."""
    said = notable(findings)
    lines = [f"## leantrain check against {code_in_markdown(against)}: {tally(findings)}"]
    if said:
        lines += ["", "| what | metric | before | after | ratio | verdict |", "|---|---|--:|--:|--:|---|"]
        lines += [f"| {' | '.join(cells)} |" for finding in said for cells in _rows(finding)]
    if reasons := [
        f"- {code_in_markdown(finding.item)}, {finding.aspect}: {in_markdown(finding.why)}"
        for finding in said
        if finding.why
    ]:
        lines += ["", *reasons]
    return "\n".join(lines) + "\n"


def _rows(finding: Finding) -> list[tuple[str, ...]]:
    """Returns a row for each number that differs; without any, one with the verdict."""
    item = code_in_markdown(finding.item)
    if not finding.changes:
        return [(item, finding.aspect, "", "", "", f"**{finding.verdict}**")]
    return [
        (item, *map(in_markdown, (change.title, change.before, change.after, change.ratio)), f"**{change.verdict}**")
        for change in finding.changes
    ]

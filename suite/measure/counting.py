"""Counts evidence: the exact counts of one step, in each fifth of a run whose cost changes on the way.

Counts depend on the code, the shapes and the schedule, and on no weight: a run of STEPS reference steps, in which every
schedule by progress comes round, gives those of the whole run, in seconds. So does another, recorded, what single steps
show of the techniques (:mod:`suite.reading.recording`); on a CPU, where probes compute in float64 and on the host.
"""

from __future__ import annotations

from typing import Any

from suite.entries.catalogue import catalogue
from suite.entries.sources import code_of
from suite.measure.contenders.contender import Contender, Limits
from suite.measure.provenance import Heading
from suite.process.child import ContenderFailed
from suite.record.job import Job, Setting, Spelling
from suite.record.numerics import off_the_clock
from suite.record.schema import FIFTHS, Counted, CountedStep

STEPS = 20


def count(setting: Setting, stack: str, limits: Limits = Limits()) -> Counted:  # noqa: B008  it is frozen
    """Counts a stack's steps; a run that fails is evidence, too.

    Raises UnknownId or StackError for a stack that cannot be built.
    """
    heading = Heading(setting, off_the_clock(setting.device))
    known: dict[str, Any] = {"stack": stack, "code": code_of(setting, stack)}
    points: list[CountedStep] = []
    job = Job(setting=setting.but(steps=STEPS), stack=stack)
    try:
        with Contender(job, limits) as contender:
            contender.prepare()
            ready = contender.set_up(counted=True)
            known |= {"steps": ready.steps, "recipe": ready.recipe}
            done = 0
            for step in counted_steps(ready.steps):
                contender.block(step - done)
                points.append(CountedStep(progress=step / ready.steps, counters=contender.count()))
                done = step + 1
        if setting.device == "cpu" and _is_recorded(stack):
            known |= _read(job, limits)
    except ContenderFailed as failure:
        known |= {"status": failure.status, "reason": failure.reason, "details": failure.details}
    if all(point.counters == points[0].counters for point in points):
        points = points[:1]
    return Counted(**heading.fields(), **known, points=points)


def _is_recorded(stack: str) -> bool:
    """Tells whether its technique has probes that read recorded steps: one alone, since a card's claims are of that."""
    names = Spelling(stack).names
    return len(names) == 1 and catalogue()[names[0]].instruments is not None


def _read(job: Job, limits: Limits) -> dict[str, Any]:
    """Returns what recorded steps show; where reading them fails, why: the counts stand without."""
    try:
        with Contender(job, limits) as contender:
            contender.prepare()
            contender.block(contender.set_up(recorded=True).steps)
            return {"probes": contender.probes()}
    except ContenderFailed as failure:
        reason = f"its recorded steps could not be read: {failure.status}: {failure.reason}"
        return {"reason": reason, "details": failure.details}


def counted_steps(steps: int) -> list[int]:
    """Returns the 0-based steps to count: the middle of each fifth. Never the first, in which optimizers make their
    state."""
    return sorted({max(1, min(steps - 1, (2 * fifth + 1) * steps // (2 * FIFTHS))) for fifth in range(FIFTHS)})

"""Plans what every solver would do with a budget of memory: on a model of any size, in seconds, without its memory.

The model's blocks are profiled on tensors without values (:mod:`suite.measure.at_scale.full_size`); seconds are FLOPs
over a rate that the device reaches, so predicted times are modelled, and peaks are exact. Parameters, optimizer state
and the batch are in the device's memory besides. The optimizer's step, with all gradients and what it makes for a
moment, is the peak where it takes more than a pass: no schedule changes that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from suite.chain.chain import Chain, Link
from suite.chain.plan import Infeasible, Plan, Solver, least, planned, unplanned
from suite.chain.schedule import ScheduleError
from suite.entries.catalogue import catalogue
from suite.entries.together import built
from suite.loop.chains import chains_of
from suite.measure.at_scale.full_size import Scale, shapes_of, trained_at
from suite.measure.provenance import Progress, silent
from suite.meters.live import LiveBytes
from suite.meters.state import state_tensors
from suite.meters.storage import unique_bytes
from suite.record.job import BASELINE, Spelling, join

MOST_EXAMPLES = 2**20


@dataclass(frozen=True)
class Device:
    """Says what a device does in a second: FLOPs that it reaches on matrix products, bytes over its link each way."""

    flops_per_s: float
    link_bytes_per_s: float

    @property
    def link(self) -> Link:
        return Link(self.link_bytes_per_s, self.link_bytes_per_s)


@dataclass(frozen=True)
class Solved:
    """Holds one solver's answer: a plan, or why there is none; ``solve_s`` is what that took."""

    technique: str
    plan: Plan | None
    why_not: str
    solve_s: float


@dataclass(frozen=True)
class MemoryPlan:
    """Holds every solver's answer to one budget.

    Attributes:
        chains: of the model.
        resident_bytes: parameters, buffers, optimizer state, batch.
        update_bytes: most bytes alive besides in the optimizer's step: all gradients, and what it makes.
        memory_bytes: of the device; what is left of it is the budget.
        batch: shapes, by name.
    """

    scale: Scale
    device: Device
    chains: tuple[Chain, ...]
    resident_bytes: int
    update_bytes: int
    memory_bytes: int
    batch: Mapping[str, tuple[int, ...]]
    answers: tuple[Solved, ...]

    @property
    def budget_bytes(self) -> int:
        return self.memory_bytes - self.resident_bytes

    @property
    def plain(self) -> Plan:
        return unplanned(self.chains)

    @property
    def least(self) -> Plan:
        return least(self.chains)

    def line(self, answer: Solved) -> str:
        """Returns the line of Python that runs a model of the user's by that schedule; "" where the solver has no
        budget."""
        (name, own), *_ = Spelling(answer.technique).parts
        technique: Any = solvers([answer.technique])[answer.technique]
        if answer.plan is None or not hasattr(technique, "budget"):
            return ""
        low, high = self.least.peak_bytes, self.plain.peak_bytes
        share = math.floor(1e6 * (self.budget_bytes - low) / max(1, high - low)) / 1e6
        options = {**own, "budget": f"{min(1.0, max(0.0, share)):g}"}
        if hasattr(technique, "flops_per_byte"):
            options |= {"flops_per_byte": f"{self.device.flops_per_s / self.device.link_bytes_per_s:g}"}
        return f'leantrain.apply(model, "{join([(name, options)])}", batch=batch)'

    def peak_bytes(self, plan: Plan) -> int:
        """Counts the most bytes alive in a whole step under the plan."""
        return self.resident_bytes + max(plan.peak_bytes, self.update_bytes)

    def as_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        return {
            "scale": self.scale.setting.model_dump(),
            "flops_per_s": self.device.flops_per_s,
            "link_bytes_per_s": self.device.link_bytes_per_s,
            "memory_bytes": self.memory_bytes,
            "resident_bytes": self.resident_bytes,
            "update_bytes": self.update_bytes,
            "plain": {"time_s": self.plain.time_s, "peak_bytes": self.peak_bytes(self.plain)},
            "least_bytes": self.peak_bytes(self.least),
            "batch": {name: list(shape) for name, shape in self.batch.items()},
            "provenance": "bytes counted, seconds modelled",
            "answers": [
                {
                    "technique": answer.technique,
                    "time_s": answer.plan and answer.plan.time_s,
                    "peak_bytes": answer.plan and self.peak_bytes(answer.plan),
                    "schedules": answer.plan and [str(schedule) for schedule in answer.plan.schedules],
                    "line": self.line(answer),
                    "why_not": answer.why_not,
                    "solve_s": answer.solve_s,
                }
                for answer in self.answers
            ],
        }


def solvers(names: Iterable[str] = ()) -> dict[str, Solver]:
    """Returns the techniques that plan schedules, by id; of ``names``, where there are any.

    Raises ValueError for a technique that plans none.
    """
    wanted = list(names)
    known: dict[str, Solver] = {}
    for spelling in wanted or list(catalogue()):
        technique = built(spelling)
        alone = next(iter(technique.techniques.values()))
        if isinstance(alone, Solver):
            known[spelling] = alone
        elif wanted:
            raise ValueError(f"{spelling} plans no schedule; those that do: {', '.join(solvers())}")
    return known


def profile_at(scale: Scale, device: Device) -> tuple[tuple[Chain, ...], int, int, dict[str, tuple[int, ...]]]:
    """Returns the model's chains at that scale; the bytes that are there besides; those of the update, gradients with
    them; and the batch's shapes."""
    with trained_at(BASELINE, scale) as run:
        chains = chains_of(run, flops_per_s=device.flops_per_s)
        batch, _ = run.next_batch()
        besides = [*run.model.parameters(), *run.model.buffers(), *state_tensors(run.optimizer), *batch.values()]
        gradients = [parameter.grad for parameter in run.model.parameters() if parameter.grad is not None]
        with LiveBytes() as live:
            run.apply_gradients()
        update_bytes = unique_bytes(gradients) + live.high_bytes
        return tuple(chains), unique_bytes(besides), update_bytes, shapes_of(run)


def largest_batch(scale: Scale, memory_bytes: int, device: Device, progress: Progress = silent) -> int:
    """Returns the most examples a step that fit the memory, with whatever recomputation that takes and no second tier.

    What is needed is nearly a straight line over the batch, so that a few profiles find it. Raises ValueError where
    one example does not fit.
    """

    @cache
    def needed(examples: int) -> int:
        progress(0.0, f"a batch of {examples}")
        chains, resident, update, _ = profile_at(replace(scale, batch_size=examples), device)
        return resident + max(least(chains).peak_bytes, update)

    if needed(1) > memory_bytes:
        raise ValueError(
            f"one example takes {needed(1) / 1e9:.4g} GB with everything recomputed, of {memory_bytes / 1e9:.4g}: look "
            "for what shrinks or moves weights and optimizer state (leantrain list), or take a smaller model"
        )
    low, high, growth = 1, MOST_EXAMPLES, max(1.0, needed(2) - needed(1))
    while high - low > 1:
        guess = min(max(low + int((memory_bytes - needed(low)) / growth), low + 1), high - 1)
        if needed(guess) <= memory_bytes:
            growth = max(1.0, (needed(guess) - needed(low)) / (guess - low))
            low = guess
        else:
            high = guess
            growth = max(1.0, (needed(guess) - needed(low)) / (guess - low))
    return low


def plan_all(
    scale: Scale, memory_bytes: int, device: Device, techniques: Iterable[str] = (), progress: Progress = silent
) -> MemoryPlan:
    """Returns every solver's plan for the baseline at that scale, the fastest first.

    Raises ValueError where the weights alone do not fit, SegmentError where the model's blocks are no chain.
    """
    asked = solvers(techniques)
    progress(0.0, "profile")
    chains, resident, update, batch = profile_at(scale, device)
    if memory_bytes < resident + update:
        raise ValueError(
            f"parameters, optimizer state and batch take {resident / 1e9:.4g} GB, and the optimizer's step "
            f"{update / 1e9:.4g} GB more, gradients and what it makes, of {memory_bytes / 1e9:.4g}: no schedule of "
            "activations helps; look for what shrinks or moves these (leantrain list), or a smaller model"
        )
    answers = []
    for done, (name, solver) in enumerate(asked.items()):
        progress(done / len(asked), name)
        answers.append(solved(name, solver, chains, memory_bytes - resident, device.link))
    answers.sort(key=lambda answer: answer.plan.time_s if answer.plan else float("inf"))
    return MemoryPlan(scale, device, chains, resident, update, memory_bytes, batch, tuple(answers))


def solved(name: str, solver: Solver, chains: Iterable[Chain], budget_bytes: int, link: Link | None) -> Solved:
    """Returns one solver's answer to one budget."""
    started = time.perf_counter()
    try:
        plan, why = planned(solver, list(chains), budget_bytes, link), ""
    except (Infeasible, ScheduleError) as error:
        plan, why = None, str(error)
    return Solved(name, plan, why, time.perf_counter() - started)

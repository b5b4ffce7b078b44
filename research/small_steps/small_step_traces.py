"""Traces the operators of real steps at a CPU's size, for every stack that was timed there.

    python -m research.small_steps.small_step_traces [RESULTS]

traces what the timed rows of a results folder name and what is not traced yet, in a process aside. A run of a
few steps goes through all its schedules; a step in each fifth of it is traced, as is counted
(:mod:`suite.measure.counting`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from research.small_steps.small_step_ratios import SIZE, is_small, place_of
from suite.entries.sources import code_of
from suite.entries.together import run_of
from suite.judge.rows import rows
from suite.measure.contenders.world import is_distributed
from suite.measure.counting import STEPS, counted_steps
from suite.process.child import ContenderFailed
from suite.record.job import Job, Setting
from suite.record.operator_counts import TracedStep, step_of
from suite.record.placed import CountPlace
from suite.record.store import Store
from suite.topics.modelled_time import step_traces
from suite.topics.modelled_time.aside import deputy
from suite.topics.modelled_time.own_device.steps import traced_step
from suite.topics.modelled_time.step_traces import KeptTrace

LIMIT_S = 300.0
KEPT_EACH = 8
"""Stacks after which all traces are written, as they are at the end."""


def traced(stack: str, setting: Setting) -> tuple[TracedStep, int]:
    """Returns the operators of a step in each fifth of a short run of the stack, together, and how many steps they are
    of."""
    run = run_of(Job(setting=setting.but(steps=STEPS), stack=stack))
    operators, of = [], counted_steps(run.recipe.steps)
    uncosted, undeclared = dict[str, int](), dict[str, None]()
    for step in range(max(of) + 1):
        if step not in of:
            run.train_step(*run.next_batch())
            continue
        seen = traced_step(run)
        operators += list(seen.counts.elements())
        uncosted |= seen.uncosted
        undeclared |= dict.fromkeys(seen.undeclared)
    return step_of(operators, uncosted, tuple(undeclared)), len(of)


def _traced(stack: str, setting: Setting) -> tuple[Any, int]:
    torch.set_num_threads(1)
    step, steps = traced(stack, setting)
    return json.loads(step.as_json()), steps


def wanted(folder: Path) -> Iterator[tuple[str, Setting]]:
    """Yields the stacks that were timed at that size, references first, each with its setting."""
    seen: set[tuple[Any, str]] = set()
    records, _ = Store(folder).read()
    for row in filter(is_small, rows(records)):
        at = row.conditions
        setting = Setting(baseline=at.baseline, size=SIZE, recipe=at.recipe, task=at.task, device=at.device)
        for stack in (row.reference, row.stack):
            if (place_of(row), stack) not in seen:
                seen.add((place_of(row), stack))
                yield stack, setting


def main(folder: Path) -> None:
    traces = dict(step_traces.read(folder))
    stacks = list(wanted(folder))
    try:
        with deputy(LIMIT_S) as aside:
            for done, (stack, setting) in enumerate(stacks, 1):
                place = CountPlace(setting.baseline, setting.size, setting.recipe, "cpu", setting.task)
                code = code_of(setting, stack).counts
                if (known := traces.get((place, stack))) and known.code == code:
                    continue
                traces[place, stack] = _kept(aside, stack, setting, code)
                print(f"{done} of {len(stacks)}", place.title, stack, traces[place, stack].unavailable, flush=True)
                if done % KEPT_EACH == 0:
                    step_traces.write(traces, folder)
    finally:
        step_traces.write(traces, folder)


def _kept(aside: Any, stack: str, setting: Setting, code: str) -> KeptTrace:
    if is_distributed(stack):
        return KeptTrace(code, unavailable="its ranks share a machine's cores")
    try:
        said, steps = aside(_traced, stack, setting)
    except ContenderFailed as failure:
        return KeptTrace("", unavailable=f"{failure.status}: {failure.reason}")
    return KeptTrace(code, TracedStep.from_json(json.dumps(said)), steps=steps)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "results"))

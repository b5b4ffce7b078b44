"""Traces and clocks whole steps of the baselines: what models of a step are held against that saw no technique."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import torch

from suite.entries.installed import baselines
from suite.entries.together import run_of
from suite.loop.run import Run
from suite.meters.operators import OperatorTrace
from suite.record.job import BASELINE, RECIPES, Job, Setting
from suite.record.operator_counts import TracedStep
from suite.record.placed import CountPlace
from suite.topics.modelled_time.device_samples import ReferenceStep
from suite.topics.modelled_time.own_device.operator_calls import LADDERS
from suite.topics.modelled_time.traced import beside_the_dispatcher

STEPS, TOGETHER = 12, 4
"""Of a reference, after as many as make its optimizer's state; and how many follow each other on a GPU, so that one's
batch is made while the other's operators run."""


def reference_step(setting: Setting) -> ReferenceStep:
    """Returns the baseline's step of that setting, traced and clocked."""
    run = run_of(Job(setting=setting, stack=BASELINE))
    for _ in range(3):
        run.train_step(*run.next_batch())
    step_s, host_s = math.inf, math.inf
    for _ in range(STEPS if run.device.type == "cpu" else STEPS // TOGETHER):
        took, asked = _step_s(run)
        step_s, host_s = min(step_s, took), min(host_s, asked)
    place = CountPlace(setting.baseline, setting.size, setting.recipe, setting.device, setting.task)
    return ReferenceStep(place=place, traced=traced_step(run).as_json(), step_s=step_s, host_s=host_s)


def _step_s(run: Run) -> tuple[float, float]:
    """Returns one step's time, with its batch, on a GPU the mean of some; and until the host had asked for all of the
    first."""
    if run.device.type == "cpu":
        began = time.process_time()
        run.train_step(*run.next_batch())
        return time.process_time() - began, 0.0
    torch.cuda.synchronize()
    began = time.perf_counter()
    run.train_step(*run.next_batch())
    asked = time.perf_counter() - began
    for _ in range(TOGETHER - 1):
        run.train_step(*run.next_batch())
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / TOGETHER, asked


def traced_step(run: Run) -> TracedStep:
    """Returns the operators of one more step of a run, whose tensors have values; what makes its batch is part of
    it."""
    trace = OperatorTrace()
    with trace, beside_the_dispatcher(trace):
        run.train_step(*run.next_batch())
    return trace.step()


def settings_of(device: str) -> Iterator[Setting]:
    """Yields the references' settings: each baseline, at the ladder's sizes, under the recipes that compile nothing."""
    for baseline in baselines():
        for size in LADDERS[device].sizes:
            for recipe in RECIPES:
                if recipe != "compiled":
                    yield Setting(baseline=baseline, size=size, recipe=recipe, device=device)

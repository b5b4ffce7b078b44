"""One training step of every technique on the first baseline of its card, at nano, and of those baselines alone.

Taken at the start of a run from random weights: a technique whose step changes its cost during a run (growth, pruning)
is priced there only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from suite.entries.catalogue import catalogue
from suite.loop.technique import Unavailable
from suite.measure.contenders.contender import world_size
from suite.record.job import Job, Setting, Task
from suite.record.schema import Counters
from tests.runs import new_run

ROUNDS = 20
WARMUP = 3


def cases() -> Iterator[tuple[str, str, Task]]:
    """Stack, baseline, task: each baseline that some technique is shown on, then the techniques."""
    shown: list[tuple[str, str, Task]] = [
        (entry.id, entry.card.baselines[0], entry.card.task) for entry in catalogue().values()
    ]
    yield from dict.fromkeys(("baseline", baseline, task) for _, baseline, task in shown)
    yield from shown


@pytest.mark.parametrize(("stack", "baseline", "task"), [pytest.param(*case, id="-".join(case)) for case in cases()])
def test_training_step(
    benchmark: Any,
    stack: str,
    baseline: str,
    task: Task,
    device: str,
    counted: Callable[[Counters], Mapping[str, Any]],
    with_floor: Callable[..., Mapping[str, Any]],
) -> None:
    ranks = world_size(Job(setting=Setting(baseline=baseline, task=task), stack=stack))
    if ranks > 1:
        pytest.skip(f"{stack} needs {ranks} ranks, and this is one process; see: leantrain compare {stack}")
    try:
        run = new_run(baseline, stack, size="nano", recipe="modern", task=task, device=device)
        run.train(1)  # the optimizer's state is made in the first step
    except Unavailable as error:
        pytest.skip(f"{stack}: {error}")
    benchmark.group = f"step of {baseline} nano modern {task} on {device}"
    benchmark.pedantic(run.train, args=(1,), rounds=ROUNDS, warmup_rounds=WARMUP)  # reading the loss waits for a GPU
    counters = run.count_step()
    # What is alive at the peak, but for what the step may leave alone, was read or written once at least.
    touched_bytes = counters.peak_tensor_bytes - counters.peak_by_kind["other"]
    benchmark.extra_info |= {"stack": stack, "baseline": baseline, "device": device, **counted(counters)}
    benchmark.extra_info |= with_floor(benchmark, device, touched_bytes)

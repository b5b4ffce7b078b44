"""Tells what the steps of a short run show of progressive stacking: which blocks ran, and what each new one began
as."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from suite.device.random_state import unchanged_randomness
from suite.loop.run import Run
from suite.model.anatomy import anatomy
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.incremental.progressive_stacking.technique import ProgressiveStacking

OF_ITS_BASELINES = True  # whose blocks all train from the first step


def records(run: Run, own: ProgressiveStacking) -> bool:
    """Records all steps: how many blocks each ran, and how they grew."""
    return bool(own.stages)


@judged(
    "off_schedule",
    "A quarter of the blocks until 12.5 % of the steps, half of them until 30 %, then all",
    "Section 4.1, schedule of the authors' script",
    id="schedule",
)
@judged("off_copies", "Block i + L starts as a copy of block i", "Algorithm 1", id="copies")
@judged(
    "changed",
    "Doubling changes no weight of the blocks that were there, of embeddings or head",
    "Algorithm 1",
    id="rest_stays",
)
@judged(
    "off_state",
    "The optimizer starts anew after each doubling",
    "The authors' script, --reset-optimizer",
    id="fresh_optimizer",
    note="carry_optimizer=false",
)
@judged(
    "untrained", "After a doubling all blocks are trained, those that were there too", "Algorithm 1", id="all_train"
)
@judged(
    "copied_over_multiplied",
    "All doublings together copy less than a hundredth of the numbers that the run multiplies",
    "Section 3.2: stacking is a copy",
    id="growth_is_cheap",
    at_most=0.01,
    kind="counted",
    scope="end_to_end",
    note=(
        "parameters copied over weights of blocks times examples, in a run of 16 steps; a longer one multiplies more. "
        "In seconds: leantrain study progressive_stacking"
    ),
)
def probes(recording: Recording, own: ProgressiveStacking) -> Mapping[str, float]:
    """Numbers, parameters and steps that are off are counted. For a claim, ``relative_block_flops`` is the block
    passes, counted where a block got gradients, over those at full depth."""
    if not own.stages:
        return {}
    run, traces = recording.run, recording.traces
    path, steps = run.anatomy.main.path, run.recipe.steps
    with unchanged_randomness(run.device):
        full = anatomy(run.plain_model()).depth
    ran = [len({index(name, path) for name in trace.of("backward")[0].gradients} - {None}) for trace in traces]
    ends = [round(end * steps) for end in own.fractions[len(own.fractions) - own.stages :]]
    planned = [math.ceil(full / 2 ** sum(trace.step < end for end in ends)) for trace in traces]
    copied, multiplied = 0, 0
    counts = dict.fromkeys(("off_copies", "changed", "off_state", "untrained"), 0)
    for trace, following in zip(traces, [*traces[1:], None], strict=True):
        in_blocks = sum(
            parameter.numel() for name, parameter in trace.before.parameters.items() if index(name, path) is not None
        )
        multiplied += in_blocks * len(trace.indices)
        if set(trace.before.parameters) == set(trace.after.parameters):
            continue
        parameters = trace.update.after.parameters
        for name, now in trace.after.parameters.items():
            source = source_of(name, trace, path)
            copied += 0 if source == name else now.numel()
            counts["changed" if source == name else "off_copies"] += int((now != parameters[source]).sum())
            counts["off_state"] += not _state_is_right(trace, name, source, own.carry_optimizer)
            if following is not None and name in following.of("backward")[0].gradients:
                update = following.update
                counts["untrained"] += not (name in update.before.hyper and update.moved(name).any())
    return {
        **counts,
        "off_schedule": sum(depth != plan for depth, plan in zip(ran, planned, strict=True)),
        "relative_block_flops": sum(ran) / (full * len(ran)),
        "copied_over_multiplied": copied / multiplied,
    }


def index(name: str, path: str) -> int | None:
    """Returns the number of the block of the stack at ``path`` that has this parameter; None where none has it."""
    return int(name.removeprefix(f"{path}.").split(".")[0]) if name.startswith(f"{path}.") else None


def source_of(name: str, trace: Trace, path: str) -> str:
    """Returns the parameter that a parameter after growth was before: of block i, in each further stack of them,
    too."""
    number = index(name, path)
    if number is None or name in trace.before.parameters:
        return name
    shallow = len({index(parameter, path) for parameter in trace.before.parameters} - {None})
    return f"{path}.{number % shallow}.{name.removeprefix(f'{path}.{number}.')}"


def _state_is_right(trace: Trace, name: str, source: str, carried: bool) -> bool:
    state, before = trace.after.state.get(name, {}), trace.update.after.state.get(source, {})
    if not carried:
        return not state
    return state.keys() == before.keys() and all(torch.equal(state[key], before[key]) for key in state)

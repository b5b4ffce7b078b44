"""What recorded steps of every rank show of ZeRO's first stage: who updates what, and with which gradient."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from suite.contract.recording import Recording
from suite.contract.run import Run
from suite.contract.trace import Trace
from techniques.parallelism.zero1.technique import Zero1
from techniques.shared.ranks import summed, unequal, update_roundings

STEPS = 3  # with as many the optimizer's state counts, too
MOMENTS = 2  # that AdamW keeps of a parameter


def records(run: Run, own: Zero1) -> bool:
    """The first steps, so that the optimizer's state is known."""
    return run.step < STEPS


def probes(recording: Recording, own: Zero1) -> Mapping[str, float]:
    """``ranks``; ``unequal``: values in which the ranks' models differ at the run's end; ``state_share``: the optimizer
    state's values on this rank over AdamW's of the whole model; ``by_several``, ``by_none``: moved values that the
    optimizer step of more ranks than one moved, or of none; ``update_roundings``: of the steps from AdamW's with the
    ranks' mean gradient."""
    run, trace = recording.run, recording.trace
    if run.world_size == 1:
        return {"ranks": 1}
    parameters = sum(each.numel() for each in run.model.parameters() if each.requires_grad)
    states = [each for state in run.optimizer.state.values() for each in state.values() if torch.is_tensor(each)]
    movers = summed(recording, _moved(trace, trace.update.before.parameters, trace.update.after.parameters).int())
    moved = _moved(trace, trace.before.parameters, trace.after.parameters)
    return {
        "ranks": run.world_size,
        "unequal": unequal(recording),
        "state_share": sum(each.numel() for each in states if each.numel() > 1) / (MOMENTS * parameters),
        "by_several": int((movers > 1).sum()),
        "by_none": int((moved & (movers == 0)).sum()),
        "update_roundings": update_roundings(recording, recording.traces),
    }


def _moved(trace: Trace, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([(after[name] != before[name]).flatten() for name in trace.before.parameters])

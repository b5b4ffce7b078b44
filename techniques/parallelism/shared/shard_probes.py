"""Checks what recorded steps of every rank show of a partition of the optimizer: who updates what, with which
gradient."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.shared.ranks import summed, unequal, update_roundings

MOMENTS = 2  # that AdamW keeps of a parameter


def partition(recording: Recording) -> dict[str, float]:
    """Computes ``unequal``: values in which the ranks' models differ at the run's end; ``state_share``: the optimizer
    state's values on this rank over AdamW's of the whole model; ``by_several``, ``by_none``: moved values that the
    optimizer step of more ranks than one moved, or of none; ``update_roundings``: of the steps from AdamW's with the
    ranks' mean gradient."""
    run, trace = recording.run, recording.trace
    parameters = sum(parameter.numel() for parameter in run.model.parameters() if parameter.requires_grad)
    states = [value for state in run.optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    movers = summed(recording, _moved(trace, trace.update.before.parameters, trace.update.after.parameters).int())
    moved = _moved(trace, trace.before.parameters, trace.after.parameters)
    return {
        "unequal": unequal(recording),
        "state_share": sum(state.numel() for state in states if state.numel() > 1) / (MOMENTS * parameters),
        "by_several": int((movers > 1).sum()),
        "by_none": int((moved & (movers == 0)).sum()),
        "update_roundings": update_roundings(recording, recording.traces),
    }


def _moved(trace: Trace, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([(after[name] != before[name]).flatten() for name in trace.before.parameters])

"""Checks what a recorded step shows of torch's memory budget, and what other budgets save and cost on the same
batch."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch

from suite.meters.activations import SavedActivations
from suite.meters.flops import FlopCounter
from suite.model.calls import undisturbed
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.rematerialization.torch_autoac.technique import TorchAutoAC
from techniques.shared.recomputation_probes import changed, dropping, pass_of

LEAST = 0.01  # a budget that saves what is random, as fused attention is, and nothing else; at 0 torch draws it anew


@judged(
    "changed",
    "The step's gradients are those of a plain pass, to the bit",
    "partitioners.py",
    id="same_gradients",
    note="without fusion, which rounds otherwise",
)
@judged(
    "changed_with_dropout",
    "Dropout leaves out the same values when a block runs again",
    "partitioners.py",
    id="same_dropout",
    note="half of the values are dropped out in one more pass, since the small sizes drop none",
)
def probes(recording: Recording, own: TorchAutoAC) -> Mapping[str, float]:
    """Claims read ``saved_share``, saved bytes, of the way from those at the least budget to those at 1;
    ``flops_share``, FLOPs beyond those at budget 1, over those at the least; ``untraded``, of the least budget, the
    technique's and 1, larger ones that save less, or cost more FLOPs; ``uncut``, saved bytes at budget 1 over eager
    autograd's."""
    run, trace = recording.run, recording.trace
    ours = {name: gradient for one in trace.of("backward") for name, gradient in one.gradients.items()}
    with dropping(run.model):
        dropped = pass_of(recording)[0]
        with own.around_step(run):
            recomputed = pass_of(recording)[0]
    costs = [_cost(recording, technique) for technique in (TorchAutoAC(LEAST), own, TorchAutoAC(1.0))]
    saved, flops = zip(*costs, strict=True)
    return {
        "changed": changed(ours, recording.gradients_at(trace.before.parameters)),
        "changed_with_dropout": changed(recomputed, dropped),
        "saved_share": (saved[1] - saved[0]) / (saved[-1] - saved[0]),
        "flops_share": (flops[1] - flops[-1]) / (flops[0] - flops[-1]),
        "untraded": sum(a > b for a, b in pairwise(saved)) + sum(a < b for a, b in pairwise(flops)),
        "uncut": saved[-1] / _cost(recording, None)[0],
    }


def _cost(recording: Recording, technique: TorchAutoAC | None) -> tuple[int, int]:
    """Counts saved bytes and FLOPs of a pass; one before it traces."""
    run = recording.run
    with undisturbed(run.model):
        if technique is None:
            return _counted(recording)
        with technique.around_step(run):
            pass_of(recording)
            return _counted(recording)


def _counted(recording: Recording) -> tuple[int, int]:
    run = recording.run
    with FlopCounter() as flops, SavedActivations(run.model) as saved:
        with run.autocast():
            outputs = run.baseline.forward(run.model, recording.trace.batch)
        loss = run.baseline.losses(outputs, recording.trace.batch).mean()
        torch.autograd.grad(
            loss, [parameter for parameter in run.model.parameters() if parameter.requires_grad], allow_unused=True
        )
    return saved.saved_bytes, flops.total

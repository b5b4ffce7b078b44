"""What recorded steps show of the recipe: its batches and passes, its rate and decay, and what trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.reading.recording import Recording
from techniques.fine_tuning.alpaca_lora.technique import AlpacaLoRA
from techniques.fine_tuning.shared.low_rank_probes import structure
from techniques.shared.plain import apart, plain_model

OF_ITS_BASELINES = True  # whose projections are apart, or three equal parts


def records(run: Run, own: AlpacaLoRA) -> bool:
    """The start, where the update is 0, and the middle."""
    return run.step in (0, run.recipe.steps // 2)


def probes(recording: Recording, own: AlpacaLoRA) -> Mapping[str, float]:
    """Those of :func:`low_rank_probes.structure`; ``batch`` and ``passes``: examples and backward
    passes of a step; ``first_pass``: roundings of the first pass's gradients from its examples' share of the mean
    gradient, with the step's dropout; ``accumulated``: roundings of the update's gradients from the passes' sum,
    clipped at norm 1; ``rate``: the first step's learning rate over 3e-4 times its share of the warm-up; ``decay``: the
    largest weight decay; ``undropped``: whether the first pass would have the same gradients without dropout."""
    if own.implementation != "own":
        return {}
    trace, first = recording.trace, recording.traces[0]
    passes = trace.of("backward")
    micro = len(trace.indices) // len(passes)
    part = replace(trace, batch={name: tensor[:micro] for name, tensor in trace.batch.items()})
    share = micro / len(trace.indices)
    expected = recording.gradients_at(trace.before.parameters, part)
    recording.run.model.eval()
    undropped = recording.gradients_at(trace.before.parameters, part)
    recording.run.model.train()
    sums: dict[str, Tensor] = {}
    for pass_ in passes:
        for name, gradient in pass_.gradients.items():
            sums[name] = sums.get(name, torch.zeros(())) + gradient.double()
    norm = torch.stack([value.norm() for value in sums.values()]).norm().item()
    clipped = {name: value * min(1.0, 1.0 / norm) for name, value in sums.items()}
    warmup = max(1, round(100 / (3 * 50_002 / 128) * recording.run.recipe.steps))
    hyper = list(first.update.before.hyper.values())
    return {
        **structure(recording, plain_model(recording), own.rank, trains_head=False),
        "batch": len(trace.indices),
        "passes": len(passes),
        "first_pass": apart(
            passes[0].gradients, {name: share * gradient.double() for name, gradient in expected.items()}
        ),
        "accumulated": apart(trace.update.before.gradients, clipped),
        "rate": max(group["lr"] for group in hyper) * warmup / 3e-4,
        "decay": max(group["weight_decay"] for group in hyper),
        "undropped": all(torch.equal(gradient, undropped[name]) for name, gradient in expected.items()),
    }

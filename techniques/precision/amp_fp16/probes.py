"""What a recorded step shows of mixed precision in float16: the loss scale, and what a step does that overflows."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from suite.contract.recording import Recording
from suite.contract.stack import Stack
from techniques.precision.amp_fp16.technique import AmpFp16
from techniques.shared.half_probes import half_probes, zeros_beside


def probes(recording: Recording, own: AmpFp16) -> Mapping[str, float]:
    """As :func:`half_probes`, of the gradients that the optimizer gets before clipping; ``scale``: the norm of what the
    backward pass gives over that of the loss's own gradients; ``clipped_beside``: how far the norm that the optimizer
    sees is beside the unscaled gradients', clipped; ``lost_more``: values that float16 makes zero of the scaled loss's
    gradients and not of the loss's own; ``moved_by_overflow``: parameters that a step with an infinite gradient
    changes; ``scale_after_overflow``: over the one before; ``scale_after_interval``: after as many good steps as the
    interval has, over the one before."""
    trace, parameters = recording.trace, recording.trace.before.parameters
    scaled = trace.of("backward")[0].gradients
    unscaled = {name: each / own.scaler.scale for name, each in scaled.items()}
    bare = recording.gradients_at(parameters)
    exact = recording.twin("baseline").gradients_at(parameters, trace)
    seen = _norm(trace.update.before.gradients)
    clip = recording.run.recipe.gradient_clip
    expected = min(_norm(unscaled), clip) if clip else _norm(unscaled)
    moved, factor = _overflow(recording)
    return half_probes(recording, torch.float16, unscaled) | {
        "scale": _norm(scaled) / _norm(bare),
        "clipped_beside": abs(seen / expected - 1),
        "lost_more": max(0, zeros_beside(scaled, exact) - zeros_beside(bare, exact)),
        "moved_by_overflow": moved,
        "scale_after_overflow": factor,
        "scale_after_interval": _grown(recording),
    }


def _norm(gradients: Mapping[str, Tensor]) -> float:
    return torch.stack([each.double().norm() for each in gradients.values()]).norm().item()


def _overflow(recording: Recording) -> tuple[int, float]:
    """A step of a twin, one of whose gradients is infinite: values of parameters that it changes, and the scale's."""
    run = recording.twin("amp_fp16").run
    own, parameters = _own(run.technique), dict(run.model.named_parameters())
    before, scale = {name: each.detach().clone() for name, each in parameters.items()}, own.scaler.scale
    handle = next(iter(parameters.values())).register_hook(lambda gradient: gradient * float("inf"))
    run.train(1)
    handle.remove()
    moved = sum(int((each != before[name]).sum()) for name, each in parameters.items())
    return moved, own.scaler.scale / scale


def _grown(recording: Recording) -> float:
    """The scale after an interval of two good steps, over the one before."""
    run = recording.twin("amp_fp16:interval=2,scale=1024").run
    run.train(2)
    return _own(run.technique).scaler.scale / 1024


def _own(technique: object) -> AmpFp16:
    own = technique.techniques["amp_fp16"] if isinstance(technique, Stack) else technique
    assert isinstance(own, AmpFp16)
    return own

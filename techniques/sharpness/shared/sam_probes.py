"""Checks what a recorded step of SAM shows, in float64: Algorithm 1 of Foret et al. (arXiv 2010.01412) read off its
passes.

For ``sam`` and ``vit_sam``, whose step is one.
"""

from __future__ import annotations

from suite.reading.recording import Recording
from techniques.shared.ball import along, differing, length, received, restored, with_noise

SHIFT = 0.01  # of ASAM's |w| + eta


def sam_probes(recording: Recording, rho: float, adaptive: bool) -> dict[str, float]:
    """Computes ``radius``: how far the second gradient's point is along the first gradient, over rho;
    ``off_the_gradient``: from that line, in roundings; ``gradient_differs``: elements of both gradients that are not
    the plain ones there; ``not_restored``: weights that are not what they were when the optimizer steps; ``received``:
    the factor from the second gradient to what the optimizer got, over the clipping's; ``received_roundings``: what
    else differs; ``noise_differs`` and ``statistics_off``: as of :func:`techniques.shared.ball.with_noise`.

    Nothing of a run of several ranks, where each has a gradient of its own, or without a ball.
    """
    if recording.run.world_size > 1 or not rho:
        return {}
    trace = recording.trace
    weights, first, last = trace.before.parameters, trace.of("backward")[0], trace.of("backward")[-1]
    scales = {
        name: weight.double().abs() + SHIFT if adaptive and weight.ndim >= 2 else weight.double() * 0 + 1
        for name, weight in weights.items()
    }
    once = {name: scales[name] * gradient.double() for name, gradient in first.gradients.items()}
    times, off = along(weights, last.parameters, {name: scales[name] * value for name, value in once.items()})
    factor, left = received(recording)
    noise, statistics = with_noise(recording, _differing)
    return {
        "radius": times * length(once) / rho,
        "off_the_gradient": off,
        "gradient_differs": _differing(recording),
        "not_restored": restored(trace),
        "received": factor,
        "received_roundings": left,
        "noise_differs": noise,
        "statistics_off": statistics,
    }


def _differing(recording: Recording) -> int:
    return sum(
        differing(pass_.gradients, recording.gradients_at(pass_.parameters)) for pass_ in recording.trace.of("backward")
    )

"""What recorded steps show of SGD with momentum, in float64: the velocity and the step, in each of its forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from suite.loop.run import Run
from suite.reading.recording import Recording
from suite.reading.trace import Moment
from techniques.optimizers.sgd_momentum.technique import SGDMomentum
from techniques.optimizers.shared.sgd_moves import recipes, step_off, strengths, terminal_off, velocity, velocity_off
from techniques.shared.moves import again, scaled

DAMPENING = 0.25


def records(run: Run, own: SGDMomentum) -> bool:
    """The first step, which has no velocity yet, and the one in the middle."""
    return run.step in (0, run.recipe.steps // 2)


def probes(recording: Recording, own: SGDMomentum) -> Mapping[str, float]:
    """``velocity_roundings`` and ``step_roundings``: how far velocity and weights are from where torch's form leads;
    ``inside_roundings``: the weights again, with the rate inside and a velocity that has it; ``dampened_roundings``:
    with a dampening of DAMPENING; ``terminal_roundings``: how far a gradient that stays moves the weights, from
    eta g / (1 - mu); ``rate`` and ``decay`` over the baseline's; ``velocity_norm``."""
    velocities = steps = insides = dampened = 0.0
    for trace in recording.traces:
        stated = {"momentum": own.momentum, "dampening": own.dampening}
        for move in recipes(recording, trace.update, **stated):
            velocities = max(velocities, velocity_off(move))
            steps = max(steps, step_off(move, velocity(move)))
        before = trace.update.before
        inside = recipes(recording, again(recording, with_the_rate_inside(before)), **stated)
        outside = recipes(recording, trace.update, **stated)
        for ours, theirs in zip(inside, outside, strict=True):
            insides = max(insides, step_off(replace(theirs, after=ours.after), velocity(theirs)))
        damped = again(recording, scaled(before, 1.0, {}, dampening=DAMPENING))
        for move in recipes(recording, damped, **stated | {"dampening": DAMPENING}):
            dampened = max(dampened, step_off(move, velocity(move)))
    return {
        "velocity_roundings": velocities,
        "step_roundings": steps,
        "inside_roundings": insides,
        "dampened_roundings": dampened,
        "terminal_roundings": terminal_off(recording, own.momentum),
        **strengths(recording, own.momentum),
    }


def with_the_rate_inside(before: Moment) -> Moment:
    """The same moment of the papers' form, whose velocity is eta times torch's."""
    state = {
        name: {**own, "velocity": own["velocity"] * before.hyper[name]["lr"]}
        for name, own in before.state.items()
        if "velocity" in own
    }
    hyper = {name: {**own, "rate": "inside"} for name, own in before.hyper.items()}
    return replace(before, state=state, hyper=hyper)

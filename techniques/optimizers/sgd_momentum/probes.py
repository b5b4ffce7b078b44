"""Tells what recorded steps show of SGD with momentum, in float64: the velocity and the step, in each of its forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Moment
from techniques.optimizers.sgd_momentum.technique import SGDMomentum
from techniques.optimizers.shared.sgd_moves import recipes, step_off, strengths, terminal_off, velocity, velocity_off
from techniques.shared.moves import again, scaled

DAMPENING = 0.25


def records(run: Run, own: SGDMomentum) -> bool:
    """Tells whether it is the first step, which has no velocity yet, or the one in the middle."""
    return run.step in (0, run.recipe.steps // 2)


@judged(
    "velocity_roundings",
    "The velocity is mu times the last one plus the gradient with its L2 term; the first is that gradient.",
    "Equation 1, in torch's form",
    id="velocity",
    at_most=3.0,  # of the velocity and the gradient: a product of each and their sum, and the constants
)
@judged(
    "step_roundings",
    "The weights move along the velocity of this step, the learning rate outside.",
    "Equation 2, in torch's form",
    id="update",
    at_most=5.0,  # those of the velocity, the rate's and the weight's own
)
@judged(
    "inside_roundings",
    "With the rate inside the velocity the step is the same, as long as the rate is.",
    "Equations 1 and 2",
    id="rate_inside",
    at_most=5.0,
    note="the recorded steps again with rate = inside, and a velocity that has the rate",
)
@judged(
    "dampened_roundings",
    "Dampening shortens what the gradient adds to the velocity, and not the first one.",
    "torch's form of equation 1",
    id="dampening",
    at_most=5.0,
    note="the recorded steps again with a dampening of 0.25",
)
@judged(
    "terminal_roundings",
    "Momentum lengthens the steps along a gradient that stays 1 / (1 - mu) times.",
    "the geometric series of equation 1",
    id="effective_rate",
    at_most=5.0,
    note="the recorded step again with that gradient's terminal velocity and no decay",
)
@judged("rate", "The rate is 100 times AdamW's.", "the grid at nano of this card", equals=100.0, tolerance=0.001)
@judged(
    "decay",
    "What decay takes off the weights in the long run, eta lambda / (1 - mu), stays the baseline's.",
    "the variant of this card",
    equals=1.0,
    tolerance=1e-06,
)
def probes(recording: Recording, own: SGDMomentum) -> Mapping[str, float]:
    """The form is torch's. ``velocity_norm`` is shown beside."""
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
    """Returns the same moment of the papers' form, whose velocity is eta times torch's."""
    state = {
        name: {**own, "velocity": own["velocity"] * before.hyper[name]["lr"]}
        for name, own in before.state.items()
        if "velocity" in own
    }
    hyper = {name: {**own, "rate": "inside"} for name, own in before.hyper.items()}
    return replace(before, state=state, hyper=hyper)

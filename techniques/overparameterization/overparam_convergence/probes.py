"""Tells what recorded steps show of a Transformer with wider MLPs (:mod:`shared.width_probes`)."""

from __future__ import annotations

from collections.abc import Mapping

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.overparameterization.overparam_convergence.technique import OverparamConvergence
from techniques.overparameterization.shared.width_probes import distance_off, shows


def records(run: Run, own: OverparamConvergence) -> bool:
    """Tells whether it is the start or the middle."""
    return run.step in (0, run.recipe.steps // 2)


@judged(
    "changed",
    "The reference's neurons begin as its own, outgoing weights divided by the root of the width; everything outside "
    "of the MLPs is unchanged.",
    "Li & Liang 2018, section 3: outgoing weights of 1 / sqrt(m)",
    id="same_start",
    scope="module",
)
@judged(
    "off_spread",
    "New neurons are drawn as the reference's are.",
    "Section 2: random initialisation, Gaussian with one variance",
    id="same_spread",
    at_most=0.05,  # of a draw of thousands of numbers
    scope="module",
)
@judged(
    "repeated", "No two neurons begin alike.", "Section 2: independent random weights", id="independent", scope="module"
)
@judged("at_rest", "All hidden layers are trained.", "Section 2", id="all_train")
@judged(
    "neurons",
    "The hidden layers are over-parameterised: four times the reference's neurons.",
    "Abstract: neurons polynomial in layers and examples; four times is this entry's choice",
    id="width",
    equals=4.0,
    tolerance=1e-9,
    kind="counted",
    scope="module",
)
@judged(
    "distance_off",
    "The distance from the start that is told is the weights', over the start's size.",
    "Theorem 1: weights stay near where they begin",
    id="distance",
    at_most=1e-5,  # of norms in float32
)
def probes(recording: Recording, own: OverparamConvergence) -> Mapping[str, float]:
    """Includes what :func:`techniques.overparameterization.shared.width_probes.shows` says."""
    if own.width == 1:
        return {}
    told = own.probes(recording.run)["relative_distance"]
    return {**shows(recording, own.width), "distance_off": distance_off(recording, told)}

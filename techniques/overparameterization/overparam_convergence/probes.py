"""What recorded steps show of a Transformer with wider MLPs (:mod:`shared.width_probes`)."""

from __future__ import annotations

from collections.abc import Mapping

from suite.loop.run import Run
from suite.reading.recording import Recording
from techniques.overparameterization.overparam_convergence.technique import OverparamConvergence
from techniques.overparameterization.shared.width_probes import shows


def records(run: Run, own: OverparamConvergence) -> bool:
    """The start, and the middle."""
    return run.step in (0, run.recipe.steps // 2)


def probes(recording: Recording, own: OverparamConvergence) -> Mapping[str, float]:
    """What :func:`techniques.overparameterization.shared.width_probes.shows` says."""
    return shows(recording, own.width) if own.width > 1 else {}

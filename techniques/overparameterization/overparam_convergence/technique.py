"""Over-parameterised networks converge: wider layers, and weights that need not go far from where they begin.

Li & Liang (NeurIPS 2018, arXiv 1808.01204, two layers) and Allen-Zhu, Li & Song, "A Convergence Theory for Deep
Learning via Over-Parameterization" (ICML 2019, arXiv 1811.03962): (stochastic) gradient descent finds a global minimum
of the training loss in polynomial time once the width m is polynomial in the examples, if no two examples are the same;
relative to their size, weights move by O(m^-1/2). The bounds are vacuous at any width that one can run. What they
predict of trends can be tested: the study has the theory's own setting, and here the MLPs of a Transformer are wider.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, ClassVar

from torch import Tensor, nn

from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.technique import ParameterGroups, Technique
from techniques.overparameterization.shared.width import distances, matrices, widened


@dataclass
class OverparamConvergence(Technique):
    """Has ``width`` times as many neurons in every MLP, drawn as the baseline's are."""

    width: int = 4
    zero_strength: ClassVar[Mapping[str, Any]] = {"width": 1}

    start: dict[str, Tensor] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"width is a whole multiple of the baseline's neurons, 1 or more, not {self.width}")

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        return widened(model, run, self.width)

    def parameters(self, groups: ParameterGroups, run: Run) -> ParameterGroups:
        if run.step == 0:  # a resumed run is set up anew, too
            self.start = {name: matrix.detach().clone() for name, matrix in matrices(run.model).items()}
        return groups

    def sites(self, run: Run) -> Mapping[str, Site]:
        return matrices(run.model)

    def probes(self, run: Run) -> Mapping[str, float]:
        """Returns ``relative_distance``: ||W - W_0|| / ||W_0|| of the MLPs' matrices after training, on average."""
        now = matrices(run.model)
        return {"relative_distance": fmean(map(float, distances(now, self.start).values()))}

"""Over-parameterised networks generalise, and near their start: wider MLPs that may not leave a ball around it.

Allen-Zhu, Li & Liang, "Learning and Generalization in Overparameterized Neural Networks, Going Beyond Two Layers"
(NeurIPS 2019, arXiv 1811.04918): stochastic gradient descent on sufficiently over-parameterised two- and three-layer
networks learns whatever smaller networks with smooth activations can, from examples that do not grow with the width,
as there are accurate networks in a neighbourhood of the random start. If that is so, nothing is lost by staying there:
after each step every matrix of an MLP goes back to the nearest point of ||W - W_0||_F <= radius ||W_0||_F.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import ParameterGroups, Technique
from techniques.overparameterization.shared.width import distances, matrices, widened


@torch.no_grad()
def stay_near(weight: Tensor, start: Tensor, radius: float) -> None:
    """Puts ``weight`` in place at the nearest point that is at most ``radius`` ||start||_F away from ``start``.

    One that is not farther stays to the bit.
    """
    way = weight - start
    shrink = (radius * start.norm() / way.norm()).clamp(max=1.0).nan_to_num(nan=1.0)
    weight.copy_(torch.where(shrink < 1, start + shrink * way, weight))


@dataclass
class OverparamGeneralization(Technique):
    """Has ``width`` times as many neurons in every MLP, whose matrices stay within ``radius`` of where they begin,
    relative to their norm there; 0 lets them go anywhere."""

    width: int = 4
    radius: float = 0.5
    zero_strength: ClassVar[Mapping[str, Any]] = {"width": 1, "radius": 0.0}

    projected: Act = field(init=False, repr=False, default_factory=Act)
    start: dict[str, Tensor] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"width is a whole multiple of the baseline's neurons, 1 or more, not {self.width}")
        if not self.radius >= 0:
            raise ValueError(f"radius is a distance relative to the start's norm, 0 or more, not {self.radius}")

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        return widened(model, run, self.width)

    def parameters(self, groups: ParameterGroups, run: Run) -> ParameterGroups:
        if run.step == 0:  # a resumed run is set up anew, too
            self.start = {name: matrix.detach().clone() for name, matrix in matrices(run.model).items()}
        return groups

    def after_step(self, run: Run) -> None:
        if self.radius:
            if run.gradients_sharded:
                raise ValueError("overparam_generalization needs whole matrices; leave out the technique that shards")
            parameters = dict(run.model.named_parameters())
            for name, start in self.start.items():
                stay_near(parameters[name], start, self.radius)
            self.projected()

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {**({"stays near the start": self.projected} if self.radius else {}), **matrices(run.model)}

    def probes(self, run: Run) -> Mapping[str, float]:
        """Computes ``relative_distance``: ||W - W_0|| / ||W_0|| of the MLPs' matrices after training, on average."""
        now = matrices(run.model)
        return {"relative_distance": fmean(map(float, distances(now, self.start).values()))}

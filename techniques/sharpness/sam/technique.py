"""SAM: descend along the gradient taken at the worst point of a small ball around the weights.

Foret, Kleiner, Mobahi & Neyshabur, "Sharpness-Aware Minimization for Efficiently Improving Generalization" (ICLR 2021,
arXiv 2010.01412), Algorithm 1 with p = 2:

    e = rho grad L_B(w) / ||grad L_B(w)||_2          w <- base step along grad L_B(w + e)

Kwon, Kim, Park & Choi, "ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning of Deep Neural
Networks" (ICML 2021, arXiv 2102.11600), scale the ball by the weights:

    e = rho T^2 grad L_B(w) / ||T grad L_B(w)||_2    T = |w| + eta for weights, 1 for biases
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from suite.loop.data import Batch
from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.technique import Technique
from techniques.sharpness.shared.ascent import Ascent, check_radius, sharpness_aware_update


@dataclass
class Sam(Technique):
    """Two forward and two backward passes a step; the second gradient is clipped and given to the optimizer.

    ``adaptive`` is ASAM, whose radii are larger: 0.5 to 2.
    """

    rho: float = 0.05
    adaptive: bool = False
    launch: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)
    acts: Ascent = field(init=False, repr=False, compare=False, default_factory=Ascent)

    zero_strength: ClassVar[dict[str, Any]] = {"rho": 0.0}

    @property
    def takes_own_gradients(self) -> bool:
        return True

    def __post_init__(self) -> None:
        check_radius(self.rho)

    def update(self, run: Run, batch: Batch) -> None:
        sharpness_aware_update(run, batch, self.rho, self.acts, self.launch, self.adaptive)

    def sites(self, run: Run) -> Mapping[str, Site]:
        return self.acts.sites(run)

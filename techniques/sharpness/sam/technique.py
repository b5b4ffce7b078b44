"""SAM: descend along the gradient taken at the worst point of a small ball around the weights.

Foret, Kleiner, Mobahi & Neyshabur, "Sharpness-Aware Minimization for Efficiently Improving Generalization" (ICLR 2021,
arXiv 2010.01412), Algorithm 1 with p = 2:

    e = rho grad L_B(w) / ||grad L_B(w)||_2          w <- base step along grad L_B(w + e)

Kwon, Kim, Park & Choi, "ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning of Deep Neural
Networks" (ICML 2021, arXiv 2102.11600), scale the ball by the weights:

    e = rho T^2 grad L_B(w) / ||T grad L_B(w)||_2    T = |w| + eta for weights, 1 for biases
"""

from __future__ import annotations

from dataclasses import dataclass

from techniques.sharpness.shared.ascent import SharpnessAware


@dataclass
class Sam(SharpnessAware):
    """SAM with the paper's radius; ``adaptive`` is ASAM, whose radii are larger: 0.5 to 2."""

    rho: float = 0.05

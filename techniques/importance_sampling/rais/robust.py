"""Finds the distribution of examples that is best in the worst case, for gradient norms that are known with a margin.

The norms v of n examples are taken to lie in an ellipsoid around what features s_i >= 0 say of them:

    U = {v: 1/n sum_i (v_i - <c, s_i>)^2 / <d, s_i> <= 1}         c, d >= 0

The second moment of a gradient of one example, drawn with p and weighted by 1 / (n p), is 1/n^2 sum_i v_i^2 / p_i. Its
largest value over U is smallest for

    p_i ~ v*_i = <c, s_i> + k <d, s_i>         k = (1/n sum_i <d, s_i>)^(-1/2)

For any p it is (sum v*_i)^2 / n^2 or more, at v* alone; and for this one it is no more: at v* the gradient in v is that
of the ellipsoid, and as <c, s_i> >= 0, the Lagrangian is concave.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

LEAST = 1e-9  # of c and d, of what they are at the start: a norm without any margin would be divided by 0
PRECISION = {"ftol": 1e-15, "gtol": 1e-12, "maxiter": 10_000, "maxfun": 100_000}
"""The objective is flat where features say nearly the same: a solver's usual tolerance stops a tenth of a percent above
the minimum, with probabilities that are off by 2 %."""


def fitted(features: Tensor, norms: Tensor, weights: Tensor, average: Tensor) -> tuple[Tensor, Tensor]:
    """Finds c and d of the smallest ellipsoid that holds what was measured; d in the scale in which k is 1.

    The problem is min 1/n sum_i <d, s_i> subject to A = mean w (v - <c, s>)^2 / <d, s> <= 1, the mean over what was
    measured. Its objective B scales with d and A with 1 / d, so A + B has its minimum over all scales where A = B, and
    that is 2 sqrt(A B): both problems have the same c and the same direction of d. The d here, times its A, is the
    problem's own, whose k is 1 / A, so that k <d, s> is the same. A + B is convex.

    Args:
        features: float64 [measured, features]; norms, weights: float64 [measured].
        average: the features of all examples on average, none of them 0, float64 [features].
    """
    s, v, w, mean = (array.numpy() for array in (features, norms, weights, average))
    start = np.tile((w * v).mean() / (len(mean) * mean), 2)  # every feature says as much

    def objective(scaled: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Computes A + B at c and d in units of the start, and its gradient."""
        c, d = np.split(scaled * start, 2)
        off = (v - s @ c) / (s @ d)
        slope_c = -2 * (w * off) @ s / len(v)
        slope_d = mean - (w * off**2) @ s / len(v)
        return (w * off**2 * (s @ d)).mean() + d @ mean, np.concatenate([slope_c, slope_d]) * start

    bounds = [(LEAST, None)] * len(start)
    solution = minimize(objective, np.ones(len(start)), jac=True, method="L-BFGS-B", bounds=bounds, options=PRECISION)
    c, d = np.split(solution.x * start, 2)
    return torch.from_numpy(c), torch.from_numpy(d)


def robust_probabilities(features: Tensor, c: Tensor, d: Tensor, uniform: float) -> Tensor:
    """Computes p [examples] ~ <c, s_i> + <d, s_i>, k being 1; a share ``uniform`` is the same for all, which bounds
    weights."""
    worst = features @ (c + d)
    return (1 - uniform) * worst / worst.sum() + uniform / len(worst)


def gain_ratio(norms: Tensor, weights: Tensor, batch: int) -> float:
    """Estimates E||g_U||^2 / E||g_R||^2, of gradients of batches that are drawn uniformly and with weights 1 / (n p),
    at least; 1 or more. From what was drawn: float64 [drawn].

    It is 1 + (E||g_U1||^2 - E||g_R1||^2) / (batch E||g_R||^2), of gradients of one example. The batch's is unknown, but
    no longer than the examples' on average: batch E||g_R||^2 <= E||g_R1||^2 + (batch - 1) E[v]^2.
    """
    uniform, drawn = (weights * norms.square()).mean(), (weights * norms).square().mean()
    whole = drawn + (batch - 1) * (weights * norms).mean().square()
    return max(1.0, 1.0 + ((uniform - drawn) / whole).item())

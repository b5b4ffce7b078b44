"""Implements the theory's setting: a perceptron that learns from a teacher on pruned examples.

Sorscher et al. (arXiv 2206.14486), section 2: Gaussian inputs of ``d`` dimensions with the labels of a random teacher,
of which a share is kept by the teacher's margin; small ones are hard. The student is the perceptron of the largest
margin on what is kept, and its error is its angle to the teacher over pi.

The margin has to be the largest there is: a perceptron that merely separates the examples hides what pruning does. So
it is solved exactly, in finitely many steps, as least distance programming by non-negative least squares (Lawson &
Hanson, "Solving Least Squares Problems", 1974, chapter 23).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import nnls

from techniques.importance_sampling.shared.data_pruning import Order

MOST_STEPS = 30  # of the solver, for each example


def largest_margin(inputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Finds the unit vector w [d] with the largest min of y <w, x> over ``inputs`` [n, d] and ``labels`` [n] in {-1,
    1}.

    Raises ValueError where no hyperplane through the origin separates them, RuntimeError where the solver gives up.
    """
    signed = labels[:, None] * inputs
    system = np.vstack([signed.T, np.ones(len(signed))])
    target = np.zeros(len(system))
    target[-1] = 1.0
    weights, distance = nnls(system, target, maxiter=MOST_STEPS * len(signed))
    if distance < 1e-9:
        raise ValueError("no hyperplane through the origin separates these examples")
    normal = signed.T @ weights
    return normal / np.linalg.norm(normal)


def selection(margins: np.ndarray, keep: float, order: Order, random: np.random.Generator) -> np.ndarray:
    """Returns the indices of the share ``keep`` of examples with the smallest ``margins`` [n] (hard), the largest, or
    any."""
    count = max(1, round(keep * len(margins)))
    if order == "random":
        return random.permutation(len(margins))[:count]
    ranked = np.argsort(margins, kind="stable")
    return ranked[:count] if order == "hard" else ranked[-count:]


def error(dimensions: int, alpha: float, keep: float, order: Order, seed: int) -> float:
    """Computes the student's error on new examples, after pruning ``alpha`` examples a dimension to the share ``keep``.

    Equal seeds have equal teachers and examples, whatever is kept of them.
    """
    random = np.random.default_rng([seed, dimensions])
    teacher = random.standard_normal(dimensions)
    teacher /= np.linalg.norm(teacher)
    inputs = random.standard_normal((round(alpha * dimensions), dimensions))
    margins = inputs @ teacher
    chosen = selection(np.abs(margins), keep, order, random)
    student = largest_margin(inputs[chosen], np.sign(margins[chosen]))
    return math.acos(min(1.0, max(-1.0, float(student @ teacher)))) / math.pi

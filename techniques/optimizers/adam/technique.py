"""Adam: steps by the ratio of the gradient's mean to the root of its mean square, coordinate by coordinate.

Kingma & Ba, "Adam: A Method for Stochastic Optimization" (ICLR 2015, arXiv 1412.6980), Algorithm 1:

    m = b1 m + (1 - b1) g            v = b2 v + (1 - b2) g^2
    m_hat = m / (1 - b1^t)           v_hat = v / (1 - b2^t)          theta = theta - alpha m_hat / (sqrt(v_hat) + eps)

The paper has no weight decay. Libraries add L2 regularisation to the gradient (``coupled``: g + lambda theta), which
then passes through the statistics; ``decoupled`` is AdamW. BERT's original code leaves the bias correction out and
decouples. Its corrections are the limit of many steps, so here it is a run whose step counter starts at infinity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import torch

from suite.contract.recipe import Recipe
from suite.contract.run import Run
from suite.contract.technique import ParameterGroups, Technique
from techniques.shared.adam import Adam, Decay, adam_step


@dataclass
class AdamTechnique(Technique):
    """Adam at the recipe's learning rate, betas and decay, which are AdamW's.

    ``decay="decoupled"`` is the reference to the bit; with ``bias_correction=False`` it is BERT's own optimizer.
    """

    decay: Decay = "coupled"
    bias_correction: bool = True

    zero_strength: ClassVar[dict[str, Any]] = {"decay": "decoupled"}

    def __post_init__(self) -> None:
        if self.decay not in get_args(Decay):
            raise ValueError(f"decay must be coupled or decoupled, not {self.decay!r}")

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Adam:
        return Adam(
            parameters,
            lr=recipe.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            eps=recipe.eps,
            decay=self.decay,
            bias_correction=self.bias_correction,
            fused=recipe.fused_optimizer,
        )

    def probes(self, run: Run) -> Mapping[str, float]:
        """In learning rates: the largest coordinate of a first step along the last gradient, and of the last step; the
        latter over section 2.1's bound; the last step's root mean square."""
        beta1, beta2, eps = run.recipe.beta1, run.recipe.beta2, run.recipe.eps
        first, last, squares, count = 0.0, 0.0, 0.0, 0
        for parameter, state in run.optimizer.state.items():
            if parameter.grad is None:
                continue
            begun, m, v = torch.zeros_like(parameter), torch.zeros_like(parameter), torch.zeros_like(parameter)
            start = 1.0 if self.bias_correction else math.inf
            adam_step(begun, parameter.grad, m, v, start, learning_rate=1.0, beta1=beta1, beta2=beta2, eps=eps)
            t = float(state["step"])
            deviation = (state["second_moment"] / (1 - beta2**t)).sqrt() + eps
            moved = state["first_moment"] / (1 - beta1**t) / deviation
            first, last = max(first, begun.abs().max().item()), max(last, moved.abs().max().item())
            squares, count = squares + moved.square().sum().item(), count + moved.numel()
        bound = max(1.0, (1 - beta1) / math.sqrt(1 - beta2))
        rms = math.sqrt(squares / max(1, count))
        return {"largest_first_step": first, "largest_step": last, "step_over_bound": last / bound, "step_rms": rms}

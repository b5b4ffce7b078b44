"""AdamW: weight decay acts on the weights themselves and not through Adam's gradient statistics.

Loshchilov & Hutter, "Decoupled Weight Decay Regularization" (ICLR 2019, arXiv 1711.05101), Algorithm 2, Appendix B.1:

    m = b1 m + (1 - b1) g            v = b2 v + (1 - b2) g^2
    theta = theta - eta_t (alpha m_hat / (sqrt(v_hat) + eps) + lambda theta),      lambda = lambda_norm sqrt(b / (B T))

The paper's decay follows the schedule's multiplier eta_t alone; libraries (torch, optax) multiply it by the whole
learning rate eta_t alpha. The two are one update under lambda_library = lambda / alpha: the optimizer here speaks
torch's dialect, and the technique translates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.optim.adamw import adamw as torch_adamw

from suite.recipe import Recipe
from suite.technique import ParameterGroups, Technique


def adamw_step(
    parameter: Tensor,
    gradient: Tensor,
    first_moment: Tensor,
    second_moment: Tensor,
    step: int,
    *,
    learning_rate: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> None:
    """Algorithm 2 on one tensor, in place; ``step`` counts from 1, all tensors have one shape and dtype."""
    parameter.mul_(1 - learning_rate * weight_decay)
    first_moment.lerp_(gradient, 1 - beta1)
    second_moment.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    deviation = (second_moment.sqrt() / math.sqrt(1 - beta2**step)).add_(eps)
    parameter.addcdiv_(first_moment, deviation, value=-learning_rate / (1 - beta1**step))


def normalised_decay(normalised: float, steps: int) -> float:
    """Appendix B.1: lambda for a run of ``steps`` = B T / b updates (B examples, T epochs, batch b)."""
    return normalised / math.sqrt(steps)


def launched(parameter: Tensor, fused: bool) -> bool:
    """Whether the kernel beside this file updates ``parameter``."""
    if not (fused and parameter.is_cuda):
        return False
    from suite.kernels.optimizer_parts import launchable

    return launchable([parameter])


class AdamW(torch.optim.Optimizer):
    """AdamW with torch's hyper-parameters. ``fused`` takes a one-kernel update, otherwise :func:`adamw_step`.

    That kernel is torch's on a CPU; on a GPU it is the one beside this file, which keeps float32 moments for bfloat16
    parameters and counts steps on the host (torch's still serves what ours does not take, such as float16).
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        fused: bool = True,
    ) -> None:
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(
                f"AdamW needs lr, eps, weight_decay >= 0 and betas in [0, 1); got {lr}, {eps}, {weight_decay}, {betas}"
            )
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "fused": fused})
        self._tables: dict[tuple[int, int], Any] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._tables = {}  # the kernel's, by parameter group: they hold addresses, and the tensors are new
        for group in self.param_groups:
            for parameter in group["params"]:
                if own := self.state.get(parameter):  # saved where the step was counted elsewhere, perhaps
                    own["step"] = _counter(parameter, group["fused"], int(own["step"]))
                    if isinstance(own["step"], int):  # torch loads moments in the parameter's dtype
                        own |= {name: own[name].float() for name in ("first_moment", "second_moment")}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for index, group in enumerate(self.param_groups):
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            states = [self.state[parameter] or self._begin(parameter, group["fused"]) for parameter in parameters]
            if int in {type(state["step"]) for state in states}:
                parameters, states = self._launch(index, group, parameters, states)
            hyper = {"eps": group["eps"], "weight_decay": group["weight_decay"]}
            beta1, beta2 = group["betas"]
            if group["fused"]:
                torch_adamw(
                    parameters,
                    [parameter.grad for parameter in parameters],
                    [state["first_moment"] for state in states],
                    [state["second_moment"] for state in states],
                    [],
                    [state["step"] for state in states],
                    fused=True, amsgrad=False, maximize=False, lr=group["lr"], beta1=beta1, beta2=beta2, **hyper,
                )  # fmt: skip
                continue
            for parameter, state in zip(parameters, states, strict=True):
                state["step"] += 1
                adamw_step(
                    parameter, parameter.grad, state["first_moment"], state["second_moment"], int(state["step"]),
                    learning_rate=group["lr"], beta1=beta1, beta2=beta2, **hyper,
                )  # fmt: skip
        return loss

    def _begin(self, parameter: Tensor, fused: bool) -> dict[str, Any]:
        state = self.state[parameter]
        state["step"] = _counter(parameter, fused, 0)
        dtype = torch.float32 if isinstance(state["step"], int) else parameter.dtype
        for name in ("first_moment", "second_moment"):
            state[name] = torch.zeros_like(parameter, dtype=dtype, memory_format=torch.preserve_format)
        return state

    def _launch(
        self, index: int, group: dict[str, Any], parameters: list[Tensor], states: list[dict[str, Any]]
    ) -> tuple[list[Tensor], list[dict[str, Any]]]:
        """Updates what the kernel takes, in one launch for all at one step; returns the others and their states."""
        from techniques.optimizers.adamw import kernel

        steps = [state["step"] if type(state["step"]) is int else -1 for state in states]
        beta1, beta2 = group["betas"]
        for rank, step in enumerate(sorted({*steps} - {-1})):
            own = [(parameters[number], states[number]) for number, each in enumerate(steps) if each == step]
            kernel.adamw_step(
                [parameter for parameter, _ in own],
                [parameter.grad.contiguous() for parameter, _ in own if parameter.grad is not None],
                [state["first_moment"] for _, state in own],
                [state["second_moment"] for _, state in own],
                self._tables.setdefault((index, rank), kernel.launch_tables()),
                step=step + 1, lr=float(group["lr"]), beta1=beta1, beta2=beta2, eps=group["eps"],
                weight_decay=group["weight_decay"],
            )  # fmt: skip
            for _, state in own:
                state["step"] = step + 1
        others = [number for number, step in enumerate(steps) if step < 0]
        return [parameters[number] for number in others], [states[number] for number in others]


def _counter(parameter: Tensor, fused: bool, steps: int) -> int | Tensor:
    """``steps`` as the update that will count them keeps it."""
    if launched(parameter, fused):
        return steps
    # torch's fused kernel reads the step on the parameter's device; elsewhere a host number spares a transfer
    return torch.tensor(float(steps), dtype=torch.float32, device=parameter.device if fused else "cpu")


@dataclass
class AdamWTechnique(Technique):
    """The paper's decay: its own normalised strength, scaled by the schedule's multiplier alone.

    ``decay="learning_rate"`` keeps the recipe's decay, scaled by the whole learning rate: the reference to the bit.
    """

    decay: Literal["schedule", "learning_rate"] = "schedule"
    normalised: float = 0.025

    zero_strength: ClassVar[dict[str, Any]] = {"decay": "learning_rate"}

    def __post_init__(self) -> None:
        if self.decay not in ("schedule", "learning_rate"):
            raise ValueError(f"decay must be schedule or learning_rate, not {self.decay!r}")
        if self.normalised < 0:
            raise ValueError(f"normalised (the paper's lambda_norm) must be 0 or more, not {self.normalised}")

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> AdamW:
        if self.decay == "schedule":
            strength = normalised_decay(self.normalised, recipe.steps)
            parameters = [group | {"weight_decay": library_decay(strength, group, recipe)} for group in parameters]
        return AdamW(
            parameters,
            lr=recipe.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            eps=recipe.eps,
            fused=recipe.fused_optimizer,
        )


def library_decay(strength: float, group: dict[str, Any], recipe: Recipe) -> float:
    """lambda / alpha for a group that decays: what torch's form needs to shrink the weights by eta_t lambda a step."""
    if not group["weight_decay"]:
        return 0.0
    return strength / (recipe.learning_rate * group.get("learning_rate_scale", 1.0))

"""Implements SGD with momentum: the update of one tensor and the optimizer around it.

For ``sgd_momentum``, whose docstring has the forms of the update, and ``nesterov_agd``, which trains networks with
Nesterov's form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from torch import Tensor
from torch.optim.sgd import sgd as torch_sgd

from suite.kernels.optimizer import GroupedOptimizer, rate_of
from suite.kernels.refusals import at_least_0
from suite.kernels.sharded import distributed_as

Rate = Literal["outside", "inside"]
HYPER = ("momentum", "dampening", "weight_decay", "nesterov")


def sgd_step(
    parameter: Tensor,
    gradient: Tensor,
    velocity: Tensor | None,
    *,
    learning_rate: float,
    momentum: float,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    rate: Rate = "outside",
) -> Tensor | None:
    """Makes the update of one tensor, in place on ``parameter`` and ``velocity``, which is None before the first step.

    Returns the velocity to keep; None without momentum.
    """
    if weight_decay:
        gradient = gradient.add(parameter, alpha=weight_decay)
    length = learning_rate if rate == "outside" else 1.0  # what multiplies the velocity in the parameter's update
    pushed = gradient if rate == "outside" else gradient * learning_rate
    if momentum:
        if velocity is None:
            velocity = pushed.clone()
        else:
            velocity.mul_(momentum).add_(pushed, alpha=1 - dampening)
        pushed = pushed.add(velocity, alpha=momentum) if nesterov else velocity
    parameter.add_(pushed, alpha=-length)
    return velocity


class SGD(GroupedOptimizer):
    """Implements SGD with torch's hyper-parameters and a choice of where the learning rate stands.

    State is one buffer a parameter, ``velocity``; none without momentum. ``fused`` takes torch's one-kernel update or,
    on a GPU, this technique's, ``foreach`` torch's update of lists, both for the rate outside; otherwise
    :func:`sgd_step` goes tensor by tensor. Where the gradient is dampened, ``step`` tells the first.
    """

    torch_names = {"momentum_buffer": "velocity"}

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.9,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        rate: Rate = "outside",
        fused: bool = True,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
    ) -> None:
        hyper = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        ways = {"fused": fused, "foreach": foreach, "maximize": maximize, "capturable": capturable}
        super().__init__(params, hyper | {"nesterov": nesterov, "rate": rate} | ways)

    def check(self, group: dict[str, Any]) -> None:
        lr, momentum, dampening, weight_decay = (group[n] for n in ("lr", "momentum", "dampening", "weight_decay"))
        if not at_least_0(lr, weight_decay) or not 0 <= momentum < 1 or not 0 <= dampening < 1:
            raise ValueError(
                f"SGD needs lr, weight_decay >= 0 and momentum, dampening in [0, 1); "
                f"got {lr}, {weight_decay}, {momentum}, {dampening}"
            )
        if group["nesterov"] and (not momentum or dampening):
            raise ValueError("Nesterov's form needs momentum and no dampening")
        if group["rate"] not in get_args(Rate):
            raise ValueError(f"rate, where the learning rate stands, must be outside or inside, not {group['rate']!r}")

    def counts(self, group: dict[str, Any]) -> bool:
        return bool(group["momentum"] and group["dampening"])

    def first_count(self, parameter: Tensor, group: dict[str, Any]) -> float:
        return float("velocity" in self.state.get(parameter, ()))

    def split_by(self, parameter: Tensor, group: dict[str, Any]) -> bool:
        """Tells whether a parameter has a velocity, since torch's fused update takes velocities for all of a list or
        for none of it."""
        return "velocity" in self.state.get(parameter, ())

    def update(
        self, group: dict[str, Any], parameters: list[Tensor], values: list[Tensor], gradients: list[Tensor]
    ) -> None:
        begun = "velocity" in self.state.get(parameters[0], ())
        velocities: list[Any] = self.buffers(parameters, "velocity") if begun else [None] * len(values)
        hyper = {name: group[name] for name in HYPER}
        if (group["fused"] or group["foreach"]) and group["rate"] == "outside":
            # fills the list where there are no velocities yet
            way: dict[str, Any] = {"foreach": True} if group["foreach"] else {"fused": True}
            torch_sgd(values, gradients, velocities, lr=rate_of(group), maximize=False, **way, **hyper)
        else:
            columns = zip(values, gradients, velocities, strict=True)
            velocities = [
                sgd_step(*column, learning_rate=rate_of(group), rate=group["rate"], **hyper) for column in columns
            ]
        if group["momentum"] and not begun:
            for parameter, velocity in zip(parameters, velocities, strict=True):
                self.state[parameter]["velocity"] = distributed_as(parameter, velocity)

    def launches(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> bool:
        one_kernel = group["fused"] and not group["foreach"] and group["rate"] == "outside" and group["momentum"]
        return bool(one_kernel) and super().launches(group, parameters)

    def launch(
        self,
        group: dict[str, Any],
        parameters: list[Tensor],
        values: list[Tensor],
        gradients: list[Tensor],
        **fused: Any,
    ) -> None:
        from techniques.shared import sgd_kernel as kernel

        velocities, tables = self.buffers(parameters, "velocity"), self.tables(parameters, kernel.launch_tables)
        first: bool | Tensor = self.step_of(parameters) == 1 if self.counts(group) else False
        hyper = {"lr": group["lr"], "first": first} | {name: group[name] for name in HYPER}
        kernel.sgd_step(values, gradients, velocities, tables, **hyper, **fused)

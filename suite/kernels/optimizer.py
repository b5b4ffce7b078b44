"""What our optimizers share: a step over lists of parameters, and the launch tables of kernels that take whole lists.

An optimizer says how a list of a group's parameters is updated: by torch's operators and, on a GPU, by a kernel; and
perhaps which parameters are updated together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


def launchable(tensors: Sequence[Tensor]) -> bool:
    """Whether kernels take these tensors; torch's operators take others. Loads Triton for CUDA tensors only."""
    if not tensors or not tensors[0].is_cuda:
        return False
    from suite.kernels import optimizer_parts

    return optimizer_parts.launchable(tensors)


def contiguous(gradients: Sequence[Tensor]) -> list[Tensor]:
    """``gradients`` as kernels need them; autograd may leave them in any layout."""
    return [gradient.contiguous() for gradient in gradients]


def descend(parameter: Tensor, direction: Tensor, learning_rate: float | Tensor, weight_decay: float) -> None:
    """theta <- (1 - eta lambda) theta - eta u, in place: a step with decoupled decay. A tensor eta has shape []."""
    parameter.mul_(1 - learning_rate * weight_decay)
    if isinstance(learning_rate, Tensor):
        parameter.addcmul_(direction, learning_rate, value=-1)
    else:
        parameter.add_(direction, alpha=-learning_rate)


@cache
def compiled_over_lists(step: Callable[..., None]) -> Callable[..., None]:
    """``step``, which updates one tensor in place, over lists of tensors: one pass over memory each, in one call.

    Compiled at its first call, a quarter of a second a tensor. Numbers are compiled in: give what changes from step to
    step, such as the learning rate, as a tensor.
    """

    def steps(*lists: Sequence[Tensor], **hyper: float | Tensor) -> None:
        for tensors in zip(*lists, strict=True):
            step(*tensors, **hyper)

    return torch.compile(steps, dynamic=False)


class GroupedOptimizer(torch.optim.Optimizer):
    """Overrides :meth:`update`; :meth:`launch` where there is a kernel, :meth:`begin_step` where state has to be made
    or steps counted, :meth:`split_by` where the parameters of a group differ in how they are updated.

    What a step does beside the update costs no pass over the gradients of its own where a kernel updates:

    * :meth:`clip` clips their joint norm, and leaves a step out whose gradients are not finite;
    * ``torch.amp.GradScaler`` hands over its scale and flag, ``grad_scale`` and ``found_inf``, instead of unscaling;
    * a parameter group with ``"stochastic_rounding": True`` rounds bfloat16 parameters at random, so that updates
      below half a unit in the last place are not lost. Only kernels do.
    """

    whole_layers: ClassVar[bool] = False
    """Whether the update needs each layer whole, for its norm."""

    _step_supports_amp_scaling = True  # GradScaler's question

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        super().__init__(params, defaults)
        self._reset()

    def _reset(self) -> None:
        self._tables: dict[Tensor, Any] = {}  # they hold addresses
        self._clip: Tensor | None = None
        self._overflow: Tensor | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called by ``load_state_dict``, copies and pickles too."""
        super().__setstate__(state)
        self._reset()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises ValueError for ``"sharded"`` parameters where whole layers are needed: a shard has another norm."""
        if self.whole_layers and param_group.get("sharded"):
            raise ValueError(
                f"{type(self).__name__} needs the norms of whole layers, and these parameters are shards of them: "
                "take an optimizer that goes element by element, or do not shard its state"
            )
        super().add_param_group(param_group)

    @torch.no_grad()
    def clip(self, largest_norm: float) -> Tensor:
        """Clips the next step's gradients to a joint L2 norm of ``largest_norm``, as ``clip_grad_norm_`` does, but in
        the update; a step whose norm is not finite is left out. Returns the norm, of shape [].

        Under a GradScaler call its ``unscale_`` first.
        """
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        self._clip = (largest_norm / (norm + 1e-6)).clamp(max=1.0)
        self._overflow = (~norm.isfinite()).float()
        return norm

    def gradient_factor(self) -> Tensor | None:
        """The factor of this step's gradients, of shape []; None for 1."""
        scale: Tensor | None = getattr(self, "grad_scale", None)
        if scale is None:
            return self._clip
        unscaled = scale.reshape(()).reciprocal()
        return unscaled if self._clip is None else unscaled * self._clip

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.update_all()
        self._clip = self._overflow = None
        return loss

    def update_all(self) -> None:
        """Updates every parameter that has a gradient."""
        factor, flags = self.gradient_factor(), [getattr(self, "found_inf", None), self._overflow]
        given = [flag for flag in flags if flag is not None]
        skip = torch.stack([flag.reshape(()) for flag in given]).sum() if given else None
        for group in self.param_groups:
            lists: dict[Hashable, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.begin_step(parameter, group)
                    lists.setdefault(self.split_by(parameter, group), []).append(parameter)
            for parameters in lists.values():
                gradients = [p.grad for p in parameters if p.grad is not None]
                if self.launches(group, parameters):
                    seed = int(torch.randint(2**31, ())) if group.get("stochastic_rounding") else None
                    self.launch(group, parameters, contiguous(gradients), clip=factor, found_inf=skip, seed=seed)
                elif skip is None or not skip.item():
                    _refuse_stochastic_rounding(group, parameters)
                    scaled = gradients if factor is None else list(torch._foreach_mul(gradients, factor))
                    self.update(group, parameters, scaled)

    def begin_step(self, parameter: Tensor, group: dict[str, Any]) -> None:
        """Prepares a parameter's state, once a step and before any update: makes it, counts the step."""

    def split_by(self, parameter: Tensor, group: dict[str, Any]) -> Hashable:
        """Parameters of a group are updated together if this is equal. A query: it changes nothing."""
        return None

    def update(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Updates ``parameters``, one or more of ``group``, and their state, in place; gradients stay as they are."""
        raise NotImplementedError

    def launches(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> bool:
        """Whether :meth:`launch` updates these parameters and not :meth:`update`."""
        return type(self).launch is not GroupedOptimizer.launch and launchable(parameters)

    def launch(
        self,
        group: dict[str, Any],
        parameters: list[Tensor],
        gradients: list[Tensor],
        *,
        clip: Tensor | None,
        found_inf: Tensor | None,
        seed: int | None,
    ) -> None:
        """:meth:`update` by the kernel: ``clip`` multiplies the gradients, which are contiguous; where ``found_inf`` is
        not 0 nothing is written; ``seed`` rounds bfloat16 parameters stochastically."""
        raise NotImplementedError

    def buffers(self, parameters: Sequence[Tensor], name: str, dtype: torch.dtype | None = None) -> list[Tensor]:
        """The state ``name`` of each parameter, of its shape and, without ``dtype``, its dtype; zeros at first."""
        for parameter in parameters:
            state = self.state[parameter]
            if name not in state:
                state[name] = torch.zeros_like(parameter, dtype=dtype)
            elif dtype is not None:
                state[name] = state[name].to(dtype)  # torch loads states in the parameter's dtype
        return [self.state[parameter][name] for parameter in parameters]

    def tables(self, parameters: Sequence[Tensor], new: Callable[[], Any]) -> Any:
        """The kernel's launch tables for a list of parameters, by its first; ``new`` makes them."""
        if parameters[0] not in self._tables:
            self._tables[parameters[0]] = new()
        return self._tables[parameters[0]]


def _refuse_stochastic_rounding(group: dict[str, Any], parameters: Sequence[Tensor]) -> None:
    if group.get("stochastic_rounding") and any(each.dtype == torch.bfloat16 for each in parameters):
        raise ValueError("stochastic rounding is the kernel's, which updates float32 and bfloat16 parameters on a GPU")

"""Has what our optimizers share: a step over lists of parameters, and the launch tables of kernels that take whole
lists.

An optimizer says how a list of a group's parameters is updated: by torch's operators and, on a GPU, by a kernel; and
perhaps which parameters are updated together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from suite.kernels.optimizer_state import (
    COUNTER,
    counters,
    renamed,
    restore_dtypes,
    rounding_seed,
    rounding_step,
    share_counters,
)
from suite.kernels.refusals import refuse_complex, refuse_gradients
from suite.kernels.sharded import is_distributed, layout, local, local_gradient, shard_dimensions, total_norm


def launchable(tensors: Sequence[Tensor]) -> bool:
    """Tells whether kernels take these tensors; torch's operators take others. Loads Triton for CUDA tensors only."""
    if not tensors or not tensors[0].is_cuda:
        return False
    from suite.kernels import optimizer_parts

    return optimizer_parts.launchable(tensors)


def contiguous(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Returns ``gradients`` as kernels need them; autograd may leave them in any layout."""
    return [gradient.contiguous() for gradient in gradients]


def descend(parameter: Tensor, direction: Tensor, learning_rate: float | Tensor, weight_decay: float) -> None:
    """Sets theta <- (1 - eta lambda) theta - eta u, in place: a step with decoupled decay. A tensor eta has shape
    []."""
    parameter.mul_(1 - learning_rate * weight_decay)
    if isinstance(learning_rate, Tensor):
        parameter.addcmul_(direction, learning_rate, value=-1)
    else:
        parameter.add_(direction, alpha=-learning_rate)


@cache
def compiled_over_lists(step: Callable[..., None]) -> Callable[..., None]:
    """Returns ``step``, which updates one tensor in place, over lists of tensors: one pass over memory each, in one
    call.

    Compiled at its first call, a quarter of a second a tensor. Numbers are compiled in: give what changes from step to
    step, such as the learning rate, as a tensor.
    """

    def steps(*lists: Sequence[Tensor], **hyper: float | Tensor) -> None:
        for tensors in zip(*lists, strict=True):
            step(*tensors, **hyper)

    return torch.compile(steps, dynamic=False)


class GroupedOptimizer(torch.optim.Optimizer):
    """Overrides :meth:`update`; :meth:`launch` where there is a kernel, :meth:`check` for its hyper-parameters,
    :meth:`counts` where it needs the number of the step, :meth:`split_by` where the parameters of a group differ in how
    they are updated.

    The same on both ways:

    * state is float32 for bfloat16 and float16 parameters. torch's operators update a float32 copy of those, which is
      rounded once, at the end;
    * a list has one device, dtype, distribution and number of steps; a group may have several of each;
    * of a DTensor the part that this rank holds is updated;
    * ``"maximize": True`` in a group goes uphill.

    What a step does beside the update costs no pass over the gradients of its own where a kernel updates:

    * :meth:`clip` clips their joint norm, and leaves a step out whose gradients are not finite;
    * ``torch.amp.GradScaler`` hands over its scale and flag, ``grad_scale`` and ``found_inf``, instead of unscaling;
    * a parameter group with ``"stochastic_rounding": True`` rounds bfloat16 parameters at random, so that updates
      below half a unit in the last place are not lost. Only kernels do. The noise comes from the group's
      ``"rounding_seed"`` (0 if there is none) and the number of steps, so that replicas stay equal.

    A step that is left out is not counted. Where kernels update, nothing waits for the device, and ``lr`` may be a
    tensor there: so a CUDA graph can capture a step, once a step has been made outside it.
    """

    whole_layers: ClassVar[bool] = False
    """Whether the update needs each layer whole, for its norm."""

    torch_names: ClassVar[Mapping[str, str]] = {}
    """torch's names of the state -> ours, where torch has this optimizer: its checkpoints load."""

    _step_supports_amp_scaling = True  # GradScaler's question

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        super().__init__(params, defaults)
        self._reset()

    def _reset(self) -> None:
        self._tables: dict[Tensor, Any] = {}  # they hold addresses
        self._clip: tuple[Tensor, float] | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Is called by ``load_state_dict``, copies and pickles too; older ones may lack a key."""
        super().__setstate__(state)
        self._reset()
        for group in self.param_groups:
            for name, default in self.defaults.items():
                if name != "differentiable":  # torch's own, of no optimizer here
                    group.setdefault(name, default)
            share_counters(self.state, group, self.counter_device)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores a state to the bit, also torch's own of the same optimizer."""
        captured: dict[str, Any] = {}

        def own(_: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
            captured.update(renamed(saved, self.torch_names, self.defaults))
            return captured

        hook = self.register_load_state_dict_pre_hook(own)  # after the user's, which may change what is loaded
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
        restore_dtypes(self, captured)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises ValueError for hyper-parameters out of range and, where whole layers are needed, for ``"sharded"``
        parameters, which are flat pieces of several layers; TypeError for complex parameters."""
        if self.whole_layers and param_group.get("sharded"):
            raise ValueError(
                f"{type(self).__name__} needs the norms of whole layers, and these parameters are shards of them: "
                "take an optimizer that goes element by element, or do not shard its state"
            )
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self.check(group)
            refuse_complex(self, group["params"])
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    def check(self, group: dict[str, Any]) -> None:
        """Raises ValueError where a group's hyper-parameters are out of range."""

    @torch.no_grad()
    def clip(self, largest_norm: float) -> Tensor:
        """Clips the next step's gradients to a joint L2 norm of ``largest_norm``, as ``clip_grad_norm_`` does, but in
        the update; a step whose norm is not finite is left out.

        Under a GradScaler ``largest_norm`` is that of unscaled gradients, whether its ``unscale_`` has been called or
        not. Returns the norm of the gradients as they are, of shape [].
        """
        if not largest_norm >= 0:
            raise ValueError(f"the largest norm of the gradients must be 0 or more, not {largest_norm}")
        norm = total_norm([p.grad for group in self.param_groups for p in group["params"] if p.grad is not None])
        self._clip = norm, largest_norm
        return norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._clip = None  # it was of the gradients that go
        super().zero_grad(set_to_none)

    def gradient_factor(self) -> Tensor | None:
        """Returns the factor of this step's gradients, of shape []; None for 1."""
        scale: Tensor | None = getattr(self, "grad_scale", None)
        unscaled = None if scale is None else scale.reshape(()).reciprocal()
        if self._clip is None:
            return unscaled
        norm, largest = self._clip
        if unscaled is not None:
            norm = norm * unscaled.to(norm.device)
        clipped = (largest / (norm + 1e-6)).clamp(max=1.0)
        return clipped if unscaled is None else unscaled.to(norm.device) * clipped

    def _left_out(self) -> Tensor | None:
        """Returns a tensor that is not 0 where this step is to be left out, of shape []; None where it certainly is
        not."""
        flags = [found_inf.reshape(())] if (found_inf := getattr(self, "found_inf", None)) is not None else []
        if self._clip is not None:
            flags.append((~self._clip[0].isfinite()).float())
        return torch.stack([flag.to(flags[0].device) for flag in flags]).sum() if flags else None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        try:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self.update_all()
        finally:
            self._clip = None
        return loss

    def update_all(self) -> None:
        """Updates every parameter that has a gradient. What it refuses, it refuses before anything has changed."""
        refuse_gradients(self)
        factor, left_out = self.gradient_factor(), self._left_out()
        ran = None if left_out is None else (left_out == 0).float()
        waits: bool | None = None  # whether this step is left out, as far as the host had to know
        for number, (group, parameters, launched) in enumerate(self._lists(ran)):
            values, gradients = list(map(local, parameters)), list(map(local_gradient, parameters))
            device = values[0].device
            own = None if factor is None else factor.to(device)
            if group.get("maximize"):
                own = torch.full((), -1.0, device=device) if own is None else -own
            if launched:
                flag = None if left_out is None else left_out.to(device, torch.float32)
                seed = rounding_seed(group, number, device) if group.get("stochastic_rounding") else None
                clip = None if own is None else own.to(torch.float32)
                self.launch(group, parameters, values, contiguous(gradients), clip=clip, found_inf=flag, seed=seed)
            else:
                waits = bool(left_out) if waits is None and left_out is not None else waits
                if not waits:
                    self._update_by_torch(group, parameters, values, gradients, own)
            if is_distributed(parameters[0]):
                increment_version(parameters)

    def _lists(self, ran: Tensor | None) -> list[tuple[dict[str, Any], list[Tensor], bool]]:
        """Returns the parameters that are updated together, with their group, and whether by the kernel; of those this
        step is counted, where it ``ran``."""
        lists: list[tuple[dict[str, Any], list[Tensor], bool]] = []
        counting: list[Tensor] = []
        for group in self.param_groups:
            counted = self.counts(group)
            if counted:
                counting += counters(self.state, group, self.first_count, self.counter_device)
            alike: dict[Hashable, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    number = id(self.state[parameter][COUNTER]) if counted else None
                    key = parameter.device, parameter.dtype, layout(parameter), number
                    alike.setdefault((*key, self.split_by(parameter, group)), []).append(parameter)
            for parameters in alike.values():
                launched = self.launches(group, parameters)
                if not launched:
                    self._refuse_what_kernels_do(group, parameters)
                lists.append((group, parameters, launched))
            if group.get("stochastic_rounding") and alike:
                counting.append(rounding_step(group))
        for counter in counting:
            counter.add_(1 if ran is None else ran.to(counter.device, counter.dtype))
        return lists

    def _refuse_what_kernels_do(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> None:
        if group.get("stochastic_rounding") and any(parameter.dtype == torch.bfloat16 for parameter in parameters):
            raise ValueError(
                "stochastic rounding is the kernel's, which updates float32 and bfloat16 parameters on a GPU"
            )
        if group.get("capturable"):
            raise ValueError(
                f"capturable: {type(self).__name__} waits for no device only where its kernel updates, which takes "
                f"contiguous float32 and bfloat16 parameters on a GPU, not {parameters[0].dtype} on "
                f"{parameters[0].device}: leave capturable out"
            )

    def _update_by_torch(
        self,
        group: dict[str, Any],
        parameters: list[Tensor],
        values: list[Tensor],
        gradients: list[Tensor],
        factor: Tensor | None,
    ) -> None:
        wide = wide_dtype(values[0])
        moved = values if values[0].dtype == wide else [value.to(wide) for value in values]
        scaled = [gradient.to(wide) for gradient in gradients]
        if factor is not None:
            scaled = list(torch._foreach_mul(scaled, factor))
        self.update(group, parameters, moved, scaled)
        if moved is not values:
            torch._foreach_copy_(values, moved)

    def counts(self, group: dict[str, Any]) -> bool:
        """Tells whether the update needs the number of the step: :meth:`step_of`."""
        return False

    def first_count(self, parameter: Tensor, group: dict[str, Any]) -> float:
        """Returns the number of steps that a parameter without a counter has behind it."""
        return 0.0

    def counter_device(self, parameter: Tensor, group: dict[str, Any]) -> torch.device | str:
        """Tells where the steps are counted: beside the parameter, for those who do not wait for its device."""
        return parameter.device

    def step_of(self, parameters: Sequence[Tensor]) -> Tensor:
        """Returns the number of this step, from 1, for parameters that are updated together: float32, of shape []."""
        counter: Tensor = self.state[parameters[0]][COUNTER]
        return counter

    def split_by(self, parameter: Tensor, group: dict[str, Any]) -> Hashable:
        """Parameters of a group are updated together if this is equal. A query: it changes nothing, not even by asking
        :attr:`state` for a parameter that has none."""
        return None

    def update(
        self, group: dict[str, Any], parameters: list[Tensor], values: list[Tensor], gradients: list[Tensor]
    ) -> None:
        """Updates ``values``, what this rank holds of one or more ``parameters`` of ``group``, in float32 at least, and
        the parameters' state, in place; gradients, of the same dtype, stay as they are."""
        raise NotImplementedError

    def launches(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> bool:
        """Tells whether :meth:`launch` updates these parameters and not :meth:`update`. A query."""
        return (
            type(self).launch is not GroupedOptimizer.launch
            and launchable(list(map(local, parameters)))
            and not (self.whole_layers and shard_dimensions(parameters[0]))
        )

    def launch(
        self,
        group: dict[str, Any],
        parameters: list[Tensor],
        values: list[Tensor],
        gradients: list[Tensor],
        *,
        clip: Tensor | None,
        found_inf: Tensor | None,
        seed: Tensor | None,
    ) -> None:
        """Does as :meth:`update`, by the kernel, of ``values`` in the parameters' dtype: ``clip`` multiplies the
        gradients, which are contiguous; where ``found_inf`` is not 0 nothing is written; ``seed`` rounds bfloat16
        parameters stochastically."""
        raise NotImplementedError

    def buffers(self, parameters: Sequence[Tensor], name: str, dtype: torch.dtype | None = None) -> list[Tensor]:
        """Returns what this rank holds of the state ``name`` of each parameter, of its shape and of ``dtype`` or,
        without one, its own, but float32 at least; zeros at first."""
        for parameter in parameters:
            state, wanted = self.state[parameter], dtype or wide_dtype(parameter)
            if name not in state:
                state[name] = torch.zeros_like(parameter, dtype=wanted)
            elif state[name].dtype != wanted:  # of a checkpoint from elsewhere
                state[name] = state[name].to(wanted)
        return [local(self.state[parameter][name]) for parameter in parameters]

    def tables(self, parameters: Sequence[Tensor], new: Callable[[], Any]) -> Any:
        """Returns the kernel's launch tables for a list of parameters, by its first; ``new`` makes them."""
        if parameters[0] not in self._tables:
            self._tables[parameters[0]] = new()
        return self._tables[parameters[0]]


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """Returns the dtype of ``tensor``, but float32 at least."""
    return torch.promote_types(tensor.dtype, torch.float32)


def rate_of(group: dict[str, Any]) -> float:
    """Returns the learning rate as a number; reading a tensor waits for its device."""
    return float(group["lr"])

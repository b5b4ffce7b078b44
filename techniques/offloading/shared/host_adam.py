"""Runs AdamW on the host for a model on the device (Ren et al., "ZeRO-Offload", USENIX ATC 2021, arXiv 2101.06840).

::

    device   θ (half)  ── backward ── g_k, as soon as it is whole ─┐            ┌─▶ θ_k, tile by tile
    host                                                           └▶ g ─ Adam ─┘    p, m, v in float32

For ``zero_offload``, ``l2l`` and ``zero_infinity_param``. A *tile* is one parameter. The arithmetic is that of torch's
AdamW after torch's clipping, so that without a delay each step is the same as on the device, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adam import adam as torch_adam

from suite.chain.tiers import StoredTensor, Tier
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.technique import AUXILIARY, ParameterGroups
from suite.record.job import StackError
from techniques.offloading.shared.away import Away


def halved(model: nn.Module) -> nn.Module:
    """Returns ``model`` with its floating parameters in bfloat16, in place; buffers stay as they are."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(torch.bfloat16)
    return model


@dataclass
class HostState:
    """Holds what the host keeps of a parameter, in float32; ``image`` is what the device gets, in the parameter's own
    type: the master itself where that is float32."""

    master: StoredTensor
    first_moment: StoredTensor
    second_moment: StoredTensor
    image: StoredTensor
    step: int = 0
    gradient: StoredTensor | None = None

    @classmethod
    def of(cls, parameter: Tensor, tier: Tier) -> HostState:
        image = parameter.home.stored if isinstance(parameter, Away) else tier.store(parameter)
        master = image if parameter.dtype == torch.float32 else tier.store(parameter.detach().float())
        first, second = (tier.zeros(image, torch.float32) for _ in range(2))
        return cls(master, first, second, image)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the host's own memory, by name."""
        names = ("master", "first_moment", "second_moment")
        return {name: getattr(self, name).host() for name in names}

    def imaged(self) -> None:
        """Rounds the master to what the device gets."""
        if self.image is not self.master:
            self.image.host().copy_(self.master.host())


def demand_one_process(run: Run, technique: str) -> None:
    """Raises StackError where a run has several ranks: :meth:`HostAdamW.receiving` takes gradients while they arise,
    and ranks would have exchanged them first."""
    if run.mesh is not None:
        raise StackError(
            f"{run.job.stack} cannot be stacked: {technique} sends one process's gradients to the host while they "
            "arise, and ranks would exchange them first; leave out what makes several ranks"
        )


class HostAdamW(Optimizer):
    """Implements AdamW whose master weights, moments and arithmetic are on the host; the device keeps its parameters
    alone.

    Gradients go to ``tier`` from :meth:`receiving`, where several backward passes add up; :meth:`step` clips them to
    the global L2 norm ``max_norm`` (0 for none) and updates. After ``delay_after`` steps (None: never) the host's work
    goes on beside the next step, and its result comes when that one ends: the delayed parameter update.
    """

    def __init__(
        self,
        params: Any,
        tier: Tier,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        fused: bool = True,
        max_norm: float = 0.0,
        delay_after: int | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "fused": fused})
        self.tier, self.max_norm, self.delay_after = tier, max_norm, delay_after
        self.host = {p: HostState.of(p, tier) for group in self.param_groups for p in group["params"]}
        self.steps = 0
        self.working: Future[None] | None = None  # the update whose result the device does not have yet

    @classmethod
    def of(cls, parameters: ParameterGroups, tier: Tier, recipe: Recipe, delay_after: int | None = None) -> HostAdamW:
        """Builds the AdamW that the recipe asks for, with its clipping."""
        return cls(
            parameters,
            tier,
            lr=recipe.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            eps=recipe.eps,
            fused=recipe.fused_optimizer,
            max_norm=recipe.gradient_clip,
            delay_after=delay_after,
        )

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Backward passes meanwhile send each gradient to the host as soon as it is whole, and free it."""
        hooks = [parameter.register_post_accumulate_grad_hook(self.receive) for parameter in self.host]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def receive(self, parameter: Tensor) -> None:
        """Sends a parameter's gradient, if it has one, to the host, and frees it."""
        state, gradient = self.host[parameter], parameter.grad
        if gradient is None:
            return
        if gradient.untyped_storage().nbytes() > gradient.nbytes:
            gradient = gradient.clone()  # a part of something larger, which need not go along
        arrived, parameter.grad = self.tier.store(gradient), None
        if state.gradient is None:
            state.gradient = arrived
            return
        if arrived.has_values:
            self.on_host(_add, state.gradient, arrived).result()
        arrived.free()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients on the device and those that the host has not used."""
        super().zero_grad(set_to_none)
        for state in self.host.values():
            if state.gradient is not None:
                state.gradient.free()
                state.gradient = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Makes one update by the gradients that the host has received. Takes no closure, which would read them."""
        self.update()

    @torch.no_grad()
    def update(self) -> None:
        """Acts as :meth:`step`, of which torch's hooks expect gradients on the device."""
        self.finish()
        work: Work = []
        for group in self.param_groups:
            states = [self.host[parameter] for parameter in group["params"]]
            work.append(({**group, "params": None}, [(state, state.gradient) for state in states if state.gradient]))
            for state in states:
                state.gradient = None  # the next step's may come while the host works
        self.working = self.on_host(_update, work, self.max_norm)
        self.steps += 1
        if self.delay_after is None or self.steps <= self.delay_after:
            self.finish()

    @torch.no_grad()
    def finish(self) -> None:
        """Waits for the host's update, if there is one, and copies the parameters to the device, tile by tile."""
        if self.working is None:
            return
        self.working.result()
        self.working = None
        for parameter, state in self.host.items():
            self.bring(parameter, state.image)

    def bring(self, parameter: Tensor, image: StoredTensor) -> None:
        """Copies one tile to the device, unless it comes there when it is used."""
        if not isinstance(parameter, Away):
            parameter.copy_(image.take(keep=True))

    def on_host(self, work: Callable[..., None], *args: Any) -> Future[None]:
        """Starts ``work`` on the host's thread."""
        return self.tier.worker.submit(work, *args)

    # saving ---------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns torch's state, with the host's tensors copied, and whether the device is one update late."""
        late = self.working is not None
        if self.working is not None:
            self.working.result()
        states = [
            {"step": state.step, **{name: tensor.clone() for name, tensor in state.tensors().items()}}
            for state in self.host.values()
        ]
        return {**super().state_dict(), "state": dict(enumerate(states)), "steps": self.steps, "late": late}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Does the inverse; for parameters that are loaded, too."""
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        for state, saved in zip(self.host.values(), state_dict["state"].values(), strict=True):
            state.step = saved["step"]
            for name, tensor in state.tensors().items():
                tensor.copy_(saved[name])
            state.imaged()
        self.steps = state_dict["steps"]
        self.working = self.on_host(_nothing) if state_dict["late"] else None


Work = list[tuple[dict[str, Any], list[tuple[HostState, StoredTensor]]]]
"""Parameter groups as they were when the update was asked for, with the states that have a gradient."""


@torch.no_grad()
def _update(work: Work, max_norm: float) -> None:
    by_group = [
        (group, [gradient.host().float() for _, gradient in states if gradient.has_values]) for group, states in work
    ]
    gradients = [gradient for _, own in by_group for gradient in own]
    for auxiliary in (False, True):
        together = [gradient for group, own in by_group if bool(group.get(AUXILIARY)) == auxiliary for gradient in own]
        if max_norm and together:
            _clip(together, max_norm)
    remaining = iter(gradients)
    for group, states in work:
        for state, gradient in states:  # one tile at a time
            state.step += 1
            if not gradient.has_values:
                continue
            tensors = state.tensors()
            torch_adam(
                [tensors["master"]],
                [next(remaining)],
                [tensors["first_moment"]],
                [tensors["second_moment"]],
                [],
                [torch.tensor(float(state.step - 1))],
                fused=group["fused"],
                foreach=False,
                amsgrad=False,
                maximize=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                eps=group["eps"],
                weight_decay=group["weight_decay"],
                decoupled_weight_decay=True,
            )
            state.imaged()
    _free(work)


def _clip(gradients: list[Tensor], max_norm: float) -> None:
    """Applies torch's clipping, of gradients that stand alone."""
    holders = [nn.Parameter(torch.empty_like(gradient)) for gradient in gradients]
    for holder, gradient in zip(holders, gradients, strict=True):
        holder.grad = gradient
    nn.utils.clip_grads_with_norm_(holders, max_norm, nn.utils.get_total_norm(gradients))


def _free(work: Work) -> None:
    for _, states in work:
        for _, gradient in states:
            gradient.free()


@torch.no_grad()
def _add(total: StoredTensor, gradient: StoredTensor) -> None:
    total.host().add_(gradient.host())


def _nothing() -> None:
    pass

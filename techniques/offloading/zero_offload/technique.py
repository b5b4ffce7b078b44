"""ZeRO-Offload (Ren et al., USENIX ATC 2021, arXiv 2101.06840, sections 3 and 5): the device keeps the parameters in
half precision and computes with them; gradients, float32 master weights, Adam's moments and Adam itself are the host's.

    device 2 Ψ bytes (θ)      host 4 Ψ (p) + 4 Ψ (m) + 4 Ψ (v) + 2 Ψ (g)      link 2 Ψ (g) + 2 Ψ (θ) a step

where training in mixed precision takes 16 Ψ on the device. Each gradient goes to the host as soon as the backward pass
has it; each parameter comes back as soon as it is rounded. With the delayed parameter update (section 5.2) the host
updates while the device computes the next step: θ of step t + 1 is then that of the gradients up to step t - 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import nn

from suite.chain.tiers import HostTier
from suite.loop.data import Batch
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import ParameterGroups, Technique
from techniques.offloading.shared.host_adam import HostAdamW, demand_one_process, halved


@dataclass
class ZeroOffload(Technique):
    """Reads ``delay_after``: steps after which the update is delayed (the paper warms up for some dozens); None for no
    delay.

    ``half``: parameters and gradients in bfloat16; None as the recipe computes. Where they are in float32, each step is
    the reference's to the bit.
    """

    delay_after: int | None = None
    half: bool | None = None

    host: HostAdamW = field(init=False, repr=False)
    updated: Act = field(init=False, repr=False, default_factory=Act)

    def __post_init__(self) -> None:
        if self.delay_after is not None and self.delay_after < 0:
            raise ValueError(f"delay_after is a number of steps, 0 or more, or none, not {self.delay_after}")

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, precision="bf16") if self.half else recipe

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        demand_one_process(run, "zero_offload")
        half = run.recipe.precision == "bf16" if self.half is None else self.half
        return halved(model) if half else model

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> HostAdamW:
        self.host = HostAdamW.of(parameters, HostTier(), recipe, self.delay_after)
        return self.host

    def update(self, run: Run, batch: Batch) -> None:
        self.host.zero_grad()
        loss = run.forward(batch)
        with self.host.receiving():
            run.backward(loss)
        run.loss = loss.detach()
        if not run.technique.after_backward(run):
            self.host.update()
            self.updated()

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {**run.trained_parameters(), "updates on the host": self.updated}

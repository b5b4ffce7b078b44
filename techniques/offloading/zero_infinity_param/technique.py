"""ZeRO-Infinity's offload engine for parameters (Rajbhandari et al., SC 2021, arXiv 2104.07857, section 5): the blocks'
parameters, and all optimizer states and gradients, live in the host's memory or in files; a block's weights come to the
device for its forward and for its backward pass, and the next blocks' are on their way meanwhile.

    forward    load w_1 (w_2 comes) f_1 free w_1   load w_2 (w_3 comes) f_2 free w_2   ...
    backward   load w_L (w_L-1 comes) f_L' free w_L   ...

What is on the device is a block and the window, however deep the model is. Memory-centric tiling divides what a large
linear layer needs there: its tiles are fetched, used and freed one after the other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from suite.chain.tiers import FileTier, HostTier, Tier
from suite.loop.data import Batch
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import ParameterGroups, Technique, Unavailable
from suite.model.anatomy import anatomy
from suite.model.segments import split_hidden
from techniques.offloading.shared.away import Unit, in_their_places, sent_away
from techniques.offloading.shared.host_adam import HostAdamW, demand_one_process, halved
from techniques.offloading.zero_infinity_param.tiled import Tiled

STATE_BYTES = 16  # of a trained parameter in the tier: in float32 p, m, v, g; in half precision θ and g with p, m, v


@dataclass
class Window:
    """Holds the blocks' units in their order, and how many more than the running one are on the device."""

    units: list[Unit]
    ahead: int
    loaded: Act

    @contextmanager
    def around(self, blocks: list[nn.Module]) -> Iterator[None]:
        """Forward and backward passes meanwhile find each block's parameters loaded."""
        with ExitStack() as hooks:
            for number, block in enumerate(blocks):
                before, after = partial(self.before, number), partial(self.after, number)
                hooks.callback(block.register_forward_pre_hook(before, with_kwargs=True).remove)
                hooks.callback(block.register_forward_hook(after).remove)
            try:
                yield
            finally:
                for unit in self.units:
                    unit.free()

    def before(self, number: int, block: nn.Module, args: Any, kwargs: Any) -> None:
        """The block is about to run."""
        self.load(number, range(number + 1, number + 1 + self.ahead))
        hidden, _, _ = split_hidden(args, kwargs)
        if number == 0 and hidden.requires_grad:
            hidden.register_hook(lambda gradient: self.units[0].free())

    def after(self, number: int, block: nn.Module, args: Any, output: Any) -> None:
        """The block has run; when its output's gradient is there, the next block's backward pass is over."""
        self.units[number].free()
        hidden: Tensor = output[0] if isinstance(output, tuple) else output
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: self.backwards(number))

    def backwards(self, number: int) -> None:
        """The block's backward pass is next."""
        if number + 1 < len(self.units):
            self.units[number + 1].free()
        self.load(number, range(number - 1, number - 1 - self.ahead, -1))

    def load(self, number: int, following: range) -> None:
        self.units[number].load()
        self.loaded()
        for unit in following:
            if 0 <= unit < len(self.units):
                self.units[unit].fetch()


@dataclass
class ZeroInfinityParam(Technique):
    """Reads ``tier``: the host's memory, or files in ``folder`` (the system's temporary one where it is empty), of at
    most ``tier_gb``. ``window``: blocks on their way while one computes. ``tiles``: parts of linear layers with more
    weights than width × width. ``half``: parameters in bfloat16; None as the recipe computes."""

    tier: Literal["host", "file"] = "host"
    folder: str = ""
    tier_gb: float | None = None
    window: int = 1
    tiles: int = 1
    half: bool | None = None

    store: Tier = field(init=False, repr=False)
    schedule: Window = field(init=False, repr=False)
    host: HostAdamW = field(init=False, repr=False)
    loaded: Act = field(init=False, repr=False, default_factory=Act)

    def __post_init__(self) -> None:
        if self.tier not in ("host", "file"):
            raise ValueError(f"tier is host or file, not {self.tier!r}")
        if self.window < 0:
            raise ValueError(f"window is 0 blocks or more, not {self.window}")
        if self.tiles < 1:
            raise ValueError(f"tiles is 1 or more, not {self.tiles}")
        if self.tier_gb is not None and not self.tier_gb > 0:
            raise ValueError(f"tier_gb is positive, or none for no limit, not {self.tier_gb}")

    def recipe(self, recipe: Recipe) -> Recipe:
        if recipe.compile:
            raise Unavailable("a compiled graph holds its parameters, and here they come and go: take modern")
        return replace(recipe, precision="bf16") if self.half else recipe

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        demand_one_process(run, "zero_infinity_param")
        half = run.recipe.precision == "bf16" if self.half is None else self.half
        if self.tiles > 1:
            parts = anatomy(model)
            for block in parts.every_block:
                for part in block.linears:
                    if part.module.get_parameter("weight").numel() > block.width**2:
                        parts.replace(part.path, Tiled(part.module, self.tiles))
        return halved(model) if half else model

    def parameters(self, groups: ParameterGroups, run: Run) -> ParameterGroups:
        capacity = None if self.tier_gb is None else round(self.tier_gb * 2**30)
        self.store = (
            HostTier(capacity) if self.tier == "host" else FileTier(self.folder or tempfile.gettempdir(), capacity)
        )
        self.store.check_room(STATE_BYTES * sum(parameter.numel() for group in groups for parameter in group["params"]))
        blocks = [block.module for block in run.anatomy.every_block]
        alone = [
            tile for block in blocks for module in block.modules() if isinstance(module, Tiled) for tile in module.tiles
        ]
        _, tiles = sent_away(run.model, alone, self.store)
        units, places = sent_away(run.model, blocks, self.store)
        self.schedule = Window(units, self.window, self.loaded)
        return in_their_places(groups, {**tiles, **places})

    def new_store(self) -> Tier:
        """Builds the empty tier that the options ask for."""
        capacity = None if self.tier_gb is None else round(self.tier_gb * 2**30)
        if self.tier == "file":
            return FileTier(self.folder or tempfile.gettempdir(), capacity)
        return HostTier(capacity)

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> HostAdamW:
        self.host = HostAdamW.of(parameters, self.store, recipe)
        return self.host

    def update(self, run: Run, batch: Batch) -> None:
        self.host.zero_grad()
        with self.schedule.around([block.module for block in run.anatomy.every_block]):
            loss = run.forward(batch)
            with self.host.receiving():
                run.backward(loss)
        run.loss = loss.detach()
        if not run.technique.after_backward(run):
            self.host.update()

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {**run.trained_parameters(), "loads a block": self.loaded}

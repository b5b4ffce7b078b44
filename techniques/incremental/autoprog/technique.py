"""Implements AutoProg (Li et al., CVPR 2022): a vision Transformer that decides itself whether, where and how much it
grows.

Training has stages of equally many steps. Depth and picture size psi = (l, r) start at half and may only grow. At the
start of each stage but the last, the model grows to the deepest candidate; for a few steps this supernet trains in
a candidate drawn at random, the others' blocks skipped; the stage goes on with

    psi* = argmin L(psi) T(psi)^alpha

of the candidates' losses L and costs T, alpha being the power of T with which L falls among them. The last stage is the
whole model. New blocks are copies of neighbours as they are in a moving average of the weights (MoGrow).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.loop.data import mixed_seed
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from suite.model.anatomy import anatomy
from suite.model.calls import undisturbed
from suite.model.patches import PatchGrid, patch_grid, picture_of
from suite.model.skipping import check_skippable, skipping
from techniques.incremental.autoprog.growth import best, block_cost, newcomers, sources
from techniques.incremental.shared.any_size import AnySize
from techniques.incremental.shared.carried import readopt
from techniques.incremental.shared.stages import planned_sizes, stage_at

Average = list[dict[str, Tensor]]
"""The moving average of each block's parameters, by name."""
MOST = 3  # depths, and sizes, among the candidates of a stage


class Candidate(NamedTuple):
    """Describes a depth in blocks and pictures of ``side`` pixels."""

    depth: int
    side: int


@dataclass
class AutoProg(Technique):
    """Trains in ``stages`` stages, depth and size from ``smallest`` times the whole on; each search takes the share
    ``search`` of the steps, and the average reaches back over the share ``memory`` of them."""

    stages: int = 4
    smallest: float = 0.5
    search: float = 0.02
    memory: float = 0.02
    zero_strength: ClassVar[Mapping[str, Any]] = {"stages": 1}

    searched: Act = field(init=False, repr=False, default_factory=lambda: Act(due="run"))
    grid: PatchGrid | None = field(init=False, repr=False, default=None)
    depths: list[int] = field(init=False, default_factory=list)
    sides: list[int] = field(init=False, default_factory=list)
    current: Candidate = field(init=False, default=Candidate(0, 0))  # what the stage trains, or the search started from
    candidates: list[Candidate] = field(init=False, default_factory=list)  # while searching, the smallest first
    average: Average = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.stages < 1:
            raise ValueError(f"stages must be 1 or more, not {self.stages}")
        for name in ("smallest", "search", "memory"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share, in (0, 1], not {getattr(self, name)}")
        if self.search * (self.stages - 1) >= 1:
            raise ValueError(f"{self.stages - 1} searches of {self.search} of the steps each leave none to train in")

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if self.is_reference:
            return model
        if run.mesh is not None:
            raise ValueError("autoprog changes the model while it trains: use it in a single process")
        if run.recipe.compile:
            raise ValueError("autoprog runs other blocks in each step of a search, each another graph: use modern")
        if run.baseline.modality != "image":
            raise ValueError(f"autoprog needs pictures, which {run.baseline.id} has none of")
        parts = anatomy(model)
        parts.main.check_alike()
        check_skippable(model, parts.blocks, partial(run.trial, model))
        self.grid = patch_grid(model, partial(run.trial, model))
        AnySize(self.grid).attach(model)
        self.depths = sorted(set(planned_sizes(parts.depth, 1, self.smallest, self.stages)))
        self.sides = sorted(set(planned_sizes(self.grid.side, self.grid.patch, self.smallest, self.stages)))
        self.current = Candidate(self.depths[0], self.sides[0])
        self.average = [_values(block.module) for block in parts.blocks]
        self.candidates = _all(self.depths, self.sides)  # the first supernet is the whole model, as it was initialised
        self.check(model, run)
        return model

    def check(self, model: nn.Module, run: Run) -> None:
        """Raises ValueError where the model does not take pictures of the first size."""
        side = self.sides[0]
        hook = model.register_forward_pre_hook(partial(_shrunk, side), prepend=True, with_kwargs=True)
        try:
            with torch.no_grad(), undisturbed(model):
                run.trial(model)
        except (RuntimeError, ValueError, IndexError, AssertionError) as error:
            raise ValueError(
                f"{type(model).__name__} does not take pictures of {side}x{side} pixels: {error}"
            ) from error
        finally:
            hook.remove()

    # what is run ----------------------------------------------------------------------------------------------------

    @contextmanager
    def around_step(self, run: Run) -> Iterator[None]:
        if self.is_reference:
            yield
            return
        with self.running(run, self.drawn(run) if self.candidates else self.current):
            yield

    def drawn(self, run: Run) -> Candidate:
        """Draws the candidate of this step of a search: the largest in the first, where all must learn, then any."""
        if run.step == self.start(run, self.stage(run)):
            return self.candidates[-1]
        return Random(mixed_seed(run.seed, 6, run.step)).choice(self.candidates)

    @contextmanager
    def running(self, run: Run, candidate: Candidate) -> Iterator[None]:
        """While active, the model is the candidate: on smaller pictures, without the first of its new blocks."""
        blocks = [block.module for block in run.anatomy.blocks]
        with ExitStack() as stack:
            stack.enter_context(skipping([blocks[index] for index in self.skipped(len(blocks), candidate)]))
            shrink = partial(_shrunk, candidate.side)
            stack.callback(run.model.register_forward_pre_hook(shrink, prepend=True, with_kwargs=True).remove)
            yield

    def skipped(self, depth: int, candidate: Candidate) -> list[int]:
        """Returns the blocks, of ``depth``, that a candidate lacks."""
        new = newcomers(self.current.depth, depth)
        return new[: depth - candidate.depth]

    # the schedule ---------------------------------------------------------------------------------------------------

    def stage(self, run: Run) -> int:
        return stage_at(run.step, run.recipe.steps, self.stages)

    def start(self, run: Run, stage: int) -> int:
        """Returns the first step of a stage."""
        return math.ceil(stage * run.recipe.steps / self.stages)

    def search_steps(self, run: Run) -> int:
        """Steps of a search: two at least, one to train all and one to choose by."""
        return max(2, round(self.search * run.recipe.steps))

    def after_step(self, run: Run) -> None:
        if self.is_reference:
            return
        self.follow(run)
        stage = stage_at(run.step - 1, run.recipe.steps, self.stages)  # of the step that is over
        ends = min(self.start(run, stage) + self.search_steps(run), self.start(run, stage + 1))
        if self.candidates and run.step == ends:
            self.choose(run)
        if run.step == self.start(run, stage + 1) and stage + 1 < self.stages:
            last = stage + 2 == self.stages
            candidates = [Candidate(self.depths[-1], self.sides[-1])] if last else self.growth_space()
            self.grow(run, candidates[-1].depth)
            self.current, self.candidates = (candidates[0], []) if last else (self.current, candidates)

    def growth_space(self) -> list[Candidate]:
        """Returns the present depth and size, and the next larger ones."""
        depths = [depth for depth in self.depths if depth >= self.current.depth]
        return _all(depths[:MOST], [side for side in self.sides if side >= self.current.side][:MOST])

    # growth ---------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def follow(self, run: Run) -> None:
        """The average goes on towards the weights. Raises ValueError where another technique changes the depth."""
        if len(run.anatomy.blocks) != len(self.average):
            raise ValueError("autoprog and another technique of the stack both change the depth: keep one of them")
        rate = 1 / (1 + self.memory * run.recipe.steps)
        for block, average in zip(run.anatomy.blocks, self.average, strict=True):
            for name, parameter in block.module.named_parameters():
                average[name].lerp_(parameter, rate)

    def choose(self, run: Run) -> None:
        """Ends a search: of the supernet the best candidate's blocks stay."""
        losses, costs = self.judged(run)
        winner = self.candidates[best(losses, costs)]
        gone = set(self.skipped(len(self.average), winner))
        if gone:
            self.set_blocks(run, [index for index in range(len(self.average)) if index not in gone])
        self.current, self.candidates = winner, []
        self.searched()

    def judged(self, run: Run) -> tuple[list[float], list[float]]:
        """Returns the losses of all candidates on the batch that comes next, and their costs."""
        assert self.grid is not None
        batch, _ = run.next_batch()
        losses = []
        with torch.no_grad(), undisturbed(run.model), run.autocast():
            run.model.eval()
            for candidate in self.candidates:
                with self.running(run, candidate):
                    outputs = run.baseline.forward(run.model, batch)
                losses.append(run.baseline.losses(outputs, batch).mean().item())
        block, extra = run.anatomy.blocks[0], self.grid.tables[0].extra
        tokens = [extra + (candidate.side // self.grid.patch) ** 2 for candidate in self.candidates]
        costs = [
            float(candidate.depth * block_cost(block, n)) for candidate, n in zip(self.candidates, tokens, strict=True)
        ]
        return losses, costs

    @torch.no_grad()
    def grow(self, run: Run, depth: int) -> None:
        """Adds new blocks up to ``depth``: copies of neighbours, with their averages for weights."""
        old = len(self.average)
        if depth > old:
            self.set_blocks(run, sources(old, depth), newcomers(old, depth))

    def set_blocks(self, run: Run, origin: Sequence[int], new: Sequence[int] = ()) -> None:
        """Makes blocks ``origin`` of the present ones the model's, those at the places ``new`` as averaged copies."""
        old, averages = [block.module for block in run.anatomy.blocks], self.average
        blocks = [copy.deepcopy(old[index]) if place in new else old[index] for place, index in enumerate(origin)]
        self.average = [{name: average.clone() for name, average in averages[index].items()} for index in origin]
        for place in new:
            blocks[place].load_state_dict(self.average[place], strict=False)
        run.anatomy.set_blocks(blocks)
        readopt(run)

    # saving ---------------------------------------------------------------------------------------------------------

    def sites(self, run: Run) -> Mapping[str, Site]:
        assert self.grid is not None
        blocks: dict[str, Site] = {block.path: block.module for block in run.anatomy.blocks}
        return {**blocks, self.grid.cutter.path: self.grid.cutter.module, "chooses": self.searched}

    def state(self) -> dict[str, Any]:
        return {
            "current": list(self.current),
            "candidates": [list(candidate) for candidate in self.candidates],
            "average": self.average,
        }

    def restore(self, state: dict[str, Any], run: Run) -> None:
        if self.is_reference:
            return
        if len(state["average"]) < len(self.average):
            self.set_blocks(run, range(len(state["average"])))
        self.current = Candidate(*state["current"])
        self.candidates = [Candidate(*candidate) for candidate in state["candidates"]]
        self.average = [dict(state) for state in state["average"]]


def _all(depths: Sequence[int], sides: Sequence[int]) -> list[Candidate]:
    """Returns all candidates, the smallest first, the largest last."""
    return [Candidate(depth, side) for depth in depths for side in sides]


def _values(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def _shrunk(side: int, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns a model's arguments with its pictures at ``side`` pixels."""
    pictures = picture_of(args, kwargs)
    if pictures.shape[-1] == side:
        return None
    small = F.interpolate(pictures, size=(side, side), mode="bilinear", align_corners=False, antialias=True)
    return tuple(small if argument is pictures else argument for argument in args), {
        name: small if argument is pictures else argument for name, argument in kwargs.items()
    }

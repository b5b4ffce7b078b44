"""How deep a model trains with LayerScale and without it (CaiT, arXiv 2103.17239, section 2 and table 1).

A model of L blocks is the baseline with more of them, each freshly initialised; nothing else changes, the learning rate
and its schedule included. The paper asks for the accuracy at its depths; at this size it is whether the loss falls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from suite.contract.data import mixed_seed
from suite.contract.run import Diverged, Run
from suite.contract.sites import Act, Site
from suite.contract.stack import Stack
from suite.contract.technique import Technique
from suite.measure.lab import Lab, Table
from suite.model.anatomy import anatomy
from suite.record.job import Job
from techniques.initialization.layerscale.technique import LayerScaleTechnique, initial_scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASELINES = ("vit", "gpt")
DEPTHS = (4, 8, 16, 32, 64)
STEPS = 150  # 64 blocks for as long as nano trains its four would take ten minutes
LAST = 10  # steps that the loss at the end is the mean of
TRAINED = 0.8  # of the first loss: one at this part of it, or below, has learned
NOTE = (
    f"Training loss over the first step's, after {STEPS} steps, mean over the seeds that did not diverge; trained: "
    f"seeds at {TRAINED:g} or below; scale: where LayerScale starts at that depth"
)


@dataclass
class Deeper(Technique):
    """The baseline with ``depth`` blocks: those beyond its own are those of freshly initialised models."""

    depth: int
    deepened: Act = field(init=False, repr=False, default_factory=Act)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        parts, setting = anatomy(model), run.job.setting
        blocks = [block.module for block in parts.blocks]
        for number in range(1, math.ceil(self.depth / len(blocks))):
            torch.manual_seed(mixed_seed(run.seed, 5, number))
            more = run.baseline.model(setting.size, run.data, setting.model).to(run.device)
            anatomy(more).set_fused_attention(run.recipe.fused_attention)
            blocks += [block.module for block in anatomy(more).blocks]
        parts.set_blocks(blocks[: self.depth])
        self.deepened()
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {"deepens": self.deepened}


class Row(NamedTuple):
    """One depth, with or without; None where every seed diverged."""

    depth: int
    scaled: bool
    scale: float
    seeds: int
    trained: int
    loss_ratio: float | None


def study(lab: Lab, depths: Sequence[int] = DEPTHS, steps: int = STEPS) -> list[Table]:
    """The table ``depth``; these runs are not recorded."""
    rows = []
    pairs = [(depth, scaled) for depth in depths for scaled in (False, True)]
    for number, (depth, scaled) in enumerate(pairs):
        lab.progress(number / len(pairs), f"{depth} blocks {'with' if scaled else 'without'} LayerScale")
        ratios = [loss_ratio(lab, depth, scaled, seed, steps) for seed in range(lab.seeds)]
        finite = [each for each in ratios if math.isfinite(each)]
        trained = sum(each <= TRAINED for each in finite)
        mean = sum(finite) / len(finite) if finite else None
        rows.append(tuple(Row(depth, scaled, initial_scale(depth) if scaled else 1.0, len(ratios), trained, mean)))
    return [Table("depth", Row._fields, rows, NOTE)]


def loss_ratio(lab: Lab, depth: int, scaled: bool, seed: int, steps: int) -> float:
    """Mean of the last losses over the first; infinite where it diverges."""
    techniques: dict[str, Technique] = {"deeper": Deeper(depth)}
    if scaled:
        techniques["layerscale"] = LayerScaleTechnique()
    try:
        losses = Run(Job(setting=lab.setting.but(steps=steps), seed=seed), technique=Stack(techniques)).train(steps)
    except Diverged:
        return math.inf
    last = losses[-LAST:]
    return sum(last) / len(last) / losses[0]


def plot(tables: Sequence[Table]) -> Figure:
    """The loss at the end over the first, against the depth; what diverged is left out."""
    from matplotlib.figure import Figure

    rows = [Row(*each) for each in tables[0].rows]
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    for scaled, label in ((True, "with LayerScale"), (False, "without")):
        own = [each for each in rows if each.scaled == scaled and each.loss_ratio is not None]
        axes.plot([each.depth for each in own], [each.loss_ratio for each in own], marker="o", label=label)
    axes.axhline(TRAINED, linestyle="--", color="grey", label="has learned")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="blocks", ylabel=f"loss after {STEPS} steps over the first")
    axes.legend()
    return figure

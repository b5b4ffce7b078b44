"""Tells what a baseline can tell apart: controls whose effect is known, against the noise of its seeds.

* *seeds*: the reference against itself with another seed, in pairs of runs at its own budget and at its neighbours on
  the scaling curve, between which small changes are read: other weights, other batches. No effect is there, and nothing
  is shared that a technique shares with its reference.
* *perturbed*: every weight times 1 + 3 % noise before the first step, the same batches. No effect is there either, and
  the two runs share all else: the noise of a technique that changes what does not matter.
* *half the rate*: a real effect that every baseline should see; removing 10 % of the gradients hardly harms Adam, so
  that is no control.
* *SGD*: whatever technique of the catalogue is asked for beside them.

An effect is read as an equivalent budget off the reference's scaling curve (:mod:`suite.judge.ruler`), as in every row.
Controls whose runs are missing when time is up are left out, and named.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from torch import nn

from suite.entries.sources import code_of
from suite.entries.together import run_of
from suite.judge.ruler import Ruler
from suite.judge.statistics import (
    Interval,
    detectable_effect,
    moderated_interval,
    pooled_variance,
    replicate_interval,
)
from suite.loop.data import generator
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from suite.measure.campaign import Effort, measure
from suite.measure.contenders.deputies import in_child
from suite.measure.missing import CampaignPlan, Pair, Wanted
from suite.measure.provenance import Progress, conditions_of, part, silent
from suite.record.job import BASELINE, Job, Setting
from suite.record.store import Store
from suite.topics.references import learned_references as record
from suite.topics.references.measured_references import LIMIT_S

SEEDS = 3
REFERENCE_SEEDS = 8  # at its own budget: four pairs that share nothing, and eight with perturbed twins
NEAR = 1.5  # farther from its own budget, by this factor, seeds scatter as no row of a board does
PERTURBATION = 0.03
HALF = 0.5


@dataclass
class Perturbed(Technique):
    """Multiplies every weight by 1 + noise before the first step."""

    perturbed: Act = field(init=False, repr=False, default_factory=Act)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        noise = generator(run.seed, 4)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + PERTURBATION * torch.randn(parameter.shape, generator=noise))
                self.perturbed()
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {"perturbs the weights": self.perturbed}


@dataclass(frozen=True)
class PowerControl:
    """Records a control's effect: the log of its equivalent budget over the reference's, and of its final loss, per
    seed."""

    name: str
    log_budgets: tuple[float, ...]
    log_losses: tuple[float, ...]

    @property
    def budget(self) -> Interval:
        """Returns the interval of the control's equivalent budget, in log units."""
        return replicate_interval(self.log_budgets)


@dataclass(frozen=True)
class PowerStudy:
    """Holds a baseline's controls. ``seed_deviation``: of ln equivalent budget, of one pair of runs that differ in
    nothing that matters; ``detectable``: the log change that SEEDS seeds see with 80 % power."""

    setting: Setting
    controls: tuple[PowerControl, ...]
    seed_deviation: float
    detectable: float

    def evidence(self) -> record.Power:
        """Makes the record that is kept."""
        return record.Power(
            conditions=conditions_of(self.setting),
            code=code_of(self.setting, BASELINE),
            made=datetime.now(UTC).date(),
            seeds=SEEDS,
            seed_deviation=self.seed_deviation,
            smallest_change=math.expm1(self.detectable),
            controls=[
                record.Control(
                    name=control.name,
                    seeds=len(control.log_budgets),
                    equivalent_budget=math.exp(control.budget.estimate),
                    low=math.exp(control.budget.low),
                    high=math.exp(control.budget.high),
                    loss_ratio=math.exp(sum(control.log_losses) / len(control.log_losses)),
                )
                for control in self.controls
            ],
        )


def power(
    setting: Setting,
    folder: Path,
    others: Sequence[str] = (),
    *,
    minutes: float = 60.0,
    progress: Progress = silent,
    warn: Callable[[str], None] = lambda text: None,
) -> PowerStudy:
    """Returns the power of a setting's baseline, with the stacks ``others`` among the controls.

    What is missing in ``folder`` is learned first. Raises ValueError where time did not suffice for the curve.
    """
    end_s = time.monotonic() + 60 * minutes
    half, few = setting.but(rate=HALF), Wanted(seeds=SEEDS, timings=0, ruler_seeds=SEEDS, here=True, tuned=False)
    campaigns = [
        ([Pair(setting, BASELINE)], replace(few, seeds=REFERENCE_SEEDS)),
        ([Pair(half, BASELINE)], replace(few, ruler_seeds=0)),
        ([Pair(setting, other) for other in others], few),
    ]
    parts = len(campaigns) + REFERENCE_SEEDS
    for number, (asked, wanted) in enumerate(campaigns):
        if asked:
            left = max(0.0, end_s - time.monotonic()) / 60
            measure(asked, folder, Effort(wanted, left), progress=part(progress, number, parts), warn=warn)
    records, _ = Store(folder).read()
    known = CampaignPlan([Pair(setting, BASELINE)], records, few)

    def losses(at: Setting, stack: str, seeds: int = SEEDS) -> list[float]:
        runs = [known.learned(Job(setting=at, stack=stack, seed=seed)) for seed in range(seeds)]
        return [run.final.loss for run in runs if run and run.final]

    ruler = known.index.ruler(conditions_of(setting), setting.rate)
    if ruler is None:
        raise ValueError(f"the scaling curve of {setting} was not learned: give it more time (--minutes)")
    reference = losses(setting, BASELINE, REFERENCE_SEEDS)
    if len(reference) < REFERENCE_SEEDS:
        raise ValueError(f"{BASELINE} on {setting} was not learned: give it more time (--minutes)")
    perturbed = []
    for seed in range(REFERENCE_SEEDS):
        progress((len(campaigns) + seed) / parts, f"{setting.baseline}: weights perturbed, seed {seed}")
        perturbed.append(_perturbed_loss(Job(setting=setting, seed=seed)))
    sides: Mapping[str, tuple[Sequence[float], Sequence[float]]] = {
        "other seeds": other_seeds(ruler),
        "weights perturbed": (reference, perturbed),
        "half the learning rate": (reference[:SEEDS], losses(half, BASELINE)),
        **{other: (reference[:SEEDS], losses(setting, other)) for other in others},
    }
    whole = {name: (theirs, ours) for name, (theirs, ours) in sides.items() if len(theirs) == len(ours)}
    for name in sides.keys() - whole.keys():
        warn(f"{setting.baseline}: without the control {name}, which was not learned: give it more time (--minutes)")
    controls = tuple(
        PowerControl(name, tuple(ruler.log_budget_ratios(theirs, ours)), tuple(_logs(theirs, ours)))
        for name, (theirs, ours) in whole.items()
    )
    nothing = pooled_variance([control.log_budgets for control in controls[:2]])
    deviation = math.sqrt(nothing.variance) if nothing else 0.0
    rows = pooled_variance([control.log_budgets for control in controls])  # as the rows of a board share theirs
    one = moderated_interval([0.0], rows)
    return PowerStudy(setting, controls, deviation, detectable_effect(one) / math.sqrt(SEEDS))


def _logs(theirs: Sequence[float], ours: Sequence[float]) -> list[float]:
    return [math.log(b / a) for a, b in zip(theirs, ours, strict=True)]


def other_seeds(ruler: Ruler) -> tuple[list[float], list[float]]:
    """Returns the losses of pairs of seeds, each seed in one pair of a budget, at the budgets of a curve around its
    own."""
    theirs: list[float] = []
    ours: list[float] = []
    for share, losses in zip(ruler.budgets, ruler.losses.T, strict=True):
        known = losses[~np.isnan(losses)].tolist() if 1 / NEAR < share < NEAR else []
        theirs += known[: len(known) // 2 * 2 : 2]
        ours += known[1::2]
    return theirs, ours


def _perturbed_loss(job: Job) -> float:
    """Returns the final test loss of a perturbed run, in a process of the arithmetic in which the others learned."""
    return in_child(_train_perturbed, job, limit_s=LIMIT_S)


def _train_perturbed(job: Job) -> float:
    torch.set_num_threads(job.setting.threads)
    run = run_of(job, technique=Perturbed())
    run.train(run.recipe.steps)
    return run.evaluate("test")["loss"]

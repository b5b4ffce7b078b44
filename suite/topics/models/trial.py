"""Tries one cell of the matrix: a technique on a model, tried in this process.

A trial is a whole run of STEPS steps, so that schedules by progress come round, and one counted step after it. It is
compared with the reference's: a technique that works leaves a difference in what was learned or in what a step counts.
"""

from __future__ import annotations

import dis
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch
from torch.distributed.device_mesh import DeviceMesh

from suite.entries.card import Needs
from suite.entries.catalogue import catalogue, reference_of
from suite.entries.installed import baselines
from suite.entries.together import built, run_of
from suite.judge.claims import decide, exactly, is_exact, unfit
from suite.judge.known import Facts
from suite.judge.verdicts import FAILS
from suite.loop.run import Diverged
from suite.loop.technique import Unavailable
from suite.measure.contenders.stock import data_of
from suite.meters.holders import Living
from suite.model.anatomy import NoBlocks
from suite.reading.recording import Recording, instruments, with_few_examples
from suite.record.job import BASELINE, Job, RecipeName, Setting, Size, Spelling, Task
from suite.record.schema import Evaluation
from suite.topics.models.tried_models import Cell

STEPS = 16
EXAMPLES = 16  # so few that each is seen several times, as in the runs of epochs that some techniques are about
SIZE: Size = "pico"  # of the examples and of the batch; the model is the family's
RECIPE: RecipeName = "classic"


class NoEffect(Exception):
    """Is raised for a technique that changed nothing, or a run that did."""


@dataclass(frozen=True)
class TrialOutcome:
    """Records what one run leaves to compare: its losses and its evaluation, to the bit, and its counts and probes."""

    losses: tuple[float, ...]
    facts: Facts

    def differs_from(self, other: TrialOutcome) -> bool:
        """Tells whether anything was learned otherwise or counted otherwise. Probes are the technique's own words."""
        ours, theirs = self.facts, other.facts
        return (self.losses, ours.final, ours.counters) != (other.losses, theirs.final, theirs.counters)


class Trials:
    """Makes the trials of one model, in a process or in one rank of several; references and checkpoints are made once.

    ``model`` is a folder, or None for the baseline's own; ``scratch`` a folder for checkpoints.
    """

    def __init__(
        self, baseline: str, model: str | None, scratch: Path, transformer: bool = True, mesh: DeviceMesh | None = None
    ) -> None:
        self.setting = Setting(baseline=baseline, size=SIZE, recipe=RECIPE, model=model, steps=STEPS)
        self.scratch, self.transformer, self.mesh = scratch, transformer, mesh
        self._baseline = with_few_examples(baselines()[baseline], EXAMPLES)
        self._outcomes: dict[tuple[str, Task], TrialOutcome] = {}
        self._checkpoint: Path | None = None

    def cell(self, technique: str, spared: Collection[str] = ()) -> Cell:
        """Tries ``technique``; ``baseline`` is the plain run, which every other is compared with. The claims that are
        ``spared`` say nothing in so short a run."""
        try:
            unmet = self._unmet(technique)
        except Exception as error:
            return self._cell_of(error, technique)
        if not self.transformer:
            return Cell(verdict="defect", reason="it trains a model that has no Transformer blocks")
        if self.setting.model is None:
            return Cell(verdict="works", unmet=tuple(unmet))
        broken = [words for claim, words in unmet.items() if claim not in spared]
        return Cell(verdict="defect" if broken else "works", reason="; ".join(broken))

    def left_behind(self) -> bool:
        """Tells whether the plain run is no longer, to the bit, what it was before all techniques."""
        before = self._outcomes.get((BASELINE, "pretrain"))
        return before is not None and self._outcome(BASELINE, "pretrain").differs_from(before)

    # what a trial is ------------------------------------------------------------------------------------------------

    def _unmet(self, technique: str) -> dict[str, str]:
        """Tries ``technique`` and gives the identities of its card that do not hold."""
        if technique == BASELINE:
            self._reference(BASELINE, "pretrain")
            return {}
        reference, task = reference_of(technique)
        own, plain = self._outcome(technique, task), self._reference(reference, task)
        if not own.differs_from(plain):
            raise NoEffect(f"equals {reference} to the bit, in {STEPS} steps and in what a step counts")
        return self._unmet_claims(technique, plain.facts, own.facts)

    def _reference(self, stack: str, task: Task) -> TrialOutcome:
        if (stack, task) not in self._outcomes:
            self._outcomes[stack, task] = self._outcome(stack, task)
        return self._outcomes[stack, task]

    def _outcome(self, stack: str, task: Task) -> TrialOutcome:
        setting = self.setting.but(task=task)
        ranks = built(stack).recipe(self._baseline.recipe_of(setting)).world_size
        living = Living()
        run = run_of(
            Job(setting=setting, stack=stack),
            baseline=self._baseline,
            weights=self._weights() if task == "adapt" else None,
            mesh=self.mesh if ranks > 1 else None,
        )
        held = [parameter for group in run.optimizer.param_groups for parameter in group["params"]]
        before = [parameter.detach().clone() for parameter in held]
        recording = Recording(run) if self._reads(stack) else None
        losses = (recording or run).train(run.recipe.steps)
        if all(map(torch.equal, before, held)):
            raise NoEffect(f"no parameter moved in {len(losses)} steps")
        scores = run.evaluate("test")
        final = Evaluation(step=run.step, loss=scores.pop("loss"), metrics=scores)
        probes = run.probes() | (recording.probes() if recording else {})
        del recording, before  # these are no part of the run
        with living.left_out(*data_of(run)):
            counters = run.count_step()
        return TrialOutcome(tuple(losses), Facts(stack, run.recipe.steps, counters, final, probes))

    def _reads(self, stack: str) -> bool:
        """Tells whether the probes of the stack can read steps of this model: some know their baselines' own models
        alone."""
        modules = instruments(Spelling(stack).names)
        if self.setting.model is not None:
            return not any(getattr(module, "OF_ITS_BASELINES", False) for module in modules.values())
        return all(self.setting.baseline in catalogue()[name].card.baselines for name in modules)

    def _weights(self) -> Path:
        """Returns the checkpoint that adapting starts from: a few steps on the source data."""
        if self._checkpoint is None:
            run = run_of(Job(setting=self.setting), baseline=self._baseline, split="source")
            run.train(STEPS)
            self._checkpoint = self.scratch / "source.pt"
            torch.save(run.model.state_dict(), self._checkpoint)
        return self._checkpoint

    def _unmet_claims(self, technique: str, reference: Facts, own: Facts) -> dict[str, str]:
        card, baseline = catalogue()[technique].card, self.setting.baseline
        unmet = {}
        for claim in card.judged:
            of_any_model = claim.kind == "identity" and is_exact(claim)  # a count is a number of one model
            judged = of_any_model and claim.needs == Needs() and not unfit(claim, RECIPE, SIZE, "cpu")
            if not judged or baseline not in (claim.baselines or card.baselines):
                continue
            seen = exactly(claim, technique, [(reference, own)])
            if decide(claim, seen)[0] == FAILS and seen.interval:
                value, expected = seen.interval.estimate, f"{claim.relation} {claim.expected:g}"
                unmet[claim.id] = f"claim {claim.id}: {claim.metric} is {value:.6g}, not {expected}"
        return unmet

    # how it ended ---------------------------------------------------------------------------------------------------

    def _cell_of(self, error: Exception, technique: str) -> Cell:
        words = " ".join(str(error).split())
        if isinstance(error, NoEffect):
            return Cell(verdict="defect", reason=words)
        if isinstance(error, Diverged):
            return Cell(verdict="defect", reason=f"diverged: {words}")
        if not is_refusal(error):
            return Cell(verdict="defect", reason=f"{type(error).__name__}: {words} ({_where(error)})")
        if self.transformer and (technique == BASELINE or isinstance(error, NoBlocks)):
            return Cell(verdict="defect", reason=f"a Transformer is refused: {words}")
        if not self.transformer and not isinstance(error, NoBlocks):
            return Cell(verdict="defect", reason=f"refused for another reason than that it has no blocks: {words}")
        return Cell(verdict="refused", reason=words)


def is_refusal(error: BaseException) -> bool:
    """Tells whether the project itself raised the error, on purpose, as one that a user can understand.

    A ValueError that torch raises, or one that an expression of ours runs into, is none.
    """
    if not isinstance(error, ValueError | Unavailable) or not str(error).strip():
        return False
    last = _last(error.__traceback__)
    if last is None or last.tb_frame.f_globals.get("__name__", "").split(".")[0] not in _packages():
        return False
    code = last.tb_frame.f_code.co_code
    return dis.opname[code[last.tb_lasti]] == "RAISE_VARARGS"


def _last(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback


def _packages() -> set[str]:
    """Returns the packages of the project and of plug-ins."""
    entries = {entry.module.split(".")[0] for entry in catalogue().values()}
    return entries | {type(baseline).__module__.split(".")[0] for baseline in baselines().values()} | {"suite"}


def _where(error: BaseException) -> str:
    last = _last(error.__traceback__)
    if last is None:
        return "nowhere"
    return f"{Path(last.tb_frame.f_code.co_filename).name}, line {last.tb_lineno}"

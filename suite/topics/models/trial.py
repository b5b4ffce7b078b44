"""Tries one cell of the matrix: a technique on a model, tried in this process.

A trial is a whole run, so that schedules by progress come round; it is compared with the reference's. A technique that
works leaves a difference in what was learned, or where that is equal to the bit, in what a further step counts. A short
run comes first: what ends well in it has taken steps, and its identities hold. Only what does not is tried at length,
and that run decides: some techniques act late, and some identities need more steps.
"""

from __future__ import annotations

import dis
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import torch
from torch.distributed.device_mesh import DeviceMesh

from suite.entries.card import Claim, Needs
from suite.entries.catalogue import catalogue, reference_of
from suite.entries.installed import baselines
from suite.entries.together import built, run_of
from suite.judge.claims import decide, exactly, is_exact, unfit
from suite.judge.known import Facts
from suite.judge.verdicts import FAILS
from suite.loop.run import Diverged
from suite.loop.technique import Unavailable
from suite.model.anatomy import NoAttention
from suite.reading.recording import Recording, instruments, with_few_examples
from suite.record.job import BASELINE, Job, RecipeName, Setting, Size, Spelling, Task
from suite.record.schema import Evaluation
from suite.topics.models.tried_models import Cell

SHORT, STEPS = 4, 16  # of a run that may suffice, and of one that decides
STEPS_OF_RANKS = 8  # of several ranks there is one run alone: they would have to agree that the first does not suffice
EXAMPLES = 16  # so few that each is seen several times, as in the runs of epochs that some techniques are about
SIZE: Size = "pico"  # of the examples and of the batch; the model is the family's
RECIPE: RecipeName = "classic"


T = TypeVar("T")


class NoEffect(Exception):
    """Is raised for a technique that changed nothing, or a run that did."""


@dataclass(frozen=True)
class TrialOutcome:
    """Records what one run leaves to compare: its losses and its evaluation, to the bit, its probes, and the counts of
    a further step where they were asked for."""

    losses: tuple[float, ...]
    facts: Facts

    def learned_as(self, other: TrialOutcome) -> bool:
        """Tells whether the same was learned, to the bit. Probes are the technique's own words."""
        return (self.losses, self.facts.final) == (other.losses, other.facts.final)


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
        self._outcomes: dict[tuple[str, Task, int, bool], TrialOutcome] = {}
        self._checkpoint: Path | None = None
        self._plain: Cell | None = None

    def cell(self, technique: str) -> Cell:
        """Tries ``technique``; ``baseline`` is the plain run, which every other is compared with: where it cannot be,
        none can."""
        if self._plain is None:
            self._plain = self._tried(BASELINE)
        if technique == BASELINE or self._plain.verdict != "works":
            return self._plain
        return self._tried(technique)

    def _tried(self, technique: str) -> Cell:
        steps = STEPS if self.mesh is None else STEPS_OF_RANKS
        if self.mesh is None:
            with suppress(Exception):
                if not self._unmet(technique, SHORT) and self.transformer:
                    return Cell(verdict="works")
        try:
            unmet = self._unmet(technique, steps)
            spared = self._unmet_by_its_own(technique, steps) if unmet else {}
        except Exception as error:
            return self._cell_of(error, technique)
        if not self.transformer:
            return Cell(verdict="defect", reason="it trains a model that has no Transformer blocks")
        broken = [words for claim, words in unmet.items() if claim not in spared]
        return Cell(verdict="defect" if broken else "works", reason="; ".join(broken))

    def _unmet_by_its_own(self, technique: str, steps: int) -> Collection[str]:
        """Returns the identities that a run as long does not meet on the baseline's own model: they need a longer run
        or a larger model than a trial has, and say nothing of others."""
        if self.setting.model is None:
            return self._unmet(technique, steps)
        own = self.scratch / "own"
        own.mkdir(exist_ok=True)
        return Trials(self.setting.baseline, None, own, mesh=self.mesh)._unmet(technique, steps)

    def _everyones(self, said: T) -> list[T]:
        """Returns what every rank says, for them to decide alike: what one alone went on to would wait for the
        others."""
        if self.mesh is None:
            return [said]
        everyones = [said] * self.mesh.size()
        torch.distributed.all_gather_object(everyones, said, group=self.mesh.get_group())
        return everyones

    def left_behind(self) -> bool:
        """Tells whether the plain run is no longer, to the bit, what it was before all techniques."""
        steps = SHORT if self.mesh is None else STEPS_OF_RANKS
        before = self._outcomes.get((BASELINE, "pretrain", steps, False))
        return before is not None and not self._outcome(BASELINE, "pretrain", steps).learned_as(before)

    def cpu_s(self) -> float:
        """Returns the CPU time of this process so far."""
        return time.process_time()

    # what a trial is ------------------------------------------------------------------------------------------------

    def _unmet(self, technique: str, steps: int) -> dict[str, str]:
        """Tries ``technique`` and gives the identities of its card that do not hold, on any rank."""
        if technique == BASELINE:
            self._reference(BASELINE, "pretrain", steps)
            return {}
        reference, task = reference_of(technique)
        counted = any(_is_of_counts(claim) for claim in self._identities(technique))
        own, plain = self._outcome(technique, task, steps, counted), self._reference(reference, task, steps, counted)
        if all(self._everyones(own.learned_as(plain))):
            if not counted:
                own = self._outcome(technique, task, steps, True)
                plain = self._reference(reference, task, steps, True)
            if all(self._everyones(own.facts.counters == plain.facts.counters)):
                raise NoEffect(f"equals {reference} to the bit, in {steps} steps and in what a step counts")
        everyones: dict[str, str] = {}
        for unmet in self._everyones(self._unmet_claims(technique, plain.facts, own.facts)):
            everyones |= unmet
        return everyones

    def _reference(self, stack: str, task: Task, steps: int, counted: bool = False) -> TrialOutcome:
        key = stack, task, steps, counted
        if key not in self._outcomes:
            self._outcomes[key] = self._outcome(*key)
        return self._outcomes[key]

    def _outcome(self, stack: str, task: Task, steps: int, counted: bool = False) -> TrialOutcome:
        setting = self.setting.but(task=task, steps=steps)
        ranks = built(stack).recipe(self._baseline.recipe_of(setting)).world_size
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
        counters = run.count_step() if counted else None
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
            run = run_of(Job(setting=self.setting.but(steps=SHORT)), baseline=self._baseline, split="source")
            run.train(SHORT)
            self._checkpoint = self.scratch / "source.pt"
            torch.save(run.model.state_dict(), self._checkpoint)
        return self._checkpoint

    def _identities(self, technique: str) -> list[Claim]:
        """Returns what the card says is exact of any model; a count is a number of one."""
        card, baseline = catalogue()[technique].card, self.setting.baseline
        return [
            claim
            for claim in card.judged
            if claim.kind == "identity"
            and is_exact(claim)
            and claim.needs == Needs()
            and not unfit(claim, RECIPE, SIZE, "cpu")
            and baseline in (claim.baselines or card.baselines)
        ]

    def _unmet_claims(self, technique: str, reference: Facts, own: Facts) -> dict[str, str]:
        unmet = {}
        for claim in self._identities(technique):
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
        if isinstance(error, NoAttention):
            if self.transformer:
                return Cell(verdict="defect", reason=f"a Transformer is taken for none: {words}")
            return Cell(verdict="inapplicable", reason=words)
        if not self.transformer:
            return Cell(verdict="defect", reason=f"refused for another reason than that it has no attention: {words}")
        if technique != BASELINE and self.setting.baseline not in (of := catalogue()[technique].card.baselines):
            return Cell(verdict="inapplicable", reason=f"{technique} is about models such as {_or(of)}: {words}")
        return Cell(verdict="refused", reason=words)


def _is_of_counts(claim: Claim) -> bool:
    return not claim.metric.startswith("probe.") and claim.metric != "loss"


def _or(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


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

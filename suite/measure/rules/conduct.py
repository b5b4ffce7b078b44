"""Keeps the rules that are watched over from inside of a contender's process: what begins with a session and ends with
it.

::

    set-up      test examples are sealed, definitions and settings noted; the run's data are looked through
    a block     so many steps were made as were asked for                          off the clock
    evaluation  the run predicts from inputs that a referee shows; nothing is trained
    the end     definitions, settings and methods are as they were; parameters are not
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from suite.entries.catalogue import catalogue, reference_of
from suite.entries.installed import baselines
from suite.entries.module_files import package_of
from suite.loop.baseline import Baseline
from suite.loop.data import HeldOut
from suite.loop.run import Run
from suite.loop.technique import overrides
from suite.measure.rules import held_out, surroundings
from suite.measure.rules.audit import Audit
from suite.measure.rules.broken import RuleBroken
from suite.measure.rules.held_out import PLAIN, HandOver, Predicting, Scorer, Seal, SealedExamples
from suite.measure.rules.referee import ORDER, order_bytes
from suite.measure.rules.surroundings import Snapshot
from suite.measure.rules.threads import all_threads_counted
from suite.record.job import BASELINE, Job, Spelling

FEWEST_STEPS = 2  # the first may have a learning rate of 0
COUNTED, TRAINED = "steps are counted by the harness", "steps update parameters"
SEEN = "what updates parameters is seen"


class Conduct:
    """Keeps watch over one job's run."""

    def __init__(self, job: Job) -> None:
        self.job, self.seal = job, Seal()
        self._objects: list[tuple[object, dict[str, Any]]] = []
        self._predicting = Predicting()
        self._seen: tuple[int, list[int]] = 0, []
        self._order = hashlib.sha256()
        self.own_order = self._few = False

    def baseline(self, own: Baseline) -> Baseline:
        """Returns the baseline that the run gets, before the run exists and a technique's code is loaded."""
        self._scorer = Scorer(own, self.job.setting, self.seal)
        classes = {type(own), *map(type, baselines().values())}
        held_out.seal_baselines(classes, self.seal)
        packages = frozenset(package_of(each.__module__) for each in classes)
        self._definitions = Snapshot(packages)
        self._settings = surroundings.settings(self.job.setting.device)
        names = Spelling(self.job.stack).names
        self._audit = Audit({package_of(catalogue()[name].module) for name in names})
        return own

    def begin(self, run: Run, few: bool) -> None:
        """Notes what a run that is set up must leave as it is; ``few``: the harness chose its training examples. Raises
        RuleBroken where it trains on others than the baseline's, and no ``data`` method of a technique says so."""
        self._objects = watched(run)
        self._seen = run.step, held_out.state_of(run.model)
        self.count_from(run)
        self._definitions.check()
        self.own_order = self._is_given(run, "train") and self._is_given(run, "sampler")
        chosen = any(overrides(each, "data") for each in run.technique.techniques.values())
        self._few = few and not chosen
        if not (self.own_order or chosen or few):
            raise RuleBroken(ORDER, "the run has other training examples, and no data method of a technique chose them")

    def _is_given(self, run: Run, name: str) -> bool:
        """Tells whether a field of the run's data is what a baseline gave."""
        return any(getattr(each(), name, None) is getattr(run.data, name) for each in self.seal.given)

    def training_data(self, run: Run, path: str) -> dict[str, Any]:
        """Returns what the referee looks at: hashes of held-out examples that are not those that a baseline gave, and
        whether those of the training examples, where they are others, were written to ``path``."""
        given = self._is_given(run, "train") or self._few
        if not given and run.rank == 0:
            torch.save(held_out.rows(run.data.train), path)
        others = [part for part in held_out.PARTS if not self._is_given(run, part)]
        return {"given": given, "held": self._held(run, others), "own_order": self.own_order}

    def _held(self, run: Run, parts: Iterable[HeldOut]) -> dict[str, str]:
        """Returns the hashes of held-out examples as the run has them now, but for those that are sealed."""
        known = {part: getattr(run.data, part) for part in parts}
        return {part: held_out.sha256(each) for part, each in known.items() if not isinstance(each, SealedExamples)}

    def took(self, run: Run) -> None:
        """Notes which examples a step trained on."""
        self._order.update(order_bytes(run.indices))

    def order(self) -> str:
        """Returns the hash of what was noted since it was asked for."""
        said, self._order = self._order.hexdigest(), hashlib.sha256()
        return said

    def count_from(self, run: Run) -> None:
        """Counts steps from here on: what reads recorded steps may have made some of its own."""
        self._began, self._asked = (run.step, run.position), 0

    @contextmanager
    def counting(self, run: Run, seen: Callable[[], int]) -> Iterator[None]:
        """Watches over a step that is counted; ``seen()`` is what the counters have seen up to now. Raises Unavailable
        where some of it is computed in a thread that they do not see, RuleBroken where parameters change and they see
        nothing."""
        state, at = held_out.state_of(run.model), seen()
        with all_threads_counted():
            yield
        if seen() == at and held_out.state_of(run.model) != state:
            raise RuleBroken(
                SEEN,
                f"step {run.step} changed parameters and took no FLOPs: what made it is outside of what the "
                "counters see (a library beside torch, another process)",
            )

    def check_steps(self, run: Run, steps: int) -> None:
        """Raises RuleBroken after a block where other steps were made than were asked for."""
        self._asked += steps
        steps_made, examples = run.step - self._began[0], run.position - self._began[1]
        if steps_made != self._asked or examples != self._asked * run.recipe.batch_size:
            raise RuleBroken(
                COUNTED,
                f"{self._asked} steps of {run.recipe.batch_size} examples were asked for, and the run made "
                f"{steps_made} on {examples} examples",
            )
        if type(run.loss) is not torch.Tensor or not run.loss.is_contiguous():
            raise RuleBroken(PLAIN, f"the loss is a {type(run.loss).__name__}, which may compute when it is read")
        surroundings.check_settings(self._settings, surroundings.settings(self.job.setting.device))
        self._audit.check()

    def evaluate(self, run: Run, part: HeldOut, shown: HandOver, first: int) -> dict[str, Any]:
        """Hands over outputs for a part's batches from ``first`` on, and returns how many; where the stack's reference
        shows held-out examples in a way of its own, returns the scores. Raises RuleBroken."""
        assert self._scorer is not None
        self._definitions.check()
        surroundings.check_methods(self._objects)
        with _without_gradients():
            self._check_updates(run)
            if self._own_form(run):
                said: dict[str, Any] = {"scores": self._scorer.scores(run, part)}
            else:
                said = {"batches": self._predicting.hand_over(run, part, shown, first)}
        return said | {"held": self._held(run, held_out.PARTS)}

    def _own_form(self, run: Run) -> bool:
        """Tells whether the run shows held-out examples in another way than the baseline, and so does its
        reference."""
        if self.job.stack == BASELINE or reference_of(self.job.stack)[0] == BASELINE:
            return False
        return not (self._is_given(run, "transform") and self._is_given(run, "test_transform"))

    def _check_updates(self, run: Run) -> None:
        """Raises RuleBroken where steps were made since the parameters were looked at, and all are as they were."""
        at, state = self._seen
        now = held_out.state_of(run.model)
        if run.step - at >= FEWEST_STEPS:
            if now and now == state:
                raise RuleBroken(TRAINED, f"steps {at + 1} to {run.step} left all parameters as they were")
            self._seen = run.step, now

    def check_surroundings(self, run: Run) -> None:
        """Raises RuleBroken where a definition, a setting or a method is not what it was."""
        self._definitions.check()
        surroundings.check_settings(self._settings, surroundings.settings(self.job.setting.device))
        surroundings.check_methods(self._objects)
        self._audit.check()

    def end(self, run: Run) -> None:
        """Raises RuleBroken at the end of a run for whatever it did that no run may."""
        self.check_surroundings(run)
        if self.seal.broken:
            self.seal.check()
        self._check_updates(run)
        self._audit.end()


def watched(run: Run) -> list[tuple[object, dict[str, Any]]]:
    """Returns what keeps its methods from now on, each with what was put in place of one by right while the run was set
    up: the harness's own data, and the autocast of a technique whose precision no recipe has."""
    return [
        (run, {"autocast": vars(run).get("autocast")}),
        (run.attachment, {}),
        (run.baseline, {"data": vars(run.baseline).get("data")}),
    ]


@contextmanager
def _without_gradients() -> Iterator[None]:
    """While active, no gradient can be asked for."""

    def refused(*_: object, **__: object) -> None:
        raise RuleBroken(held_out.PASSIVE, "gradients were asked for while the run was evaluated")

    engine = "_engine_run_backward"  # also of whoever has kept the functions that call it
    places: list[tuple[Any, str]] = [(torch.autograd, "backward"), (torch.autograd, "grad"), (torch.Tensor, "backward")]
    places += [(torch.autograd, engine), (torch.autograd.graph, engine)]
    originals = [getattr(place, name) for place, name in places]
    for place, name in places:
        setattr(place, name, refused)
    try:
        yield
    finally:
        for (place, name), own in zip(places, originals, strict=True):
            setattr(place, name, own)

"""Keeps the rules that are watched over from inside of a contender's process: what begins with a session and ends with
it.

::

    session     definitions and settings are noted
    set-up      the run gets sealed test examples; its data are looked through      off the clock
    a block     so many steps were made as were asked for                          off the clock
    evaluation  the harness scores on its own examples; nothing is trained
    the end     definitions, settings, methods and held-out examples are as they were; parameters are not
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from suite.device.random_state import unchanged_randomness
from suite.entries.installed import baselines
from suite.loop.baseline import Baseline
from suite.loop.data import HeldOut
from suite.loop.run import Run
from suite.measure.rules import held_out, surroundings
from suite.measure.rules.broken import RuleBroken
from suite.measure.rules.held_out import Scorer, Seal, with_sealed_test
from suite.measure.rules.threads import all_threads_counted
from suite.meters.flops import FlopCounter
from suite.record.job import Job

FEWEST_STEPS = 2  # the first may have a learning rate of 0
COUNTED, TRAINED, PLAIN = "steps are counted by the harness", "steps update parameters", "losses are plain tensors"
SEEN = "what updates parameters is seen"


class Conduct:
    """Keeps watch over one job's run."""

    def __init__(self, job: Job) -> None:
        packages = frozenset(type(baseline).__module__.partition(".")[0] for baseline in baselines().values())
        self.job, self.seal = job, Seal()
        self._definitions = surroundings.definitions(packages)
        self._settings = surroundings.settings(job.setting.device)
        self._objects: list[tuple[object, dict[str, Any]]] = []
        self._scorer: Scorer | None = None
        self._seen: tuple[int, list[int]] = 0, []
        self._set_up_flops: int | None = None

    def baseline(self, own: Baseline) -> Baseline:
        """Returns the baseline that the run gets; what the harness scores by is kept before the run exists."""
        self._scorer = Scorer(own, self.job.setting, self.job.stack)
        return with_sealed_test(own, self.seal)

    def begin(self, run: Run, set_up_flops: int | None) -> None:
        """Notes what a run that is set up must leave as it is; ``set_up_flops``: what that took, where it is known.
        Raises RuleBroken for data that it may not have."""
        self._objects = watched(run)
        self._set_up_flops = set_up_flops
        self._seen = run.step, held_out.state_of(run.model)
        self.count_from(run)
        assert self._scorer is not None
        self._scorer.check_data(run)
        surroundings.check_definitions(self._definitions)

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

    def evaluate(self, run: Run, part: HeldOut) -> dict[str, float]:
        """Returns the loss and further metrics on held-out examples. Raises Diverged, RuleBroken."""
        assert self._scorer is not None
        surroundings.check_definitions(self._definitions)
        surroundings.check_methods(self._objects)
        with _without_gradients():
            if run.step == 0 and self._set_up_flops is not None and not (run.weights or self._scorer.own_form):
                self._check_start(run)
            self._check_updates(run)
            return self._scorer.scores(run, part)

    def _check_updates(self, run: Run) -> None:
        """Raises RuleBroken where steps were made since the parameters were looked at, and all are as they were."""
        at, state = self._seen
        now = held_out.state_of(run.model)
        if run.step - at >= FEWEST_STEPS:
            if now and now == state:
                raise RuleBroken(TRAINED, f"steps {at + 1} to {run.step} left all parameters as they were")
            self._seen = run.step, now

    def _check_start(self, run: Run) -> None:
        assert self._scorer is not None and self._set_up_flops is not None
        with unchanged_randomness(run.device), FlopCounter() as counter:
            untrained = self._scorer.untrained_loss(run)
        with unchanged_randomness(run.device):
            own = self._scorer.first_loss(run)
        held_out.check_first_loss(own, untrained, self._set_up_flops, counter.total)

    def check_surroundings(self, run: Run) -> None:
        """Raises RuleBroken where a definition, a setting or a method is not what it was."""
        surroundings.check_definitions(self._definitions)
        surroundings.check_settings(self._settings, surroundings.settings(self.job.setting.device))
        surroundings.check_methods(self._objects)

    def end(self, run: Run) -> None:
        """Raises RuleBroken at the end of a run for whatever it did that no run may."""
        assert self._scorer is not None
        self.check_surroundings(run)
        self._scorer.check_kept()
        if self.seal.broken:
            self.seal.check()
        self._check_updates(run)


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

    places = [(torch.autograd, "backward"), (torch.autograd, "grad"), (torch.Tensor, "backward")]
    originals = [getattr(place, name) for place, name in places]
    for place, name in places:
        setattr(place, name, refused)
    try:
        yield
    finally:
        for (place, name), own in zip(places, originals, strict=True):
            setattr(place, name, own)

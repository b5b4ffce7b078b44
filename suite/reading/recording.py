"""Records what single steps of a technique show: read from outside, by a ``probes.py`` beside its ``technique.py``.

A probe that recomputes the technique's own formula agrees with itself, whatever the step did. So a short run is
recorded, step by step (:mod:`suite.reading.trace`), and the module says what that shows, and what it must be::

    @judged("against", "The sign is that of beta1 m + (1 - beta1) g.", "Algorithm 2, line 5", id="direction")
    def probes(recording: Recording, own: Lion) -> Mapping[str, float]:
        update = recording.trace.update
        ...  how far each weight moved, along what, in float64

    def records(run: Run, own: Lion) -> bool:        # optional: whether the next step is recorded
        return run.step == 3                         # default: the middle one, where rates neither warm up nor end

The names become ``probe.<id>.<name>`` of the card's claims, and those of properties (:mod:`suite.reading.judged`). The
module imports none of the formulas that it judges; no training run imports the module, so a new probe leaves what was
learned as it is.

The run sees few examples, so that several epochs, and every schedule by progress, come round in its few steps.
"""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from suite.device.random_state import replayed, unchanged_randomness
from suite.entries.catalogue import catalogue
from suite.entries.installed import baseline_of
from suite.entries.jobs import run_of
from suite.entries.origins import departures
from suite.loop.baseline import Baseline
from suite.loop.data import Data
from suite.loop.run import Diverged, Run
from suite.loop.technique import Technique
from suite.reading.trace import Moment, Trace, Values, cloned, recorded
from suite.record.job import Job, Size, Spelling, Split, join

BATCHES = 4  # of the baseline's own size: all examples of a recorded run


class Recording:
    """Makes a run of which single steps are recorded; that changes no number of it, and takes time and memory.

    Attributes: ``run``; ``traces``, the recorded steps in their order.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.traces: list[Trace] = []
        techniques = run.technique.techniques
        self._probes = {name: (module, techniques[name]) for name, module in instruments(techniques).items()}

    @classmethod
    def of(cls, job: Job, *, weights: Path | None = None, mesh: DeviceMesh | None = None) -> Recording:
        """Returns the recording of a job's run on few examples."""
        baseline = baseline_of(job.setting)
        few = with_few_examples(baseline, BATCHES * baseline.recipe_of(job.setting).batch_size)
        return cls(run_of(job, baseline=few, weights=weights, mesh=mesh))

    def train(self, steps: int) -> list[float]:
        """Makes ``steps`` steps, recorded where a probe asks for it, and returns what they gave; their losses. Raises
        Diverged as :meth:`Run.train`."""
        losses: list[float] = []
        for _ in range(steps):
            losses += [self.record_step()] if self._wanted() else self.run.train(1)
        return losses

    def _wanted(self) -> bool:
        asked = []
        for name, (module, own) in self._probes.items():
            with as_published(name, own):
                asked.append(getattr(module, "records", _in_the_middle)(self.run, own))
        return any(asked or [_in_the_middle(self.run)])

    def record_step(self) -> float:
        """Makes the next step, recorded, and returns what it gave; its loss."""
        batch, indices = self.run.next_batch()
        with recorded(self.run, batch, indices) as trace:
            self.run.train_step(batch, indices)
        self.traces.append(trace)
        loss = self.run.loss.item()
        if not math.isfinite(loss):
            raise Diverged(f"the training loss became {loss} at step {self.run.step}")
        return loss

    @property
    def trace(self) -> Trace:
        """Returns the step that was recorded last. Raises ValueError if none was."""
        if not self.traces:
            raise ValueError(f"no step of {self.run.job.stack} was recorded: train {self.run.recipe.steps} steps first")
        return self.traces[-1]

    def probes(self) -> dict[str, float]:
        """Returns what the recorded steps show, by ``<technique>.<name>``. The run's randomness stays as it was."""
        shown: dict[str, float] = {}
        with unchanged_randomness(self.run.device):
            for name, (module, own) in self._probes.items():
                with as_published(name, own):
                    shown |= {f"{name}.{probe}": float(value) for probe, value in module.probes(self, own).items()}
        return shown

    def twin(self, stack: str | None = None, steps: int | None = None) -> Recording:
        """Returns another run on the same examples, of another stack or length, not trained yet: for what this one
        cannot show. For use in probes: the twin sets torch's randomness."""
        run = self.run
        setting = run.job.setting if steps is None else run.job.setting.but(steps=steps)
        job = Job(setting=setting, stack=run.job.stack if stack is None else stack, seed=run.job.seed)
        return Recording(run_of(job, baseline=run.baseline, weights=run.weights))

    def but(self, technique: str, **settings: str) -> str:
        """Returns how the run's stack spells a technique, with further settings: for a twin, whose other settings are
        the run's own, defaults among them."""
        return join([(technique, {**dict(Spelling(self.run.job.stack).parts)[technique], **settings})])

    def outputs_at(self, parameters: Values, trace: Trace | None = None) -> Any:
        """Returns the model's outputs for a recorded step's batch at ``parameters``, with that step's dropout unless
        the model is in evaluation mode."""
        trace, run = trace or self.trace, self.run
        with self.at(parameters), replayed(trace.random), torch.no_grad(), run.autocast():
            return run.baseline.forward(run.model, trace.batch)

    def gradients_at(
        self, parameters: Values, trace: Trace | None = None, added: Callable[[Any], Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Returns the gradients, by name, of the baseline's own loss on a recorded step's batch, at ``parameters``
        (those that it lacks stay as they are), with that step's dropout: without any technique's loss and before
        clipping. What ``added`` makes of the outputs is added to the loss."""
        trace, run = trace or self.trace, self.run
        trained = {name: parameter for name, parameter in run.model.named_parameters() if parameter.requires_grad}
        with self.at(parameters), replayed(trace.random):
            with run.autocast():
                outputs = run.baseline.forward(run.model, trace.batch)
            loss = run.baseline.losses(outputs, trace.batch).mean()
            if added is not None:
                loss = loss + added(outputs)
            gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        return {name: gradient for name, gradient in zip(trained, gradients, strict=True) if gradient is not None}

    def loss_at(self, parameters: Values, trace: Trace | None = None) -> float:
        """Returns the loss whose gradients :meth:`gradients_at` has."""
        trace = trace or self.trace
        return self.run.baseline.losses(self.outputs_at(parameters, trace), trace.batch).mean().item()

    def replayed(self, before: Moment) -> dict[str, Tensor]:
        """Tells where the optimizer's step takes the parameters from a moment like ``trace.update.before``, with what a
        probe has changed of it (all gradients twice as large, no decay, ...). On copies."""
        names = {parameter: name for name, parameter in self.run.model.named_parameters()}
        twin = copy.deepcopy(self.run.optimizer)
        after: dict[str, Tensor] = {}
        for group, copied in zip(self.run.optimizer.param_groups, twin.param_groups, strict=True):
            for parameter, own in zip(group["params"], copied["params"], strict=True):
                name = names[parameter]
                copied.update(before.hyper[name])
                own.data = after[name] = before.parameters[name].clone()
                own.grad = before.gradients[name].clone() if name in before.gradients else None
                twin.state[own] = cloned(before.state.get(name, {}))
        twin.step()
        return after

    @contextmanager
    def at(self, parameters: Values) -> Iterator[None]:
        """The run's model has these parameters meanwhile, and comes back to the bit."""
        own = {name: parameter for name, parameter in self.run.model.named_parameters() if name in parameters}
        copies = {name: parameter.detach().clone() for name, parameter in own.items()}
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(parameters[name])
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in own.items():
                    parameter.copy_(copies[name])


@contextmanager
def as_published(name: str, own: Technique) -> Iterator[None]:
    """Gives fields that are left at their defaults the values that the card has for them, for the while: what a step
    must have done is never read from a default that may itself be wrong."""
    published = departures(own, catalogue()[name].card)
    kept = {field: getattr(own, field) for field in published}
    vars(own).update(published)
    try:
        yield
    finally:
        vars(own).update(kept)


def instruments(names: Mapping[str, Any] | list[str]) -> dict[str, ModuleType]:
    """Returns the ``probes.py`` of those of the techniques that have one."""
    entries = catalogue()
    paths = {name: entries[name].instruments for name in names if name in entries}
    return {name: importlib.import_module(path) for name, path in paths.items() if path}


def _in_the_middle(run: Run, own: Technique | None = None) -> bool:
    return run.step == run.recipe.steps // 2


def with_few_examples(whole: Baseline, count: int) -> Baseline:
    """Returns the baseline with ``count`` of its training examples, spread over all."""

    def data(size: Size, split: Split, location: str | None = None) -> Data:
        every = whole.data(size, split, location)
        spread = torch.linspace(0, len(every.train) - 1, min(count, len(every.train))).long()
        return every.subset(spread)

    few = copy.copy(whole)
    few.data = data  # type: ignore[method-assign]
    return few

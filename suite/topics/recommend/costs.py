"""Counts what a stack's step costs at the user's size: counted once for each code, model and batch, and kept in the
cache.

A count is made of a whole step on tensors without values, so it is exact, and takes seconds at a billion parameters.
Where a GPU is named, the step after it is traced in the same run, and its time there is modelled. Each is made aside,
by a process that is replaced where it dies or takes too long.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from suite.entries.sources import code_of
from suite.loop.run import Run
from suite.loop.sites import NotAttached
from suite.measure.at_scale.full_size import Scale, counted
from suite.measure.provenance import Progress, silent
from suite.meters.operators import OperatorTrace
from suite.process.child import ContenderFailed
from suite.record.files import cache_folder, read_plain, write_json
from suite.record.job import BASELINE
from suite.record.machine import versions
from suite.record.operator_counts import TracedStep
from suite.topics.modelled_time.aside import deputy, heap_set_aside
from suite.topics.modelled_time.devices import Gpu
from suite.topics.modelled_time.modelled import OF_ONE_GPU, believed
from suite.topics.modelled_time.roofline import DEFAULT, Software, modelled
from suite.topics.modelled_time.traced import trace_step
from suite.topics.recommend.choice import StepCost

FOLDER = "step_costs"
LIMIT_S = 120.0  # of one count, which takes some ten seconds at a billion parameters
REFUSALS = (ValueError, LookupError, OSError)


@dataclass(frozen=True)
class Counting:
    """Says what is counted: steps of one model at one batch, on ``gpu`` where their time is to be modelled."""

    scale: Scale
    gpu: Gpu | None = None

    def costs(self, stacks: Iterable[str], progress: Progress = silent) -> Iterator[StepCost]:
        """Yields the cost of each stack, as it is known. Raises ValueError, LookupError, OSError of a refused model."""
        wanted = list(stacks)
        with deputy(LIMIT_S) as counting:
            for done, stack in enumerate(wanted):
                progress(done / len(wanted), f"count {stack}")
                if (known := self._kept(stack)) is None:
                    try:
                        refusals = REFUSALS if stack == BASELINE else ()
                        known = StepCost.model_validate(counting(_cost, self, stack, mendable=refusals))
                    except ContenderFailed as failure:  # which another try may not be
                        known = StepCost(stack=stack, why_not=f"its count {failure.status}: {failure.reason}")
                yield known

    def cost(self, stack: str) -> StepCost:
        """Returns what a step of the stack costs; why that is not known, where the stack does not attach or reads
        values."""
        return self._kept(stack) or self._made(stack)

    def _kept(self, stack: str) -> StepCost | None:
        try:
            return StepCost.model_validate_json(read_plain(self._path(stack)))
        except (OSError, ValueError):  # counted anew, whatever is there
            return None

    def _made(self, stack: str) -> StepCost:
        with heap_set_aside():
            own = self._counted(stack)
        path = self._path(stack)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(own, path)
        return own

    def _path(self, stack: str) -> Path:
        return cache_folder() / FOLDER / f"{self._key(stack)}.json"

    def _key(self, stack: str) -> str:
        """Returns a hash of all that a count depends on."""
        at = self.scale.setting
        config = Path(at.model).expanduser() / "config.json" if at.model else None
        own = read_plain(config).decode("utf-8", "replace") if config and config.is_file() else ""
        gpu = repr((self.gpu, believed().model_dump_json())) if self.gpu else ""
        facts = [
            stack,
            code_of(at, stack).counts,
            at.model_dump(mode="json"),
            self.scale.batch_size,
            self.scale.sequence_length,
            own,
            versions(),
            gpu,
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]

    def _counted(self, stack: str) -> StepCost:
        trace = OperatorTrace()

        def traced(run: Run) -> None:
            if self.gpu:
                steps.append(trace_step(run, trace))

        steps: list[TracedStep] = []
        try:
            count = counted(stack, self.scale, traced)
        except Exception as refusal:  # whatever its techniques do together: it is a row, and the others are counted
            if stack == BASELINE:  # the model's or the scale's own fault
                raise
            what = str(refusal) if isinstance(refusal, ValueError | NotAttached) else repr(refusal)
            return StepCost(stack=stack, why_not=what)
        if count.counters is None:
            return StepCost(stack=stack, why_not=count.unavailable)
        step_s, band = self._modelled(steps)
        return StepCost(
            stack=stack,
            peak_bytes=count.counters.peak_tensor_bytes,
            peak_by_kind=count.counters.peak_by_kind,
            flops=count.counters.flops,
            parameter_bytes=count.parameter_bytes,
            step_s=step_s,
            step_band=band,
        )

    def _modelled(self, steps: Iterable[TracedStep]) -> tuple[float | None, float]:
        """Returns the step's time on the GPU with the band of the gravest change; None where something has no declared
        cost."""
        known = believed()
        for step in steps:
            assert self.gpu is not None
            device = known.calibrated(self.gpu)
            try:
                software = Software(attention_share=known.attention(DEFAULT.attention, device))
                time = modelled(step, device, software)
            except ValueError:
                return None, 0.0
            return time.step_s, max(band.half_width for change in OF_ONE_GPU if (band := known.band(change)))
        return None, 0.0


def _cost(counting: Counting, stack: str) -> dict[str, Any]:
    """Counts in a process that is a deputy, which has no threads of a pool that was there before."""
    torch.set_num_threads(1)
    return counting.cost(stack).model_dump(mode="json")

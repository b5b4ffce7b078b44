"""Takes one more recorded step of ranks that exchange gradients: what each had, got, kept and sent. For all probes
here.

What a rank remembers goes through no optimizer, so that no trace has it: here it is copied before and after the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.meters.communication import Communication
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.communication.shared.ranks import CompressedRanks
from techniques.shared.plain import apart
from techniques.shared.ranks import summed


@dataclass(frozen=True)
class Exchanged:
    """Records a step of this rank.

    Attributes:
        gradients: its own, before they were exchanged, float32, by the parameter's name; 0 where there was none.
        before, after: what it remembered.
        means: what the exchange gave.
        received: what the optimizer got: that, clipped.
        sent_bytes: on an ideal ring, as the Communication meter saw them.
    """

    recording: Recording
    trace: Trace
    gradients: dict[str, Tensor]
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    means: dict[str, Tensor]
    received: dict[str, Tensor]
    sent_bytes: int

    def wanted(self) -> dict[str, Tensor]:
        """Returns gradient and memory together: float32, one addition, which has one result."""
        return {
            name: gradient + self.before[name] if name in self.before else gradient
            for name, gradient in self.gradients.items()
        }

    def mean(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Computes the mean over ranks, float64."""
        run = self.recording.run
        return {name: summed(self.recording, value.double()) / run.world_size for name, value in values.items()}

    def received_roundings(self, expected: Mapping[str, Tensor]) -> float:
        """Measures how far what the exchange gave is from the ``expected`` mean, and what the optimizer got from that,
        but for the factor of clipping, which hides a sum in the place of a mean: in float32 roundings of a tensor's
        norm."""
        limit = self.recording.run.recipe.gradient_clip
        norm = torch.cat([mean.flatten() for mean in self.means.values()]).norm().item()
        factor = min(1.0, limit / (norm + 1e-6)) if limit else 1.0
        clipped = {name: factor * mean for name, mean in self.means.items()}
        return max(apart(self.means, expected), apart(self.received, clipped))

    def memory_roundings(self, expected: Mapping[str, Tensor], sizes: Mapping[str, Tensor]) -> float:
        """Measures how far what this rank remembers is from the ``expected``, in float32 roundings of the norm of what
        was to be sent, ``sizes``."""
        sizes = {name: size.double().norm() for name, size in sizes.items()}
        floor = torch.finfo(torch.float32).tiny
        return (
            max(
                ((self.after[name].double() - value).norm() / (sizes[name] + floor)).item()
                for name, value in expected.items()
            )
            / torch.finfo(torch.float32).eps
        )


def one_more(recording: Recording, own: CompressedRanks) -> Exchanged:
    """Takes the run's next step, recorded and metered. All ranks call it together."""
    before = {name: error.clone() for name, error in own.errors.items()}
    means: dict[str, Tensor] = {}
    exchange = own.exchange

    def seen(gradients: dict[str, Tensor], run: Run) -> dict[str, Tensor]:
        averages = exchange(gradients, run)
        means.update({name: value.double() for name, value in averages.items()})  # clipping is in place
        return averages

    own.exchange = seen  # type: ignore[method-assign]
    try:
        with Communication() as traffic:
            recording.record_step()
    finally:
        del own.exchange
    run, trace = recording.run, recording.trace
    gradients = trace.of("backward")[0].gradients
    names = run.trained_parameters()
    return Exchanged(
        recording,
        trace,
        {
            name: gradients[name].float() if name in gradients else torch.zeros_like(trained_parameter)
            for name, trained_parameter in names.items()
        },
        before,
        {name: error.clone() for name, error in own.errors.items()},
        means,
        {name: trace.update.before.gradients[name].double() for name in names},
        traffic.ring_bytes(run.world_size),
    )

"""Makes a step that is nothing but updates: of two implementations of an optimizer, what remains when the passes go.

The gradients are those of the first batch and stay as they are, so that each update has the work of any other. A step
makes UPDATES of them: a batch is drawn for each step all the same, and must be little beside them.
"""

from __future__ import annotations

from collections.abc import Mapping

from suite.loop.data import Batch
from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.technique import Technique

UPDATES = 32


class UpdatesAlone(Technique):
    """Makes the optimizer's update UPDATES times in place of a whole step, without clipping."""

    begun = False

    def update(self, run: Run, batch: Batch) -> None:
        if not self.begun:
            run.optimizer.zero_grad(set_to_none=True)
            loss = run.forward(batch)
            run.backward(loss)
            run.loss, self.begun = loss.detach(), True
        for _ in range(UPDATES):
            run.optimizer.step()

    def sites(self, run: Run) -> Mapping[str, Site]:
        return run.trained_parameters()

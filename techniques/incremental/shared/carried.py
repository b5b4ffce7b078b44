"""A run goes on with a changed model: the optimizer's state of all parameters that stay goes with them.

For ``progressive_patch`` and ``autoprog``, which change or add some parameters in the middle of a run.
"""

from __future__ import annotations

from suite.loop.run import Run


def readopt(run: Run) -> None:
    """Trains ``run.model`` as it is now, with a new optimizer that knows of kept parameters what the old one did."""
    before = run.optimizer.state
    run.adopt(run.model)
    for group in run.optimizer.param_groups:
        for parameter in group["params"]:
            if parameter in before:
                run.optimizer.state[parameter] = before[parameter]

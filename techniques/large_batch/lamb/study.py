"""How far LAMB lets the batch grow: steps to quality against the batch size, beside AdamW."""

from suite.measure.study import Lab, Table
from techniques.large_batch.batch_sweep import plot, sweep

__all__ = ["plot", "study"]


def study(lab: Lab) -> list[Table]:
    """The sweep's tables ``steps_to_quality``, ``best`` and ``cost``."""
    return sweep(lab, "lamb")

"""Tells which of a run's memory is its data: no part of what a step costs, since every run on these data has it.

The data set that the baseline prepared, or what a technique chose of it, and the order in which an epoch's examples
come.
"""

from __future__ import annotations

from suite.loop.data import example_order
from suite.loop.run import Run


def data_of(run: Run) -> tuple[object, ...]:
    """Returns what :meth:`suite.meters.holders.Living.left_out` is to leave out."""
    return run.data, example_order

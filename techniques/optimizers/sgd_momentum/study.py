"""The learning rate of SGD with momentum against AdamW's: a grid of five for each."""

from suite.measure.study import Lab, Table
from techniques.optimizers.rate_grid import plot, tuned

__all__ = ["plot", "study"]


def study(lab: Lab) -> list[Table]:
    """The tables ``rates`` and ``best``."""
    grid = {float(factor): f"sgd_momentum:factor={factor}" for factor in (10, 30, 100, 300, 1000)}
    return tuned(lab, {"SGD": grid})

"""Lion's learning rate against AdamW's, with five for each, at the recipe's batch and at one eight times larger.

Language models get a second grid with the betas that the authors advise for them. The paper's gain grows with the
batch: then the gap between the best rates falls from the small batch to the large one.
"""

from suite.contract.baseline import baselines
from suite.measure.study import Lab, Table
from techniques.optimizers.rate_grid import plot, tuned

__all__ = ["plot", "study"]

FACTORS = (1, 3, 10, 30, 100)  # which divide AdamW's rate


def study(lab: Lab) -> list[Table]:
    """The tables ``rates`` and ``best``."""
    sides = {"Lion": {1 / factor: f"lion:factor={factor}" for factor in FACTORS}}
    if baselines()[lab.baseline].modality == "text":
        sides["Lion 0.95, 0.98"] = {1 / factor: f"lion:factor={factor},beta1=0.95,beta2=0.98" for factor in FACTORS}
    return tuned(lab, sides, batches=(1, 8))

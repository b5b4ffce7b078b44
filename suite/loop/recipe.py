"""Has the hyper-parameters of one training run, and its learning-rate schedule as a function of the step."""

import math
from dataclasses import dataclass, fields
from typing import Any, Literal

Schedule = Literal["cosine", "linear", "constant"]
Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class Recipe:
    """Holds everything that decides a run besides the model and the data. Techniques return changed copies.

    ``warmup_fraction`` is a fraction of ``steps``; after it the learning rate decays from ``learning_rate`` to
    ``learning_rate * final_learning_rate_ratio`` at the last step. ``gradient_clip`` is a global L2 norm, 0 for none.
    ``batch_size`` is global: with ``world_size`` ranks each rank sees ``batch_size / world_size`` examples.
    """

    steps: int
    batch_size: int
    learning_rate: float
    schedule: Schedule = "cosine"
    warmup_fraction: float = 0.1
    final_learning_rate_ratio: float = 0.0
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    gradient_clip: float = 1.0
    precision: Precision = "fp32"
    fused_attention: bool = False
    fused_optimizer: bool = False
    compile: bool = False
    world_size: int = 1

    def __post_init__(self) -> None:
        positive = ("steps", "batch_size", "learning_rate", "world_size", "eps")
        for name in positive:
            if not getattr(self, name) > 0:
                raise ValueError(f"recipe: {name} must be positive, not {getattr(self, name)}")
        for name in ("weight_decay", "gradient_clip", "final_learning_rate_ratio"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"recipe: {name} must be 0 or more, not {getattr(self, name)}")
        for name in ("beta1", "beta2", "warmup_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"recipe: {name} must lie in [0, 1), not {getattr(self, name)}")
        if self.batch_size % self.world_size:
            raise ValueError(
                f"a batch of {self.batch_size} does not divide among {self.world_size} ranks: take "
                f"{_divisors(self.batch_size)} of them"
            )

    def learning_rate_at(self, step: int) -> float:
        """Returns the learning rate of 0-based ``step``: linear warm-up from 1/w to 1, then decay that ends at the last
        step."""
        warmup = round(self.warmup_fraction * self.steps)
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        if self.schedule == "constant":
            return self.learning_rate
        done = min(1.0, (step - warmup + 1) / max(1, self.steps - warmup))
        decay = 1 - done if self.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
        floor = self.final_learning_rate_ratio
        return self.learning_rate * (floor + (1 - floor) * decay)

    def as_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _divisors(batch: int) -> str:
    """Returns the numbers of ranks that a batch divides among, for a sentence."""
    *most, last = (str(ranks) for ranks in range(1, batch + 1) if batch % ranks == 0)
    return f"{', '.join(most)} or {last}" if most else last

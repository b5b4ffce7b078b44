"""Makes the three recipes as changes to one set of hyper-parameters: what the papers compared with, and what is run
today."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from suite.loop.recipe import Recipe
from suite.record.job import RecipeName, Size, Task

_MODERN: dict[str, Any] = {"precision": "bf16", "fused_attention": True, "fused_optimizer": True}
_CHANGES: dict[RecipeName, dict[str, Any]] = {
    "classic": {"precision": "fp32", "fused_attention": False, "fused_optimizer": False, "compile": False},
    "modern": _MODERN,
    "compiled": {**_MODERN, "compile": True},
}
# At these widths a CPU spends more on autocast's conversions than bf16 saves (60 ms a step of 45): nobody would run it.
FP32_SIZES: tuple[Size, ...] = ("nano", "micro", "mini")


def named(pretrain: Mapping[Size, Recipe], size: Size, name: RecipeName, task: Task, adapting: float = 0.5) -> Recipe:
    """The hyper-parameters of a size, run the classic, modern or compiled way; what decides learning stays. Adapting
    takes half the steps of pretraining, at the share ``adapting`` of its learning rate."""
    recipe = replace(pretrain[size], **_CHANGES[name])
    if size in FP32_SIZES:
        recipe = replace(recipe, precision="fp32")
    if task == "adapt":
        recipe = replace(recipe, steps=recipe.steps // 2, learning_rate=recipe.learning_rate * adapting)
    return recipe

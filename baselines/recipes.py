"""The three recipes as changes to one set of hyper-parameters: what the papers compared with, and what is run today."""

from dataclasses import replace
from typing import Any

from suite.loop.recipe import Recipe
from suite.record.job import RecipeName, Size

_MODERN: dict[str, Any] = {"precision": "bf16", "fused_attention": True, "fused_optimizer": True}
_CHANGES: dict[RecipeName, dict[str, Any]] = {
    "classic": {"precision": "fp32", "fused_attention": False, "fused_optimizer": False, "compile": False},
    "modern": _MODERN,
    "compiled": {**_MODERN, "compile": True},
}
# At these widths a CPU spends more on autocast's conversions than bf16 saves (60 ms a step of 45): nobody would run it.
FP32_SIZES: tuple[Size, ...] = ("nano", "micro", "mini")


def named(recipe: Recipe, name: RecipeName, size: Size) -> Recipe:
    """``recipe`` run the classic, modern or compiled way; the hyper-parameters that decide learning stay."""
    changed = replace(recipe, **_CHANGES[name])
    return replace(changed, precision="fp32") if size in FP32_SIZES else changed

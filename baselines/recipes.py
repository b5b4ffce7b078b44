"""The three recipes as changes to one set of hyper-parameters: what the papers compared with, and what is run today."""

from dataclasses import replace
from typing import Any

from suite.contract.recipe import Recipe
from suite.record.job import RecipeName

_MODERN: dict[str, Any] = {"precision": "bf16", "fused_attention": True, "fused_optimizer": True}
_CHANGES: dict[RecipeName, dict[str, Any]] = {
    "classic": {"precision": "fp32", "fused_attention": False, "fused_optimizer": False, "compile": False},
    "modern": _MODERN,
    "compiled": {**_MODERN, "compile": True},
}


def named(recipe: Recipe, name: RecipeName) -> Recipe:
    """``recipe`` run the classic, modern or compiled way; the hyper-parameters that decide learning stay."""
    return replace(recipe, **_CHANGES[name])

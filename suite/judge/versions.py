"""Tells what an installed baseline's class states of itself, read without importing it, which loads a library of
models.

``version``: rows of an older one are kept, and named as such. ``quality``: what its loss is, in words.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from suite.entries.installed import GROUP


def installed_version(baseline: str) -> int | None:
    """Returns the version that is installed, None where there is no such baseline, or no number there."""
    number = stated(baseline).get("version")
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def installed_quality(baseline: str) -> str:
    """Tells what the loss of a baseline is; empty where its own body does not state it."""
    words = stated(baseline).get("quality")
    return words if isinstance(words, str) else ""


@cache
def stated(baseline: str) -> dict[str, Any]:
    """Returns the constants in the body of the baseline's class by their names: ``version = 2``, with an annotation or
    without one. Empty where there is no such baseline."""
    for point in entry_points(group=GROUP, name=baseline):
        try:
            spec = find_spec(point.module)
            tree = ast.parse(Path(spec.origin).read_text("utf-8")) if spec and spec.origin else None
        except (ImportError, OSError, ValueError, SyntaxError):
            continue  # a plug-in may hold anything; its tests say what is wrong
        for node in tree.body if tree else ():
            if isinstance(node, ast.ClassDef) and node.name == point.attr:
                return dict(pair for line in node.body for pair in _constants(line))
    return {}


def _constants(line: ast.stmt) -> list[tuple[str, Any]]:
    targets = line.targets if isinstance(line, ast.Assign) else [line.target] if isinstance(line, ast.AnnAssign) else []
    value = line.value if isinstance(line, ast.Assign | ast.AnnAssign) else None
    named = [target.id for target in targets if isinstance(target, ast.Name)]
    return [(name, value.value) for name in named] if isinstance(value, ast.Constant) else []

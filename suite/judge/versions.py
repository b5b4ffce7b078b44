"""Which version of a baseline is installed, without importing it: rows of an older one are kept, and named as such."""

from __future__ import annotations

import ast
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from suite.contract.sources import GROUP


@cache
def installed_version(baseline: str) -> int | None:
    """As the body of the baseline's class states it; None where there is no such baseline, or no number there."""
    for point in entry_points(group=GROUP, name=baseline):
        try:
            found = find_spec(point.module)
            tree = ast.parse(Path(found.origin).read_text("utf-8")) if found and found.origin else None
        except (
            ImportError,
            OSError,
            ValueError,
            SyntaxError,
        ):  # a plug-in may hold anything; its tests say what is wrong
            continue
        for node in tree.body if tree else ():
            if isinstance(node, ast.ClassDef) and node.name == point.attr:
                return next(filter(None, map(_stated, node.body)), None)
    return None


def _stated(line: ast.stmt) -> int | None:
    """The number of ``version = 2``, with an annotation or without one."""
    targets = line.targets if isinstance(line, ast.Assign) else [line.target] if isinstance(line, ast.AnnAssign) else []
    value = line.value if isinstance(line, ast.Assign | ast.AnnAssign) else None
    named = any(isinstance(each, ast.Name) and each.id == "version" for each in targets)
    number = value.value if isinstance(value, ast.Constant) else None
    return number if named and isinstance(number, int) else None

"""The properties that stand on the functions of a ``probes.py``, read from its text: nothing of the file is run, and no
torch is loaded. What ``@judged`` may say is in :mod:`suite.reading.judged`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from suite.record.code import PARSING

BOUNDS = {"equals": "==", "at_most": "<=", "at_least": ">=", "below": "<", "above": ">"}
"""The words for a bound, and the relation to what is expected that each stands for."""
IN_ORDER = ("probe", "statement", "place")
DECORATORS = re.compile(r"^[ \t]*@judged\b.*?(?=^[ \t]*(?:async def|def|class)\b|\Z)", re.MULTILINE | re.DOTALL)


class MisstatedError(ValueError):
    """An ``@judged`` that says no property, with its ``line`` and one sentence."""

    def __init__(self, line: int, sentence: str) -> None:
        super().__init__(sentence)
        self.line = line


@dataclass(frozen=True)
class Stated:
    """One ``@judged``: the line where it begins; the probe; the fields of the property; and the word for its bound,
    which is ``expected`` where it says none."""

    line: int
    probe: str
    fields: Mapping[str, Any]
    bound: str = "expected"


def stated(text: str) -> Iterator[Stated]:
    """Yields what a file's text states, in its order. Raises MisstatedError."""
    for decorators in DECORATORS.finditer(text):
        above = text.count("\n", 0, decorators.start())
        try:
            with PARSING:
                tree = ast.parse(f"{decorators[0]}def probes(): ...")
        except SyntaxError as error:
            raise MisstatedError(above + (error.lineno or 1), f"not valid Python: {error.msg}") from None
        except (ValueError, RecursionError, MemoryError) as error:  # a null byte; more brackets than the parser counts
            raise MisstatedError(above + 1, f"not valid Python: {error}") from None
        ast.increment_lineno(tree, above)
        for function in tree.body:
            for decorator in getattr(function, "decorator_list", ()):
                if getattr(getattr(decorator, "func", decorator), "id", None) == "judged":
                    yield _stated(decorator)


def _stated(decorator: ast.expr) -> Stated:
    line = decorator.lineno
    arguments = _arguments(decorator)
    for word in IN_ORDER[:2]:
        if word not in arguments:
            raise MisstatedError(line, f"the {word} is missing: write @judged(PROBE, STATEMENT, PLACE), then the bound")
    for word in ("metric", "expected", "relation"):
        if word in arguments:
            instead = "a [[property]] of the card" if word == "metric" else f"one of {', '.join(BOUNDS)}"
            raise MisstatedError(line, f"@judged has no {word}: write {instead}")
    said = {word: _literal(word, value) for word, value in arguments.items()}
    probe = said.pop("probe")
    bounds = [word for word in said if word in BOUNDS]
    if len(bounds) > 1:
        raise MisstatedError(line, f"{' and '.join(bounds)} are two bounds: write one property for each")
    for word in bounds:
        said |= {"expected": said.pop(word)} | ({} if word == "equals" else {"relation": BOUNDS[word]})
    return Stated(line, probe, {"id": probe, **said}, *bounds)


def _arguments(decorator: ast.expr) -> dict[str, ast.expr]:
    """The arguments by their words. Raises MisstatedError where one has no word, and none of the places in order."""
    if not isinstance(decorator, ast.Call):
        return {}
    inexpressible = [each for each in decorator.args if isinstance(each, ast.Starred)] + decorator.args[len(IN_ORDER) :]
    inexpressible += [each.value for each in decorator.keywords if each.arg is None]
    for each in inexpressible:
        raise MisstatedError(each.lineno, f"say {ast.unparse(each)} by its word: only {', '.join(IN_ORDER)} need none")
    return dict(zip(IN_ORDER, decorator.args)) | {str(each.arg): each.value for each in decorator.keywords}


def _literal(word: str, value: ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        said = ast.unparse(value)
        raise MisstatedError(
            value.lineno, f"{word} is {said}, which only running the file would tell: write its value out"
        ) from None

"""The properties that stand on the functions of a ``probes.py``, read from its text: nothing of the file is run, and no
torch is loaded. What ``@judged`` and ``@judged_as`` may say is in :mod:`suite.reading.judged`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from suite.entries.code import PARSING
from suite.entries.module_files import file_of
from suite.record.files import read_plain_text

BOUNDS = {"equals": "==", "at_most": "<=", "at_least": ">=", "below": "<", "above": ">"}
"""The words for a bound, and the relation to what is expected that each stands for."""
IN_ORDER = ("probe", "statement", "place")
DECORATORS = re.compile(r"^[ \t]*@judged(?:_as)?\b.*?(?=^[ \t]*(?:async def|def|class)\b|\Z)", re.MULTILINE | re.DOTALL)
DEFINED = re.compile(r"[ \t]*(?:async def|def)\s+(\w+)")


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


def stated(text: str) -> list[Stated]:
    """Returns what a file's text states, in its order, and in the place of each ``@judged_as`` what the shared function
    states. Raises MisstatedError."""
    every = [(decorator, kind) for decorator, kind, _ in _decorators(text)]
    own = {id(decorator): _stated(decorator) for decorator, kind in every if kind == "judged"}
    taken = {said.fields["id"] for said in own.values()}
    said: list[Stated] = []
    for decorator, kind in every:
        if kind == "judged":
            said.append(own[id(decorator)])
        else:
            said += [shared for shared in _shared(decorator, text) if shared.fields["id"] not in taken]
    return said


def _decorators(text: str) -> Iterator[tuple[ast.expr, str, str]]:
    """Yields the decorators that state something, which of the two each is, and the name of the decorated function."""
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
        name = DEFINED.match(text, decorators.end())
        for function in tree.body:
            for decorator in getattr(function, "decorator_list", ()):
                kind = getattr(getattr(decorator, "func", decorator), "id", None)
                if kind in ("judged", "judged_as"):
                    yield decorator, kind, name[1] if name else ""


def _shared(decorator: ast.expr, text: str) -> Iterator[Stated]:
    """Yields what the function states that ``@judged_as`` names, each in the line of that."""
    line, arguments = decorator.lineno, _arguments(decorator, ("shared", "place"))
    name = arguments.get("shared")
    if not isinstance(name, ast.Name) or arguments.keys() - {"shared", "place"}:
        raise MisstatedError(line, "write @judged_as(FUNCTION, PLACE), of a function that several techniques share")
    place = _literal("place", arguments["place"]) if "place" in arguments else ""
    module = _module_of(name.id, text)
    path = file_of(module) if module else None
    if path is None:
        raise MisstatedError(line, f"where {name.id} stands is not known: import it from its module, by its name there")
    try:
        theirs = read_plain_text(path)
    except OSError as error:
        raise MisstatedError(line, f"{path} cannot be read: {error.strerror}") from None
    found = [_stated(each) for each, kind, function in _decorators(theirs) if (kind, function) == ("judged", name.id)]
    if any((kind, function) == ("judged_as", name.id) for _, kind, function in _decorators(theirs)):
        raise MisstatedError(line, f"{name.id} states what others share itself: write @judged_as of those here")
    if not found:
        raise MisstatedError(line, f"{name.id} of {module} states nothing: write @judged on it")
    for each in found:
        yield replace(each, line=line, fields={**({"place": place} if place else {}), **each.fields})


def _module_of(name: str, text: str) -> str:
    """Returns the module that a file imports the name from; empty where it imports none so called."""
    try:
        with PARSING:
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module and not node.level)
    return next(
        (
            str(node.module)
            for node in imports
            if any(each.name == name == (each.asname or name) for each in node.names)
        ),
        "",
    )


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


def _arguments(decorator: ast.expr, in_order: tuple[str, ...] = IN_ORDER) -> dict[str, ast.expr]:
    """The arguments by their words. Raises MisstatedError where one has no word, and none of the places in order."""
    if not isinstance(decorator, ast.Call):
        return {}
    inexpressible = [each for each in decorator.args if isinstance(each, ast.Starred)] + decorator.args[len(in_order) :]
    inexpressible += [each.value for each in decorator.keywords if each.arg is None]
    for each in inexpressible:
        raise MisstatedError(each.lineno, f"say {ast.unparse(each)} by its word: only {', '.join(in_order)} need none")
    return dict(zip(in_order, decorator.args)) | {str(each.arg): each.value for each in decorator.keywords}


def _literal(word: str, value: ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        said = ast.unparse(value)
        raise MisstatedError(
            value.lineno, f"{word} is {said}, which only running the file would tell: write its value out"
        ) from None

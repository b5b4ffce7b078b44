"""Reads the definitions of source files as they run: comments, docstrings, layout and annotations that nothing executes
do not count, nor do where a definition stands and what the variables of functions are called.

A file is read as the statements of its top level, each as text that does not depend on Python's version, with the
names that it uses; what a name stands for :mod:`suite.entries.sources` finds out. Annotations in the bodies of classes
and modules stay, since dataclasses read them, and so do those that Triton compiles by (``tl.constexpr``).
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, cast

from suite.entries import names
from suite.entries.names import FUNCTIONS, Chain, resolve
from suite.record.files import cache_folder, replacing
from suite.record.seal import opened, sealed

COMPILED_BY = "constexpr"
PARSING = Lock()  # CPython 3.11 counts the depth of all threads' trees in one number, and complains of it
UNTYPED = ("type_comment", "type_params", "kind")  # fields that carry types alone, or nothing that runs
BLOCKS = {"body", "orelse", "finalbody", "handlers", "cases"}
"""The fields of a statement that hold statements, or what holds such (a lambda's body is none)."""
REGISTERING = ("register", "custom_op", "triton_op")
"""Decorators with these in their names hand what they decorate to others: it is called without being named."""
STATED_IN = ("suite.reading.judged", "leantrain.technique")
STATING = tuple(f"{module}.{name}" for module in STATED_IN for name in ("judged", "judged_as"))
"""The decorators that say what a function's figures are judged by. They do nothing, so they do not count."""


@dataclass(frozen=True)
class Statement:
    """Describes a statement of a file's top level.

    ``text``: what runs. ``lines``: where it stands. ``uses``: the names that it reads and does not bind.
    ``when_called``: the names that its functions import, and the dotted ones that they stand for. ``effect``: whether
    it does more than bind names when the file is loaded.
    """

    text: str
    lines: range = range(0)
    uses: frozenset[Chain] = frozenset()
    when_called: frozenset[tuple[str, str]] = frozenset()
    effect: bool = False


@dataclass(frozen=True)
class Source:
    """Describes a source file. ``bindings``: what each name of the top level is bound to, statements by their number,
    and dotted names that are imported."""

    statements: tuple[Statement, ...]
    bindings: Mapping[str, tuple[int | str, ...]]


def read_source(path: Path) -> Source:
    """Reads a file. One that does not parse is one statement, which counts whole.

    What a file holds is kept in the cache by the file's bytes: parsing takes most of the time of a hash.
    """
    content = path.read_bytes()
    key = hashlib.sha256(_reader() + content).hexdigest()
    cache_file = cache_folder() / "sources" / key[:2] / f"{key}.json"
    try:
        return _of_json(opened(cache_file.read_bytes()))
    except (OSError, ValueError):  # not read before, or damaged
        source = _parsed(content)
        with suppress(OSError), replacing(cache_file) as partial:
            partial.write_bytes(sealed(_as_json(source)))
        return source


@cache
def _reader() -> bytes:
    """Tells who reads: this file, that of variables' numbers, and Python."""
    return b"".join(Path(path).read_bytes() for path in (__file__, names.__file__)) + sys.version.encode()


def _as_json(source: Source) -> bytes:
    statements = [
        [
            statement.text,
            statement.lines.start,
            statement.lines.stop,
            sorted(statement.uses),
            sorted(statement.when_called),
            statement.effect,
        ]
        for statement in source.statements
    ]
    return json.dumps({"statements": statements, "bindings": source.bindings}).encode()


def _of_json(content: bytes) -> Source:
    """Does the inverse of :func:`_as_json`. Raises ValueError for what is no JSON."""
    known = json.loads(content)
    statements = (
        Statement(text, range(start, stop), frozenset(map(tuple, uses)), frozenset(map(tuple, called)), effect)
        for text, start, stop, uses, called, effect in known["statements"]
    )
    return Source(tuple(statements), {name: tuple(bound) for name, bound in known["bindings"].items()})


def _parsed(content: bytes) -> Source:
    tree = _stripped(content)
    if tree is None:
        return Source((Statement(repr(content), effect=True),), {})
    statements: list[Statement] = []
    bindings: dict[str, list[int | str]] = {}
    for node in tree.body:
        for name, dotted in _imports(node):
            bindings.setdefault(name, []).append(dotted)
        if isinstance(node, ast.Import | ast.ImportFrom):
            continue
        for name in _bound(node):
            bindings.setdefault(name, []).append(len(statements))
        called = frozenset(binding for inner in _functions(node) for binding in _imports(inner, inside_functions=True))
        lines, acts, uses = _lines(node), _acts(node), frozenset(resolve(node))  # last, since it puts numbers for names
        statements.append(Statement(_text(node), lines, uses, called, acts))
    return Source(tuple(statements), {name: tuple(bound) for name, bound in bindings.items()})


def _imports(node: ast.AST, inside_functions: bool = False) -> Iterator[tuple[str, str]]:
    """Yields the names that a statement imports, each with the dotted name that it stands for."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            whole = alias.name if alias.asname else alias.name.partition(".")[0]
            yield alias.asname or whole, whole
    elif isinstance(node, ast.ImportFrom):
        if node.module and not node.level:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
    elif inside_functions or not isinstance(node, FUNCTIONS):
        for child in _blocks(node):
            yield from _imports(child, inside_functions)


def _blocks(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the statements, handlers and cases right inside a statement: expressions have none."""
    for name in node._fields:
        if name in BLOCKS:
            yield from getattr(node, name, ())


def _functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the outermost functions of a statement."""
    if isinstance(node, FUNCTIONS):
        yield node
    else:
        for child in _blocks(node):
            yield from _functions(child)


def _bound(node: ast.AST) -> Iterator[str]:
    """Yields the names that a statement binds, without imports."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif not isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        for child in ast.iter_child_nodes(node):
            yield from _bound(child)


def _acts(node: ast.AST) -> bool:
    """Tells whether a statement does more than bind names: calls, assignments into objects, whatever is conditional,
    and definitions that a decorator hands on."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
        return any(word in decorator for word in REGISTERING for decorator in decorators)
    targets: Iterable[ast.AST] = ()
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = (node.target,)
    else:
        return True
    return any(isinstance(node, ast.Attribute | ast.Subscript) for target in targets for node in ast.walk(target))


def _lines(node: ast.stmt) -> range:
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
    return range(first, (node.end_lineno or first) + 1)


def _text(node: ast.AST) -> str:
    parts: list[str] = []
    _write(node, parts)
    return "".join(parts)


def fields_of_type(path: Path, annotation: str) -> dict[str, str]:
    """Returns the fields of a file's classes that are annotated so and have a text as their default."""
    source = path.read_bytes()
    if annotation.encode() not in source:  # nearly every file, and parsing takes long
        return {}
    return {
        node.target.id: node.value.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.annotation, ast.Name)
        and node.annotation.id == annotation
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def _stripped(source: bytes) -> ast.Module | None:
    """Returns the syntax tree of what runs; None where the source does not parse."""
    try:
        with PARSING:
            tree = ast.parse(source)
        stating = {name for node in tree.body for name, dotted in _imports(node) if dotted in STATING}
        return cast(ast.Module, _Stripped(stating).visit(tree))
    except (SyntaxError, ValueError):
        return None


class _Stripped(ast.NodeTransformer):
    """Takes out what does not run. ``stating``: what the file calls the decorators of :data:`STATING`."""

    def __init__(self, stating: Collection[str]) -> None:
        self.stating = stating
        self.inside_function = False

    def visit_Module(self, node: ast.Module) -> ast.AST:
        return self._without_docstring(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        outside, self.inside_function = self.inside_function, False
        stripped = self._without_docstring(node)
        self.inside_function = outside
        return stripped

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        if node.annotation is not None and COMPILED_BY not in ast.unparse(node.annotation):
            node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        """Rewrites a variable of a function: an assignment, or nothing where it has no value."""
        self.generic_visit(node)
        if not self.inside_function:
            return node
        return ast.Assign([node.target], node.value) if node.value else None

    def visit_If(self, node: ast.If) -> Any:
        """Drops what is imported for type checkers only, and keeps what stands in its ``else``."""
        self.generic_visit(node)
        name = getattr(node.test, "id", getattr(node.test, "attr", ""))  # of TYPE_CHECKING, typing.TYPE_CHECKING
        return node.orelse if name == "TYPE_CHECKING" else node

    def generic_visit(self, node: Any) -> ast.AST:
        """Visits statements alone, which a statement's blocks hold: expressions have nothing to take out, and are nine
        tenths of a tree."""
        for name in BLOCKS.intersection(node._fields):
            statements: list[ast.AST] = []
            for child in getattr(node, name):
                visited = self.visit(child)
                statements += visited if isinstance(visited, list) else [visited] if visited is not None else []
            setattr(node, name, statements)
        return node

    def _function(self, node: Any) -> ast.AST:
        arguments = node.args
        for argument in (
            *arguments.posonlyargs,
            *arguments.args,
            *arguments.kwonlyargs,
            arguments.vararg,
            arguments.kwarg,
        ):
            if argument is not None:
                self.visit_arg(argument)
        outside, self.inside_function = self.inside_function, True
        stripped: Any = self._without_docstring(node)
        stripped.returns = None
        stripped.decorator_list = [each for each in stripped.decorator_list if not self._states(each)]
        self.inside_function = outside
        return stripped

    def _states(self, decorator: ast.expr) -> bool:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        return isinstance(called, ast.Name) and called.id in self.stating

    def _without_docstring(self, node: Any) -> ast.AST:
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body = node.body[1:]
        return self.generic_visit(node)


@cache
def _form(kind: type[Any]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Tells how the text of a node of this kind begins, and its fields with how theirs begins."""
    return f"{kind.__name__}(", tuple((name, f"{name}=") for name in kind._fields if name not in UNTYPED)


def _write(value: Any, parts: list[str]) -> None:
    """Adds the tree as text: kinds of nodes and their fields that hold something."""
    if isinstance(value, ast.Import | ast.ImportFrom):  # what the names stand for is found out, not where that stands
        parts.append(f"Import({[alias.asname or alias.name.rpartition('.')[2] for alias in value.names]})")
    elif isinstance(value, ast.AST):
        kind: Any = type(value)
        begins, fields = _form(kind)
        parts.append(begins)
        for name, field_begins in fields:
            field = getattr(value, name, None)
            if field is None or field == []:
                continue
            parts.append(field_begins)
            if isinstance(field, str):  # most are names
                parts.append(repr(field))
            else:
                _write(field, parts)
        parts.append(")")
    elif isinstance(value, list):
        parts.append("[")
        for item in value:
            _write(item, parts)
            parts.append(",")
        parts.append("]")
    else:
        parts.append(repr(value))

"""Hashes of source code as it runs: comments, docstrings, layout and annotations that nothing executes do not count.

A Python file is hashed by its syntax tree, written out in a form that does not depend on Python's version. Annotations
in the bodies of classes and modules stay, since dataclasses read them, and so do those that Triton compiles by
(``tl.constexpr``). Any other file is hashed by its bytes.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, cast

COMPILED_BY = "constexpr"
PARSING = Lock()  # CPython 3.11 counts the depth of all threads' trees in one number, and complains of it
UNTYPED = ("type_comment", "type_params", "kind")  # fields that carry types alone, or nothing that runs


def hash_file(path: Path) -> str:
    """SHA-256 of a file's code. One that does not parse counts whole."""
    content = path.read_bytes()
    return hashlib.sha256(running_code(content) if path.suffix == ".py" else content).hexdigest()


def imports(path: Path, inside_functions: bool) -> Iterator[str]:
    """The names that a source file imports when it is loaded, with those that its functions import when called.

    Of ``from a import b`` both a and a.b, since b may be a module. Nothing of a file that does not parse.
    """
    tree = _stripped(path.read_bytes())
    if tree is None:
        return
    waiting: list[ast.AST] = [tree]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif inside_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                waiting.append(node)


def fields_of_type(path: Path, annotation: str) -> dict[str, str]:
    """The fields of a file's classes that are annotated so and have a text as their default."""
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


def running_code(source: bytes) -> bytes:
    """The part of a source that runs, as text that is equal for equal code; ``source`` where it does not parse."""
    tree = _stripped(source)
    if tree is None:
        return source
    parts: list[str] = []
    _write(tree, parts)
    return "".join(parts).encode("utf-8", "surrogatepass")


@lru_cache(maxsize=1)  # a file's hash and its imports are asked for one after the other
def _stripped(source: bytes) -> ast.AST | None:
    """The syntax tree of what runs, not to be changed; None where the source does not parse."""
    try:
        with PARSING:
            tree = ast.parse(source)
        return cast(ast.AST, _Stripped().visit(tree))
    except (SyntaxError, ValueError):
        return None


class _Stripped(ast.NodeTransformer):
    """Takes out what does not run."""

    def __init__(self) -> None:
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
        """A variable of a function: an assignment, or nothing where it has no value."""
        self.generic_visit(node)
        if not self.inside_function:
            return node
        return ast.Assign([node.target], node.value) if node.value else None

    def visit_If(self, node: ast.If) -> Any:
        """Drops what is imported for type checkers only, and keeps what stands in its ``else``."""
        self.generic_visit(node)
        name = getattr(node.test, "id", getattr(node.test, "attr", ""))  # of TYPE_CHECKING, typing.TYPE_CHECKING
        return node.orelse if name == "TYPE_CHECKING" else node

    def _function(self, node: Any) -> ast.AST:
        outside, self.inside_function = self.inside_function, True
        stripped: Any = self._without_docstring(node)
        stripped.returns = None
        self.inside_function = outside
        return stripped

    def _without_docstring(self, node: Any) -> ast.AST:
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body = node.body[1:]
        return self.generic_visit(node)


def _write(value: Any, parts: list[str]) -> None:
    """Adds the tree as text: kinds of nodes and their fields that hold something."""
    if isinstance(value, ast.AST):
        parts.append(f"{type(value).__name__}(")
        for name in value._fields:
            field = getattr(value, name, None)
            if field is not None and field != [] and name not in UNTYPED:
                parts.append(f"{name}=")
                _write(field, parts)
        parts.append(")")
    elif isinstance(value, list):
        parts.append("[")
        for each in value:
            _write(each, parts)
            parts.append(",")
        parts.append("]")
    else:
        parts.append(repr(value))

"""Finds what the names in a statement stand for: a function's own variables, or something outside of it.

A variable of a function is what it is by where it is bound and read, whatever it is called. So :func:`resolve` puts
numbers in the place of their names, in order of their first appearance: two statements that differ in nothing else are
equal afterwards, and no others. These keep their names: what is global, attributes, what classes bind, parameters of
functions (callers may name them), what functions import and define (it has that name elsewhere, too), and everything
in a statement that may look a variable up by its name (``locals()``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
OF_AN_OBJECT = {"vars", "dir"}
LOOKING_UP = {"locals", "eval", "exec", *OF_AN_OBJECT}
"""What may look a variable up by its name; those OF_AN_OBJECT only where they are given none."""
NAMED = {ast.ExceptHandler: "name", ast.MatchAs: "name", ast.MatchStar: "name", ast.MatchMapping: "rest"}
"""Nodes that bind a name which is no node of its own, and the field that has it."""

Chain = tuple[str, ...]
"""A name and the attributes read off it: ``a.b.c``."""


def resolve(statement: ast.stmt) -> set[Chain]:
    """Numbers the variables of all functions in a statement of a file's top level, in place. Returns the names that it
    reads and its functions do not bind, each with the attributes read off it."""
    resolver = _Resolver()
    resolver.visit(statement, None)
    if not resolver.looks_up:
        number_of: dict[int, int] = {}
        for holder, place, variable in resolver.places:
            holder[place] = number_of.setdefault(variable, len(number_of))
    return resolver.chains


@dataclass
class _Scope:
    """Knows what a function, a comprehension or a class binds: which variable a name is, or None for one that keeps its
    name. ``elsewhere``: what it declares global."""

    outer: _Scope | None
    is_class: bool = False
    own: dict[str, int | None] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)


class _Resolver:
    """Collects ``chains``: what is read from outside. ``places``: where variables are named, in order: what holds the
    name, its key there, and the variable."""

    def __init__(self) -> None:
        self.chains: set[Chain] = set()
        self.places: list[tuple[Any, Any, int]] = []
        self.looks_up = False
        self._variables = count()
        self._given_an_object: set[ast.AST] = set()

    def visit(self, node: ast.AST, scope: _Scope | None) -> None:
        if isinstance(node, ast.Attribute | ast.Name):
            self._chain(node, scope)
        elif isinstance(node, (*FUNCTIONS, ast.Lambda)):
            self._function(node, scope)
        elif isinstance(node, ast.ClassDef):
            inside = _Scope(scope, is_class=True)
            self._bind(inside, node.body)
            for name in node._fields:
                self._all(getattr(node, name, None), inside if name == "body" else scope)
        elif isinstance(node, COMPREHENSIONS):
            self._comprehension(node, scope)
        else:
            self._plain(node, scope)

    def _all(self, value: Any, scope: _Scope | None) -> None:
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                self.visit(child, scope)

    def _plain(self, node: ast.AST, scope: _Scope | None) -> None:
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in OF_AN_OBJECT and node.args:
                self._given_an_object.add(node.func)
        elif isinstance(node, ast.Nonlocal):
            for number, name in enumerate(node.names):
                self._name(node.names, number, name, scope)
        elif (place := NAMED.get(type(node))) and (bound := getattr(node, place)):
            self._name(vars(node), place, bound, scope)
        for name in node._fields:
            self._all(getattr(node, name, None), scope)

    def _chain(self, node: ast.Attribute | ast.Name, scope: _Scope | None) -> None:
        attributes: list[str] = []
        base: ast.AST = node
        while isinstance(base, ast.Attribute):
            attributes.append(base.attr)
            base = base.value
        if not isinstance(base, ast.Name):
            self.visit(base, scope)
            return
        binding = self._name(vars(base), "id", base.id, scope)
        if isinstance(base.ctx, ast.Load) and (binding is None or binding.is_class):
            self.chains.add((base.id, *reversed(attributes)))
            self.looks_up |= base.id in LOOKING_UP and base not in self._given_an_object

    def _name(self, holder: Any, place: Any, name: str, scope: _Scope | None) -> _Scope | None:
        """Notes a place where a name stands. Returns the scope that binds it."""
        binding = _binding(name, scope)
        if binding and (variable := binding.own[name]) is not None:
            self.places.append((holder, place, variable))
        return binding

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, scope: _Scope | None) -> None:
        arguments = node.args
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        parameters += filter(None, (arguments.vararg, arguments.kwarg))
        inside = _Scope(scope, own={parameter.arg: None for parameter in parameters})
        if isinstance(node, ast.Lambda) and _has_one_place(arguments):
            parameter = parameters[0]
            inside.own[parameter.arg] = next(self._variables)
            self._name(vars(parameter), "arg", parameter.arg, inside)
        self._bind(inside, [node.body] if isinstance(node, ast.Lambda) else node.body)
        for name in node._fields:  # defaults and decorators are of the scope around
            self._all(getattr(node, name, None), inside if name == "body" else scope)

    def _comprehension(self, node: Any, scope: _Scope | None) -> None:
        """Visits a comprehension, where the first of what it goes over is of the scope around."""
        inside = _Scope(scope)
        for generator in node.generators:
            for target in ast.walk(generator.target):
                if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store):
                    inside.own.setdefault(target.id, next(self._variables))
        self.visit(node.generators[0].iter, scope)
        for name in ("key", "value", "elt"):
            self._all(getattr(node, name, None), inside)
        for number, generator in enumerate(node.generators):
            self._all([*([generator.iter] if number else []), generator.target, *generator.ifs], inside)

    def _bind(self, scope: _Scope, body: Iterable[ast.AST]) -> None:
        """Adds to a scope what its body binds; its parameters stay what they are."""
        keeps: dict[str, bool] = {}
        outside: set[str] = set()  # what is declared nonlocal
        for node in body:
            for name, fixed in _bound(node, scope.elsewhere, outside):
                keeps[name] = fixed or keeps.get(name, scope.is_class)
        for name, fixed in keeps.items():
            if name not in outside | scope.elsewhere:
                scope.own.setdefault(name, None if fixed else next(self._variables))


def _has_one_place(arguments: ast.arguments) -> bool:
    """Tells whether a lambda has one parameter and no default: who calls it by another name fails, and does not go
    on."""
    one = len([*arguments.posonlyargs, *arguments.args]) == 1
    return one and not (arguments.kwonlyargs or arguments.vararg or arguments.kwarg or arguments.defaults)


def _binding(name: str, scope: _Scope | None) -> _Scope | None:
    """Finds the scope whose variable a name is in ``scope``; None where it is global. Functions do not see what the
    class around them binds."""
    here = scope
    while scope is not None:
        if name in scope.elsewhere:
            return None
        if name in scope.own and (scope is here or not scope.is_class):
            return scope
        scope = scope.outer
    return None


def _bound(
    node: ast.AST, elsewhere: set[str], outside: set[str], in_comprehension: bool = False
) -> Iterator[tuple[str, bool]]:
    """Yields the names that a node binds in the scope in which it stands, each with whether it keeps its name. Adds
    what is declared global to ``elsewhere``, what is declared nonlocal to ``outside``. A comprehension's targets are
    its own; what ``:=`` binds in it is not."""
    others: tuple[str, ...] = ()
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Load) and not in_comprehension:
            yield node.id, False
        return
    if isinstance(node, ast.Global):
        elsewhere.update(node.names)
    elif isinstance(node, ast.Nonlocal):
        outside.update(node.names)
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from ((alias.asname or alias.name.partition(".")[0], True) for alias in node.names)
    elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        yield node.name, True
        others = ("body",)
    elif isinstance(node, ast.Lambda):
        others = ("body",)
    elif isinstance(node, COMPREHENSIONS):
        in_comprehension = True
    elif isinstance(node, ast.NamedExpr) and in_comprehension:
        yield node.target.id, False
    elif (place := NAMED.get(type(node))) and (bound := getattr(node, place)):
        yield bound, False
    for name in node._fields:
        value = None if name in others else getattr(node, name, None)
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _bound(child, elsewhere, outside, in_comprehension)

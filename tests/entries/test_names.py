"""Numbers in the place of names are the same program, and a pure renaming alone leaves them as they are."""

from __future__ import annotations

import ast
import dis
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

from suite.entries.code import read_source
from suite.entries.names import resolve

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "suite").rglob("*.py"))


def with_other_names(source: bytes) -> tuple[ast.Module, int]:
    """A file whose functions' variables have other names, in another order, and how many places name them."""
    tree, places = ast.parse(source), 0
    for statement in tree.body:
        resolve(statement)
        for node in ast.walk(statement):
            if isinstance(node, ast.Nonlocal):
                node.names = [_name(each) for each in node.names]
            for field in ("id", "arg", "name", "rest"):
                if isinstance(number := getattr(node, field, None), int):
                    setattr(node, field, _name(number))
                    places += 1
    return tree, places


def _name(number: int | str) -> str:
    return number if isinstance(number, str) else f"_{number * 7919 % 10007}"


# the same program ----------------------------------------------------------------------------------------------------

OF_VARIABLES = {*dis.haslocal, *dis.hasfree}
LEFT_OUT = {"MAKE_CELL", "LOAD_CLOSURE", "PUSH_NULL"}
"""Instructions in order of their variables' names; and one that CPython puts before a method, unless any variable of a
function is called as something that the file imports."""
JUMPS = {*dis.hasjrel, *dis.hasjabs}  # their places depend on it


def assert_same_code(one: CodeType, other: CodeType, around: dict[str, str]) -> None:
    """Two programs do the same, instruction by instruction, with variables that correspond one to one."""
    names = {name: around[name] for name in one.co_freevars if name in around}
    codes: list[tuple[CodeType, CodeType]] = []
    for (op, argument), (other_op, other_argument) in zip(_steps(one), _steps(other), strict=True):
        assert op == other_op, one
        if dis.opmap.get(op) in OF_VARIABLES:
            assert names.setdefault(argument, other_argument) == other_argument, (one, argument)
        elif isinstance(argument, CodeType):
            codes.append((argument, other_argument))
        else:
            assert (type(argument), argument) == (type(other_argument), other_argument), one
    assert len(set(names.values())) == len(names), one
    for inner in codes:
        assert_same_code(*inner, names)


def _steps(code: CodeType) -> Iterator[tuple[str, object]]:
    for step in dis.get_instructions(code):
        if step.opname not in LEFT_OUT:
            yield step.opname.replace("METHOD", "ATTR"), None if step.opcode in JUMPS else step.argval


def test_other_names_make_the_same_program(tmp_path: Path) -> None:
    """As Python compiles it, in all files of the suite; and its text is what it was."""
    copy, renamed = tmp_path / "renamed.py", 0
    for path in FILES:
        source = path.read_bytes()
        tree, places = with_other_names(source)
        assert_same_code(compile(source, "", "exec"), compile(tree, "", "exec"), {})
        if path.is_relative_to(ROOT / "suite" / "loop"):
            copy.write_text(ast.unparse(tree))
            assert texts(copy) == texts(path)
        renamed += places
    assert renamed > 20000


def texts(path: Path) -> list[tuple[str, frozenset[tuple[str, ...]]]]:
    return [(each.text, each.uses) for each in read_source(path).statements]


# what is the same, and what is not -----------------------------------------------------------------------------------

SOURCE = """
def outer(parameter, *rest, default=3, **others):
    first, (second, *many) = parameter, rest
    total: float = 0.5
    for index, value in enumerate(many):
        total += value * index - helper(first)
    def inner(x):
        nonlocal total
        total = x - total
        return [total * (second - each) for row in x if row for each in row if (largest := each)], largest
    class Inside:
        attribute = first
        def method(self): return attribute, second
    try:
        from somewhere import thing as imported
    except ValueError as error:
        raise TypeError(error, imported) from error
    match parameter:
        case {"key": entry, **remaining} if entry: first = remaining
        case [head, *tail] | (head as tail): second = head, tail
    with opened(first) as file, opened(name=second):
        del file
    return sorted(many, key=lambda item: item[first]), reduce(lambda a, b: a - b, many), inner, Inside, others

def dynamic(x):
    seen = x
    return locals()
"""
SAME = [
    ("first", "primary"),
    ("second", "secondary"),
    ("many", "several"),
    ("total", "summed"),
    ("index", "i"),
    ("value", "number"),
    ("each", "element"),
    ("row", "line"),
    ("largest", "maximum"),
    ("error", "failure"),
    ("entry", "e"),
    ("remaining", "r"),
    ("head", "h"),
    ("tail", "t"),
    ("file", "handle"),
    ("item", "pair"),
]
DIFFERENT = [
    # what others may name
    ("parameter", "p"),
    ("rest", "args"),
    ("default", "standard"),
    ("others", "kwargs"),
    ("a", "x"),
    ("x", "y"),
    ("inner", "within"),
    ("Inside", "Within"),
    ("attribute", "attr"),
    ("imported", "thing"),
    ("helper", "first_helper"),
    ("seen", "known"),
    # a variable of another, two that become one, and one of the globals
    ("each", "row"),
    ("index", "value"),
    ("error", "first"),
    ("head", "tail"),
    ("largest", "second"),
    ("many", "rest"),
    ("item", "first"),
    ("first", "helper"),
    ("value", "sorted"),
]
EDITS = [
    ("value * index", "index * value"),
    ("x - total", "total - x"),
    ("0.5", "0.25"),
    ("default=3", "default=4"),
    ("first, (second, *many) =", "second, (first, *many) ="),
    ("nonlocal total", "global total"),
    ("        nonlocal total\n", ""),
    ("name=second", "second=second"),
    ("largest :=", "second :="),
    ("lambda item: item[first]", "lambda item: item[item]"),
    ("lambda item:", "lambda item=1:"),
    ("lambda a, b: a - b", "lambda b, a: a - b"),
    ("total += value", "totals = value"),
    ("first = remaining", "f = entry"),
    ("except ValueError as error", "except ValueError as first"),
    ("row in x if row", "row in x if x"),
    ("attribute = first", "first = first"),
    ("case [head, *tail]", "case [tail, *head]"),
]


def text_of(source: str, path: Path) -> object:
    path.write_text(source)
    return texts(path)


def renamed(old: str, new: str) -> str:
    tree = ast.parse(SOURCE)
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            if value == old and field in ("id", "arg", "name", "rest", "asname"):
                setattr(node, field, new)
            elif isinstance(node, ast.Nonlocal) and field == "names":
                node.names = [new if each == old else each for each in node.names]
    assert ast.unparse(tree) != ast.unparse(ast.parse(SOURCE))
    return ast.unparse(tree)


@pytest.mark.parametrize(("old", "new"), SAME)
def test_another_name_of_a_variable_does_not_count(old: str, new: str, tmp_path: Path) -> None:
    assert text_of(renamed(old, new), tmp_path / "m.py") == text_of(SOURCE, tmp_path / "m.py")


@pytest.mark.parametrize(("old", "new"), DIFFERENT)
def test_a_name_that_is_seen_elsewhere_or_another_variable_counts(old: str, new: str, tmp_path: Path) -> None:
    assert text_of(renamed(old, new), tmp_path / "m.py") != text_of(SOURCE, tmp_path / "m.py")


@pytest.mark.parametrize(("old", "new"), EDITS)
def test_what_a_function_does_with_its_variables_counts(old: str, new: str, tmp_path: Path) -> None:
    assert SOURCE.count(old) == 1
    assert text_of(SOURCE.replace(old, new), tmp_path / "m.py") != text_of(SOURCE, tmp_path / "m.py")


def test_one_name_for_two_loops_is_another_program_than_two(tmp_path: Path) -> None:
    """After the loop both variables are there to be read."""
    one = "def f(x):\n for each in x: g(each)\n for each in x: h(each)\n"
    two = "def f(x):\n for first in x: g(first)\n for each in x: h(each)\n"
    assert text_of(one, tmp_path / "m.py") != text_of(two, tmp_path / "m.py")
    apart = "def f(x): return [g(each) for each in x], [h(each) for each in x]"  # here they are two in any case
    assert text_of(apart, tmp_path / "m.py") == text_of(
        apart.replace("g(each) for each", "g(a) for a"), tmp_path / "m.py"
    )


@pytest.mark.parametrize(
    ("source", "uses"),
    [
        ("def f(g): return g.a + h.b(g)", {("h", "b")}),
        ("def f(x=g, *, y: h = 1): pass", {("g",)}),
        ("def f(): return [g for g in g.x]", {("g", "x")}),
        ("x = [g for g in g.x]", {("g", "x")}),
        ("def f():\n global g\n g = 1\n return lambda: g", {("g",)}),
        ("def f(g):\n  class A: g = g", {("g",)}),
        ("class A:\n x = 1\n y = x\n def f(self): return x", {("x",)}),
        ("def f():\n def g(): return g.a\n return g", set()),
        ("def f(): return vars(g), (vars := 1)", {("g",)}),
        ("def f():\n if 0: g = 1\n return g", set()),
        ("def f(y): return [x for x in y if (z := x)], z", set()),
    ],
)
def test_what_a_function_binds_is_no_use_of_what_is_outside(source: str, uses: object, tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text(source)
    assert read_source(path).statements[0].uses == uses

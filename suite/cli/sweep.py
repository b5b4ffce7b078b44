"""Reads a file of options: ``leantrain run sweep.toml``. Its fields are the command's own options, read off the
command.

A field is called as its option without the dashes in front, ``hang-limit = 30``. An option that may be repeated takes a
list or one value, a switch takes true or false. What the command line says wins over the file.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from suite.cli.shared import Exit, fail

OTHER_WORDS = {"stack": "technique", "stacks": "technique", "budget": "minutes", "out": "results"}
"""What people call a field -> the field."""
KINDS: Mapping[type, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    str: ("a text in quotes", (str,)),
    Path: ("a path in quotes", (str,)),
}
"""An option's type -> what a file must have for it."""


@dataclass(frozen=True)
class Sweep:
    """Holds a file that was read. ``lines``: of each parameter's field, with the number of the first."""

    path: Path
    lines: Mapping[str, tuple[int, Sequence[str]]]

    def at(self, parameter: str, value: str) -> str:
        """Returns ``sweep.toml:3``: where the file has this value of a parameter."""
        first, lines = self.lines[parameter]
        holding = [number for number, line in enumerate(lines) if f'"{value}"' in line or f"'{value}'" in line]
        return f"{self.path}:{first + (holding[0] if holding else 0)}"


def _read(context: typer.Context, path: Path | None) -> Path | None:
    """Makes the file's fields the defaults of the command's options. Ends the command where it cannot."""
    if path is None or context.resilient_parsing:
        return path
    try:
        context.obj = _load(context, path)
    except ValueError as error:
        fail(str(error), Exit.USAGE, context.meta.get("as_json", False))
    return path


SweepFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="[SWEEP.toml]",
        callback=_read,
        is_eager=True,
        help="A TOML file of these options, each called without its dashes: technique = ['lion', 'sam+lawa'], "
        "size = 'micro', seeds = 5. What the command line says wins over the file.",
    ),
]


@contextmanager
def blamed(context: typer.Context, parameter: str, value: str = "") -> Iterator[None]:
    """Puts the file's line in front of what is wrong with a parameter's ``value``, where the file has it."""
    try:
        yield
    except (LookupError, ValueError) as error:
        sweep, source = context.obj, context.get_parameter_source(parameter)
        if not isinstance(sweep, Sweep) or source is None or source.name != "DEFAULT_MAP":
            raise
        raise ValueError(f"{sweep.at(parameter, value)}: {error}") from error


def _load(context: typer.Context, path: Path) -> Sweep:
    """Raises ValueError with the line that is wrong, and what to do."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        hint = "" if path.suffix == ".toml" else f"; a technique is named with -t: leantrain run -t {path}"
        raise ValueError(f"{path}: {why}{hint}") from None
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"{path}: it is nested too deep; a sweep has lists of values alone") from None
    except tomllib.TOMLDecodeError as error:
        what, line = re.sub(r" \(at line (\d+), column \d+\)$", "", str(error)), re.search(r"at line (\d+)", str(error))
        raise ValueError(f"{path}:{line.group(1) if line else text.count(chr(10)) + 1}: {what}") from None
    lines, options, defaults = _lines(text), _options(context), dict[str, Any]()
    placed: dict[str, tuple[int, Sequence[str]]] = {}
    for name, value in values.items():
        try:
            parameter = _option(name, options)
            defaults[parameter.name] = _value(context, parameter, name, value)
        except (LookupError, ValueError) as error:
            raise ValueError(f"{path}:{lines[name][0]}: {error}") from None
        placed[parameter.name] = lines[name]
    context.default_map = defaults
    return Sweep(path, placed)


def _options(context: typer.Context) -> dict[str, Any]:
    """Returns the command's options by the name of their field."""
    options = [param for param in context.command.params if param.param_type_name == "option"]
    return {max(option.opts, key=len).removeprefix("--"): option for option in options}


def _option(name: str, options: Mapping[str, Any]) -> Any:
    from suite.entries.catalogue import lookup

    if name not in options and OTHER_WORDS.get(name) in options:
        raise ValueError(f"no field is called {name!r}; did you mean {OTHER_WORDS[name]}?")
    return lookup("field", name, options)


def _value(context: typer.Context, parameter: Any, name: str, value: Any) -> Any:
    """Returns the value as the option takes it. Raises ValueError where it does not."""
    annotation = inspect.signature(context.command.callback).parameters[parameter.name].annotation  # type: ignore[arg-type]
    several, kind = _kind(annotation)
    what, types = KINDS[kind]
    values = value if several and isinstance(value, list) else [value]
    if not all(type(one) in types for one in values):
        raise ValueError(f"{name} must be {what}{', or a list of such' if several else ''}, not {value!r}")
    try:
        parameter.process_value(context, list(map(str, values)) if several else value)
    except Exception as error:  # the parser's own: it has no public name
        if not hasattr(error, "format_message"):
            raise
        raise ValueError(f"{name}: {getattr(error, 'message', error)}") from None
    return values if several else value


def _kind(annotation: Any) -> tuple[bool, type]:
    """Returns whether an option may be repeated, and the type of one value."""
    while get_args(annotation):
        if get_origin(annotation) is list:
            return True, get_args(annotation)[0]
        annotation = get_args(annotation)[0]
    return False, annotation


def _lines(text: str) -> dict[str, tuple[int, Sequence[str]]]:
    """Returns the lines of each field, with the number of the first: a text that is TOML up to a line ends a field
    there."""
    lines, begun, known = text.splitlines(), 0, set[str]()
    places: dict[str, tuple[int, Sequence[str]]] = {}
    for end in range(1, len(lines) + 1):
        try:
            names = tomllib.loads("\n".join(lines[:end])).keys()
        except tomllib.TOMLDecodeError:
            continue  # in a value of several lines
        places |= dict.fromkeys(names - known, (begun + 1, lines[begun:end]))
        known, begun = set(names), end
    return places

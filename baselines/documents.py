"""Reads text that every installation has: docstrings of Python and of the suite's dependencies, named by their hashes.

Whatever library runs would be another corpus under each version of Python, and no run could be repeated elsewhere.
``documents.txt`` beside this file therefore lists the docstrings that are equal in all versions that it was made from
(:mod:`baselines.listing`), and only these are read from the libraries that are here. It holds hashes and no text. They
are of the text as it stands: what is equal to the character is equal in letters too, so one list serves all tokens.

A docstring belongs to the module that the list puts it in, wherever a version of the library has it, and comes in the
list's order. What is missing here is left out and said: the data is then another, and so is its hash.
"""

import ast
import gc
import hashlib
import sysconfig
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterable, Iterator
from functools import cache, wraps
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

LIST = Path(__file__).with_name("documents.txt")
PYTHON = "python"
"""The library whose folder is the running interpreter's; all others are packages."""
HASH_BYTES = 6  # of SHA-256: among 100 000 docstrings one in 30 000 lists has two that are equal by chance
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

P = ParamSpec("P")
T = TypeVar("T")


class Module(NamedTuple):
    """Holds docstrings in the list's order by their hashes, and the files (library/path) that hold them in one version
    or another; the first names the module. ``letters`` are theirs together."""

    files: tuple[str, ...]
    letters: int
    hashes: tuple[bytes, ...]

    @property
    def name(self) -> str:
        return self.files[0]

    @property
    def library(self) -> str:
        return self.name.partition("/")[0]

    def here(self) -> dict[str, Path]:
        """Returns those of its files that this installation has."""
        paths = {file: location(file) for file in self.files}
        return {file: path for file, path in paths.items() if path is not None and path.is_file()}


class Text(NamedTuple):
    """Holds a module's docstrings, a line between them, and how many are missing."""

    text: str
    missing: int


@cache
def listed() -> tuple[Module, ...]:
    """Returns all modules of the list, in its order."""
    return tuple(map(_module, filter(None, LIST.read_text("ascii").splitlines())))


def unwatched(function: Callable[P, T]) -> Callable[P, T]:
    """Runs ``function`` without the cyclic garbage collector, which would go through all live objects, torch's too, for
    every few trees: reading then takes twice as long."""

    @wraps(function)
    def paused(*args: P.args, **kwargs: P.kwargs) -> T:
        was_on = gc.isenabled()
        gc.disable()
        try:
            return function(*args, **kwargs)
        finally:
            if was_on:
                gc.enable()

    return paused


@unwatched
def read(modules: Iterable[Module]) -> list[Text]:
    """Reads each module's docstrings from the libraries that are here."""
    return [_read(module) for module in modules]


def _read(module: Module) -> Text:
    by_hash: dict[bytes, str] = {}
    for path in module.here().values():
        by_hash |= {hashed(text): text for text in docstrings(path)}
    texts = [by_hash[digest] for digest in module.hashes if digest in by_hash]
    return Text("\n".join(texts), len(module.hashes) - len(texts))


def docstrings(path: Path) -> Iterator[str]:
    """Yields the docstrings of a module, its classes and its functions; none where this Python cannot read the file."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in (tree, *_statements(tree)):
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
            yield text


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the statements below a statement, in the source's order; a fifth of the time of a walk through all
    expressions too."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        below = getattr(node, field, ())
        for statement in below if isinstance(below, list) else ():
            yield statement
            yield from _statements(statement)


def hashed(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:HASH_BYTES]


def location(file: str) -> Path | None:
    """Returns where this installation has, or would have, a file of the list; None where the library is missing."""
    library, _, path = file.partition("/")
    folder = _folder(library)
    return None if folder is None else folder / path


@cache
def _folder(library: str) -> Path | None:
    if library == PYTHON:
        return Path(sysconfig.get_path("stdlib"))
    spec = find_spec(library)  # which imports nothing
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _module(line: str) -> Module:
    letters, hashes, *files = line.split(" ")
    content = urlsafe_b64decode(hashes)
    return Module(
        tuple(files), int(letters), tuple(content[at : at + HASH_BYTES] for at in range(0, len(content), HASH_BYTES))
    )

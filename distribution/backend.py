"""Builds the wheel with all packages under one name: what is ``suite.loop.run`` here is ``leantrain.suite.loop.run``
where it is installed, since ``suite``, ``techniques`` and ``baselines`` are names that others have, too.

A checkout keeps its folders and their names, which editors and type checkers follow without help, and the trees of two
revisions can be loaded by their path alone. (Tried: setuptools' ``package-dir`` mapping. An editable install finds such
names by an import hook, which type checkers do not follow and which has one answer for all checkouts.) So setuptools
builds a wheel, and its files are moved and renamed: imports, dotted names in texts (``python -m suite.record.seal``),
entry points, the modules of mutants. A module that uses a bare name (``import suite``, ``suite.loop``) is refused.
"""

from __future__ import annotations

import ast
import base64
import csv
import hashlib
import io
import re
import tempfile
import tokenize
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from setuptools import build_meta
from setuptools.build_meta import (  # the other hooks are setuptools' own; metadata are read from the wheel
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
]

NAME = "leantrain"
PACKAGES = ("suite", "techniques", "baselines")
NAMES = "|".join(PACKAGES)
IMPORTED = re.compile(rf"^\s*(?:from|import)\s+(?=(?:{NAMES})\b)")
DOTTED = re.compile(rf"(?<![\w./-])(?=((?:{NAMES})\.[a-z_]\w*))")
ENTRY = re.compile(rf"(?<== )(?=(?:{NAMES})\b)", re.MULTILINE)


def build_wheel(
    wheel_directory: str, config_settings: Mapping[str, object] | None = None, metadata_directory: str | None = None
) -> str:
    """Builds the wheel into a folder and returns its file's name (PEP 517). Raises ValueError for an import that cannot
    be renamed."""
    with tempfile.TemporaryDirectory() as scratch:
        name: str = build_meta.build_wheel(scratch, config_settings, None)
        with zipfile.ZipFile(Path(scratch, name)) as built, zipfile.ZipFile(Path(wheel_directory, name), "w") as made:
            _write(made, {info.filename: built.read(info) for info in built.infolist()})
    return name


def _write(made: zipfile.ZipFile, files: Mapping[str, bytes]) -> None:
    modules = frozenset(_modules(files))
    record: list[tuple[str, str, int | str]] = []
    for name, content in sorted(files.items()):
        if name.endswith(".dist-info/RECORD"):
            kept = name
            continue
        at, new = _renamed(name, content, modules)
        digest = base64.urlsafe_b64encode(hashlib.sha256(new).digest()).rstrip(b"=").decode()
        record.append((at, f"sha256={digest}", len(new)))
        _add(made, at, new)
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows([*record, (kept, "", "")])
    _add(made, kept, lines.getvalue().encode())


def _add(made: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Adds a file of the earliest date that there is, so that one source makes one wheel, byte by byte."""
    info = zipfile.ZipInfo(name)
    info.external_attr = 0o644 << 16
    made.writestr(info, content, zipfile.ZIP_DEFLATED)


def _modules(files: Mapping[str, bytes]) -> Iterator[str]:
    """Yields the dotted names of what lies at the top of the packages: ``suite.loop``."""
    for name in files:
        parts = PurePosixPath(name).with_suffix("").parts
        if len(parts) > 1 and parts[0] in PACKAGES:
            yield ".".join(parts[:2])


def _renamed(name: str, content: bytes, modules: frozenset[str]) -> tuple[str, bytes]:
    """Returns where a file lies in the wheel, and what it holds there."""
    path = PurePosixPath(name)
    at = f"{NAME}/{name}" if path.parts[0] in PACKAGES else name
    if path.name == "top_level.txt":
        return at, f"{NAME}\n".encode()
    if path.name == "entry_points.txt":
        return at, ENTRY.sub(f"{NAME}.", content.decode()).encode()
    if path.name == "mutants.toml":
        return at, _in_text(content.decode(), modules).encode()
    return at, under_one_name(content.decode(), modules, name).encode() if path.suffix == ".py" else content


def _in_text(text: str, modules: frozenset[str]) -> str:
    return DOTTED.sub(lambda found: f"{NAME}." if found[1] in modules else "", text)


def under_one_name(source: str, modules: frozenset[str], name: str) -> str:
    """Renames the packages in a module's imports, and in its texts where one of ``modules`` is named."""
    tree = ast.parse(source)
    imported = (
        each for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names if not each.asname
    )
    bound = {each.name.partition(".")[0] for each in imported} & {*PACKAGES}
    if used := bound & {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}:
        raise ValueError(
            f"{name} imports {', '.join(sorted(used))} by a bare name: write from … import, or import … as"
        )
    lines = source.splitlines(keepends=True)
    texts: dict[int, list[tuple[int, int]]] = {}
    statement = True  # whether the next token begins one
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        number = token.start[0]
        if tokenize.tok_name[token.type] in ("STRING", "FSTRING_MIDDLE", "COMMENT"):
            for each in range(number, token.end[0] + 1):
                begins = token.start[1] if each == number else 0
                ends = token.end[1] if each == token.end[0] else len(lines[each - 1])
                texts.setdefault(each, []).append((begins, ends))
        elif statement and token.string in ("from", "import"):
            lines[number - 1] = IMPORTED.sub(lambda found: f"{found[0]}{NAME}.", lines[number - 1])
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            statement = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT) or token.string == ":"
    for number, spans in texts.items():
        for begins, ends in reversed(spans):
            line = lines[number - 1]
            if not IMPORTED.match(line):
                lines[number - 1] = line[:begins] + _in_text(line[begins:ends], modules) + line[ends:]
    return "".join(lines)

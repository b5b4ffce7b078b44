"""Which entries' own tests passed, and with what: ``own_tests.json``, by a hash of all that a test file depends on.

    python -m tests.techniques.own_tests         runs the files whose hash changed, and keeps those that pass
    python -m tests.techniques.own_tests --all    runs all

They are deterministic: what passed passes again as long as nothing that it reaches has changed, under the same Python,
libraries and arithmetic, and with a GPU or without one as then. A file reaches its own
text and that of the tests' modules that it imports; the definitions of ours that these reach; and of each entry that
they name, in whatever word, its code, its claims and its folder. Where that is as it was, a run of the tests leaves the
file out; those of entries that are tried in every run are run in any case.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import torch

from suite.entries.catalogue import Entry, catalogue
from suite.entries.sources import Reach
from suite.record.files import replacing
from suite.record.machine import versions
from suite.record.numerics import off_the_clock
from tests.only import FOLDER, entry_of
from tests.techniques.tried_mutants import IN_EVERY_RUN, ROOT, sha256_of

KEPT = Path(__file__).with_suffix(".json")
REACH = Reach((), kernels=True)
FOLLOWED = {"suite", "techniques", "baselines"}
"""The packages of which a hash follows each definition; of others it has the whole text."""


def files() -> list[Path]:
    """The files of all entries' own tests."""
    return [path for path in sorted(FOLDER.glob("*/test_*.py")) if entry_of(path)]


def named(path: Path) -> str:
    """What a file is called in what is kept."""
    return path.relative_to(ROOT).as_posix()


def imported(path: Path) -> Iterator[str]:
    """The dotted names that a file imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(dotted: str) -> Path | None:
    """The file of ours that a dotted name is, or is in; None where there is none."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:end])
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
    return None


def is_followed(dotted: str) -> bool:
    """Whether a dotted name is in a package whose definitions are followed."""
    return dotted.partition(".")[0] in FOLLOWED


def whole_modules(path: Path) -> list[Path]:
    """A test file, and the modules of ours outside of :data:`FOLLOWED` that it imports, or that those do."""
    reached, waiting = {path}, [path]
    while waiting:
        files = {module_of(dotted) for dotted in imported(waiting.pop()) if not is_followed(dotted)}
        new = {file for file in files if file} - reached
        reached |= new
        waiting += new
    return sorted(reached)


def roots_of(paths: Iterable[Path]) -> frozenset[str]:
    """The modules of :data:`FOLLOWED` that some files import."""
    ours = (module_of(dotted) for path in paths for dotted in imported(path) if is_followed(dotted))
    return frozenset(
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in ours if file
    )


@cache
def of_entry(entry: Entry) -> str:
    """A hash of an entry: of its code, its claims, and all files of its folder."""
    files = (path for path in sorted(entry.folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    parts = [sha256_of(entry).encode(), *(path.read_bytes() for path in files)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


@cache
def surroundings() -> dict[str, str]:
    """What tests run on: another of these may run others, or end otherwise."""
    python, device = f"{sys.version_info.major}.{sys.version_info.minor}", str(torch.cuda.is_available())
    return versions() | {"python": python, "arithmetic": off_the_clock(), "cuda": device}


def sha256_of_file(path: Path) -> str:
    """Of all that a test file depends on."""
    texts = [module.read_text("utf-8") for module in whole_modules(path)]
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    entries = [of_entry(entry) for id, entry in sorted(catalogue().items()) if id in words]
    parts = [json.dumps(surroundings()), REACH.sha256(roots_of(whole_modules(path))), *texts, *entries]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@cache
def kept() -> dict[str, str]:
    """The hash with which each file passed."""
    known: dict[str, str] = json.loads(KEPT.read_text("utf-8")) if KEPT.is_file() else {}
    return known


@cache
def is_as_passed(path: Path) -> bool:
    """Whether a file is of an entry that is not tried in every run, and depends on nothing that changed since its tests
    passed; never where LEANTRAIN_TESTS asks for tests."""
    name, entry = named(path), entry_of(path)
    if os.environ.get("LEANTRAIN_TESTS") or entry in IN_EVERY_RUN or name not in kept():
        return False
    return kept()[name] == sha256_of_file(path)


def keep(paths: Iterable[Path]) -> None:
    """Keeps that the tests of these files passed as they are now; forgets files that are gone."""
    known = kept() | {named(path): sha256_of_file(path) for path in paths}
    there = {*map(named, files())}
    with replacing(KEPT) as file:
        text = json.dumps({name: known[name] for name in sorted(known.keys() & there)}, indent=1)
        file.write_text(text + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.techniques.own_tests", description=__doc__)
    parser.add_argument("--all", action="store_true", help="also those that are as they were")
    everything = parser.parse_args().all
    changed = [
        path for path in files() if everything or kept().get(str(path.relative_to(ROOT))) != sha256_of_file(path)
    ]
    print(f"{len(changed)} of {len(files())} files to run", flush=True)
    if changed:
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", *map(str, changed)]
        if code := subprocess.run(command, cwd=ROOT, env=os.environ | {"LEANTRAIN_TESTS": "all"}).returncode:
            raise SystemExit(code)
    keep(changed)


if __name__ == "__main__":
    main()

"""A real plug-in package with planted faults, and the real command line, in a process of its own or in this one.

``write`` makes what ``pip install`` would: a package of technique folders and a ``*.dist-info`` with its entry point.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from suite.cli import app
from suite.entries.catalogue import catalogue
from suite.record.schema import Line
from suite.record.store import Records, Store

TREE = Path(__file__).parents[1]
CARD = """\
id = "{id}"
name = "{id}"
category = "planted"
summary = "A planted behaviour."
baselines = ["gpt"]

[paper]
title = "None"
authors = "None"
venue = "None"
"""

IDLE = """\
import suite.record.machine
import tests.lent_server

suite.record.machine.busy_cores = lambda: 0.0  # the tests' own load is not what they are about
tests.lent_server.lend()
"""

TECHNIQUE = '''\
"""A planted behaviour."""
import math, os, resource, signal, sys, time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy
import torch

from suite.loop.sites import Act
from suite.loop.technique import Technique, Unavailable


@dataclass
class Planted(Technique):
    def sites(self, run): return {{"planted": Act(count=1)}}  # a body is about something else, or has its own

{body}
'''


def write(root: Path, bodies: Mapping[str, str], package: str = "planted_faults") -> Path:
    """A distribution below ``root`` (to be put on the path) with one technique per id, its class body as given."""
    folder = root / package / "planted"
    for name, body in bodies.items():
        technique = folder / name
        technique.mkdir(parents=True, exist_ok=True)
        (technique / "__init__.py").touch()
        (technique / "card.toml").write_text(CARD.format(id=name))
        (technique / "technique.py").write_text(TECHNIQUE.format(body=textwrap.indent(textwrap.dedent(body), "    ")))
    (root / package / "__init__.py").touch()
    (folder / "__init__.py").touch()
    info = root / f"{package}-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[leantrain.techniques]\n{package} = {package}\n")
    return root


def write_baseline(root: Path, package: str = "planted_faults") -> None:
    """Adds the baseline ``tiny``, which is gpt by another name, and has the techniques name it alone."""
    for card in (root / package).rglob("card.toml"):
        card.write_text(card.read_text().replace('"gpt"', '"tiny"'))
    (root / package / "tiny.py").write_text("from baselines.gpt import Gpt\n\n\nclass Tiny(Gpt):\n    id = 'tiny'\n")
    with (root / f"{package}-1.0.dist-info" / "entry_points.txt").open("a") as points:
        points.write(f"[leantrain.baselines]\ntiny = {package}.tiny:Tiny\n")


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "suite.cli", *map(str, arguments)]


def environment(root: Path, *, idle: bool = True, **extra: str) -> dict[str, str]:
    """The environment in which the distribution below ``root`` is installed beside the tree under test, on a machine
    that seems ``idle``."""
    (root / "sitecustomize.py").write_text(IDLE if idle else "")
    return os.environ | {"PYTHONPATH": os.pathsep.join((str(root), str(TREE)))} | extra


def leantrain(root: Path, *arguments: object, **extra: str) -> subprocess.CompletedProcess[str]:
    """The command line with the plug-in installed, run to its end in the folder ``root``."""
    return subprocess.run(
        command(*arguments), env=environment(root, **extra), cwd=root, capture_output=True, text=True, timeout=300
    )


@contextmanager
def installed(root: Path) -> Iterator[None]:
    """The distribution below ``root`` is installed in this process, too, whose folder that is: for commands that start
    no process."""
    package = next(root.glob("*.dist-info")).name.partition("-")[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.syspath_prepend(root)
        catalogue.cache_clear()
        try:
            yield
        finally:
            catalogue.cache_clear()
            for name in [each for each in sys.modules if each.partition(".")[0] == package]:
                del sys.modules[name]


def records(folder: Path) -> Records:
    """What the results folder holds; every line must be readable."""
    records, problems = Store(folder).read()
    assert not problems
    return records


def kept(folder: Path) -> dict[str, Line]:
    """The same by id."""
    return {line.id: line for line in records(folder).lines}


def called(*arguments: object) -> tuple[int, str, str]:
    """The command line in this process: exit code, standard output, standard error."""
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr

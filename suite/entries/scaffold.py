"""Writes a working technique and its test, to be changed into the real one: ``leantrain new``.

In a checkout of leantrain it is a folder of the catalogue, elsewhere a package of its own with an entry point, which
the catalogue finds once it is installed. The example is whole: its card's claim is fed by a probe of a recorded step,
and notices all mutants.
"""

from __future__ import annotations

import re
from pathlib import Path

from suite.entries import wrapper_example

CARD = """\
id = "{id}"
name = "{name}"
does = "in at most six words"
category = "{category}"
summary = "One sentence: what is changed, and what it should bring."
baselines = ["bert", "gpt", "vit", "mae"]
# task = "adapt"          for what is measured in fine-tuning
# reference = "dp_ddp"    for what is compared with another technique instead of the baseline

[paper]
title = "Title of the paper"
authors = "Authors"
venue = "Venue, year"
arxiv = "0000.00000"

# [published]             every number of the paper that is a default here, with its place
# rank = {{ value = 8, place = "Section 4, table 2" }}

[[claim]]
id = "same_state"
statement = "The optimizer keeps no more state than the reference's."
unread = "section 3"  # once you have read it there: read = "Section 3"
metric = "optimizer_state_bytes"
kind = "counted"
expected = 1.0
"""

FREE = """
[free]
factor = {{ value = 0.1, reason = "of the example: clipping would undo a milder one" }}
"""
"""What the card of the first example has besides: each number that is in no paper."""

TECHNIQUE = '''\
"""{name}: one sentence with the paper's section or formula.

This working example scales the gradient of every parameter; replace it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from leantrain.technique import Act, Run, Site, Technique


def scale_gradients(gradients: list[Tensor], factor: float) -> None:
    """Multiplies each gradient by ``factor``, in place."""
    torch._foreach_mul_(gradients, factor)


@dataclass
class {cls}(Technique):
    """``factor``: what the gradients are multiplied by."""

    factor: float = 0.1  # clipping would undo a milder one
    scaled: Act = field(init=False, repr=False, default_factory=Act)

    zero_strength: ClassVar[dict[str, Any]] = {{"factor": 1.0}}

    def __post_init__(self) -> None:
        if self.factor <= 0:
            raise ValueError(f"factor must be positive, not {{self.factor}}")

    def after_backward(self, run: Run) -> None:
        scale_gradients([p.grad for p in run.model.parameters() if p.grad is not None], self.factor)
        self.scaled()

    def sites(self, run: Run) -> Mapping[str, Site]:
        """What the first step must go through, or else the run ends: modules, parameters, acts."""
        return {{"scales gradients": self.scaled, **run.trained_parameters()}}
'''

PROBES = '''\
"""What a recorded step shows of {name}, in float64, without the functions that it judges."""

from collections.abc import Mapping

import torch

from leantrain.technique import Recording, judged
from {package}.{category}.{id}.technique import {cls}


@judged(
    "roundings",
    "The optimizer gets each gradient of the reference's times the factor, to a rounding.",
    "equation 1",
    id="scaled_gradients",
    at_most=2.0,  # of the factor, and of the product
)
def probes(recording: Recording, own: {cls}) -> Mapping[str, float]:
    """``roundings`` is the largest of all gradients that the optimizer got."""
    before = recording.trace.update.before
    roundings = 0.0
    for name, plain in recording.gradients_at(before.parameters).items():
        expected = own.factor * plain.double()
        unit = torch.finfo(plain.dtype).eps * expected.abs()
        off = (before.gradients[name].double() - expected).abs()
        roundings = max(roundings, (off / unit).nan_to_num().max().item())  # of 0, 0: no rounding
    return {{"roundings": roundings}}
'''

MUTANTS = """\
# The technique as a careless implementer would write it: a claim of the card must notice each of these.

[[mutant]]
name = "divides"
old = "torch._foreach_mul_(gradients, factor)"
new = "torch._foreach_div_(gradients, factor)"

[[mutant]]
name = "wrong sign"
old = "torch._foreach_mul_(gradients, factor)"
new = "torch._foreach_mul_(gradients, -factor)"

[[mutant]]
name = "scales twice"
old = "p.grad is not None], self.factor)"
new = "p.grad is not None], self.factor**2)"

[[mutant]]
name = "leaves out biases and norms"
old = "if p.grad is not None]"
new = "if p.grad is not None and p.ndim > 1]"
"""

TEST = '''\
"""{name} against its formula, computed independently."""

import torch

from {package}.{category}.{id}.technique import scale_gradients


def test_gradients_are_scaled() -> None:
    gradients = [torch.tensor([2.0, -4.0]), torch.tensor([[1.0]])]
    scale_gradients(gradients, 0.25)
    assert gradients[0].tolist() == [0.5, -1.0]
    assert gradients[1].tolist() == [[0.25]]
'''

EXAMPLES = {
    False: (CARD + FREE, TECHNIQUE, PROBES, MUTANTS, TEST),
    True: (CARD, wrapper_example.TECHNIQUE, wrapper_example.PROBES, wrapper_example.MUTANTS, wrapper_example.TEST),
}
"""The files of an example; whether it wraps the optimizer."""

PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{distribution}"
version = "0.1.0"
description = "{name}, a technique for leantrain"
requires-python = ">=3.11"
dependencies = ["leantrain"]

[project.entry-points."leantrain.techniques"]
{id} = "{package}"

[tool.setuptools.packages.find]
include = ["{package}*"]

[tool.setuptools.package-data]
"*" = ["card.toml", "mutants.toml", "*.cu"]
"""

README = """\
# {name}

A technique for leantrain, as a package of its own.

```console
$ pip install -e .
$ leantrain list {id}
$ leantrain compare {id} -b gpt
$ leantrain claims {id} --mutants
$ pytest tests
```
"""


IGNORED = """\
__pycache__/
*.egg-info/
.pytest_cache/
.venv/
/build/
/dist/
"""

WORKFLOW = """\
# Compares a pull request with its base branch, a push with the commit before: costs and training, to the bit.
name: leantrain
on: [push, pull_request]
permissions:
  contents: read
jobs:
  check:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
        with:
          fetch-depth: 0 # the base branch, too
      - uses: OWNER/leantrain/action@main # OWNER: whose copy of leantrain
        with:
          techniques: {id}
"""


def is_checkout(root: Path) -> bool:
    """Tells whether ``root`` is a checkout of leantrain, whose catalogue a new technique joins."""
    return (root / "techniques" / "__init__.py").is_file()


def scaffold(name: str, category: str, root: Path, wraps_optimizer: bool = False) -> list[Path]:
    """Writes ``techniques/<category>/<name>/`` and its test below ``root``; returns the files, the test first. Its
    example changes gradients, or with ``wraps_optimizer`` is an optimizer around the stack's.

    Raises ValueError for a name that is no identifier, FileExistsError if the folder is there already.
    """
    test = root / "tests" / "techniques" / category / f"test_{name}.py"
    return _write(name, category, "techniques", root, wraps_optimizer, test, {})


def plugin(name: str, category: str, root: Path, wraps_optimizer: bool = False) -> list[Path]:
    """Does as :func:`scaffold`, but writes a package of its own into a new folder ``<root>/<name>``.

    Raises ValueError for a name that is no identifier, FileExistsError if the folder is there already.
    """
    project, package = root / name, f"leantrain_{name}"
    if project.exists():
        raise FileExistsError(f"{project} is there already; choose another name")
    own = {
        project / "pyproject.toml": PROJECT,
        project / "README.md": README,
        project / ".gitignore": IGNORED,
        project / ".github" / "workflows" / "leantrain.yml": WORKFLOW,
        project / package / "__init__.py": '"""{name}, a technique for leantrain."""\n',
    }
    return _write(name, category, package, project, wraps_optimizer, project / "tests" / f"test_{name}.py", own)


def _write(
    name: str, category: str, package: str, root: Path, wraps_optimizer: bool, test: Path, own: dict[Path, str]
) -> list[Path]:
    """Writes the example's ``test``, ``own`` files and ``<root>/<package>/<category>/<name>/``; returns all."""
    for what, value in (("technique", name), ("category", category)):
        if not re.fullmatch(r"[a-z][a-z0-9_]*", value):
            raise ValueError(f"{value!r} cannot name a {what}: use lower-case letters, digits and underscores")
    folder = root / package / category / name
    if folder.exists():
        raise FileExistsError(f"{folder} is there already; choose another name")
    fields = {
        "id": name,
        "category": category,
        "package": package,
        "distribution": package.replace("_", "-"),
        "name": name.replace("_", " ").capitalize(),
        "cls": "".join(part.capitalize() for part in name.split("_")),
    }
    card, technique, probes, mutants, tests = EXAMPLES[wraps_optimizer]
    files = {
        test: tests,
        **own,
        folder / "card.toml": card,
        folder / "technique.py": technique,
        folder / "probes.py": probes,
        folder / "mutants.toml": mutants,
        folder / "__init__.py": '"""{name}."""\n',
    }
    if not (folder.parent / "__init__.py").exists():
        files[folder.parent / "__init__.py"] = '"""Techniques of the category {category}."""\n'
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(**fields), "utf-8")
    return list(files)

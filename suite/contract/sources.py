"""The code that a run loads, as hashes: what evidence depends on, and nothing else.

A run of a stack on a baseline loads the loop (:mod:`suite.contract.run`), the baseline's module, those of the
techniques, and all modules of these packages that they import, at any remove. Imports inside of functions load what
only a GPU needs (Triton's kernels), so they count there and nowhere else. What only records (``suite.record``) decides
no number. Meters count and do not steer, nor does what reads recorded steps: these are a layer of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from suite.contract.adapting import tasks_module
from suite.contract.baseline import GROUP
from suite.contract.catalogue import catalogue, lookup, package_folder
from suite.record.code import fields_of_type, hash_file, imports
from suite.record.job import Setting, split, techniques_of
from suite.record.schema import Code

LOOP = "suite.contract.run"
CHECKPOINT = "suite.contract.pretrained"  # what an adapt run starts from
RECORDING = "suite.contract.recording"
METERS = "suite.meters"
RECORDS = "suite.record"

CodeOf = Callable[[Setting, str], Code | None]
"""``(setting, stack)`` -> hashes of the installed code; None where the baseline or a technique is not installed."""


@dataclass(frozen=True)
class Module:
    """A module of the project or of a plug-in: its file's hash, and what it imports when it is loaded."""

    sha256: str
    imports: tuple[str, ...]


def code_of(setting: Setting, stack: str) -> Code:
    """The hashes of the code that a run of ``stack`` loads in this setting. Raises UnknownId."""
    return _code(roots_of(setting, stack), _instruments(stack), setting.device != "cpu")


def roots_of(setting: Setting, stack: str) -> frozenset[str]:
    """The modules with which a run of ``stack`` loads all others. Raises UnknownId."""
    entries = catalogue()
    techniques = [lookup("technique", name, entries).module for name in techniques_of(stack)]
    baseline = lookup("baseline", setting.baseline, _baselines())
    besides = [lookup("baseline", name, _baselines()) for name in trained_besides(stack)]
    adapting = [CHECKPOINT, tasks_module(baseline)] if setting.task == "adapt" else []
    return frozenset([LOOP, baseline, *besides, *filter(None, adapting), *techniques])


def trained_besides(stack: str) -> list[str]:
    """The baselines that techniques of the stack train besides the run's own: what their hyper-parameters of the type
    :data:`suite.record.job.BaselineName` say."""
    named: list[str] = []
    for name, settings in split(stack):
        path = _file(catalogue()[name].module) if name in catalogue() else None
        own = fields_of_type(path, "BaselineName") if path else {}
        named += [settings.get(field, default) for field, default in own.items()]
    return named


def installed_code(setting: Setting, stack: str) -> Code | None:
    """As :func:`code_of`; None where the baseline or a technique is not installed."""
    try:
        return code_of(setting, stack)
    except LookupError:
        return None


@cache
def _baselines() -> dict[str, str]:
    """The module of each installed baseline by its id."""
    return {point.name: point.module for point in entry_points(group=GROUP)}


@cache
def _code(roots: frozenset[str], instruments: frozenset[str], kernels: bool) -> Code:
    trajectory = _without(METERS, _without(RECORDS, loaded(roots, kernels)))
    counts = _without(RECORDS, loaded(roots | instruments, kernels))
    return Code(trajectory=_hashed(trajectory), counts=_hashed(counts))


def _instruments(stack: str) -> frozenset[str]:
    """The modules that read recorded steps of the stack: they count, and no run loads them."""
    entries = catalogue()
    found = {entries[name].instruments for name in techniques_of(stack) if name in entries} - {None}
    return frozenset([RECORDING, *found]) if found else frozenset()  # type: ignore[list-item]


def _without(package: str, modules: dict[str, Module]) -> dict[str, Module]:
    return {name: module for name, module in modules.items() if not _below(package, name)}


def _hashed(modules: dict[str, Module]) -> str:
    digest = hashlib.sha256()
    for name in sorted(modules):
        digest.update(f"{name}\0{modules[name].sha256}\0".encode())
    return digest.hexdigest()[:32]


def loaded(roots: Iterable[str], kernels: bool) -> dict[str, Module]:
    """The modules by name that are loaded with ``roots``: of their packages and the suite, at any remove; with
    ``kernels`` those too that functions import."""
    waiting, modules = list(roots), dict[str, Module]()
    packages = {"suite", *(name.split(".")[0] for name in waiting)}
    while waiting:
        name = waiting.pop()
        if name in modules or name.split(".")[0] not in packages:
            continue
        if module := _module(name, kernels):
            modules[name] = module
            waiting += [*_parents(name), *module.imports]
    return modules


def _parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts)))


@cache
def _module(name: str, kernels: bool) -> Module | None:
    """None where ``name`` is no module, but something in one."""
    path = _file(name)
    if path is None:
        return None
    beside = sorted(path.parent.glob("*.cu")) if path.name == "kernel.py" else []
    digests = [hash_file(each) for each in (path, *beside)]
    return Module(hashlib.sha256("".join(digests).encode()).hexdigest(), tuple(imports(path, inside_functions=kernels)))


def _file(name: str) -> Path | None:
    top, *rest = name.split(".")
    package = _top(top)
    if package is None or package.is_file():
        return None if rest else package
    path = package.joinpath(*rest)
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)


@cache
def _top(name: str) -> Path | None:
    """The folder of a package, the file of a module; None where neither is installed."""
    spec = find_spec(name)
    if spec is not None and spec.submodule_search_locations:
        return package_folder(name)
    return Path(spec.origin) if spec and spec.origin else None


def _below(package: str, name: str) -> bool:
    return name == package or name.startswith(f"{package}.")

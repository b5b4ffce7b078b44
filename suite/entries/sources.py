"""Hashes the code that a run reaches: what evidence depends on, and nothing else.

A run of a stack on a baseline begins where jobs become runs (:mod:`suite.entries.jobs`), in the baseline's module and
those of the techniques. What they use is followed by its names, definition by definition, through all modules of these
packages; what a module does when it is loaded counts with the first of its definitions. The hash is of the definitions
and of what the names in them stand for. No module's name is in it, so code may move; nor is what a function calls its
variables (:mod:`suite.entries.names`), so they may be renamed. A function's own name is: of two with one text, each may
use another. Imports inside of functions bring what only a GPU needs (Triton's kernels), so they count there and nowhere
else.

What describes (cards, the catalogue) and what records decides no number. Meters count and do not steer, nor does what
reads recorded steps: these are a layer of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from suite.entries.adapting import tasks_module
from suite.entries.catalogue import catalogue, lookup
from suite.entries.code import Source, fields_of_type, read_source
from suite.entries.installed import baseline_modules
from suite.entries.module_files import file_of, package_of
from suite.entries.names import Chain
from suite.record.job import IMPLEMENTATION, OWN, PART, Setting, Spelling
from suite.record.schema import Code

LOOP = "suite.entries.jobs"
CHECKPOINT = "suite.entries.pretrained"  # what an adapt run starts from
RECORDING = "suite.reading.recording"
UPDATES = "suite.entries.updates"  # where a part of a step is run alone
METERS = "suite.meters"
OUTSIDE = ("suite.record", "suite.entries.card", "suite.entries.catalogue", "suite.entries.sources")
"""What describes and records."""

Definition = tuple[str, int]
"""A definition: its module, and its number there."""

CodeOf = Callable[[Setting, str], Code | None]
"""``(setting, stack)`` -> hashes of the installed code; None where the baseline or a technique is not installed."""


def code_of(setting: Setting, stack: str) -> Code:
    """Returns the hashes of the code that a run of ``stack`` loads in this setting. Raises UnknownId."""
    return _code(roots_of(setting, stack), _instruments(stack), setting.device != "cpu")


def roots_of(setting: Setting, stack: str) -> frozenset[str]:
    """Returns the modules with which a run of ``stack`` loads all others. Raises UnknownId."""
    entries = catalogue()
    techniques = [lookup("technique", name, entries).module for name in Spelling(stack).names]
    baseline = lookup("baseline", setting.baseline, baseline_modules())
    besides = [lookup("baseline", name, baseline_modules()) for name in trained_besides(stack)]
    adapting = [CHECKPOINT, tasks_module(baseline)] if setting.task == "adapt" else []
    elsewhere = packages_in(stack)
    return frozenset([LOOP, baseline, *besides, *filter(None, adapting), *techniques, *elsewhere])


def packages_in(stack: str) -> list[str]:
    """Returns the modules with which other packages' implementations, or parts of a step alone, are run."""
    modules: list[str] = []
    for name, settings in Spelling(stack).parts:
        entry = catalogue().get(name)
        if entry and settings.get(IMPLEMENTATION, OWN) != OWN and (entry.folder / "packages.py").is_file():
            modules.append(entry.module.removesuffix("technique") + "packages")
        modules += [UPDATES] if PART in settings else []
    return modules


def trained_besides(stack: str) -> list[str]:
    """Returns the baselines that techniques of the stack train besides the run's own: what their hyper-parameters of
    the type :data:`suite.record.job.BaselineName` say."""
    named: list[str] = []
    for name, settings in Spelling(stack).parts:
        path = file_of(catalogue()[name].module) if name in catalogue() else None
        own = fields_of_type(path, "BaselineName") if path else {}
        named += [settings.get(field, default) for field, default in own.items()]
    return named


def installed_code(setting: Setting, stack: str) -> Code | None:
    """Returns the hashes of :func:`code_of`; None where the baseline or a technique is not installed."""
    try:
        return code_of(setting, stack)
    except LookupError:
        return None


@cache
def _code(roots: frozenset[str], instruments: frozenset[str], kernels: bool) -> Code:
    steering, counting = Reach((METERS, *OUTSIDE), kernels), Reach(OUTSIDE, kernels)
    return Code(trajectory=steering.sha256(roots), counts=counting.sha256(roots | instruments))


def _instruments(stack: str) -> frozenset[str]:
    """Returns the modules that read recorded steps of the stack: they count, and no run loads them."""
    entries = catalogue()
    readers = {entries[name].instruments for name in Spelling(stack).names if name in entries} - {None}
    return frozenset([RECORDING, *readers]) if readers else frozenset()  # type: ignore[list-item]


# what is reached -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reach:
    """Follows what definitions use, but for the packages and modules ``outside``; with ``kernels`` also what their
    functions import when they are called."""

    outside: tuple[str, ...]
    kernels: bool = False

    def sha256(self, roots: frozenset[str]) -> str:
        """Returns the hash of all that is reached from the modules ``roots``."""
        hashes = sorted(_used(self, definition)[0] for definition in self.definitions(roots))
        return hashlib.sha256("".join(hashes).encode()).hexdigest()[:32]

    def definitions(self, roots: frozenset[str]) -> frozenset[Definition]:
        """Returns the definitions that are reached from the modules ``roots``."""
        return frozenset().union(*(_reached(self, root) for root in roots))

    def leaves_out(self, module: str) -> bool:
        """Tells whether a module is outside."""
        return any(module == package or module.startswith(f"{package}.") for package in self.outside)


@cache
def _reached(reach: Reach, root: str) -> frozenset[Definition]:
    """Returns the definitions that are reached from a module."""
    waiting = _all_of(root)
    reached = set(waiting)
    while waiting:
        new = _used(reach, waiting.pop())[1] - reached
        reached |= new
        waiting += new
    return frozenset(reached)


@cache
def _used(reach: Reach, definition: Definition) -> tuple[str, frozenset[Definition]]:
    """Returns the hash of a definition and of what its names stand for, and the definitions that it needs."""
    module, number = definition
    statement = _code_in(module).statements[number]
    standing = [(chain[0], *_standing(module, chain)) for chain in statement.uses]
    meant: set[str] = set()
    if reach.kernels:
        standing += [(name, *_named(dotted.split("."))) for name, dotted in statement.when_called]
        meant |= set(_beside(module))
    needed = set(_at_loading(reach, module))
    for name, definitions, elsewhere in standing:
        inside = [definition for definition in definitions if not reach.leaves_out(definition[0])]
        needed |= set(inside)
        meant |= {f"{name}={meaning}" for meaning in (*map(_text_hash, inside), *elsewhere)}
    return _sha256("\0".join([statement.text, *sorted(meant)])), frozenset(needed)


def _standing(module: str, chain: Chain) -> tuple[list[Definition], list[str]]:
    """Finds what a name with its attributes stands for in a module: definitions of the project, and the names of what
    is somebody else's."""
    definitions: list[Definition] = []
    elsewhere: list[str] = []
    for bound in _code_in(module).bindings.get(chain[0], ()):
        if isinstance(bound, int):
            definitions.append((module, bound))
        else:
            more, others = _named(bound.split("."), chain[1:])
            definitions, elsewhere = definitions + more, elsewhere + others
    return definitions, elsewhere


def _named(parts: list[str], attributes: Chain = ()) -> tuple[list[Definition], list[str]]:
    """Does as :func:`_standing`, of a dotted name that is imported and the attributes read off it. A module that is
    used as a whole stands for all that it defines."""
    whole = [*parts, *attributes]
    for end in range(len(whole), 0, -1):
        module, rest = ".".join(whole[:end]), tuple(whole[end:])
        if _source(module) is None:
            continue
        return _standing(module, rest) if rest and rest[0] in _code_in(module).bindings else (_all_of(module), [])
    return [], [".".join(parts)]


@cache
def _at_loading(reach: Reach, module: str) -> frozenset[Definition]:
    """Returns what is done when a module is loaded: by it, its packages, and what it imports and does not use."""
    waiting, loaded, done = [module], set[str](), set[Definition]()
    while waiting:
        name = waiting.pop()
        if name in loaded or reach.leaves_out(name) or _source(name) is None:
            continue
        loaded.add(name)
        source = _code_in(name)
        done |= {(name, number) for number, statement in enumerate(source.statements) if statement.effect}
        used = {chain[0] for statement in source.statements for chain in statement.uses}
        unused = [bound for binding, every in source.bindings.items() if binding not in used for bound in every]
        waiting += [*_parents(name), *(bound for bound in unused if isinstance(bound, str))]
    return frozenset(done)


def _all_of(module: str) -> list[Definition]:
    return [(module, number) for number in range(len(_code_in(module).statements))]


def _text_hash(definition: Definition) -> str:
    return _sha256(_code_in(definition[0]).statements[definition[1]].text)


@cache
def _beside(module: str) -> tuple[str, ...]:
    """Returns the hashes of the CUDA sources beside a kernel's module."""
    path = file_of(module)
    sources = sorted(path.parent.glob("*.cu")) if path and path.name == "kernel.py" else []
    return tuple(hashlib.sha256(source.read_bytes()).hexdigest() for source in sources)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts)))


# files ---------------------------------------------------------------------------------------------------------------


@cache
def _source(name: str) -> Source | None:
    """Returns what a module of the project or of a plug-in holds; None where ``name`` is none."""
    path = file_of(name) if package_of(name) in _packages() else None
    return read_source(path) if path else None


def _code_in(module: str) -> Source:
    source = _source(module)
    assert source is not None, module
    return source


def _packages() -> frozenset[str]:
    """Returns the packages whose code is followed: the project's, and those of what is installed beside it."""
    modules = [*(entry.module for entry in catalogue().values()), *baseline_modules().values()]
    return frozenset([package_of(LOOP), *map(package_of, modules)])

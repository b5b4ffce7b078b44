"""Builds techniques as other packages have them: ``lion:implementation=timm`` is Lion with timm's optimizer in place of
ours.

A technique says who else can do it in one of two ways: by a field ``implementation``, a Literal of ``own`` and the
packages, or by a module ``packages.py`` beside it, whose ``PACKAGES`` has a Technique for each package's name. The
second is no part of the technique's own code, so that a new one leaves its evidence as it is. Where a package has
another form than our default, its ``FORMS`` has the settings at which ours is that one.

``part=update`` leaves of each step the optimizer's updates alone (:mod:`suite.entries.updates`): what two optimizers
differ in, without the passes that they share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from typing import Any, get_args, get_type_hints

from suite.entries.catalogue import Entry, catalogue, lookup
from suite.entries.spelling import build, configured
from suite.entries.updates import UpdatesAlone
from suite.loop.stack import Stack
from suite.loop.technique import Technique
from suite.record.job import IMPLEMENTATION, OWN, PART, UPDATE, Spelling, StackError, join

INSTALLED_AS = {"lion_pytorch": "lion-pytorch", "torch": "torch"}


def packages_of(entry: Entry) -> list[str]:
    """Returns the packages that can do what the technique does, installed or not."""
    hint = get_type_hints(entry.technique).get(IMPLEMENTATION)
    by_field = [name for name in get_args(hint) if name != OWN]
    return [*by_field, *(package for package in _beside(entry) if package not in by_field)]


def is_installed(package: str) -> bool:
    return find_spec(package) is not None


def how_to_install(package: str) -> str:
    return f"pip install {INSTALLED_AS.get(package, package)}"


def assembled(stack: str) -> Stack:
    """The stack, where a technique of it names a package as its implementation with that one in its place.

    Raises what `build` does, and StackError for a package that is not installed, or has it not.
    """
    parts = Spelling(stack).parts
    if not any({IMPLEMENTATION, PART} & settings.keys() for _, settings in parts):
        return build(stack)
    members: dict[str, Technique] = {}
    for name, settings in parts:
        entry = lookup("technique", name, catalogue())
        own = {key: value for key, value in settings.items() if key != PART}
        members[name] = _of_package(entry, own) or configured(entry.technique, name, own)
        if PART in settings:
            members[f"{name}_{PART}"] = _part(name, settings[PART])
    return Stack(members)


def _of_package(entry: Entry, settings: Mapping[str, str]) -> Technique | None:
    """Returns the technique by the package that its settings name; None where its own field says so, or none is
    named."""
    package = settings.get(IMPLEMENTATION, OWN)
    has_field = any(field.name == IMPLEMENTATION for field in fields(entry.technique))
    beside = _beside(entry)
    if package not in beside:
        if has_field:
            return None
        if package != OWN:
            known = ", ".join([OWN, *beside])
            raise StackError(f"{entry.id}:{IMPLEMENTATION}={package}: choose one of {known}")
    elif not is_installed(package):
        raise StackError(f"{package} is not installed: {how_to_install(package)}")
    rest = {key: value for key, value in settings.items() if key != IMPLEMENTATION}
    return configured(beside.get(package, entry.technique), entry.id, rest)


def _part(name: str, part: str) -> UpdatesAlone:
    if part != UPDATE:
        raise StackError(f"{name}:{PART}={part}: the only part of a step that runs alone is {UPDATE}")
    return UpdatesAlone()


def _beside(entry: Entry) -> Mapping[str, type[Technique]]:
    """Returns the ``PACKAGES`` of the module beside the technique."""
    known: Mapping[str, type[Technique]] = _said_beside(entry, "PACKAGES")
    return known


def _said_beside(entry: Entry, name: str) -> Mapping[str, Any]:
    """Returns what the module beside the technique says under a name; nothing where there is no such module."""
    if not (entry.folder / "packages.py").is_file():
        return {}
    said: Mapping[str, Any] = getattr(import_module(entry.module.removesuffix("technique") + "packages"), name, {})
    return said


def in_form_of(package: str, stack: str) -> Spelling:
    """Returns the stack of one technique, ours, in the form that the package has."""
    [(name, settings)] = Spelling(stack).parts
    return join([(name, {**_said_beside(catalogue()[name], "FORMS").get(package, {}), **settings})])


def done_by(package: str, stack: str) -> Spelling:
    """Returns the stack of one technique, as ``package`` does it."""
    [(name, settings)] = Spelling(stack).parts
    return join([(name, {**settings, IMPLEMENTATION: package})])


def updates_of(stack: str) -> Spelling:
    """Returns the stack of one technique, of whose steps the optimizer's updates remain."""
    [(name, settings)] = Spelling(stack).parts
    return join([(name, {**settings, PART: UPDATE})])

"""Makes the pairs that somebody asks for by name, and refuses before anything runs what cannot be measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from suite.entries.cards import with_cards
from suite.entries.catalogue import catalogue
from suite.entries.installed import baselines
from suite.entries.setting import check_size, chosen, setting_of, task_named
from suite.measure.contenders.contender import (
    check_batches,
    check_buildable,
    check_model_apart,
    check_ranks,
    distributing,
)
from suite.measure.missing import Pair, pairs_of
from suite.record.job import RECIPES, SIZES

Blame = Callable[[str, str], AbstractContextManager[None]]
"""Puts the place where a name was written, of a parameter and its value, in front of what is wrong with it."""


@dataclass(frozen=True)
class Names:
    """Names what a campaign is asked for. Where no technique or no baseline is named, all are meant.

    ``ranks``: processes that train one model together, of techniques that distribute it; the techniques' own where
    None.
    """

    techniques: Sequence[str] = ()
    baselines: Sequence[str] = ()
    sizes: Sequence[str] = ()
    recipes: Sequence[str] = ()
    ranks: int | None = None


def pairs_asked(names: Names, options: Mapping[str, Any], blame: Blame) -> tuple[list[Pair], dict[str, str]]:
    """Returns the pairs that are asked for, and by id why a technique of all is left out.

    ``options`` are those of :func:`suite.entries.setting.setting_of` but baseline, size and recipe. No pair is returned
    where no card of the techniques names one of the baselines. Raises as that function, and UnknownId, ValueError or
    ContenderFailed for what cannot be built or trained on so many ranks.
    """
    on = names.baselines or list(baselines())
    stacks, broken = _stacks(names)
    for parameter, kind, given, known in (
        ("on", "baseline", on, tuple(baselines())),
        ("sizes", "size", names.sizes, SIZES),
        ("recipe", "recipe", names.recipes, RECIPES),
    ):
        for name in given:
            with blame(parameter, name):
                chosen(kind, name, known)
    with blame("task", ""):
        task = task_named(options["task"])
    with blame("device", ""):
        setting = setting_of(baseline=on[0], **options)
    for stack in names.techniques:
        with blame("techniques", stack):
            check_buildable(stack)
    if (setting.data or setting.model) and not names.baselines:
        raise ValueError("--data and --model belong to one kind of baseline: choose it with -b")
    recipes = [chosen("recipe", name, RECIPES) for name in names.recipes or ("modern",)]
    sizes = [chosen("size", name, SIZES) for name in names.sizes or ("nano",)]
    pairs = [
        pair for size in sizes for pair in pairs_of(stacks, on, recipes, setting.but(size=size), task, names.ranks)
    ]
    _check_settings(pairs, blame)
    if names.techniques:
        check_ranks(dict.fromkeys(job for pair in pairs for job in pair.jobs))
    elif names.ranks:  # of all techniques, one that cannot have so many is a row
        check_batches({pair.setting for pair in pairs}, names.ranks)
    return pairs, broken


def _stacks(names: Names) -> tuple[Sequence[str], dict[str, str]]:
    """Returns the stacks that are meant, and why others are not: of all, one that is broken is a row."""
    if names.techniques:
        return names.techniques, {}
    sound, broken = with_cards(catalogue())
    if not names.ranks:
        return list(sound), broken
    stacks, failing = distributing(sound)
    return stacks, broken | failing


def _check_settings(pairs: Sequence[Pair], blame: Blame) -> None:
    """Raises where a baseline has no such size, or a user's model cannot take its own model's place."""
    for setting in dict.fromkeys(pair.setting for pair in pairs):
        with blame("sizes", setting.size):
            check_size(setting)
    for setting in dict.fromkeys(pair.setting.but(recipe="modern") for pair in pairs):
        with blame("model", ""):
            check_model_apart(setting)


def check_pairs(pairs: Sequence[Pair]) -> None:
    """Tries what pairs of one setting are made of: builds their stacks and the model, and sets up ranks.

    Raises UnknownId, StackError or ValueError for what a user can mend, ContenderFailed where code fails.
    """
    check_buildable(*dict.fromkeys(side for pair in pairs for side in pair.sides))
    check_model_apart(pairs[0].setting)
    check_ranks(dict.fromkeys(job for pair in pairs for job in pair.jobs))

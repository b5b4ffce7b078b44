"""Every hyper-parameter does something: with another value, and all others as they are, a short run ends otherwise,
answers otherwise or costs something else; or the card says where it acts (``acts``).

``python -m tests.fields ID --keep`` looks; ``fields.json`` has what it saw.
"""

from __future__ import annotations

import pytest

from suite.entries.catalogue import catalogue
from tests.fields import NO_VALUE, NOTHING, kept, others, seen, settable

KEPT = kept()


def silent(found: dict[str, str]) -> set[str]:
    return {name for name, what in found.items() if what.startswith((NOTHING, NO_VALUE))}


def test_cards_say_where_hyper_parameters_act_that_there_are() -> None:
    entries = catalogue().values()
    assert {f"{each.id}.{name}" for each in entries for name in each.card.acts.keys() - settable(each).keys()} == set()


def test_every_entry_is_in_the_table() -> None:
    assert KEPT.keys() == catalogue().keys()


@pytest.mark.parametrize("name", KEPT)
def test_what_changed_nothing_has_its_place_in_the_card(name: str) -> None:
    entry = catalogue()[name]
    assert KEPT[name].keys() == settable(entry).keys(), f"python -m tests.fields {name} --keep"
    assert silent(KEPT[name]) == entry.card.acts.keys()


@pytest.mark.whole
@pytest.mark.parametrize("name", KEPT)
def test_every_other_hyper_parameter_changes_something(name: str) -> None:
    assert silent(seen(catalogue()[name])) <= catalogue()[name].card.acts.keys()


def test_other_values_are_of_the_type_and_not_the_default() -> None:
    assert others(bool, True) == [False]
    assert 0.2 in others(float, 0.1) and 0.1 not in others(float, 0.1)
    assert {type(each) for each in others(int, 8)} == {int}
    assert others(str, "") == []

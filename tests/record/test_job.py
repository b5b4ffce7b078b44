"""What is run has one spelling, one setting and one seed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from suite.record.job import BASELINE, SIZES, Job, Setting, Spelling, StackError, canonical, join, split
from suite.record.schema import Conditions

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
WORDS = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"], exclude_characters="+,"), min_size=1)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False).map("{:+.2e}".format)
VALUES = WORDS | NUMBERS | st.lists(NUMBERS, min_size=2).map("/".join)
PARTS = st.tuples(NAMES, st.dictionaries(NAMES, VALUES, max_size=3))
STACKS = st.lists(PARTS, min_size=1, max_size=4, unique_by=lambda part: part[0])


@given(STACKS)
def test_a_stack_is_the_join_of_its_parts(parts: list[tuple[str, dict[str, str]]]) -> None:
    stack = Spelling(join(parts))
    assert split(stack) == parts and canonical(stack) == stack
    assert [part.parts[0] for part in stack.members] == (list(stack.parts) if len(parts) > 1 else [])
    assert stack.names == [name for name, _ in parts if name != "baseline"]
    assert all(stack.without(name).names == [other for other in stack.names if other != name] for name in stack.names)


def test_a_text_is_read_once_and_is_a_value_from_there_on() -> None:
    stack = Spelling("lion+lawa:k=4")
    assert (
        Spelling("lion+lawa:k=4") is stack is Spelling(stack) is Job(setting=Setting(baseline="gpt"), stack=stack).stack
    )
    assert stack == "lion+lawa:k=4" and copy.deepcopy(stack) is stack
    assert Spelling("") == BASELINE and not Spelling(BASELINE).names and not Spelling(BASELINE).parts


@given(STACKS, st.randoms())
def test_order_of_settings_and_blanks_have_no_meaning(parts: list[tuple[str, dict[str, str]]], coin: Any) -> None:
    loose = " + ".join(
        name + " : " * bool(own) + " , ".join(f"{key} = {own[key]}" for key in coin.sample([*own], len(own)))
        for name, own in parts
    )
    assert canonical(loose) == join(parts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" ", "names no technique"),
        ("a+", "a . stands between two techniques, and one of them is missing"),
        ("a+:x=1", "the name of a technique is missing"),
        ("a:x", "write hyper-parameters as a:name=value"),
        ("a:=1", "write hyper-parameters"),
        ("a:x=", "write hyper-parameters"),
        ("a:x=1,x=2", "x is set twice"),
        ("a+b+a", "a stands twice"),
        ("a+a :x=1", "a stands twice"),
    ],
)
def test_what_spells_no_stack_is_refused_at_the_door(text: str, message: str) -> None:
    with pytest.raises(StackError, match=message):
        Spelling(text)
    with pytest.raises(ValidationError):
        Job(setting=Setting(baseline="gpt"), stack=text)


def test_a_setting_changes_by_copies_and_settings_are_keys() -> None:
    setting = Setting(baseline="gpt")
    longer = setting.but(steps=9)
    assert (setting.steps, longer.steps) == (None, 9)
    assert {Job(setting=setting): 1}[Job(setting=longer.but(steps=None))] == 1
    with pytest.raises(ValidationError):
        setting.steps = 9  # type: ignore[misc]


def test_conditions_are_a_setting_with_what_decides_comparability() -> None:
    own = set(Conditions.model_fields) - set(Setting.model_fields)
    assert own == {"baseline_version", "data_sha256"}
    unknown = Conditions(baseline="x", size="huge", baseline_version=1, steps=1, data="d", data_sha256="")  # type: ignore[arg-type]
    assert unknown.size not in SIZES, "a record of a size that is unknown here is still a record"
    assert unknown.key != unknown.but(steps=2).key

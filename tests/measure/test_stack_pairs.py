"""A stack is measured with its parts, in one set of processes; what cannot be taken apart says what to do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.entries.catalogue import UnknownId
from suite.measure.missing import Pair, pairs_of_stack
from suite.record.job import Setting, Spelling, StackError

GPT = Setting(baseline="gpt")


def test_a_stack_is_measured_with_its_parts_against_one_reference() -> None:
    pairs = pairs_of_stack(GPT, "lion+lawa:k=4")
    assert pairs == [Pair(GPT, each) for each in ("lion", "lawa:k=4", "lion+lawa:k=4")]


@pytest.mark.parametrize(
    ("stack", "error", "words"),
    [
        ("lion", ValueError, "measure one alone with: leantrain compare lion"),
        ("baseline", ValueError, "a stack joins two techniques or more by \\+"),
        ("lion+lawe", UnknownId, "no technique is called 'lawe'; did you mean lawa"),
        ("zero1+lawa", ValueError, "zero1 is measured against dp_ddp, lawa is measured against baseline: .* Name one"),
        ("lora+lion", ValueError, "lora is measured in the task adapt, lion is .* pretrain: .* Choose it with --task"),
    ],
)
def test_what_has_no_interaction_says_what_to_do(stack: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        pairs_of_stack(GPT, stack)


def test_a_named_reference_or_task_settles_it() -> None:
    assert {pair.reference for pair in pairs_of_stack(GPT, "zero1+lawa", against="dp_ddp")} == {"dp_ddp"}
    assert {pair.setting.task for pair in pairs_of_stack(GPT, "lora+lion", task="adapt")} == {"adapt"}


@settings(max_examples=50)
@given(st.text(alphabet="ab+:=, \\"))
def test_any_text_is_a_stack_or_refused_as_none(text: str) -> None:
    try:
        stack = Spelling(text)
    except StackError:
        return
    assert [part.parts[0] for part in stack.members] == (list(stack.parts) if len(stack.parts) > 1 else [])

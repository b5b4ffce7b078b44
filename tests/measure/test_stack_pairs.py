"""A stack is measured with its parts in one comparison; what cannot be taken apart says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suite.measure.comparison import Comparison

from suite.contract.catalogue import UnknownId
from suite.measure.campaign import measure
from suite.measure.plan import Pair, comparison_of, pairs_of_stack, seeds_done_together
from suite.record.job import Setting, StackError, parts_of
from suite.record.schema import Outcome, Record
from suite.record.store import Store
from tests.factories import contender, record

GPT = Setting(baseline="gpt")


def run(stack: str) -> Outcome:
    """A contender whose sources are its parts'."""
    sources = dict.fromkeys([] if stack == "baseline" else stack.split("+"), "1" * 64)
    return contender(stack, sources=sources)


def test_a_stack_is_measured_with_its_parts_against_one_reference() -> None:
    pairs = pairs_of_stack(GPT, "lion+lawa:k=4")
    assert pairs == [Pair(GPT, each) for each in ("lion", "lawa:k=4", "lion+lawa:k=4")]
    assert comparison_of(pairs).stacks == ("baseline", "lion", "lawa:k=4", "lion+lawa:k=4")


@pytest.mark.parametrize(
    ("stack", "error", "words"),
    [
        ("lion", ValueError, "measure one alone with: leantrain compare lion"),
        ("baseline", ValueError, "a stack joins two techniques or more by \\+"),
        ("lion+adamw", StackError, "lion and adamw cannot be stacked: each replaces the optimizer; keep one of them"),
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
def test_no_spelling_of_a_stored_stack_is_an_error(text: str) -> None:
    parts_of(text)


def test_a_seed_is_done_where_one_record_holds_all(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [Pair(GPT, each) for each in ("a", "b", "a+b")]
    held = {0: ("a", "b", "a+b"), 1: ("a", "b"), 2: ("a+b",), 3: ("a", "b", "c", "a+b")}
    records = [record([run("baseline"), *map(run, stacks)], seed) for seed, stacks in held.items()]
    known = lambda pairs, records: {pair: {each.seed for each in records} for pair in pairs}  # noqa: E731
    monkeypatch.setattr("suite.measure.plan.seeds_done", known)
    assert seeds_done_together(wanted, records) == {pair: {0, 3} for pair in wanted}


def test_parts_and_whole_are_measured_together_although_a_part_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, ...]] = []

    def trained(comparison: Comparison, seed: int, *_: Any) -> Record:
        asked.append(comparison.stacks)
        return record([run(stack) for stack in comparison.stacks], seed)

    known = lambda pairs, records: {pair: {each.seed for each in records} for pair in pairs}  # noqa: E731
    monkeypatch.setattr("suite.measure.plan.seeds_done", known)
    monkeypatch.setattr("suite.measure.campaign.train_in_lock_step", trained)
    Store(tmp_path).append(record([run("baseline"), run("a")], 0))
    stacks = ("a", "b", "c", "a+b+c")  # more than usually share a reference
    wanted = [Pair(GPT, each) for each in stacks]
    for _ in range(2):  # the second time nothing is left to do
        measure(wanted, tmp_path, seeds=2, minutes=1, one_comparison=True)
    assert asked == [("baseline", *stacks)] * 2

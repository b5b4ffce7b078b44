"""What cannot be stacked is refused in a sentence, and what can is not."""

from __future__ import annotations

import pytest

from suite.entries.together import built, run_of
from suite.loop.stack import Stack
from suite.loop.technique import Technique
from suite.record.job import Job, Setting, StackError

SETTING = Setting(baseline="gpt", size="pico", steps=4)


@pytest.mark.parametrize("stack", ["revolve+vdnn", "rotor+lion+revolve"])
def test_blocks_have_one_schedule(stack: str) -> None:
    with pytest.raises(StackError, match=r"^\w+ and \w+ cannot be stacked: each plans how the same blocks run"):
        built(stack)


@pytest.mark.parametrize("stack", ["revolve+lion", "revolve:budget=1+vdnn"])
def test_one_that_plans_goes_with_others_and_with_one_that_does_nothing(stack: str) -> None:
    assert len(built(stack).techniques) == 2


def test_blocks_go_before_they_are_changed() -> None:
    with pytest.raises(StackError, match="put first what takes them away, or leave it out"):
        run_of(Job(setting=SETTING, stack="early_bird+progressive_stacking"))
    assert run_of(Job(setting=SETTING, stack="progressive_stacking+early_bird")).step == 0


class Broken(Technique):
    def model(self, model: object, run: object) -> object:  # type: ignore[override]
        raise AttributeError("its own")


def test_an_error_of_a_technique_s_own_stays() -> None:
    stack = Stack({"one": Broken(), "other": Technique()})
    with pytest.raises(AttributeError, match="its own"):
        run_of(Job(setting=SETTING, stack="lion+lawa"), technique=stack)

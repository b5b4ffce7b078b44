"""What cannot be stacked is refused in a sentence, and what can is not."""

from __future__ import annotations

import pytest

from suite.entries.together import built, run_of
from suite.loop.sites import NotAttached
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


@pytest.mark.parametrize("stack", ["zero3_fsdp+sam", "esam+zero3_fsdp", "zero3_fsdp+vit_sam+lion", "gact+zero3_fsdp"])
def test_ranks_with_shards_have_no_gradients_of_their_own_examples(stack: str) -> None:
    with pytest.raises(StackError, match=r"^zero3_fsdp and \w+ cannot be stacked: a technique acts on the"):
        built(stack)


@pytest.mark.parametrize("stack", ["zero2+sam", "zero3_fsdp+sam:rho=0", "zero3_fsdp+gact:adaptive=false"])
def test_others_have_them_or_nobody_asks(stack: str) -> None:
    assert len(built(stack).techniques) == 2


@pytest.mark.parametrize("stack", ["prefix_tuning+prompt_tuning", "prompt_tuning+prefix_tuning"])
def test_what_another_one_freezes_is_told_before_the_first_step(stack: str) -> None:
    first = stack.partition("+")[0]
    with pytest.raises(NotAttached, match=rf"^{first} trains \S+, which another technique of this stack has frozen"):
        run_of(Job(setting=SETTING.but(task="adapt"), stack=stack))


class Broken(Technique):
    def model(self, model: object, run: object) -> object:  # type: ignore[override]
        raise AttributeError("its own")


def test_an_error_of_a_technique_s_own_stays() -> None:
    stack = Stack({"one": Broken(), "other": Technique()})
    with pytest.raises(AttributeError, match="its own"):
        run_of(Job(setting=SETTING, stack="lion+lawa"), technique=stack)

"""Stacks of a technique with ranks and one that saves memory: they train to the reference's losses, or say why not."""

from __future__ import annotations

import pytest

from suite.measure.contenders.contender import Contender, ContenderFailed
from suite.record.job import Job, Setting, Task

STEPS = 4


def losses(stack: str, task: Task = "pretrain") -> list[float]:
    """Of a real run on two ranks, which is evaluated, too."""
    setting = Setting(baseline="gpt", size="pico", recipe="classic", steps=6, task=task)
    with Contender(Job(setting=setting, stack=stack)) as contender:
        contender.prepare(weights=False)
        contender.set_up()
        found = contender.block(STEPS).losses
        assert contender.evaluate("validation", STEPS).loss > 0
    return found


@pytest.mark.parametrize(
    ("stack", "alone", "within"),
    [
        ("zero2+ckpt_chen_sqrt", "zero2", 0.0),  # recomputation changes no bit
        ("ckpt_chen_sqrt+zero2", "zero2", 0.0),
        ("dp_ddp+adam8bit_blockwise", "adam8bit_blockwise", 1e-4),
    ],
)
def test_what_works_trains_as_its_part_does(stack: str, alone: str, within: float) -> None:
    assert losses(stack) == pytest.approx(losses(alone), rel=within, abs=0.0)


@pytest.mark.parametrize(
    ("stack", "task", "words"),
    [
        (
            "tp_megatron+lora",
            "adapt",
            "tp_megatron and lora cannot be stacked: ranks cannot divide the layers that are left",
        ),
        ("lora+tp_megatron", "adapt", "tp_megatron and lora cannot be stacked"),
        ("gpipe+amp_bf16", "pretrain", "has the layers of its own stages alone, and what makes them bf16 acts on"),
        ("amp_bf16+gpipe", "pretrain", "take a recipe that trains in bf16 itself"),
    ],
)
def test_what_does_not_is_refused_with_the_reason(stack: str, task: Task, words: str) -> None:
    with pytest.raises(ContenderFailed, match=words):
        losses(stack, task)
